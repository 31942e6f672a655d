//! Balances in memory. Redis has the same test against the naive ledger: `crates/redis/tests/redis/balance.rs`.
//!
//! A mutex guards each step on a key, so there are no interleavings for loom to explore.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;

use super::*;
use crate::limiter::{Limiter, LimiterExt};
use crate::util::effort;
use crate::values::account::MOST_LOTS;
use crate::values::time::{ManualClock, Timestamp};
use crate::values::{Adjusted, Ask, Credit, LimiterError, Mode, PartitionKey, Quota};

#[cfg(feature = "test-util")]
mod against_ledger;
#[path = "../testing/ledger.rs"]
#[allow(
    clippy::duplicate_mod,
    dead_code,
    unreachable_pub,
    missing_debug_implementations,
    reason = "shared with the suite of accounts, which not all features have"
)]
mod ledger;

const SECOND: Duration = Duration::from_secs(1);

fn balance() -> (Balance, ManualClock) {
    let clock = ManualClock::starting_at(Timestamp::from_nanos(1_700_000_000_123_456_789));
    (Balance::new().with_clock(clock.clone()), clock)
}

fn credit(balance: &Balance, key: &PartitionKey, credit: Credit) -> Result<u64, LimiterError> {
    LimiterExt::credit(balance, key, credit).now_or_never().unwrap().map(|decision| decision.remaining())
}

fn decide(balance: &Balance, ask: &Ask<'_>) -> Decision {
    balance.decide(ask).at_once().unwrap()
}

fn charge(balance: &Balance, key: &PartitionKey, cost: u64) -> Decision {
    decide(balance, &Ask::charge(key, cost))
}

fn debit(balance: &Balance, key: &PartitionKey, units: u64, reference: Option<&str>) -> Result<Adjusted, LimiterError> {
    let description = balance.describe();
    let pending = description.adjusts().unwrap().charge(&Ask::charge(key, units), reference);
    pending.now_or_never().unwrap()
}

fn left(balance: &Balance, key: &PartitionKey) -> u64 {
    decide(balance, &Ask::peek(key, 0)).remaining()
}

/// They are gone at their millisecond.
#[test]
fn units_that_expire_first_go_first() {
    let (balance, clock) = balance();
    let key = PartitionKey::from("alice");
    credit(&balance, &key, Credit::units(5)).unwrap();
    credit(&balance, &key, Credit::units(3).expires_in(SECOND)).unwrap();
    let paid = charge(&balance, &key, 4).receipt().read::<Paid>().unwrap();
    assert_eq!((paid.last, paid.by_last), (Expiry::NEVER, 1));
    balance.refund(&Ask::charge(&key, 4), Receipt::from_proof(paid), 4);
    assert_eq!(left(&balance, &key), 8);
    let end = paid.first.instant();
    assert_eq!(end, Timestamp::from_nanos(1_700_000_001_124_000_000), "a second later, rounded up to a millisecond");
    clock.set(Timestamp::from_nanos(end.as_nanos() - 1));
    assert_eq!(left(&balance, &key), 8);
    clock.set(end);
    assert_eq!(left(&balance, &key), 5);
    balance.refund(&Ask::charge(&key, 4), Receipt::from_proof(paid), 4);
    assert_eq!(left(&balance, &key), 6, "of the units that are given back, three have expired");
}

#[test]
fn a_rejection_advertises_no_wait() {
    let (balance, _) = balance();
    let key = PartitionKey::from("alice");
    let rejection = charge(&balance, &key, 1);
    assert_eq!((rejection.is_allowed(), rejection.remaining(), rejection.retry_after()), (false, 0, None));
    credit(&balance, &key, Credit::units(5)).unwrap();
    let rejection = charge(&balance, &key, 6);
    assert_eq!((rejection.limit(), rejection.remaining(), rejection.retry_after()), (5, 5, None));
    let admission = charge(&balance, &key, 2);
    assert_eq!((admission.limit(), admission.remaining()), (5, 3));
    let rest = decide(&balance, &Ask::charge(&key, 9).to(Mode::UpTo));
    assert_eq!((rest.is_allowed(), rest.remaining()), (true, 0));
    assert!(charge(&balance, &key, 0).is_allowed());
    assert_eq!(balance.stats().table.unwrap().live_keys, 0, "an empty account is removed");
    balance.refund(&Ask::charge(&key, 9), rest.receipt(), 3);
    assert_eq!(left(&balance, &key), 3);
}

#[test]
fn credits_or_a_reset_clear_debts() {
    let (balance, _) = balance();
    let key = PartitionKey::from("alice");
    credit(&balance, &key, Credit::units(10)).unwrap();
    assert_eq!(debit(&balance, &key, 25, None).unwrap().decision.remaining(), 0);
    assert_eq!(credit(&balance, &key, Credit::units(12)).unwrap(), 0, "three are owed");
    assert_eq!(credit(&balance, &key, Credit::units(12)).unwrap(), 9);
    debit(&balance, &key, 10, None).unwrap();
    let _ = decide(&balance, &Ask::reset(&key));
    assert_eq!(credit(&balance, &key, Credit::units(2)).unwrap(), 2);
    let _ = decide(&balance, &Ask::reset(&key));
    assert_eq!(left(&balance, &key), 2, "a reset leaves the lots");
}

/// The units may differ when it is repeated, until it is forgotten.
#[test]
fn a_reference_is_entered_once() {
    let (balance, clock) = balance();
    let [alice, bob] = ["alice", "bob"].map(PartitionKey::from);
    let paid = |units| Credit::units(units).expires_in(SECOND * 86_400 * 30).reference("invoice-17");
    assert_eq!(credit(&balance, &alice, paid(5)).unwrap(), 5);
    assert_eq!(credit(&balance, &alice, paid(6)).unwrap(), 5);
    assert_eq!(credit(&balance, &bob, paid(6)).unwrap(), 6, "another key");
    assert!(!debit(&balance, &alice, 1, Some("invoice-17")).unwrap().is_repeated, "no credit");
    assert!(debit(&balance, &alice, 1, Some("invoice-17")).unwrap().is_repeated);
    assert_eq!(left(&balance, &alice), 4);
    clock.advance(SECOND * 86_400 * 8);
    assert!(!debit(&balance, &alice, 1, Some("invoice-17")).unwrap().is_repeated, "after seven days");
    assert_eq!(credit(&balance, &alice, paid(5)).unwrap(), 3, "it is known as long as its units can be used");
    clock.advance(SECOND * 86_400 * 23);
    assert_eq!(credit(&balance, &alice, paid(5)).unwrap(), 5);
}

#[test]
fn one_thread_enters_a_reference() {
    let (balance, _) = balance();
    let key = PartitionKey::from("alice");
    for round in 0..effort::rounds(50, 1_000) {
        let entered = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let reference = format!("invoice-{round}");
                    credit(&balance, &key, Credit::units(3).reference(&reference)).unwrap();
                    let charged = debit(&balance, &key, 2, Some(&reference)).unwrap();
                    entered.fetch_add(u64::from(!charged.is_repeated), Ordering::Relaxed);
                });
            }
        });
        assert_eq!(entered.into_inner(), 1);
        assert_eq!(left(&balance, &key), round as u64 + 1);
    }
}

#[test]
fn threads_use_each_unit_once() {
    let (balance, _) = balance();
    let key = PartitionKey::from("alice");
    credit(&balance, &key, Credit::units(1_000).expires_in(SECOND)).unwrap();
    credit(&balance, &key, Credit::units(1_000)).unwrap();
    let used = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (balance, key, used) = (&balance, &key, &used);
            scope.spawn(move || {
                for number in 0..600 {
                    let decision = charge(balance, key, 3);
                    if decision.is_allowed() && (number + thread) % 3 == 0 {
                        balance.refund(&Ask::charge(key, 3), decision.receipt(), 3);
                    } else if decision.is_allowed() {
                        used.fetch_add(3, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(used.into_inner() + left(&balance, &key), 2_000);
}

/// Expired accounts make room.
#[test]
fn a_full_balance_forgets_no_key() {
    let (balance, clock) = balance();
    let balance = balance.max_keys(2);
    let key = |number: u64| PartitionKey::from(number);
    credit(&balance, &key(0), Credit::units(1)).unwrap();
    credit(&balance, &key(1), Credit::units(1).expires_in(SECOND)).unwrap();
    let error = credit(&balance, &key(2), Credit::units(1)).unwrap_err().to_string();
    assert!(error.contains("raise `max_keys`"), "{error}");
    assert!(debit(&balance, &key(2), 1, None).is_err() && credit(&balance, &key(0), Credit::units(1)).is_ok());
    clock.advance(SECOND * 2);
    credit(&balance, &key(2), Credit::units(1)).unwrap();
    assert_eq!((0..3).map(|number| left(&balance, &key(number))).collect::<Vec<_>>(), [2, 0, 1]);
    assert_eq!(balance.stats().table.unwrap().live_keys, 2);
}

#[test]
fn lots_and_units_are_bounded() {
    let (balance, clock) = balance();
    let key = PartitionKey::from("alice");
    let lot = |number: u32| Credit::units(1).expires_in(SECOND * number);
    for number in 1..=MOST_LOTS as u32 {
        credit(&balance, &key, lot(number)).unwrap();
    }
    let error = credit(&balance, &key, lot(100)).unwrap_err().to_string();
    assert!(error.contains("the end of a day"), "{error}");
    assert_eq!(credit(&balance, &key, lot(9)).unwrap(), MOST_LOTS as u64 + 1, "it has that lot");
    assert!(credit(&balance, &key, Credit::units(Quota::MAX_UNITS).expires_in(SECOND * 9)).is_err());
    let other = PartitionKey::from("bob");
    assert!(
        credit(&balance, &other, Credit::units(1).expires_in(Duration::ZERO)).is_ok(),
        "rounded up to a millisecond"
    );
    assert!(credit(&balance, &other, Credit::units(1).expires_at(std::time::UNIX_EPOCH)).is_err(), "it has expired");
    clock.advance(SECOND);
    debit(&balance, &other, Quota::MAX_UNITS, None).unwrap();
    assert!(debit(&balance, &other, 1, Some("x")).is_err());
    let _ = decide(&balance, &Ask::reset(&other));
    assert!(!debit(&balance, &other, 1, Some("x")).unwrap().is_repeated, "a charge that fails does not use it");
}

#[test]
fn an_heir_has_the_balances() {
    let (old, _) = balance();
    let key = PartitionKey::from("alice");
    credit(&old, &key, Credit::units(5)).unwrap();
    let heir = Balance::new().max_keys(7);
    // This is the order in which a policy is made.
    let description = heir.describe();
    assert!(heir.inherit(&old).unwrap().keeps_capacity);
    assert_eq!(left(&heir, &key), 5);
    let credited = description.adjusts().unwrap().credit(&key, &Credit::units(1)).unwrap().now_or_never().unwrap();
    assert_eq!((credited.unwrap().decision.remaining(), left(&old, &key)), (6, 6));
    let used = balance().0;
    credit(&used, &key, Credit::units(1)).unwrap();
    assert!(used.inherit(&old).is_none(), "it has balances of its own");
}

#[test]
fn a_receipt_holds_its_lots() {
    for (first, last, by_last) in
        [(0, 1, 0), (5, Expiry::NEVER.millis(), 7), (Expiry::NEVER.millis(), 0, (1 << 42) - 1)]
    {
        let paid = Paid { first: Expiry::from_millis(first), last: Expiry::from_millis(last), by_last };
        assert_eq!(Receipt::from_proof(paid).read::<Paid>(), Some(paid));
        let more = Paid { by_last: 1 << 42, ..paid };
        assert_eq!(Receipt::from_proof(more).read::<Paid>(), Some(Paid { by_last: (1 << 42) - 1, ..paid }));
    }
}
