//! The memory store's resident memory. It runs in its own process, one measurement after the other, since the whole
//! process is measured.

#[path = "support/effort.rs"]
mod effort;
#[path = "support/process.rs"]
mod process;

use tower_sluice::algorithm::TokenBucket;
use tower_sluice::limiter::{Answer, Ask};
use tower_sluice::store::MemoryStore;
use tower_sluice::time::{ManualClock, Timestamp};
use tower_sluice::{Limiter, Quota, RateLimiter};

use crate::effort::rounds;
use crate::process::resident_kib;

fn admits(limiter: &impl Limiter, key: u64) -> bool {
    match limiter.decide(&Ask::charge(&key.into(), 1)) {
        Answer::Ready(Ok(decision)) => decision.is_allowed(),
        other => panic!("memory decides at once, but answered {other:?}"),
    }
}

fn frozen() -> ManualClock {
    ManualClock::starting_at(Timestamp::from_nanos(1_700_000_000_123_456_789))
}

#[cfg(target_os = "linux")]
#[test]
fn memory_is_bounded_and_allocated_on_demand() {
    an_idle_table_has_no_resident_memory();
    new_keys_allocate_no_more();
}

/// The system allocates memory when it is touched.
fn an_idle_table_has_no_resident_memory() {
    let before = resident_kib();
    let store = MemoryStore::with_capacity(50_000_000).with_clock(frozen());
    let limiter = RateLimiter::new(TokenBucket::new(Quota::per_hour(1)), store);
    assert!(limiter.size_in_bytes() >= 800_000_000);
    assert!((0..100).all(|key| admits(&limiter, key)));
    let grown = resident_kib().saturating_sub(before);
    assert!(grown < 4_096, "{grown} KiB for a hundred keys");
}

fn new_keys_allocate_no_more() {
    // With all rounds, eight million.
    let capacity = rounds(50_000, 500_000);
    let store = MemoryStore::with_capacity(capacity).with_clock(frozen());
    let limiter = RateLimiter::new(TokenBucket::new(Quota::per_hour(1)), store);
    let mut keys = 0..;
    let mut spray = |count: usize| keys.by_ref().take(count).filter(|key| admits(&limiter, *key)).count();
    // Every new key is admitted, except that one in sixteen million shares another key's slot.
    assert!(spray(4 * capacity) >= 4 * capacity - 10);
    let before = resident_kib();
    assert!(spray(16 * capacity) >= 16 * capacity - 10);
    let grown = resident_kib().saturating_sub(before);
    assert!(grown < 1_024, "grown by {grown} KiB after the table was full");
    assert!(limiter.evicted_live() > 16 * capacity as u64);
}
