//! Threads that meet in a [`SetAssociativeTable`], in every possible order, with loom: see `verify/models/Cargo.toml`.
//!
//! The tables are as small as possible (two sets with two slots), and each model is named after its hazard.

mod heir;

use loom::sync::Arc;
use loom::thread;

use super::WhenFull;
use super::ledger::WordHeir;
use super::quota_state::QuotaState;
use super::table::{
    Bounded, Codec, FixedRule, PaidAt, Rule, SetAssociativeTable, SlidingRule, Tag, Tick, TickBucket, Ticks,
};
use crate::algorithm::{ChargedIn, FixedWindowState, SlidingWindowState};
use crate::values::time::Timestamp;
use crate::values::{Decision, Quota, Receipt};

pub(super) fn model(run: impl Fn() + Sync + Send + 'static) {
    check(loom::model::Builder::new(), run);
}

/// Checks a model with three threads, with at most two preemptions, because a third preemption takes minutes.
pub(super) fn model_of_three(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(builder.preemption_bound.map_or(2, |bound| bound.min(2)));
    check(builder, run);
}

fn check(mut builder: loom::model::Builder, run: impl Fn() + Sync + Send + 'static) {
    builder.max_branches = 100_000;
    builder.check(run);
}

/// Runs `act` with the value that threads share, on a thread beside this one.
pub(super) fn beside<T: 'static, O: 'static>(
    shared: &Arc<T>,
    act: impl FnOnce(&T) -> O + 'static,
) -> thread::JoinHandle<O> {
    let shared = Arc::clone(shared);
    thread::spawn(move || act(&shared))
}

/// A rule for limits that stay used up for long.
pub(super) trait Modelled: Bounded + WordHeir {
    /// The state that an heir reads.
    type Read: Copy + 'static;

    /// A word that is written late, by this number of epochs or more, may look like a debt until its writer takes it
    /// back.
    const DISTINCT_FOR: u64;

    /// Whether a word may be the same again, by chance, after sixteen epochs: counts are, and instants are not.
    const COMES_AGAIN: bool;

    fn with_limit(limit: u64) -> Self;

    /// Returns the stamp for a key's debt at `at`, in an heir with the same limit.
    fn stamp_at(&self, tag: Tag, entry: QuotaState<Self::Read>, at: Timestamp) -> u64;

    /// Returns an instant a little after an epoch begins.
    fn instant(&self, epoch: u64, rest: u64) -> Self::Now;

    /// Returns when a charge is paid off, or which window was charged, as [`Rule::refunded`] takes it.
    fn proof(receipt: Receipt) -> u64;

    /// Returns whether nothing is owed any more for that charge.
    fn is_over(charged: u64, epoch: u64, rest: u64) -> bool;

    fn is_paid(receipt: Receipt, epoch: u64, rest: u64) -> bool {
        Self::is_over(Self::proof(receipt), epoch, rest)
    }
}

/// Tokens take years to be earned, and a full bucket's debt is owed for four epochs.
impl Modelled for TickBucket {
    type Read = Ticks;

    const DISTINCT_FOR: u64 = 13;
    const COMES_AGAIN: bool = false;

    fn with_limit(limit: u64) -> Self {
        Self::new(&Quota::per_day(1).burst(limit)).unwrap()
    }

    fn stamp_at(&self, _: Tag, entry: QuotaState<Ticks>, at: Timestamp) -> u64 {
        self.stamp(entry.state.0, self.read(at))
    }

    fn instant(&self, epoch: u64, rest: u64) -> Tick {
        Tick::from_count((epoch << 32) + rest)
    }

    fn proof(receipt: Receipt) -> u64 {
        receipt.read().map(|PaidAt { tick, .. }| tick).unwrap()
    }

    fn is_over(charged: u64, epoch: u64, rest: u64) -> bool {
        charged <= (epoch << 32) + rest
    }
}

/// A window in these words is an epoch.
const GREATEST: u64 = (1 << 16) - 1;

fn five_seconds(limit: u64) -> Quota {
    Quota::per(limit, std::time::Duration::from_secs(5))
}

fn five_seconds_in(window: u64, rest: u64) -> Timestamp {
    Timestamp::from_nanos(window * 5_000_000_000 + rest)
}

/// Its charges are owed to the end of their window.
impl Modelled for FixedRule {
    type Read = FixedWindowState;

    const DISTINCT_FOR: u64 = 10;
    const COMES_AGAIN: bool = true;

    fn with_limit(limit: u64) -> Self {
        Self::holding(&five_seconds(limit), false, u32::MAX.into()).unwrap()
    }

    fn stamp_at(&self, tag: Tag, entry: QuotaState<FixedWindowState>, at: Timestamp) -> u64 {
        self.stamp_of(tag, entry, at)
    }

    fn instant(&self, epoch: u64, rest: u64) -> Self::Now {
        self.read(five_seconds_in(epoch, rest))
    }

    fn proof(receipt: Receipt) -> u64 {
        ChargedIn::read(receipt).unwrap()
    }

    fn is_over(charged: u64, epoch: u64, _: u64) -> bool {
        charged < epoch
    }
}

/// The weight of its charges, rounded up, stays the same to the end of the next window.
impl Modelled for SlidingRule {
    type Read = SlidingWindowState;

    const DISTINCT_FOR: u64 = 11;
    const COMES_AGAIN: bool = true;

    fn with_limit(limit: u64) -> Self {
        Self::holding(&five_seconds(limit), false, GREATEST).unwrap()
    }

    fn stamp_at(&self, tag: Tag, entry: QuotaState<SlidingWindowState>, at: Timestamp) -> u64 {
        self.stamp_of(tag, entry, at)
    }

    fn instant(&self, epoch: u64, rest: u64) -> Self::Now {
        self.read(five_seconds_in(epoch, rest))
    }

    fn proof(receipt: Receipt) -> u64 {
        ChargedIn::read(receipt).unwrap()
    }

    fn is_over(charged: u64, epoch: u64, _: u64) -> bool {
        charged + 1 < epoch
    }
}

/// A table with the rule that all threads judge by.
struct ModelledTable<R> {
    table: SetAssociativeTable,
    rule: R,
}

impl<R: Modelled> ModelledTable<R> {
    /// Charges by a clock that was read at one time, and shows another when it is read again.
    fn check(&self, hash: u64, read: (u64, u64), again: (u64, u64)) -> Decision {
        let at = |(epoch, rest)| self.rule.instant(epoch, rest);
        self.table.check(&self.rule, hash, 1, at(read), || at(again))
    }

    fn refund(&self, hash: u64, receipt: Receipt, epoch: u64, rest: u64) {
        self.table.refund(&self.rule, hash, 1, R::proof(receipt), self.rule.instant(epoch, rest));
    }

    /// Checks the table once all threads are joined, at the latest time of the model.
    fn check_invariants(&self, epoch: u64, rest: u64) {
        self.table.check_invariants(&self.rule, self.rule.instant(epoch, rest));
    }
}

impl<R> std::ops::Deref for ModelledTable<R> {
    type Target = SetAssociativeTable;

    fn deref(&self) -> &SetAssociativeTable {
        &self.table
    }
}

/// Four slots.
fn table<R: Modelled>(limit: u64) -> Arc<ModelledTable<R>> {
    Arc::new(ModelledTable { table: SetAssociativeTable::new(2, WhenFull::EvictLeast), rule: R::with_limit(limit) })
}

/// The hash for the `n`-th key: tags differ, and no arrival is sampled.
pub(super) const fn key(n: u64) -> u64 {
    (n << 40) | (n + 1) << 12 | 1 << 5
}

fn ask<R: Modelled>(table: &ModelledTable<R>, hash: u64, epoch: u64, rest: u64) -> Decision {
    table.check(hash, (epoch, rest), (epoch, rest))
}

fn admitted<R: Modelled>(table: &ModelledTable<R>, hash: u64, epoch: u64, rest: u64) -> u32 {
    u32::from(ask(table, hash, epoch, rest).is_allowed())
}

/// Takes a key's remaining units, and returns their number.
fn take_rest<R: Modelled>(table: &ModelledTable<R>, hash: u64, epoch: u64, rest: u64) -> usize {
    std::iter::repeat_with(|| admitted(table, hash, epoch, rest)).take_while(|admitted| *admitted == 1).count()
}

/// A key in the other stripe, so it waits for another lock when it is inserted.
const fn key_of_other_stripe(n: u64) -> u64 {
    key(n) | 1
}

/// Both threads search the key, do not find it, and insert it: then it could be charged twice.
fn two_threads_insert_a_key_at_once<R: Modelled>() {
    model(|| {
        let table = table::<R>(1);
        let other = beside(&table, |table| admitted(table, key(1), 0, 5));
        let mine = admitted(&table, key(1), 0, 5);
        assert_eq!(mine + other.join().unwrap(), 1);
        assert_eq!(table.copies(key(1)), 1);
        table.check_invariants(0, 5);
    });
}

/// Both threads judge the same word, and both write their result. One charge would be lost then.
fn two_threads_charge_the_same_word<R: Modelled>() {
    model(|| {
        let table = table::<R>(2);
        assert!(ask(&table, key(1), 0, 5).is_allowed());
        let other = beside(&table, |table| admitted(table, key(1), 0, 5));
        let mine = admitted(&table, key(1), 0, 6);
        assert_eq!(mine + other.join().unwrap(), 1);
        table.check_invariants(0, 6);
    });
}

/// One thread finds its key, and before it writes, the other evicts the key.
fn a_key_is_evicted_while_it_is_charged<R: Modelled>() {
    model(|| {
        let table = table::<R>(3);
        // Four slots are taken, and key 0 owes least.
        for n in 0..4 {
            assert!(ask(&table, key(n), 0, 5).is_allowed());
        }
        for n in 1..4 {
            assert!(ask(&table, key(n), 0, 5).is_allowed());
        }
        let other = beside(&table, |table| admitted(table, key(9), 0, 5));
        let mine = admitted(&table, key(0), 0, 5);
        assert_eq!((mine, other.join().unwrap()), (1, 1));
        // One key too many: one is gone, or two in turn if key 0 came back. Key 9 owes least then, but
        // it was charged, so it is not gone for nothing.
        assert!((0..10).all(|n| table.copies(key(n)) <= 1));
        assert_eq!((0..10).map(|n| table.copies(key(n))).sum::<usize>(), 4);
        assert!(table.copies(key(9)) == 1 || table.occupancy.evicted() == 2);
        table.check_invariants(0, 5);
    });
}

/// One thread finds a charge to refund, and before it writes, the other evicts the key and takes its slot.
fn a_key_is_evicted_while_it_is_refunded<R: Modelled>() {
    model(|| {
        let table = table::<R>(3);
        // Four slots are taken, and key 0 owes least.
        let first = ask(&table, key(0), 0, 5);
        for n in [1, 2, 3, 1, 2, 3] {
            assert!(ask(&table, key(n), 0, 5).is_allowed());
        }
        let other = beside(&table, |table| admitted(table, key(9), 0, 5));
        table.refund(key(0), first.receipt(), 0, 5);
        assert_eq!(other.join().unwrap(), 1);
        assert_eq!((table.copies(key(9)), take_rest(&table, key(9), 0, 5)), (1, 2), "the charge of key 9");
        table.check_invariants(0, 5);
    });
}

/// A debt that is still owed must survive a sweep of its page, by two threads at once.
fn a_page_is_swept_while_a_key_in_it_is_charged<R: Modelled>() {
    model(|| {
        let table = table::<R>(2);
        let first = table.check(key(1), (3, 5), (3, 5));
        assert!(first.is_allowed());
        let other = beside(&table, |table| admitted(table, key(1), 4, 1));
        let mine = admitted(&table, key(1), 4, 1);
        let is_paid = R::is_paid(first.receipt(), 4, 1);
        assert_eq!(mine + other.join().unwrap(), if is_paid { 2 } else { 1 });
        assert_eq!(admitted(&table, key(1), 4, 1), 0);
        assert_eq!(table.copies(key(1)), 1);
        table.check_invariants(4, 1);
    });
}

/// After a long time everything in a page is cleared. A late sweeper must not clear the charge that the other thread
/// has made since.
fn a_page_is_cleared_while_a_key_is_inserted_into_it<R: Modelled>() {
    model(|| {
        let table = table::<R>(1);
        assert!(ask(&table, key(1), 0, 5).is_allowed());
        let other = beside(&table, |table| admitted(table, key(1), 40, 0));
        let mine = admitted(&table, key(1), 40, 0);
        assert_eq!(mine + other.join().unwrap(), 1);
        assert_eq!(table.copies(key(1)), 1);
        table.check_invariants(40, 0);
    });
}

/// One thread reads the clock and comes late, in any step of its decision: by its own time, the charge that the other
/// makes meanwhile was paid long ago.
fn a_thread_is_descheduled_while_another_charges<R: Modelled>() {
    for sleep in [1, 2, 9, 12, 16] {
        model(move || {
            let table = table::<R>(1);
            let other = beside(&table, move |table| admitted(table, key(1), sleep, 0));
            let mine = table.check(key(1), (0, 5), (sleep, 0));
            // Both pass only if mine came first, and was paid by then.
            let both = u32::from(mine.is_allowed()) + other.join().unwrap();
            assert!(both == 1 || (both == 2 && R::is_paid(mine.receipt(), sleep, 0)), "{sleep} epochs: {both}");
            // The last one owes, and no other owes anything.
            assert!(table.copies(key(1)) <= 1);
            let last = admitted(&table, key(1), sleep, 1) + admitted(&table, key(1), sleep, 2);
            assert!(last <= 1);
            table.check_invariants(sleep, 2);
        });
    }
}

/// One thread refunds while the other charges.
fn a_refund_meets_a_charge<R: Modelled>() {
    model(|| {
        let table = table::<R>(2);
        let first = ask(&table, key(1), 0, 5);
        assert!(ask(&table, key(1), 0, 5).is_allowed());
        let other = beside(&table, move |table| table.refund(key(1), first.receipt(), 0, 5));
        let mine = admitted(&table, key(1), 0, 5);
        other.join().unwrap();
        // Before the refund or after it: one unit was refunded, and is taken at most once.
        assert_eq!(mine + admitted(&table, key(1), 0, 5), 1);
        table.check_invariants(0, 5);
    });
}

/// One thread reads the clock, and is descheduled in any step while it charges a key that is there. The other comes
/// back to the page after an idle time that clears all of it. A charge at the new time must not be cleared with the
/// rest, and a debt that was paid long ago must not look owed.
fn a_page_is_cleared_while_a_descheduled_thread_charges<R: Modelled>() {
    for (sleep, same_key) in [(5, true), (9, true), (10, true), (12, true), (9, false), (12, false), (14, false)] {
        model(move || {
            let table = table::<R>(2);
            assert!(ask(&table, key(1), 0, 5).is_allowed());
            let hash = if same_key { key(1) } else { key(2) };
            let other = beside(&table, move |table| admitted(table, hash, sleep, 0));
            let mine = table.check(key(1), (0, 5), (sleep, 0));
            let other = other.join().unwrap() as usize;
            let is_distinct = sleep < R::DISTINCT_FOR || !same_key;
            assert!(!is_distinct || other == 1, "{sleep} epochs: a key that owed nothing was rejected");
            assert!(!is_distinct || mine.is_allowed(), "{sleep} epochs: rejected because of a paid debt");
            // If it was charged by the old time, it is paid by now. If it was charged by the new time, it is owed.
            let mine = usize::from(mine.is_allowed() && !R::is_paid(mine.receipt(), sleep, 0));
            let taken = if same_key { other + mine } else { mine } + take_rest(&table, key(1), sleep, 1);
            assert!(taken == 2 || (!is_distinct && taken < 2), "{sleep} epochs: {taken}");
            assert!(table.copies(key(1)) <= 1);
            table.check_invariants(sleep, 1);
        });
    }
}

/// One thread refunds a charge that was paid long ago, and is descheduled in any step. The charge that the other makes
/// meanwhile must not be refunded in its place, or be taken for the old debt and cleared.
fn a_refund_is_descheduled_while_another_charges<R: Modelled>() {
    for sleep in [5, 12, 16, 17] {
        model(move || {
            let table = table::<R>(2);
            let first = ask(&table, key(1), 0, 5);
            let other = beside(&table, move |table| admitted(table, key(1), sleep, 0));
            table.refund(key(1), first.receipt(), 0, 5);
            let taken = other.join().unwrap() as usize + take_rest(&table, key(1), sleep, 1);
            // A word that is written nine epochs late or later may be charged on top before it is taken back: then it
            // is owed, too. It admits no request, unless the word is again the word that was read.
            let is_again = R::COMES_AGAIN && sleep % 16 == 0;
            assert!(taken == 2 || (sleep >= 9 && taken == 1) || (is_again && taken == 3), "{sleep} epochs: {taken}");
            // Such a word seems to be from another window, whose counts are then kept although no key owes them. Then
            // only the invariants that do not depend on debts are checked: five epochs later, all debts are paid.
            table.check_invariants(if sleep < 9 { sleep } else { sleep + 5 }, 1);
        });
    }
}

/// The two keys' locks differ, and both want the same slot.
fn two_keys_of_different_stripes_want_the_same_slot<R: Modelled>() {
    model(|| {
        let table = table::<R>(1);
        let other = beside(&table, |table| admitted(table, key_of_other_stripe(1), 0, 5));
        let mine = admitted(&table, key(1), 0, 5);
        assert_eq!((mine, other.join().unwrap()), (1, 1));
        for hash in [key(1), key_of_other_stripe(1)] {
            assert_eq!(table.copies(hash), 1);
            assert_eq!(admitted(&table, hash, 0, 6), 0);
        }
        assert_eq!(table.occupancy.evicted(), 0);
        table.check_invariants(0, 6);
    });
}

/// One thread charges in a window's last instant, the other in the next window's first instant.
fn two_threads_charge_around_the_edge_of_a_window<R: Modelled>() {
    for is_known in [false, true] {
        model(move || {
            let table = table::<R>(2);
            if is_known {
                assert!(ask(&table, key(1), 0, 5).is_allowed());
            }
            let other = beside(&table, |table| table.check(key(1), (1, 0), (1, 0)));
            let mine = table.check(key(1), (0, 9), (0, 9));
            let other = other.join().unwrap();
            // At most one charge is owed, so one more may come at once.
            let charged = [mine, other].into_iter().filter(Decision::is_allowed);
            let taken = charged.filter(|charged| !R::is_paid(charged.receipt(), 1, 1)).count();
            let before = usize::from(is_known && !R::is_over(0, 1, 1));
            assert_eq!(taken + before + take_rest(&table, key(1), 1, 1), 2);
            assert_eq!(table.copies(key(1)), 1);
            table.check_invariants(1, 1);
        });
    }
}

macro_rules! models {
    ($($rule:ident: $type:ty { $($name:ident,)* })*) => {
        $(
            mod $rule {
                use super::*;

                $(
                    #[test]
                    fn $name() {
                        super::$name::<$type>();
                    }
                )*
            }
        )*
    };
}
pub(super) use models;

models! {
    buckets: TickBucket {
        two_threads_insert_a_key_at_once,
        two_threads_charge_the_same_word,
        a_key_is_evicted_while_it_is_charged,
        a_key_is_evicted_while_it_is_refunded,
        a_page_is_swept_while_a_key_in_it_is_charged,
        a_page_is_cleared_while_a_key_is_inserted_into_it,
        a_thread_is_descheduled_while_another_charges,
        a_refund_meets_a_charge,
        a_page_is_cleared_while_a_descheduled_thread_charges,
        a_refund_is_descheduled_while_another_charges,
        two_keys_of_different_stripes_want_the_same_slot,
    }
    fixed_windows: FixedRule {
        two_threads_insert_a_key_at_once,
        two_threads_charge_the_same_word,
        a_key_is_evicted_while_it_is_charged,
        a_key_is_evicted_while_it_is_refunded,
        a_page_is_swept_while_a_key_in_it_is_charged,
        a_page_is_cleared_while_a_key_is_inserted_into_it,
        a_thread_is_descheduled_while_another_charges,
        a_refund_meets_a_charge,
        a_page_is_cleared_while_a_descheduled_thread_charges,
        a_refund_is_descheduled_while_another_charges,
        two_keys_of_different_stripes_want_the_same_slot,
        two_threads_charge_around_the_edge_of_a_window,
    }
    sliding_windows: SlidingRule {
        two_threads_insert_a_key_at_once,
        two_threads_charge_the_same_word,
        a_key_is_evicted_while_it_is_charged,
        a_key_is_evicted_while_it_is_refunded,
        a_page_is_swept_while_a_key_in_it_is_charged,
        a_page_is_cleared_while_a_key_is_inserted_into_it,
        a_thread_is_descheduled_while_another_charges,
        a_refund_meets_a_charge,
        a_page_is_cleared_while_a_descheduled_thread_charges,
        a_refund_is_descheduled_while_another_charges,
        two_keys_of_different_stripes_want_the_same_slot,
        two_threads_charge_around_the_edge_of_a_window,
    }
}
