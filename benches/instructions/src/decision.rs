//! The instructions for a decision, through a `dyn Limiter`, as policies hold it; the key is made from an address each
//! time.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use tower_sluice::algorithm::{Algorithm, CalendarWindow, FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::limiter::{Answer, Ask, Mode, RequestEnd};
use tower_sluice::store::MemoryStore;
use tower_sluice::time::{ManualClock, Timestamp};
use tower_sluice::{Concurrency, Limiter, Overload, PartitionKey, Quota, RateLimiter};

use crate::{Call, Row};

pub fn rows() -> Vec<Row> {
    let decision = |name, set_up| Row { name, set_up, warm_up: 100, counted: 10_000, beside: None };
    vec![
        decision("decision: one hot key", || charges(bucket(), one_key)),
        decision("decision: one hot key, a string of 20 bytes", || {
            charges(bucket(), |_| PartitionKey::from(black_box("client-0123456789abc")))
        }),
        decision("decision: one hot key, rejected", || {
            let limiter = in_memory(TokenBucket::new(Quota::per_hour(1)));
            charges(Arc::clone(&limiter), one_key)(1);
            repeat(limiter, one_key, |key| Ask::charge(key, 1), false)
        }),
        decision("decision: 100,000 keys, half full", || charges(half_full(), |i| address(i * 7 % KEYS))),
        decision("decision: 100,000 keys, a new one", || charges(half_full(), |i| address(KEYS + i))),
        decision("decision: fixed window", || charges(in_memory(FixedWindow::new(PER_HOUR)), one_key)),
        decision("decision: sliding window", || charges(in_memory(SlidingWindow::new(PER_HOUR)), one_key)),
        decision("decision: calendar window", || charges(in_memory(CalendarWindow::daily(u32::MAX as u64)), one_key)),
        decision("decision: a cost of five", || repeat(bucket(), one_key, |key| Ask::charge(key, 5), true)),
        decision("decision: a peek", || {
            let limiter = bucket();
            charges(Arc::clone(&limiter), one_key)(1);
            repeat(limiter, one_key, |key| Ask::peek(key, 1), true)
        }),
        decision("decision: up to five units", || {
            repeat(bucket(), one_key, |key| Ask::charge(key, 5).to(Mode::UpTo), true)
        }),
        decision("decision: a quota of the key's own", || {
            repeat(bucket(), one_key, |key| Ask::charge(key, 1).under(Some(OWN)), true)
        }),
        decision("in flight: a unit taken and returned", || {
            let limiter = Concurrency::new(100);
            Box::new(move |times| {
                for i in 0..times {
                    assert!(black_box(limiter.try_acquire(&one_key(i), 1)).is_some());
                }
            })
        }),
        decision("overload: a unit taken and released, while nobody waits", || {
            let limiter: Arc<dyn Limiter> = Arc::new(Overload::new());
            Box::new(move |times| {
                for i in 0..times {
                    let key = one_key(i);
                    let ask = Ask::charge(&key, 1);
                    let Answer::Ready(Ok(decision)) = black_box(&limiter).decide(&ask) else {
                        unreachable!("it is idle")
                    };
                    limiter.release(&ask, black_box(decision).receipt(), 1, RequestEnd::Served);
                }
            })
        }),
    ]
}

const ALL: Quota = Quota::per_second(1).burst(u32::MAX as u64);
const OWN: Quota = Quota::per_second(2).burst(u32::MAX as u64);
const PER_HOUR: Quota = Quota::per_hour(u32::MAX as u64);

/// A cache miss is one instruction, so more keys than this would take time, but change no count.
const KEYS: u64 = 100_000;

/// Stands still, so that equal programs count alike.
pub fn clock() -> ManualClock {
    ManualClock::starting_at(Timestamp::from_nanos(1_700_000_000_000_000_000))
}

fn in_memory<A: Algorithm>(algorithm: A) -> Arc<dyn Limiter> {
    Arc::new(RateLimiter::new(algorithm, MemoryStore::default().with_clock(clock())))
}

fn bucket() -> Arc<dyn Limiter> {
    in_memory(TokenBucket::new(ALL))
}

/// A limiter with room for `KEYS` keys, which all have used it.
fn half_full() -> Arc<dyn Limiter> {
    let store = MemoryStore::with_capacity(KEYS as usize).with_clock(clock());
    let limiter: Arc<dyn Limiter> = Arc::new(RateLimiter::new(TokenBucket::new(ALL), store));
    charges(Arc::clone(&limiter), address)(KEYS);
    limiter
}

fn address(index: u64) -> PartitionKey {
    PartitionKey::from(IpAddr::V4(Ipv4Addr::from(black_box(index) as u32)))
}

fn one_key(_: u64) -> PartitionKey {
    address(0xcb00_7107)
}

fn charges(limiter: Arc<dyn Limiter>, key: impl Fn(u64) -> PartitionKey + 'static) -> Call {
    repeat(limiter, key, |key| Ask::charge(key, 1), true)
}

/// Asks `times` times, each time about the next key.
fn repeat(
    limiter: Arc<dyn Limiter>,
    key: impl Fn(u64) -> PartitionKey + 'static,
    ask: impl Fn(&PartitionKey) -> Ask<'_> + 'static,
    admits: bool,
) -> Call {
    let mut next = 0;
    Box::new(move |times| {
        for _ in 0..times {
            let Answer::Ready(Ok(decision)) = limiter.decide(&ask(&key(next))) else {
                unreachable!("nothing waits here")
            };
            next += 1;
            assert_eq!(black_box(decision).is_allowed(), admits);
        }
    })
}
