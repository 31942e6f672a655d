//! Nothing is exempt by how it is dressed: a request counts whatever its method, its fields, its protocol, and wherever the
//! layer is mounted.

mod example;
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

/// How many requests a layer has admitted.
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

/// So many per day for each address.
fn per_client(limit: u32) -> RateLimitLayer {
    RateLimitLayer::new(policy(limit))
}

/// With as many preflights a day uncounted.
fn exempting(limit: u32, preflights: u32) -> RateLimitLayer {
    RateLimitLayer::builder(policy(limit)).exempt_preflights(Quota::per_day(preflights)).build()
}

fn policy(limit: u32) -> Policy {
    Policy::new("per-client", TokenBucket::new(Quota::per_day(limit))).key(PeerIp::new())
}
