//! Edge cases in the memory store: keys that share a budget because the table is full, refunds after a reset, and
//! capacities that no memory holds.

use std::time::Duration;

use tower_sluice::algorithm::{Algorithm, FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::limiter::Ask;
use tower_sluice::store::{MemoryStore, MemoryTable, WhenFull};
use tower_sluice::testing::take_quotas;
use tower_sluice::time::{ManualClock, Timestamp};
use tower_sluice::{Decision, Limiter, PartitionKey, Quota, RateLimiter};

use crate::common::charge;

type Limited<A> = RateLimiter<A, MemoryTable<<A as Algorithm>::State, ManualClock>>;

fn ask(limiter: &impl Limiter, key: u64) -> Decision {
    charge(limiter, key, 1)
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

/// Which table a store has.
#[derive(Clone, Copy, PartialEq)]
enum Keys {
    /// For keys with their own quotas.
    HaveQuotas,
    HaveNone,
}

fn small<A: Algorithm>(algorithm: A, clock: &ManualClock, keys: Keys) -> Limited<A> {
    let store = MemoryStore::with_capacity(8).when_full(WhenFull::Overflow).with_clock(clock.clone());
    let limiter = RateLimiter::new(algorithm, store);
    assert!(keys == Keys::HaveNone || take_quotas(&limiter));
    limiter
}

/// Fills a table. Returns it with its clock, the keys in it, and a new key that has an overflow slot to itself and has
/// used it up.
fn full<A: Algorithm>(algorithm: A, keys: Keys) -> (Limited<A>, ManualClock, Vec<u64>, u64) {
    let clock = noon();
    let limiter = small(algorithm, &clock, keys);
    let shares = |key: u64| {
        let before = limiter.turned_away();
        let _ = ask(&limiter, key);
        limiter.turned_away() > before
    };
    // Once five keys have found no slot, hardly one is left.
    let mut held = Vec::new();
    let mut without_slot = 0;
    for key in 0..500 {
        without_slot += u64::from(shares(key));
        if without_slot == 5 {
            break;
        }
        held.push(key);
    }
    let new_key = (1_000..2_000).find(|key| ask(&limiter, *key).remaining() == 9 && shares(*key)).unwrap();
    for _ in 0..8 {
        assert!(ask(&limiter, new_key).is_allowed());
    }
    assert!(!ask(&limiter, new_key).is_allowed());
    limiter.check_invariants();
    (limiter, clock, held, new_key)
}

fn sees_the_overflow_slot<A: Algorithm>(algorithm: A, keys: Keys) {
    let (limiter, _, _, new_key) = full(algorithm, keys);
    let (rejected, peeked) = (ask(&limiter, new_key), peek(&limiter, new_key));
    assert_eq!((peeked.is_allowed(), peeked.remaining()), (false, 0));
    assert_eq!(peeked.retry_after(), rejected.retry_after());
    assert!(limiter.decide(&Ask::reset(&PartitionKey::from(new_key))).at_once().is_some());
    assert_eq!(peek(&limiter, new_key).remaining(), 9);
    let charged = ask(&limiter, new_key);
    limiter.refund(&Ask::charge(&PartitionKey::from(new_key), 1), charged.receipt(), 1);
    assert_eq!(ask(&limiter, new_key).remaining(), 9, "the refund is lost");
    limiter.check_invariants();
}

#[test]
fn overflow_slots_answer_peeks_resets_refunds() {
    for keys in [Keys::HaveNone, Keys::HaveQuotas] {
        sees_the_overflow_slot(bucket(), keys);
        sees_the_overflow_slot(FixedWindow::new(Quota::per_day(10)), keys);
        sees_the_overflow_slot(SlidingWindow::new(Quota::per_day(10)), keys);
        sees_the_overflow_slot(FixedWindow::new(Quota::per_day(10)).staggered(), keys);
    }
}

/// Once other keys are reset, the key gets its own slot, and must not get its burst again.
fn has_its_burst_once<A: Algorithm + Copy>(algorithm: A, keys: Keys) {
    // With a probability of one in 512, a key that is reset may share the new key's overflow slot.
    let tried = (0..5).find_map(|_| {
        let (limiter, _, held, new_key) = full(algorithm, keys);
        held.iter().for_each(|key| drop(limiter.decide(&Ask::reset(&PartitionKey::from(*key)))));
        let (mut taken, before) = (0, limiter.turned_away());
        while ask(&limiter, new_key).is_allowed() {
            taken += 1;
        }
        assert_eq!(limiter.turned_away(), before, "there is room");
        limiter.check_invariants();
        (taken == 0).then_some(())
    });
    assert!(tried.is_some(), "it has its burst again");
}

#[test]
fn a_key_leaving_overflow_keeps_debt() {
    for keys in [Keys::HaveNone, Keys::HaveQuotas] {
        has_its_burst_once(bucket(), keys);
        has_its_burst_once(FixedWindow::new(Quota::per_day(10)), keys);
        has_its_burst_once(SlidingWindow::new(Quota::per_day(10)), keys);
        has_its_burst_once(FixedWindow::new(Quota::per_day(10)).staggered(), keys);
    }

    // By time alone: the others owed one unit each, and have paid after an hour, in which the key earns one unit.
    let (limiter, clock, _, new_key) = full(bucket(), Keys::HaveNone);
    clock.advance(Duration::from_secs(3_600));
    assert!(ask(&limiter, new_key).is_allowed());
    assert!(!ask(&limiter, new_key).is_allowed());
}

/// Returns whether a key that has used up its overflow slot passes after a live change.
fn passes_again<A: Algorithm + Copy>(from: A, to: A, before: Keys, after: Keys) -> bool {
    let (limiter, clock, _, new_key) = full(from, before);
    let heir = small(to, &clock, after);
    heir.inherit(&limiter).unwrap().finish();
    ask(&heir, new_key).is_allowed()
}

/// A live change does not give the key a second burst.
#[test]
fn a_slotless_key_has_one_burst() {
    use Keys::{HaveNone, HaveQuotas};
    let day = Quota::per_day(10);
    // Windows that are too short for words.
    let short = Quota::per(10, Duration::from_nanos(10));
    for (before, after) in
        [(HaveNone, HaveNone), (HaveNone, HaveQuotas), (HaveQuotas, HaveNone), (HaveQuotas, HaveQuotas)]
    {
        assert!(!passes_again(bucket(), bucket(), before, after));
        assert!(!passes_again(FixedWindow::new(day), FixedWindow::new(day), before, after));
        let staggered = FixedWindow::new(day).staggered();
        assert!(!passes_again(staggered, staggered, before, after));
        assert!(!passes_again(SlidingWindow::new(day), SlidingWindow::new(day), before, after));
        assert!(!passes_again(SlidingWindow::new(short), SlidingWindow::new(short), before, after));
    }
    assert!(!passes_again(FixedWindow::new(short), FixedWindow::new(day), HaveNone, HaveNone));
    assert!(!passes_again(FixedWindow::new(day), FixedWindow::new(short), HaveNone, HaveNone));
    assert!(passes_again(FixedWindow::new(day), FixedWindow::new(Quota::per_day(11)), HaveNone, HaveNone));
}

/// A full heir has no room for inherited keys, and evicts no key for them.
#[test]
fn a_full_heirs_keys_keep_debts() {
    for when_full in [WhenFull::Reject, WhenFull::Overflow] {
        keeps_what_it_holds(bucket(), when_full);
        keeps_what_it_holds(FixedWindow::new(Quota::per_day(10)), when_full);
        keeps_what_it_holds(SlidingWindow::new(Quota::per_day(10)), when_full);
    }
}

fn keeps_what_it_holds<A: Algorithm + Copy>(algorithm: A, when_full: WhenFull) {
    let clock = noon();
    let limiter = || {
        let store = MemoryStore::with_capacity(8).when_full(when_full).with_clock(clock.clone());
        RateLimiter::new(algorithm, store)
    };
    let uses_up = |limiter: &Limited<A>, key| charge(limiter, key, 10).is_allowed();
    let (before, heir) = (limiter(), limiter());
    assert!((0..6).all(|key| uses_up(&before, key)));
    heir.inherit(&before).unwrap().finish();
    // Until no slot is left.
    let mut held = Vec::new();
    for key in 100..400 {
        let turned_away = heir.turned_away();
        let is_admitted = uses_up(&heir, key);
        if is_admitted && heir.turned_away() == turned_away {
            held.push(key);
        }
    }
    assert!((8..60).contains(&held.len()), "{} keys", held.len());
    for _ in 0..3 {
        assert!((0..6).all(|key| !ask(&heir, key).is_allowed()), "it was used up before the change");
    }
    assert!(held.iter().all(|key| !ask(&heir, *key).is_allowed()), "a key was evicted");
    heir.check_invariants();
}

fn pays_once<A: Algorithm>(algorithm: A) {
    let key = PartitionKey::from(7_u64);
    let limiter = RateLimiter::new(algorithm, MemoryStore::with_capacity(100).with_clock(noon()));
    let early: Vec<_> = (0..10).map(|_| ask(&limiter, 7).receipt()).collect();
    assert!(limiter.decide(&Ask::reset(&key)).at_once().is_some());
    let late: Vec<_> = (0..10).map(|_| ask(&limiter, 7).receipt()).collect();
    assert!(!ask(&limiter, 7).is_allowed());
    early.into_iter().rev().for_each(|receipt| limiter.refund(&Ask::charge(&key, 1), receipt, 1));
    assert_eq!(peek(&limiter, 7).remaining(), 0, "what was reset was refunded as well");
    // A charge from after the reset is refunded.
    limiter.refund(&Ask::charge(&key, 1), *late.last().unwrap(), 1);
    assert_eq!(ask(&limiter, 7).remaining(), 0);
    assert!(!ask(&limiter, 7).is_allowed());
    limiter.check_invariants();
}

#[test]
fn refunds_from_before_a_reset_are_dropped() {
    pays_once(bucket());
    pays_once(FixedWindow::new(Quota::per_day(10)));
    pays_once(SlidingWindow::new(Quota::per_day(10)));
}

#[test]
#[cfg(target_pointer_width = "64")]
#[should_panic(
    expected = "a store holds 8589934592 keys at most, and not 18446744073709551615; choose a smaller capacity"
)]
fn an_impossible_capacity_is_rejected() {
    let _ = MemoryStore::with_capacity(usize::MAX);
}

/// The next test runs this in a process with little memory.
#[test]
#[ignore = "run by the next test"]
fn take_much_memory() {
    let bucket = bucket();
    match std::env::var("TABLE").as_deref() {
        Ok("bucket") => drop(RateLimiter::new(bucket, MemoryStore::with_capacity(1 << 30))),
        _ => {
            let window = FixedWindow::new(Quota::per_day(1));
            drop(RateLimiter::new(window, MemoryStore::with_capacity(1 << 28)));
        }
    }
}

// With 32 bits, such a capacity is refused before.
/// The message has the size, too.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
#[test]
fn a_failed_allocation_says_the_remedy() {
    for (table, keys) in [("bucket", 1_u64 << 30), ("window", 1 << 28)] {
        let this = std::env::current_exe().unwrap();
        let output = std::process::Command::new("sh")
            .args(["-c", "ulimit -v 4000000 && exec \"$0\" --exact edges::take_much_memory --ignored"])
            .arg(this)
            .env("TABLE", table)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        let is_named = text.lines().any(|line| {
            line.starts_with(&format!("a store for {keys} keys takes "))
                && line.ends_with("; choose a smaller capacity")
        });
        assert!(is_named && !output.status.success(), "{text}");
    }
}
