//! Snapshot tests: restarts against histories without one, hostile files, interrupted writes.

mod beside;
mod files;
mod histories;
mod hostile;

use std::time::Duration;

use super::{Restored, Snapshots};
use crate::algorithm::Algorithm;
use crate::engine::policy::Policy;
use crate::http::{RateLimitLayer, SnapshotError};
use crate::limiter::{IntoLimiter, RateLimiter};
use crate::store::MemoryStore;
use crate::values::time::{ManualClock, Timestamp};
use crate::values::{Answer, Ask, Decision, Quota};

/// An instant in 2023, not at a window's edge.
const START: u64 = 1_700_000_000_123_456_789;

const SECOND: u64 = 1_000_000_000;

fn clock_at(nanos: u64) -> ManualClock {
    ManualClock::starting_at(Timestamp::from_nanos(nanos))
}

fn policy<A: Algorithm>(name: &'static str, algorithm: A, store: MemoryStore<ManualClock>) -> Policy {
    Policy::new(name, RateLimiter::new(algorithm, store).into_limiter())
}

fn store(clock: &ManualClock) -> MemoryStore<ManualClock> {
    MemoryStore::with_capacity(256).with_clock(clock.clone())
}

/// Asks a policy's limiter.
fn asks(layer: &RateLimitLayer, name: &str, key: u64, cost: u64, quota: Option<Quota>) -> Decision {
    let in_force = layer.complete().load();
    let policy = in_force.policy(name).expect("the layer has this policy");
    match policy.limiter.decide(&Ask::charge(&key.into(), cost).under(quota)) {
        Answer::Ready(Ok(decision)) => decision,
        other => panic!("memory decides at once, but answered {other:?}"),
    }
}

fn charge(layer: &RateLimitLayer, name: &str, key: u64, cost: u64) -> Decision {
    asks(layer, name, key, cost, None)
}

/// Writes a snapshot at a wall clock instant.
fn written(layer: &RateLimitLayer, wall: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    Snapshots::new().layer("", layer).with_wall(move || wall).write(&mut bytes).expect("memory takes all");
    bytes
}

/// Restores a snapshot at a wall clock instant.
fn restored(layer: &RateLimitLayer, bytes: &[u8], wall: u64) -> Result<Restored, SnapshotError> {
    Snapshots::new().layer("", layer).with_wall(move || wall).read(bytes)
}

fn nanos(nanos: u64) -> Duration {
    Duration::from_nanos(nanos)
}
