//! Disguised requests: every request counts, with any method, fields and protocol, wherever the layer is mounted.

mod grpc;
mod mounts;
mod preflights;
mod table;
mod white_space;
mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tower_sluice::algorithm::TokenBucket;
use tower_sluice::key::PeerIp;
use tower_sluice::{Policy, Quota, RateLimitLayer};

/// Counts the requests that a layer has admitted.
#[derive(Clone, Default)]
struct Admitted(Arc<AtomicUsize>);

impl Admitted {
    fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// A daily limit per address.
fn per_client(limit: u64) -> RateLimitLayer {
    RateLimitLayer::new(policy(limit))
}

/// A daily limit per address that exempts this many preflights per day.
fn exempting(limit: u64, preflights: u64) -> RateLimitLayer {
    RateLimitLayer::builder(policy(limit)).exempt_preflights(Quota::per_day(preflights)).build()
}

fn policy(limit: u64) -> Policy {
    Policy::new("per-client", TokenBucket::new(Quota::per_day(limit))).key(PeerIp::new())
}
