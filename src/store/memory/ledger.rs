//! A set-associative table with its rule and the debts that its keys inherit.
//!
//! Only buckets keep the earlier rules: these convert the time on a receipt from before a change. A window's receipt
//! has the window's number.

use std::any::Any;
use std::sync::{Arc, OnceLock};

use super::debt_copies::{CopiedDebts, CopiedStamps, DebtCopies, DebtSource, PastDebts};
use super::occupancy::Occupancy;
use super::quota_state::StateType;
use super::read_states::{ActOnAny, AnyTable, TablePart};
#[cfg(feature = "test-util")]
use super::table::{Bounded, Meetings, SETS_PER_PAGE};
use super::table::{Codec, Geometry, InheritedDebts, Rule, SetAssociativeTable, Tag, TickBucket, stamp_of_nothing};
use super::wall_time::WallTime;
use super::when_full::WhenFull;
use crate::values::time::{Clock, Timestamp};
use crate::values::{Ask, Decision, Quota, Receipt};

/// A set-associative table, the rule that judges its words, and the debts that its keys inherit.
pub(super) struct Ledger<R> {
    rule: R,
    table: SetAssociativeTable,
    /// Numbers windows that follow the wall clock. All callers pass the clock's own time.
    wall_time: WallTime,
    /// Shared with the table.
    inherited: Option<Arc<InheritedStamps>>,
    /// A bucket's earlier rules, if charges under them may still be owed, each with the time until which it was in
    /// force. Oldest first.
    before: Vec<(R, Timestamp)>,
    rarer: OnceLock<RarerOperations<R>>,
}

/// A ledger's operations beside decisions. They are pointers, so that a program that only decides does not link them.
struct RarerOperations<R> {
    as_words: fn(&Ledger<R>) -> &dyn WordTable,
    as_words_mut: fn(&mut Ledger<R>) -> &mut dyn WordTable,
}

/// The keys' debts at the instant of a change, as stamps.
struct InheritedStamps {
    debts: Arc<dyn CopiedDebts<u64>>,
    /// A debt-free key's stamp at that instant, from which the copied stamps are counted.
    base: u64,
}

/// The number of earlier rules that are kept. Charges from before this many changes can be refunded. The list is copied
/// at each change, and takes 16 KiB at most.
const MOST_BEFORE: usize = 256;

impl<R: Codec> Ledger<R> {
    /// Makes a ledger that only decides.
    pub(super) fn new(rule: R, keys: usize, when_full: WhenFull) -> Self {
        let table = SetAssociativeTable::new(keys, when_full);
        let (rule, wall_time) = (rule.numbered(table.occupancy.number()), WallTime::default());
        Self { rule, table, wall_time, inherited: None, before: Vec::new(), rarer: OnceLock::new() }
    }
}

impl<R: WordHeir> Ledger<R> {
    /// Adds the rarer operations. Only this function names them for this rule, so a program links them only for the
    /// algorithms that it names.
    pub(super) fn complete(&self) {
        self.rarer.get_or_init(|| RarerOperations { as_words: |own| own, as_words_mut: |own| own });
    }
}

impl<R> Ledger<R> {
    pub(super) const fn table(&self) -> &SetAssociativeTable {
        &self.table
    }

    /// For a [complete](Self::complete) ledger.
    pub(super) fn as_words(&self) -> &dyn WordTable {
        (self.rarer.get().expect(COMPLETE).as_words)(self)
    }

    /// For a [complete](Self::complete) ledger.
    pub(super) fn as_words_mut(&mut self) -> &mut dyn WordTable {
        (self.rarer.get().expect(COMPLETE).as_words_mut)(self)
    }
}

const COMPLETE: &str = "`SharedTable` completes its tables before it does more than decide";

/// The form in which an heir keeps its keys' debts.
///
/// A window's receipt names the window by number. After a change to the schedule, that number may belong to another
/// window, so all receipts from before the change are void. A bucket's receipt counts in units that depend on both
/// forms:
///
/// | before \ after | words | states, or entries of [`TableChange::Quota`] | entries of the other changes |
/// |---|---|---|---|
/// | words | converted by [`Ledger::remember`] | not read | not read |
/// | states | void | read if the rate is the same, otherwise void | read: each key keeps its quota |
/// | entries (states with quotas) | void | void: keys had several quotas | read: each key keeps its quota |
pub(super) enum Form {
    /// Words, by this rule of the heir's table.
    Words(Box<dyn Any>),
    /// States alone, under the heir's own quota, behind locks.
    States,
    /// States with their quotas, in the table of keys with quotas of their own.
    Entries(TableChange),
}

/// How a change affects a state with its quota.
#[derive(Clone, Copy)]
pub(super) enum TableChange {
    /// Each key keeps its quota until it is asked about under another, and is converted then.
    None,
    /// Each key keeps its quota, but windows begin at other instants than the predecessor's, even if the quotas are
    /// equal: in another time zone, for example.
    Schedule,
    /// All keys are converted to the heir's own quota.
    Quota,
}

/// The keys' debts at the instant of a change, in a predecessor's tables.
pub(super) trait DebtOrigin: Send + Sync {
    /// The instant of the change.
    fn at(&self) -> Timestamp;

    /// Returns the predecessor's own quota.
    fn quota(&self) -> &Quota;

    /// Whether the predecessor's algorithm is a bucket.
    fn is_bucket(&self) -> bool;

    /// Returns the table that has the keys.
    fn table(&self) -> &dyn AnyTable;

    /// Returns the table if its keys are words of a bucket.
    fn bucket(&self) -> Option<&Ledger<TickBucket>>;
}

/// An heir with a word table, as its rule sees it.
pub(super) struct HeirOfWords<'a> {
    pub(super) origin: &'a dyn DebtOrigin,
    /// The quota by which its table was made.
    pub(super) quota: Quota,
    /// Whether each key's windows begin at an instant of their own.
    pub(super) staggered: bool,
    /// The type that its states have.
    pub(super) state: StateType,
    /// Whether it can convert the origin's states.
    pub(super) inherits_states: bool,
    /// Whether its keys may have their own quotas.
    pub(super) takes_quotas: bool,
}

/// The parts of an heir that its table's words are made from.
pub(super) struct BeginWords {
    pub(super) origin: Arc<dyn DebtOrigin>,
    /// The rule, as its [`Form`] has it.
    pub(super) rule: Box<dyn Any>,
    /// Converts states to the heir's own quota, if the rule needs that.
    pub(super) convert: Box<dyn Any>,
    pub(super) quota: Quota,
}

/// A rule whose tables may be heirs.
pub(super) trait WordHeir: Codec {
    /// Returns the form in which an heir with this rule's table keeps the debts, if it can inherit them. Changes
    /// nothing.
    fn form(heir: &HeirOfWords<'_>) -> Option<Form>;

    /// Lets a table begin with words by the rule that [`form`](Self::form) has chosen.
    fn begin(own: &mut Ledger<Self>, words: BeginWords);
}

/// A ledger with any rule: the operations that are not worth compiling for each algorithm.
pub(super) trait WordTable {
    fn as_table(&self) -> &dyn AnyTable;

    /// Decides, and charges the key if the request is admitted.
    fn decide(&self, ask: &Ask<'_>, hash: u64, clock: &dyn Clock) -> Decision;

    /// Refunds the unpaid part of a charge, like [`Rule::refunded`].
    fn refund(&self, hash: u64, cost: u64, receipt: Receipt, now: Timestamp);

    /// Returns how many keys owe something.
    fn live(&self, now: Timestamp) -> u64;

    /// See [`WordHeir::form`].
    fn form(&self, heir: &HeirOfWords<'_>) -> Option<Form>;

    /// See [`WordHeir::begin`].
    fn begin(&mut self, words: BeginWords);
}

impl<R: WordHeir> WordTable for Ledger<R> {
    fn as_table(&self) -> &dyn AnyTable {
        self
    }

    fn decide(&self, ask: &Ask<'_>, hash: u64, clock: &dyn Clock) -> Decision {
        let follows_wall = self.rule.wall_period().is_some();
        let now = self.read(|| if follows_wall { clock.wall() } else { ask.now(clock) });
        let fresh = || self.read(|| if follows_wall { clock.wall() } else { clock.now() });
        self.table.check_any(&self.rule, hash, ask.cost(), now, &fresh, false)
    }

    fn refund(&self, hash: u64, cost: u64, receipt: Receipt, now: Timestamp) {
        self.refund(hash, cost, receipt, now);
    }

    fn live(&self, now: Timestamp) -> u64 {
        self.table.live(&self.rule, self.at(now))
    }

    fn form(&self, heir: &HeirOfWords<'_>) -> Option<Form> {
        R::form(heir)
    }

    fn begin(&mut self, words: BeginWords) {
        R::begin(self, words);
    }
}

impl<R: Codec> Ledger<R> {
    /// Reads the clock for a decision.
    #[inline(always)]
    fn read(&self, clock: impl Fn() -> Timestamp) -> R::Now {
        match self.rule.wall_period() {
            Some(period) => self.rule.read(self.wall_time.read(period, clock)),
            None => self.rule.read(clock()),
        }
    }

    /// Converts a clock's time.
    #[inline(always)]
    fn at(&self, now: Timestamp) -> R::Now {
        self.rule.read(if self.rule.wall_period().is_some() { self.wall_time.at(now) } else { now })
    }

    /// Returns a debt-free key's stamp at a time on the clock.
    fn base_at(&self, now: Timestamp) -> u64 {
        stamp_of_nothing(&self.rule, self.at(now))
    }

    /// Whether its windows have other numbers than the clock's, because the clock was set back.
    pub(super) fn is_skewed(&self) -> bool {
        self.wall_time.skew() > 0
    }

    pub(super) const fn rule(&self) -> &R {
        &self.rule
    }

    /// Returns the number of slots that a key is in.
    #[cfg(all(test, sluice_loom))]
    pub(super) fn copies(&self, hash: u64) -> usize {
        self.table.copies(hash)
    }

    /// Lets the ledger begin with debts that `source` copies as stamps by `rule`, minus a debt-free key's stamp at
    /// `now`. Its overflow slots begin with the debts in `overflow`. The ledger must be unused.
    pub(super) fn inherit(
        &mut self,
        rule: R,
        geometries: &[Geometry],
        now: Timestamp,
        overflow: &[(Tag, u64)],
        source: Box<dyn DebtSource<u64>>,
    ) {
        self.rule = rule.numbered(self.table.occupancy.number());
        let base = base_of(&rule, now);
        let debts = DebtCopies::<_, CopiedStamps>::new(geometries, &self.table.occupancy, source);
        let inherited = Arc::new(InheritedStamps { debts, base });
        self.table.inherited = Some(Arc::clone(&inherited) as _);
        self.inherited = Some(inherited);
        overflow.iter().for_each(|(tag, debt)| self.inherit_overflow(now, *tag, base + debt));
    }

    /// Remembers the rules by which to read receipts from `from`, the ledger that this one replaces at `now`.
    pub(super) fn remember(&mut self, from: &Self, now: Timestamp, has_overflow: bool) {
        let forgotten = if from.has_past(now) || has_overflow {
            from.before.len().saturating_sub(MOST_BEFORE - 1)
        } else {
            // All charges under them are paid, in overflow slots as well.
            from.before.len()
        };
        self.before = from.before[forgotten..].to_vec();
        self.before.push((from.rule, now));
    }

    /// Lets a tag's overflow slot begin with the debt that a stamp stands for. The ledger must be unused.
    pub(super) fn inherit_overflow(&self, now: Timestamp, tag: Tag, stamp: u64) {
        self.table.inherit_overflow(&self.rule, self.at(now), tag, stamp);
    }

    #[inline(always)]
    pub(super) fn check<T: From<Decision>>(
        &self,
        hash: u64,
        cost: u64,
        now: impl Fn() -> Timestamp,
        fresh: impl Fn() -> Timestamp,
    ) -> T {
        self.table.check(&self.rule, hash, cost, self.read(now), move || self.read(&fresh))
    }

    #[inline(always)]
    pub(super) fn peek<T: From<Decision>>(&self, hash: u64, cost: u64, now: impl Fn() -> Timestamp) -> T {
        // Reads the clock as a decision does, so that peeks notice a step back, too.
        self.table.peek(&self.rule, hash, cost, self.read(now))
    }

    /// Refunds the unpaid part of a charge, like [`Rule::refunded`].
    pub(super) fn refund(&self, hash: u64, cost: u64, receipt: Receipt, now: Timestamp) {
        if let Some(charged) = self.rule.charged(receipt, &self.before) {
            self.table.refund(&self.rule, hash, cost, charged, self.at(now));
        }
    }
}

/// Returns a debt-free key's stamp at an instant.
pub(super) fn base_of<R: Rule>(rule: &R, at: Timestamp) -> u64 {
    stamp_of_nothing(rule, rule.read(at))
}

impl<R: Codec> AnyTable for Ledger<R> {
    fn geometry(&self) -> Geometry {
        self.table.geometry
    }

    fn occupancy(&self) -> &Arc<Occupancy> {
        &self.table.occupancy
    }

    fn size_in_bytes(&self) -> usize {
        self.table.size_in_bytes()
    }

    fn inherited(&self) -> Option<Arc<dyn PastDebts>> {
        self.inherited.as_ref().map(|past| Arc::clone(&past.debts).as_past())
    }

    fn has_past(&self, now: Timestamp) -> bool {
        self.inherited.as_ref().is_some_and(|past| !past.debts.has_ended(self.base_at(now)))
    }

    fn most_owed(&self, now: Timestamp) -> Option<u64> {
        Some(self.rule.most_units(self.has_past(now)))
    }

    fn reset(&self, hash: u64, now: Timestamp) {
        self.table.reset(&self.rule, hash, self.at(now));
    }
    fn has_states(&self, wanted: StateType) -> bool {
        wanted.is::<R::State>()
    }

    fn each_any(&self, part: TablePart, wanted: StateType, own: &Quota, at: Timestamp, act: &mut ActOnAny<'_>) {
        let rule = &self.rule;
        let now = self.at(at);
        let skew = self.wall_time.skew();
        let act = &mut |set, tag, debt| {
            if rule.size(debt) > 0 {
                // The state has its window's number by the clock.
                rule.with_state(rule.earlier(debt, skew), wanted, own, at, &mut |state| act(set, tag, state));
            }
        };
        if matches!(part, TablePart::Overflow) {
            return self.table.overflow_debts(rule, now).for_each(|(tag, debt)| act(0, tag, debt));
        }
        // The copies are read before the table, so that a debt that is moved from a copy into the table meanwhile is
        // found in the table. In the other order it could be missed. This covers a key whose sets are in this page;
        // `DebtCopies` covers all other keys.
        if let Some((past, (geometry, page))) = self.inherited.as_ref().zip(part.copies()) {
            past.debts.each_left(geometry, page, &mut |set, tag, debt| {
                act(set, tag, rule.stamped(past.base + debt, rule.local(now, tag)));
            });
        }
        if let Some(page) = part.of_table(self.geometry()) {
            self.table.each_owed(rule, page, now, act);
        }
    }
}

#[cfg(feature = "test-util")]
impl<R: Bounded> Ledger<R> {
    /// Panics if an [invariant of the table](SetAssociativeTable::check_invariants) is broken, or if an inherited debt
    /// is owed twice. `now` must be no earlier than any time that a thread has read.
    pub(super) fn check_invariants(&self, now: Timestamp) {
        let rule = &self.rule;
        let at = self.at(now);
        self.table.check_invariants(rule, at);
        // Once all inherited debts are paid, they're not inserted or cleared any more.
        let Some(past) = self.inherited.as_ref().filter(|_| self.has_past(now)) else { return };
        // For copies with other geometries, a tag and a set do not determine in which of this table's sets the key may
        // be.
        let geometry = self.geometry();
        let mut meetings = Meetings::default();
        for page in 0..geometry.pages() {
            past.debts.each_left(geometry, page, &mut |set, tag, debt| {
                let own = rule.local(at, tag);
                let debt = rule.stamped(past.base + debt, own);
                let set = page * SETS_PER_PAGE + set;
                if rule.size(debt) > 0 {
                    self.table.meet(set, tag, &mut meetings);
                    if let Some(flaw) = rule.flaw(debt, own, rule.most_units(true)) {
                        panic!("the inherited debt of {tag:?} in set {set} {flaw}");
                    }
                }
            });
        }
        meetings.check();
    }
}

impl InheritedDebts for InheritedStamps {
    fn stamp_of(&self, hash: u64, present: u64) -> u64 {
        self.debts.get(hash, present, &|debt| *debt).map_or(0, |debt| self.base + debt)
    }

    fn set_stamp_of(&self, hash: u64, stamp: u64) {
        self.debts.set(hash, Some(stamp.saturating_sub(self.base)).filter(|debt| *debt > 0));
    }

    fn clear_inserted(&self, hash: u64) {
        self.debts.missing(hash).iter().for_each(|heir| heir.copy_pages_of(hash));
        self.debts.set(hash, None);
    }
}

#[cfg(all(test, feature = "test-util", not(sluice_loom)))]
mod tests {
    use std::sync::Weak;

    use super::*;
    use crate::store::memory::debt_copies::Debtor;
    use crate::store::memory::quota_state::QuotaState;
    use crate::store::memory::read_states::ReadStates;
    use crate::store::memory::table::{PaidAt, Ticks};

    const NOW: Timestamp = Timestamp::from_nanos(5);
    const HASH: u64 = 7 << 40 | 7;

    /// Copies one bucket's debts into another.
    struct FromBucket(Arc<Ledger<TickBucket>>, TickBucket);

    impl FromBucket {
        fn each(&self, part: TablePart, mut act: impl FnMut(usize, Tag, u64)) {
            let conversion = self.1.conversion(self.0.rule(), self.0.rule().read(NOW));
            self.0.each(part, &Quota::per_day(1), NOW, &mut |set, tag, entry: QuotaState<Ticks>| {
                act(set, tag, conversion.debt(entry.state.0));
            });
        }
    }

    impl DebtSource<u64> for FromBucket {
        fn announce(&self, heir: &Weak<dyn PastDebts>) {
            self.0.inherited().into_iter().for_each(|past| past.announce(heir));
        }

        fn copy(&self, geometry: Geometry, page: usize, put: &mut dyn FnMut(Debtor<u64>)) {
            self.each(TablePart::Page(geometry, page), |set, tag, debt| put(Debtor { set, tag, debt, ends: u64::MAX }));
        }

        fn size(&self, _: Tag, debt: &u64) -> u64 {
            *debt
        }
    }

    fn bucket(burst: u64, keys: usize, when_full: WhenFull) -> Ledger<TickBucket> {
        Ledger::new(TickBucket::new(&Quota::per_day(1).burst(burst)).unwrap(), keys, when_full)
    }

    /// Lets a bucket inherit.
    fn after(before: &Arc<Ledger<TickBucket>>, mut heir: Ledger<TickBucket>) -> Ledger<TickBucket> {
        let quota = Quota::per_day(1).burst(heir.rule.most_units(false));
        let rule = TickBucket::holding(&quota, false, before.most_owed(NOW).unwrap()).unwrap();
        let rule = rule.continuing(before.rule(), NOW);
        let source = FromBucket(Arc::clone(before), rule);
        let mut overflow = Vec::new();
        source.each(TablePart::Overflow, |_, tag, debt| overflow.push((tag, debt)));
        heir.inherit(rule, &before.geometries(NOW), NOW, &overflow, Box::new(source));
        heir.remember(before, NOW, !overflow.is_empty());
        heir
    }

    /// Returns a bucket with a burst of one, in which the key inherits a debt of three.
    fn heir() -> Ledger<TickBucket> {
        let before = Arc::new(bucket_of_three(64));
        assert!(before.check::<Decision>(HASH, 3, || NOW, || NOW).is_allowed());
        let heir = after(&before, bucket(1, 64, WhenFull::EvictLeast));
        heir.inherited().unwrap().copy_all();
        heir
    }

    /// Charges the key as if it had inherited nothing, so that its inherited debt is not cleared.
    fn check_without_clearing(heir: &mut Ledger<TickBucket>, cost: u64) {
        let inherited = heir.table.inherited.take();
        assert!(heir.check::<Decision>(HASH, cost, || NOW, || NOW).is_allowed());
        heir.table.inherited = inherited;
    }

    fn bucket_of_three(keys: usize) -> Ledger<TickBucket> {
        bucket(3, keys, WhenFull::EvictLeast)
    }

    /// Returns an heir with this capacity and the same quota.
    fn heir_with(keys: usize, before: &Arc<Ledger<TickBucket>>) -> Ledger<TickBucket> {
        after(before, bucket_of_three(keys))
    }

    /// A thread was descheduled after it had inserted a key, before it cleared the key's inherited debt. After a second
    /// change the older debt counted, if the capacity had changed as well: the charges made meanwhile were forgotten.
    #[test]
    fn the_greater_of_two_debts_counts() {
        let before = Arc::new(bucket_of_three(64));
        assert!(before.check::<Decision>(HASH, 1, || NOW, || NOW).is_allowed());
        let mut heir = heir_with(128, &before);
        heir.inherited().unwrap().copy_all();
        check_without_clearing(&mut heir, 2);
        let heir_of_heir = heir_with(64, &Arc::new(heir));
        heir_of_heir.inherited().unwrap().copy_all();
        assert_eq!(heir_of_heir.peek::<Decision>(HASH, 0, || NOW).remaining(), 1);
        assert!(heir_of_heir.check::<Decision>(HASH, 1, || NOW, || NOW).is_allowed());
        heir_of_heir.check_invariants(NOW);
    }

    /// An heir had copied the table's page before the key was inserted, and the page with the key's inherited debt
    /// after that was cleared. So the key's whole debt was forgotten.
    #[test]
    fn a_debt_moved_during_copying_is_found() {
        let before = Arc::new(bucket_of_three(4_096));
        assert!(before.check::<Decision>(HASH, 3, || NOW, || NOW).is_allowed());
        let heir = Arc::new(heir_with(64, &before));
        heir.inherited().unwrap().copy_all();
        let heir_of_heir = heir_with(64, &heir);
        // A key that may be in other pages in the first table. All keys in the second are in one page.
        let pages = |hash| before.geometry().candidate_sets(hash).map(|set| set / SETS_PER_PAGE);
        let other =
            (1..).map(|n: u64| n << 56 | n).find(|other| pages(*other).iter().all(|it| !pages(HASH).contains(it)));
        assert_eq!(heir_of_heir.peek::<Decision>(other.unwrap(), 0, || NOW).remaining(), 3);
        assert!(!heir.check::<Decision>(HASH, 1, || NOW, || NOW).is_allowed());
        assert_eq!(heir_of_heir.peek::<Decision>(HASH, 0, || NOW).remaining(), 0);
        heir_of_heir.inherited().unwrap().copy_all();
        heir.check_invariants(NOW);
        heir_of_heir.check_invariants(NOW);
    }

    /// Once no key owed anything from before the first change, the second change assumed that all charges from before
    /// it were paid, including charges that an overflow slot still owed. So their refunds were lost.
    #[test]
    fn overflow_charges_are_refunded_after_two_changes() {
        let with_overflow = || bucket(3, 64, WhenFull::Overflow);
        let after = |before| {
            let heir = after(&Arc::new(before), with_overflow());
            heir.inherited().unwrap().copy_all();
            heir
        };
        let before = with_overflow();
        let tick = before.rule().read(NOW).count + before.rule().capacity();
        before.inherit_overflow(NOW, Tag::from_hash(HASH), tick);
        let receipt = Receipt::from_proof(PaidAt { table: before.table.occupancy.number(), tick });
        let heir = after(after(before));
        assert_eq!(heir.peek::<Decision>(HASH, 0, || NOW).remaining(), 0);
        heir.refund(HASH, 2, receipt, NOW);
        assert_eq!(heir.peek::<Decision>(HASH, 0, || NOW).remaining(), 2);
        heir.check_invariants(NOW);
    }

    /// The decision counted the overflow slot alone, so it showed more remaining units than the next peek.
    #[test]
    fn remaining_counts_inherited_and_shared_debt() {
        let before = Arc::new(bucket(10, 64, WhenFull::Overflow));
        let charge = |ledger: &Ledger<_>, hash, cost| ledger.check::<Decision>(hash, cost, || NOW, || NOW);
        assert!(charge(&before, HASH, 4).is_allowed());
        let heir = after(&before, bucket(10, 1, WhenFull::Overflow));
        // All sixteen slots are taken.
        assert!((100..116).all(|n: u64| charge(&heir, n << 40 | n, 1).is_allowed()));
        for (cost, left) in [(1, 5), (2, 3)] {
            let decision = charge(&heir, HASH, cost);
            assert_eq!((decision.is_allowed(), decision.remaining()), (true, left));
            let peeked = heir.peek::<Decision>(HASH, 0, || NOW);
            assert_eq!((peeked.remaining(), peeked.reset_after()), (left, decision.reset_after()));
        }
        // A refund lowers the inherited debt, and by the charge at most.
        let receipt = charge(&heir, HASH, 1).receipt();
        heir.refund(HASH, 5, receipt, NOW);
        assert_eq!(heir.peek::<Decision>(HASH, 0, || NOW).remaining(), 2 + 4);
        heir.check_invariants(NOW);
    }

    #[test]
    fn inserting_a_key_moves_its_debt() {
        let heir = heir();
        heir.check_invariants(NOW);
        assert!(!heir.check::<Decision>(HASH, 1, || NOW, || NOW).is_allowed());
        heir.check_invariants(NOW);
    }

    #[test]
    #[should_panic(expected = "and what it inherited is not cleared")]
    fn a_debt_owed_twice_is_found() {
        let mut heir = heir();
        check_without_clearing(&mut heir, 1);
        heir.check_invariants(NOW);
    }
}
