//! The locked table, for any algorithm: sets of eight slots, each behind a lock.
//!
//! A key has two candidate sets. The locks are always taken in one order (the lower candidate set, the higher one, the
//! overflow set), so that no two threads wait for each other.

#[cfg(feature = "test-util")]
mod invariants;
mod overflow;
mod set;

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use self::overflow::{charge_overflow, shared_tag, sum};
use self::set::{SLOTS, StateSet, Tag64};
use super::debt_copies::{CopiedStates, DebtCopies, DebtSource, PastDebts};
use super::occupancy::{self, Occupancy};
use super::quota_state::{QuotaState, cast, is_same};
use super::read_states::{AnyTable, ReadStates, TablePart};
use super::table::{GROUPS, Geometry, SETS_PER_PAGE, Tag};
use super::when_full::WhenFull;
use crate::algorithm::Algorithm;
use crate::util::lock::Lock;
use crate::values::time::{self, Timestamp};
use crate::values::{Decision, Quota, Receipt};

pub(super) struct LockedTable<S> {
    geometry: Geometry,
    /// An algorithm that panics leaves its set as it was: states are replaced whole.
    sets: Box<[Lock<StateSet<S>>]>,
    /// What new keys share when the table is full and must not forget: a set for each [group](GROUPS), with a slot for
    /// each quota of its keys.
    overflow: Box<[Lock<StateSet<S>>]>,
    when_full: WhenFull,
    /// Shared with the copies of what its keys inherit.
    occupancy: Arc<Occupancy>,
    inherited: Option<Arc<DebtCopies<S, CopiedStates<S>>>>,
}

/// Returns the time by which a key is judged.
#[inline]
fn local<A: Algorithm>(algorithm: &A, tag: Tag64, now: Timestamp) -> Timestamp {
    local_of(algorithm, Tag::from_hash(tag.get()), now)
}

#[inline]
pub(super) fn local_of<A: Algorithm>(algorithm: &A, tag: Tag, now: Timestamp) -> Timestamp {
    now.saturating_add(algorithm.phase(tag.phase_draw()))
}

impl<S: Copy + Send + 'static> LockedTable<S> {
    /// Makes a table with slots for `keys` keys at half load.
    pub(super) fn new(keys: usize, when_full: WhenFull) -> Self {
        let geometry = Geometry::of(keys);
        let overflow = if when_full == WhenFull::Overflow { GROUPS } else { 0 };
        let sets_of = |count| reserved(count, keys, || Lock::new(StateSet::new()));
        Self {
            geometry,
            sets: sets_of(geometry.sets()),
            overflow: sets_of(usize::try_from(overflow).expect("some hundreds")),
            when_full,
            occupancy: Arc::new(Occupancy::new()),
            inherited: None,
        }
    }

    /// Lets the table begin with the states that `source` copies. For a table that was not used yet.
    pub(super) fn inherit(&mut self, geometries: &[Geometry], source: Box<dyn DebtSource<S>>) {
        self.inherited = Some(DebtCopies::new(geometries, &self.occupancy, source));
    }

    /// Returns a key's two candidate sets, the lower one first. It is locked first: so of two threads with the same two
    /// sets, neither waits for the other.
    fn candidates(&self, hash: u64) -> (usize, usize) {
        let [a, b] = self.geometry.candidate_sets(hash);
        (a.min(b), a.max(b))
    }

    fn lock(&self, set: usize) -> MutexGuard<'_, StateSet<S>> {
        self.sets[set].lock()
    }

    /// Decides, and keeps what is charged.
    ///
    /// A key is in at most one of its candidate sets, because it is only inserted while both are locked and neither has
    /// it. So the lower set may be searched, and a key found there judged, under that set's lock alone.
    pub(super) fn check<A: Algorithm<State = S>>(
        &self,
        algorithm: &A,
        hash: u64,
        cost: u64,
        now: impl Fn() -> Timestamp,
        fresh: impl Fn() -> Timestamp,
    ) -> Decision {
        let (tag, (low, high)) = (tag_of(hash), self.candidates(hash));
        loop {
            let mut low = self.lock(low);
            if let Some(state) = low.find(tag) {
                return charge(algorithm, state, local(algorithm, tag, now()), cost);
            }
            let mut high = self.lock(high);
            // Read under both locks: a key that is not found owes nothing by now, but may have owed something while this
            // thread waited for a lock.
            let now = fresh();
            if let Some(state) = high.find(tag) {
                return charge(algorithm, state, local(algorithm, tag, now), cost);
            }
            let missing = self.missing(hash);
            if missing.is_empty() {
                return self.insert(algorithm, hash, cost, now, [&mut *low, &mut *high]);
            }
            drop((low, high));
            missing.iter().for_each(|heir| heir.copy_pages_of(hash));
        }
    }

    /// Returns the heirs that must copy the pages of a key before its inherited state is moved into the table. To be
    /// called with both candidate sets locked: an heir that is not among them then reads these sets after the move. The
    /// pages are to be copied with neither locked, since that locks them.
    fn missing(&self, hash: u64) -> Vec<Arc<dyn PastDebts>> {
        self.inherited.as_ref().map_or_else(Vec::new, |past| past.missing(hash))
    }

    /// Decides on a key that is in neither of its candidate sets, and inserts it if it owes something then.
    fn insert<A: Algorithm<State = S>>(
        &self,
        algorithm: &A,
        hash: u64,
        cost: u64,
        now: Timestamp,
        [low, high]: [&mut StateSet<S>; 2],
    ) -> Decision {
        let (tag, group) = (tag_of(hash), Tag::from_hash(hash));
        let is_free = |tag, state: &S| algorithm.expires_at(state) <= local(algorithm, tag, now);
        let (in_low, in_high) = (low.free(is_free), high.free(is_free));
        // The emptier one is tried first: this choice is what keeps both from filling up early.
        let (emptier, fuller) = if in_low >= in_high { (low, high) } else { (high, low) };

        let own = local(algorithm, tag, now);
        let inherited = self.inherited.as_ref();
        let inherited = inherited.and_then(|past| past.get(hash, now.as_nanos(), |state| algorithm.owed(state, own)));
        // What the key has spent of an overflow slot, it must not spend again. Locked to the end: what the slot owes is
        // judged here, and charged below.
        let mut overflow = self.overflow_set(group);
        let shared = overflow.as_mut().and_then(|set| set.find(shared_tag(&algorithm.quota())).copied());
        let before = match (inherited, shared) {
            (Some(inherited), Some(shared)) => Some(sum(algorithm, inherited, shared, own)),
            (inherited, shared) => inherited.or(shared),
        };
        let (decision, next) = algorithm.decide(before, own, cost);
        // A key that has inherited is inserted even if the request is rejected.
        let Some(state) = next.or(inherited.and(before)) else { return decision };
        self.occupancy.note_arrival(hash, in_low.max(in_high));
        let mut is_inserted = emptier.insert(tag, state, is_free);
        if !is_inserted && self.when_full == WhenFull::EvictLeast {
            let owed = |tag, state: &S| algorithm.owed(state, local(algorithm, tag, now));
            let set = if emptier.least(owed) <= fuller.least(owed) { &mut *emptier } else { &mut *fuller };
            set.replace_least(tag, state, owed);
            self.occupancy.note_evicted();
            is_inserted = true;
        }
        if is_inserted {
            if let (Some(past), Some(_)) = (&self.inherited, inherited) {
                // After the insert, and after the heirs that copy by now have copied it (`missing`). So each heir finds
                // the state in one place at least.
                past.set(hash, None);
            }
            return decision;
        }
        // What is not charged needs no room; only a conversion to another quota is lost.
        if next.is_none() || !decision.is_allowed() || cost == 0 {
            return decision;
        }

        // The table is full, and must not forget a key.
        self.occupancy.note_turned_away();
        let first = match &mut overflow {
            Some(set) => match charge_overflow(algorithm, set, own, cost) {
                // What the key has inherited counts as well.
                Ok(shared) if shared.is_allowed() => return decision.with_receipt(shared.receipt()),
                Ok(shared) => return shared,
                Err(first) => first,
            },
            None => {
                let left = |tag, state: &S| {
                    time::nanos_of(algorithm.expires_at(state).saturating_since(local(algorithm, tag, now)))
                };
                Duration::from_nanos(emptier.least(left).min(fuller.least(left)))
            }
        };
        // As if the key had been charged for this request; for a window, that is when all that it can use is reset. A
        // slot may be free later than that.
        let reset = decision.reset_after().max(first);
        Decision::reject(decision.limit(), 0, Some(first)).with_reset_after(reset)
    }

    /// Returns what [`check`](Self::check) would decide, if there is room for the key. What the algorithm changes even if
    /// nothing is charged, such as the quota of a key, is kept.
    pub(super) fn peek<A: Algorithm<State = S>>(
        &self,
        algorithm: &A,
        hash: u64,
        cost: u64,
        now: Timestamp,
    ) -> Decision {
        self.convert_inherited(algorithm, hash, now);
        self.with_found(algorithm, hash, now, true, |state, now| {
            let Some(state) = state else { return algorithm.decide(None, now, cost).0 };
            if let (_, Some(next)) = algorithm.decide(Some(*state), now, 0) {
                *state = next;
            }
            algorithm.decide(Some(*state), now, cost).0
        })
    }

    /// Inserts a key that has inherited, if the algorithm changes its state even if nothing is charged. Where it was
    /// inherited, it must not be changed to one that counts for longer: it is forgotten there when the last inherited
    /// state is expected to have expired.
    fn convert_inherited<A: Algorithm<State = S>>(&self, algorithm: &A, hash: u64, now: Timestamp) {
        let own = local(algorithm, tag_of(hash), now);
        let inherited = || self.inherited.as_ref()?.get(hash, now.as_nanos(), |state| algorithm.owed(state, own));
        if self.has_past(now) && inherited().is_some_and(|state| algorithm.decide(Some(state), own, 0).1.is_some()) {
            let _ = self.check(algorithm, hash, 0, || now, || now);
        }
    }

    /// Refunds what is still owed for a charge.
    pub(super) fn refund<A: Algorithm<State = S>>(
        &self,
        algorithm: &A,
        hash: u64,
        cost: u64,
        receipt: Receipt,
        now: Timestamp,
    ) {
        self.with_found(algorithm, hash, now, false, |state, now| {
            if let Some(state) = state {
                *state = algorithm.refund(*state, now, cost, receipt);
            }
        });
    }

    /// Returns how many keys owe something, estimated from some sets if there are many. Keys are spread evenly.
    pub(super) fn live<A: Algorithm<State = S>>(&self, algorithm: &A, now: Timestamp) -> u64 {
        let sets = self.sets.len();
        let seen = sets.min(occupancy::SAMPLED_SETS);
        let is_free = |tag, state: &S| algorithm.expires_at(state) <= local(algorithm, tag, now);
        let live = (0..seen).map(|index| SLOTS - self.lock(index * sets / seen).free(is_free)).sum();
        occupancy::extrapolate(live, seen, sets)
    }

    /// Calls `act` with the state of a key and the time by which it is judged; with the state that it shares with
    /// others if it has none of its own. If it has inherited, what it shares is [added](sum) for as long as `act` runs, and
    /// only if `adds`: what `act` changes is changed in what was inherited.
    fn with_found<A: Algorithm<State = S>, R>(
        &self,
        algorithm: &A,
        hash: u64,
        now: Timestamp,
        adds: bool,
        act: impl FnOnce(Option<&mut S>, Timestamp) -> R,
    ) -> R {
        let (tag, (low, high)) = (tag_of(hash), self.candidates(hash));
        let local = local(algorithm, tag, now);
        let mut low = self.lock(low);
        if let Some(state) = low.find(tag) {
            return act(Some(state), local);
        }
        // The lower set stays locked: else another thread could insert the key there meanwhile.
        let mut high = self.lock(high);
        if let Some(state) = high.find(tag) {
            return act(Some(state), local);
        }
        let mut overflow = self.overflow_set(Tag::from_hash(hash));
        let shared = overflow.as_mut().and_then(|set| set.find(shared_tag(&algorithm.quota())));
        let size = |state: &S| algorithm.owed(state, local);
        let inherited = self.inherited.as_ref();
        let Some((past, mut state)) = inherited.and_then(|past| Some((past, past.get(hash, now.as_nanos(), size)?)))
        else {
            return act(shared, local);
        };
        if let Some(shared) = shared.filter(|_| adds) {
            return act(Some(&mut sum(algorithm, state, *shared, local)), local);
        }
        let result = act(Some(&mut state), local);
        past.set(hash, Some(state));
        result
    }
}

impl<S: Copy + Send + 'static> AnyTable for LockedTable<S> {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn occupancy(&self) -> &Arc<Occupancy> {
        &self.occupancy
    }

    fn size_in_bytes(&self) -> usize {
        size_of_val(&*self.sets) + size_of_val(&*self.overflow)
    }

    fn inherited(&self) -> Option<Arc<dyn PastDebts>> {
        self.inherited.as_ref().map(|past| Arc::clone(past) as _)
    }

    fn has_past(&self, now: Timestamp) -> bool {
        self.inherited.as_ref().is_some_and(|past| !past.has_ended(now.as_nanos()))
    }

    fn most_owed(&self, _: Timestamp) -> Option<u64> {
        None
    }

    fn reset(&self, hash: u64, _: Timestamp) {
        let (tag, (low, high)) = (tag_of(hash), self.candidates(hash));
        let mut low = self.lock(low);
        low.remove(tag);
        // The lower set stays locked: else another thread could insert the key there, with its inherited state, before
        // that is cleared.
        let mut high = self.lock(high);
        high.remove(tag);
        if let Some(past) = &self.inherited {
            past.set(hash, None);
        }
        if let Some(mut set) = self.overflow_set(Tag::from_hash(hash)) {
            // Of all quotas: under which one the key was asked is not known.
            *set = StateSet::new();
        }
    }
}

/// With the limiter's own quota, if the table keeps states alone.
impl<S: Copy + Send + 'static, T: Copy + 'static> ReadStates<T> for LockedTable<S> {
    fn is_read(&self) -> bool {
        is_same::<S, T>() || is_same::<S, QuotaState<T>>()
    }

    fn each(&self, part: TablePart, own: &Quota, _: Timestamp, act: &mut dyn FnMut(usize, Tag, QuotaState<T>)) {
        let mut act = |set, tag, debt: S| {
            let alone = || cast(debt).map(|state| QuotaState { state, quota: *own });
            if let Some(entry) = cast(debt).or_else(alone) {
                act(set, tag, entry);
            }
        };
        let TablePart::Page(geometry, page) = part else {
            let sets = (0..).map(Tag::of_group).zip(&self.overflow);
            return sets.for_each(|(tag, set)| set.lock().each(|_, state| act(0, tag, state)));
        };
        // Before the table, as in `Ledger`.
        if let Some(past) = &self.inherited {
            past.each_left(geometry, page, &mut act);
        }
        if geometry == self.geometry {
            let sets = self.sets.iter().skip(page * SETS_PER_PAGE).take(SETS_PER_PAGE);
            for (index, set) in sets.enumerate() {
                set.lock().each(|tag, state| act(index, Tag::from_hash(tag.get()), state));
            }
        }
    }
}

/// Makes so many of them, in memory that is requested at once.
fn reserved<T>(count: usize, keys: usize, make: impl FnMut() -> T) -> Box<[T]> {
    let mut all = Vec::new();
    if all.try_reserve_exact(count).is_err() {
        occupancy::no_memory(keys, count.saturating_mul(size_of::<T>()));
    }
    all.extend(std::iter::repeat_with(make).take(count));
    all.into()
}

fn tag_of(hash: u64) -> Tag64 {
    Tag64::new(hash).unwrap_or(Tag64::MIN)
}

fn charge<A: Algorithm>(algorithm: &A, state: &mut A::State, now: Timestamp, cost: u64) -> Decision {
    let (decision, next) = algorithm.decide(Some(*state), now, cost);
    if let Some(next) = next {
        *state = next;
    }
    decision
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use super::*;
    use crate::algorithm::{FixedWindow, FixedWindowState, GcraState, SlidingWindowState};
    use std::sync::Weak;

    use crate::store::memory::debt_copies::Debtor;

    /// On 32 bits, words are aligned to four bytes, and keys take less.
    #[cfg(target_pointer_width = "64")]
    #[test]
    fn keys_take_as_many_bytes_as_documented() {
        fn of<S: Copy + Send + 'static>() -> usize {
            LockedTable::<S>::new(10_000, WhenFull::EvictLeast).size_in_bytes() / 10_000
        }
        assert_eq!(of::<FixedWindowState>(), 52);
        assert_eq!(of::<SlidingWindowState>(), 68);
        assert_eq!(of::<GcraState>(), 52);
        assert_eq!(of::<QuotaState<GcraState>>(), 98);
        assert_eq!(of::<QuotaState<FixedWindowState>>(), 98);
        assert_eq!(of::<QuotaState<SlidingWindowState>>(), 114);
    }

    #[test]
    fn both_candidates_of_a_key_are_spread_over_all_sets() {
        const SETS: usize = 50;
        let mut keys = [0; SETS];
        for n in 0..100 * SETS as u64 {
            // The bits of the golden ratio.
            let [a, b] = Geometry::with_sets(SETS).candidate_sets(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            assert_ne!(a, b);
            keys[a] += 1;
            keys[b] += 1;
        }
        assert!(keys.iter().all(|keys| (120..280).contains(keys)), "{keys:?}");
    }

    const HASH: u64 = 0x1234_5678_9abc_def0;

    /// What the key of that hash has inherited.
    struct Inherited(FixedWindowState);

    impl DebtSource<FixedWindowState> for Inherited {
        fn announce(&self, _: &Weak<dyn PastDebts>) {}

        fn copy(&self, _: Geometry, _: usize, put: &mut dyn FnMut(Debtor<FixedWindowState>)) {
            put(Debtor { set: 0, tag: Tag::from_hash(HASH), debt: self.0, ends: u64::MAX });
        }

        fn size(&self, _: Tag, state: &FixedWindowState) -> u64 {
            state.used
        }
    }

    fn state(used: u64) -> FixedWindowState {
        FixedWindowState { window: 0, used }
    }

    /// A table of two sets, in which the key of that hash has inherited.
    fn heir(when_full: WhenFull, inherited: u64) -> LockedTable<FixedWindowState> {
        let mut table = LockedTable::new(SLOTS, when_full);
        table.inherit(&[table.geometry], Box::new(Inherited(state(inherited))));
        table
    }

    fn admits(table: &LockedTable<FixedWindowState>, cost: u64) -> bool {
        let now = Timestamp::ZERO;
        table.check(&FixedWindow::new(Quota::per_day(10)), HASH, cost, || now, || now).is_allowed()
    }

    /// Where the key of that hash is in a table of 256 sets.
    struct InFourPages(FixedWindowState);

    impl DebtSource<FixedWindowState> for InFourPages {
        fn announce(&self, _: &Weak<dyn PastDebts>) {}

        fn copy(&self, geometry: Geometry, page: usize, put: &mut dyn FnMut(Debtor<FixedWindowState>)) {
            assert_eq!(geometry.pages(), 4);
            let [set, _] = geometry.candidate_sets(HASH);
            if set / SETS_PER_PAGE == page {
                put(Debtor { set: set % SETS_PER_PAGE, tag: Tag::from_hash(HASH), debt: self.0, ends: u64::MAX });
            }
        }

        fn size(&self, _: Tag, state: &FixedWindowState) -> u64 {
            state.used
        }
    }

    /// Copies what a table keeps.
    struct FromTable(Arc<LockedTable<FixedWindowState>>);

    impl DebtSource<FixedWindowState> for FromTable {
        fn announce(&self, heir: &Weak<dyn PastDebts>) {
            self.0.inherited().into_iter().for_each(|past| past.announce(heir));
        }

        fn copy(&self, geometry: Geometry, page: usize, put: &mut dyn FnMut(Debtor<FixedWindowState>)) {
            self.0.each(
                TablePart::Page(geometry, page),
                &TEN,
                Timestamp::ZERO,
                &mut |set, tag, QuotaState { state, .. }| {
                    put(Debtor { set, tag, debt: state, ends: u64::MAX });
                },
            );
        }

        fn size(&self, _: Tag, state: &FixedWindowState) -> u64 {
            state.used
        }
    }

    /// As `a_debt_that_moves_into_the_table_while_an_heir_copies_is_found` in `ledger.rs`.
    #[test]
    fn a_state_that_moves_into_the_table_while_an_heir_copies_is_found() {
        let before = Geometry::with_sets(4 * SETS_PER_PAGE);
        let mut table = LockedTable::new(SLOTS, WhenFull::EvictLeast);
        table.inherit(&[before], Box::new(InFourPages(state(10))));
        let table = Arc::new(table);
        let source = Box::new(FromTable(Arc::clone(&table)));
        let heir = DebtCopies::<_, CopiedStates<_>>::new(&[table.geometry(), before], table.occupancy(), source);
        let inherited = |hash| heir.get(hash, 0, |state| state.used);
        // Of the four pages, this key may be in those in which the other may not be.
        let pages = |hash| before.candidate_sets(hash).map(|set| set / SETS_PER_PAGE);
        let other =
            (1..).map(|n: u64| n << 56 | n).find(|other| pages(*other).iter().all(|it| !pages(HASH).contains(it)));
        assert_eq!(inherited(other.unwrap()), None);
        assert!(!admits(&table, 1));
        assert_eq!(inherited(HASH), Some(state(10)));
        table.check_invariants(Timestamp::ZERO);
    }

    /// All keys are in the same two sets.
    #[test]
    fn keys_whose_tags_differ_inherit_apart() {
        for other in [HASH ^ 1 << 9, HASH ^ 1 << 20, HASH ^ 1 << 27] {
            let table = heir(WhenFull::EvictLeast, 10);
            let now = Timestamp::ZERO;
            assert!(table.check(&FixedWindow::new(TEN), other, 10, || now, || now).is_allowed());
            assert!(!admits(&table, 1));
        }
    }

    const TEN: Quota = Quota::per_day(10);

    #[test]
    fn an_inherited_and_a_shared_state_count_together() {
        for (inherited, shared, left) in [(1, 10, 0), (10, 1, 0), (4, 3, 3), (9, 9, 0)] {
            let table = heir(WhenFull::Overflow, inherited);
            table.inherit_overflow((Tag::from_hash(HASH), &TEN), state(shared), |_| 0);
            let peeked = table.peek(&FixedWindow::new(TEN), HASH, 1, Timestamp::ZERO);
            let context = format!("inherited {inherited}, shared {shared}");
            assert_eq!((peeked.is_allowed(), peeked.remaining()), (left > 0, left.max(1) - 1), "{context}");
            assert_eq!((0..5).filter(|_| admits(&table, 1)).count(), usize::try_from(left).unwrap(), "{context}");
        }
    }

    /// A refund lowers what was inherited, and leaves to others what they share.
    #[test]
    fn a_refund_of_a_key_that_inherits_and_shares_is_of_what_it_inherits() {
        let table = heir(WhenFull::Overflow, 6);
        table.inherit_overflow((Tag::from_hash(HASH), &TEN), state(3), |_| 0);
        let window = FixedWindow::new(TEN);
        let charged = window.decide(None, Timestamp::ZERO, 1).0.receipt();
        table.refund(&window, HASH, 2, charged, Timestamp::ZERO);
        assert_eq!(table.peek(&window, HASH, 0, Timestamp::ZERO).remaining(), 10 - 4 - 3);
    }

    #[test]
    fn of_shared_states_that_become_one_the_greatest_counts() {
        for states in [[3, 8], [8, 3]] {
            let table = LockedTable::new(SLOTS, WhenFull::Overflow);
            for used in states {
                table.inherit_overflow((Tag::from_hash(HASH), &TEN), state(used), |state| state.used);
            }
            assert_eq!(table.peek(&FixedWindow::new(TEN), HASH, 0, Timestamp::ZERO).remaining(), 2);
        }
    }

    /// The keys of a group share as many budgets as a set has slots, one for each quota. Keys of a ninth quota are rejected
    /// until one of these owes nothing.
    #[test]
    fn keys_of_a_group_share_a_budget_for_each_of_eight_quotas() {
        let table = heir(WhenFull::Overflow, 10);
        for (set, tags) in [(0, 1..9), (1, 11..19)] {
            for tag in tags {
                assert!(table.lock(set).insert(tag_of(tag), state(1), |_, _| false));
            }
        }
        // A key of the same group that has inherited nothing.
        let ask = |quota, at| {
            let now = || Timestamp::ZERO.saturating_add(Duration::from_secs(at));
            table.check(&FixedWindow::new(quota), HASH ^ 1 << 10, 1, now, now)
        };
        let quotas = (1..=8).map(|units| Quota::per_day(units));
        for quota in quotas.clone() {
            let passed = (0..20).filter(|_| ask(quota, 0).is_allowed()).count();
            assert_eq!(passed, usize::try_from(quota.limit()).unwrap(), "{quota:?}");
        }
        let day = Duration::from_secs(86_400);
        let ninth = ask(Quota::per_day(9), 0);
        assert_eq!((ninth.is_allowed(), ninth.retry_after()), (false, Some(day)));
        table.check_invariants(Timestamp::ZERO);
        table.reset(HASH, Timestamp::ZERO);
        assert!(ask(Quota::per_day(9), 0).is_allowed());
        // A slot of the set is free once it owes nothing.
        assert!(quotas.skip(1).all(|quota| ask(quota, 0).is_allowed()));
        assert_eq!(ask(Quota::per_day(1), 0).retry_after(), Some(day));
    }

    #[test]
    fn a_key_that_inherits_evicts_the_one_that_owes_least_in_both_sets() {
        let table = heir(WhenFull::EvictLeast, 4);
        for (set, tags, used) in [(0, 1..9, 5), (1, 11..19, 2)] {
            for tag in tags {
                assert!(table.lock(set).insert(tag_of(tag), state(used), |_, _| false));
            }
        }
        assert!(admits(&table, 0));
        assert_eq!(table.occupancy().evicted(), 1);
        assert_eq!(table.lock(0).least(|_, state| state.used), 5, "a key was evicted that owes 5, not 2");
    }

    #[test]
    fn a_key_that_a_full_table_rejects_has_a_reset() {
        let table = LockedTable::new(SLOTS, WhenFull::Reject);
        for (set, tags) in [(0, 1..9), (1, 11..19)] {
            for tag in tags {
                assert!(table.lock(set).insert(tag_of(tag), state(1), |_, _| false));
            }
        }
        let now = Timestamp::ZERO;
        let decision = table.check(&FixedWindow::new(TEN), HASH, 1, || now, || now);
        let day = Duration::from_secs(86_400);
        assert_eq!(decision, Decision::reject(10, 0, Some(day)).with_reset_after(day));
    }

    #[test]
    fn a_table_of_any_size_has_two_candidate_sets_for_every_hash() {
        for keys in [1, 2, 3, 8, 9, 1_000] {
            let table = LockedTable::<SlidingWindowState>::new(keys, WhenFull::EvictLeast);
            for hash in [0, 1, u64::MAX, u64::MAX << 32, u64::MAX >> 32, 0x1234_5678_9abc_def0] {
                let (low, high) = table.candidates(hash);
                assert!(low < high && high < table.sets.len(), "{keys} keys, hash {hash:#x}: {low} and {high}");
            }
        }
    }
}
