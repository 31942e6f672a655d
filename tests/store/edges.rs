//! Edges of the memory store: keys that share a budget because the table is full, refunds that come after a reset, and
//! capacities that no memory holds.

use std::time::Duration;

use tower_sluice::algorithm::{Algorithm, FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::store::{MemoryStore, Store, WhenFull};
use tower_sluice::time::{ManualClock, Timestamp};
use tower_sluice::{Ask, Check, Decision, Limiter, PartitionKey, Quota, RateLimiter};

type Limited<A> = RateLimiter<A, MemoryStore<<A as Algorithm>::State, ManualClock>>;

fn ask(limiter: &impl Limiter, key: u64) -> Decision {
    match limiter.decide(&Ask::charge(&PartitionKey::from(key), 1)) {
        Check::Ready(Ok(decision)) => decision,
        other => panic!("memory decides at once, but answered {other:?}"),
    }
}

fn peek(limiter: &impl Limiter, key: u64) -> Decision {
    limiter.decide(&Ask::peek(&PartitionKey::from(key), 1)).at_once().unwrap()
}

/// At noon, so that no window ends meanwhile.
fn noon() -> ManualClock {
    ManualClock::starting_at(Timestamp::ZERO.saturating_add(Duration::from_secs(20_000 * 86_400 + 43_200)))
}

fn bucket() -> TokenBucket {
    TokenBucket::new(Quota::per_hour(1).burst(10))
}

/// A full table, the keys in it, and a key that shares a budget with nobody else and has used it up.
fn full<A: Algorithm>(algorithm: A) -> (Limited<A>, ManualClock, Vec<u64>, u64) {
    let clock = noon();
    let store = MemoryStore::with_capacity(8).when_full(WhenFull::Overflow).with_clock(clock.clone());
    let limiter = RateLimiter::new(algorithm, store);
    let shares = |key: u64| {
        let before = limiter.store().turned_away();
        let _ = ask(&limiter, key);
        limiter.store().turned_away() > before
    };
    // Once five come in vain, hardly a slot is left.
    let mut held = Vec::new();
    let mut in_vain = 0;
    for key in 0..500 {
        in_vain += u32::from(shares(key));
        if in_vain == 5 {
            break;
        }
        held.push(key);
    }
    let newcomer = (1_000..2_000).find(|key| ask(&limiter, *key).remaining() == 9 && shares(*key)).unwrap();
    for _ in 0..8 {
        assert!(ask(&limiter, newcomer).is_allowed());
    }
    assert!(!ask(&limiter, newcomer).is_allowed());
    (limiter, clock, held, newcomer)
}

fn is_seen<A: Algorithm>(algorithm: A) {
    let (limiter, _, _, newcomer) = full(algorithm);
    let (rejected, peeked) = (ask(&limiter, newcomer), peek(&limiter, newcomer));
    assert_eq!((peeked.is_allowed(), peeked.remaining()), (false, 0));
    assert_eq!(peeked.retry_after(), rejected.retry_after());
    assert!(limiter.decide(&Ask::reset(&PartitionKey::from(newcomer))).at_once().is_some());
    assert_eq!(peek(&limiter, newcomer).remaining(), 9);
    let charged = ask(&limiter, newcomer);
    limiter.refund(&PartitionKey::from(newcomer), charged.receipt(), 1);
    assert_eq!(ask(&limiter, newcomer).remaining(), 9, "the refund is lost");
}

#[test]
fn peek_reset_and_refunds_see_what_a_key_shares() {
    is_seen(bucket());
    is_seen(FixedWindow::new(Quota::per_day(10)));
    is_seen(SlidingWindow::new(Quota::per_day(10)));
    is_seen(FixedWindow::new(Quota::per_day(10)).staggered());
}

/// Once others are gone, it gets a slot of its own.
fn has_its_burst_once<A: Algorithm + Copy>(algorithm: A) {
    // One that is reset may share the newcomer's budget, with a probability of one in 512.
    let tried = (0..5).find_map(|_| {
        let (limiter, _, held, newcomer) = full(algorithm);
        held.iter().for_each(|key| drop(limiter.decide(&Ask::reset(&PartitionKey::from(*key)))));
        let (mut taken, before) = (0, limiter.store().turned_away());
        while ask(&limiter, newcomer).is_allowed() {
            taken += 1;
        }
        assert_eq!(limiter.store().turned_away(), before, "there is room");
        (taken == 0).then_some(())
    });
    assert!(tried.is_some(), "it has its burst once more");
}

#[test]
fn a_key_that_gets_a_slot_of_its_own_begins_with_what_it_shared() {
    has_its_burst_once(bucket());
    has_its_burst_once(FixedWindow::new(Quota::per_day(10)));
    has_its_burst_once(SlidingWindow::new(Quota::per_day(10)));
    has_its_burst_once(FixedWindow::new(Quota::per_day(10)).staggered());

    // By time alone: the others owed one unit each, and are gone after an hour, in which one comes in.
    let (limiter, clock, _, newcomer) = full(bucket());
    clock.advance(Duration::from_secs(3_600));
    assert!(ask(&limiter, newcomer).is_allowed());
    assert!(!ask(&limiter, newcomer).is_allowed());
}

fn pays_once<A: Algorithm>(algorithm: A) {
    let key = PartitionKey::from(7_u64);
    let limiter = RateLimiter::new(algorithm, MemoryStore::with_capacity(100).with_clock(noon()));
    let early: Vec<_> = (0..10).map(|_| ask(&limiter, 7).receipt()).collect();
    assert!(limiter.decide(&Ask::reset(&key)).at_once().is_some());
    let late: Vec<_> = (0..10).map(|_| ask(&limiter, 7).receipt()).collect();
    assert!(!ask(&limiter, 7).is_allowed());
    early.into_iter().rev().for_each(|receipt| limiter.refund(&key, receipt, 1));
    assert_eq!(peek(&limiter, 7).remaining(), 0, "what was reset is given back as well");
    // What was charged after it is.
    limiter.refund(&key, *late.last().unwrap(), 1);
    assert_eq!(ask(&limiter, 7).remaining(), 0);
    assert!(!ask(&limiter, 7).is_allowed());
}

#[test]
fn a_refund_that_comes_after_a_reset_gives_nothing_back() {
    pays_once(bucket());
    pays_once(FixedWindow::new(Quota::per_day(10)));
    pays_once(SlidingWindow::new(Quota::per_day(10)));
}

#[test]
#[cfg(target_pointer_width = "64")]
#[should_panic(
    expected = "a store holds 8589934592 keys at most, and not 18446744073709551615; choose a smaller capacity"
)]
fn a_capacity_beyond_all_memory_is_rejected() {
    let _ = MemoryStore::<()>::with_capacity(usize::MAX);
}

/// What the next test does in a process of its own, which may not have much memory.
#[test]
#[ignore = "run by the next test"]
fn take_much_memory() {
    let bucket = bucket();
    match std::env::var("TABLE").as_deref() {
        Ok("bucket") => MemoryStore::with_capacity(1 << 30).prepare(&bucket),
        _ => MemoryStore::with_capacity(1 << 28).prepare(&FixedWindow::new(Quota::per_day(1))),
    }
}

#[cfg(target_os = "linux")]
#[test]
fn memory_that_cannot_be_had_is_named_with_the_cure() {
    for (table, keys) in [("bucket", 1_u64 << 30), ("window", 1 << 28)] {
        let this = std::env::current_exe().unwrap();
        let output = std::process::Command::new("sh")
            .args(["-c", "ulimit -v 4000000 && exec \"$0\" --exact edges::take_much_memory --ignored"])
            .arg(this)
            .env("TABLE", table)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        let told = text.lines().any(|line| {
            line.starts_with(&format!("a store for {keys} keys takes "))
                && line.ends_with("; choose a smaller capacity")
        });
        assert!(told && !output.status.success(), "{text}");
    }
}
