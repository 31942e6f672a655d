//! Tests against an emulator in this process, behind the SDK's own connector. Requests are serialised, signed and
//! answered as in production, but without a socket, so faults are exact and time can be paused.

mod clocks;
mod conformance;
#[path = "../../../../src/values/counterexamples.rs"]
mod counterexamples;
#[path = "../../../../tests/support/effort.rs"]
#[allow(unreachable_pub, reason = "shared with other tests")]
mod effort;
mod exact;
mod faults;
#[cfg(feature = "file")]
mod file;
mod items;
#[path = "../../../../tests/support/month.rs"]
#[allow(unreachable_pub, reason = "shared with other tests")]
mod month;
mod overrides;
mod proofs;
mod quotas;
mod records;
mod service;
mod standing;
mod tables;
mod wide;
mod writes;

use std::error::Error;
use std::time::Duration;

use tower_sluice::algorithm::Algorithm;
use tower_sluice::time::{Clock, ManualClock, Timestamp};
use tower_sluice::{Decision, LimiterError, LimiterExt, Quota, RateLimiter};

use self::service::Service;
use crate::{Dynamo, DynamoFault, DynamoStore, DynamoTable, FaultKind, Kept};

/// A realistic time, a third into a second, and not at the edge of any window.
const NOW: Timestamp = Timestamp::from_nanos(1_700_000_000_333_333_333);

const TABLE: &str = "limits";

const DAY: Duration = Duration::from_secs(86_400);

/// A limiter over a store.
type Over<A> = RateLimiter<A, DynamoTable<<A as Algorithm>::State>>;

/// A quota that restores nothing while a test runs.
fn per_day(limit: u64) -> Quota {
    Quota::per_day(limit)
}

/// A month's greatest quota.
fn greatest() -> Quota {
    Quota::per(Quota::MAX_UNITS, 30 * DAY)
}

/// A service with a table, and a clock for all.
async fn service() -> (Service, ManualClock) {
    let clock = ManualClock::starting_at(NOW);
    let service = Service::new(clock.clone());
    dynamo(&service, &clock).create_table().await.expect("an emulator with room for a table");
    service.forget_counts();
    (service, clock)
}

/// One process, which has all the time it needs.
fn dynamo(service: &Service, clock: &ManualClock) -> Dynamo {
    Dynamo::new(service.client(), TABLE).with_clock(clock.clone()).timeout(Duration::from_secs(60))
}

/// One process's limiter.
fn limiter<A: Kept>(dynamo: &Dynamo, algorithm: A) -> Over<A> {
    RateLimiter::new(algorithm, DynamoStore::new(dynamo, "test"))
}

/// Decides on one request with cost 1.
async fn ask<A: Kept>(limiter: &Over<A>) -> Result<Decision, LimiterError> {
    limiter.acquire(&"key".into(), 1).await.map(|permit| *permit)
}

/// Returns how many of `requests` sequential requests are admitted.
async fn admitted<A: Kept>(limiter: &Over<A>, requests: u64) -> u64 {
    let mut admitted = 0;
    for _ in 0..requests {
        admitted += u64::from(ask(limiter).await.expect("no call fails").is_allowed());
    }
    admitted
}

/// The fault's kind.
fn kind(error: &LimiterError) -> FaultKind {
    let fault = error.source().and_then(|source| source.downcast_ref::<DynamoFault>());
    fault.expect("a fault of DynamoDB is the source").kind()
}
