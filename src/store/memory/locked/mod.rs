//! The locked table, for any algorithm. It has sets with eight slots each, and each set has a lock.
//!
//! A key has two candidate sets. A thread always takes the locks in one order (the lower candidate set, the higher one,
//! the overflow set), so that no two threads deadlock.

#[cfg(feature = "test-util")]
mod invariants;
mod overflow;
mod set;

use std::any::TypeId;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use self::overflow::{charge_overflow, shared_tag, sum};
use self::set::{SLOTS, StateSet, Tag64};
use super::debt_copies::{CopiedDebts, CopiedStates, DebtCopies, DebtSource, PastDebts};
use super::occupancy::{self, Occupancy};
use super::quota_state::StateType;
use super::read_states::{ActOnAny, AnyTable, TablePart};
use super::table::{GROUPS, Geometry, SETS_PER_PAGE, Tag};
use super::when_full::WhenFull;
use crate::algorithm::Algorithm;
use crate::util::lock::Lock;
use crate::values::time::{self, Timestamp};
use crate::values::{Decision, Quota, Receipt};

pub(super) struct LockedTable<S> {
    geometry: Geometry,
    /// If an algorithm panics, its set stays as it was, because states are replaced whole.
    sets: Box<[Lock<StateSet<S>>]>,
    /// The states that new keys share when the table is full and must not forget keys. There is a set for each
    /// [group](GROUPS), with a slot for each quota that its keys have.
    overflow: Box<[Lock<StateSet<S>>]>,
    when_full: WhenFull,
    /// Shared with the copies of the inherited states.
    occupancy: Arc<Occupancy>,
    inherited: Option<Arc<dyn CopiedDebts<S>>>,
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

    /// Lets the table begin with the states that `source` copies. The table must be unused.
    pub(super) fn inherit(&mut self, geometries: &[Geometry], source: Box<dyn DebtSource<S>>) {
        self.inherited = Some(DebtCopies::<_, CopiedStates<_>>::new(geometries, &self.occupancy, source));
    }

    /// Returns a key's two candidate sets, the lower one first. It is locked first, so that two threads with the same
    /// two sets cannot deadlock.
    fn candidates(&self, hash: u64) -> (usize, usize) {
        let [a, b] = self.geometry.candidate_sets(hash);
        (a.min(b), a.max(b))
    }

    fn lock(&self, set: usize) -> MutexGuard<'_, StateSet<S>> {
        self.sets[set].lock()
    }

    /// Decides, and stores the charged state.
    ///
    /// A key is in at most one candidate set, because it is only inserted while both are locked and it is missing from
    /// both. So the lower set may be searched, and a key found there judged, under that set's lock alone.
    pub(super) fn check<A: Algorithm<State = S>>(
        &self,
        algorithm: &A,
        hash: u64,
        cost: u64,
        now: impl Fn() -> Timestamp,
        fresh: impl Fn() -> Timestamp,
    ) -> Decision {
        let tag = tag_of(hash);
        let (low, high) = self.candidates(hash);
        loop {
            let mut low = self.lock(low);
            if let Some(state) = low.find(tag) {
                return charge(algorithm, state, local(algorithm, tag, now()), cost);
            }
            let mut high = self.lock(high);
            // Read under both locks, because a key that is not found has no debt at this time, but may have had one
            // while this thread waited for a lock.
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

    /// Returns the heirs that must copy a key's pages before its inherited state is moved into the table. Call this
    /// with both candidate sets locked, so that an heir that is not returned reads these sets after the move. Unlock
    /// both sets before the pages are copied, since copying locks them.
    fn missing(&self, hash: u64) -> Vec<Arc<dyn PastDebts>> {
        self.inherited.as_ref().map_or_else(Vec::new, |past| past.missing(hash))
    }

    /// Decides on a key that is missing from both candidate sets, and inserts it if it then owes something.
    fn insert<A: Algorithm<State = S>>(
        &self,
        algorithm: &A,
        hash: u64,
        cost: u64,
        now: Timestamp,
        [low, high]: [&mut StateSet<S>; 2],
    ) -> Decision {
        let tag = tag_of(hash);
        let is_free = |tag, state: &S| algorithm.expires_at(state) <= local(algorithm, tag, now);
        let in_low = low.free(is_free);
        let in_high = high.free(is_free);
        // Try the emptier set first, which keeps sets from filling up early.
        let (emptier, fuller) = if in_low >= in_high { (low, high) } else { (high, low) };

        let own = local(algorithm, tag, now);
        let inherited = self.inherited.as_ref();
        let inherited = inherited.and_then(|past| past.get(hash, now.as_nanos(), &|state| algorithm.owed(state, own)));
        // The key must not spend again the units that it has spent from an overflow slot. The set stays locked to the
        // end, because the slot's debt is judged here, and charged below.
        let mut overflow = self.overflow_set(Tag::from_hash(hash));
        let shared = overflow.as_mut().and_then(|set| set.find(shared_tag(&algorithm.quota())).copied());
        let before = match (inherited, shared) {
            (Some(inherited), Some(shared)) => Some(sum(algorithm, inherited, shared, own)),
            (inherited, shared) => inherited.or(shared),
        };
        let before = before.map(|state| algorithm.after_step_back(state, own));
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
                // Clear it after the insert, and after the heirs that have begun to copy have copied the state
                // (`missing`). So each heir finds it in at least one place.
                past.set(hash, None);
            }
            return decision;
        }
        // A request that charges nothing needs no slot, so only a conversion to another quota is lost.
        if next.is_none() || !decision.is_allowed() || cost == 0 {
            return decision;
        }

        // The table is full, and must not forget a key.
        self.occupancy.note_turned_away();
        let first = match &mut overflow {
            Some(set) => match charge_overflow(algorithm, set, own, cost) {
                // This decision, unlike `shared`, counts the inherited state as well.
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
        // As if the key had been charged for this request. For a window, that is when its whole budget resets. A slot
        // may be free later than that.
        let reset = decision.reset_after().max(first);
        Decision::reject(decision.limit(), 0, Some(first)).with_reset_after(reset)
    }

    /// Returns the decision that [`check`](Self::check) would make, if there is room for the key. Stores changes that
    /// the algorithm makes even if nothing is charged, such as to a key's quota.
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
            *state = algorithm.after_step_back(*state, now);
            if let (_, Some(next)) = algorithm.decide(Some(*state), now, 0) {
                *state = next;
            }
            algorithm.decide(Some(*state), now, cost).0
        })
    }

    /// Inserts a key that has inherited, if the algorithm changes its state even if nothing is charged. In the copies,
    /// it must not be replaced by a state that counts for longer, because the copies are dropped when the last
    /// inherited state is expected to have expired.
    fn convert_inherited<A: Algorithm<State = S>>(&self, algorithm: &A, hash: u64, now: Timestamp) {
        let own = local(algorithm, tag_of(hash), now);
        let inherited = || self.inherited.as_ref()?.get(hash, now.as_nanos(), &|state| algorithm.owed(state, own));
        if self.has_past(now) && inherited().is_some_and(|state| algorithm.decide(Some(state), own, 0).1.is_some()) {
            let _ = self.check(algorithm, hash, 0, || now, || now);
        }
    }

    /// Refunds the unpaid part of a charge.
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

    /// Calls `act` with a key's state, if it has one, and the time by which the key is judged. A key that is not in the
    /// table has its inherited state, in which changes by `act` are stored; without one, it has the state that it
    /// shares with other keys. If it has both and `adds` is set, `act` gets the [`sum`], and its changes are dropped.
    fn with_found<A: Algorithm<State = S>, R>(
        &self,
        algorithm: &A,
        hash: u64,
        now: Timestamp,
        adds: bool,
        act: impl FnOnce(Option<&mut S>, Timestamp) -> R,
    ) -> R {
        let tag = tag_of(hash);
        let (low, high) = self.candidates(hash);
        let local = local(algorithm, tag, now);
        let mut low = self.lock(low);
        if let Some(state) = low.find(tag) {
            return act(Some(state), local);
        }
        // The lower set stays locked, because otherwise another thread could insert the key there meanwhile.
        let mut high = self.lock(high);
        if let Some(state) = high.find(tag) {
            return act(Some(state), local);
        }
        let mut overflow = self.overflow_set(Tag::from_hash(hash));
        let shared = overflow.as_mut().and_then(|set| set.find(shared_tag(&algorithm.quota())));
        let inherited = self.inherited.as_ref().and_then(|past| {
            let state = past.get(hash, now.as_nanos(), &|state| algorithm.owed(state, local))?;
            Some((past, state))
        });
        let Some((past, mut state)) = inherited else { return act(shared, local) };
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
        self.inherited.as_ref().map(|past| Arc::clone(past).as_past())
    }

    fn has_past(&self, now: Timestamp) -> bool {
        self.inherited.as_ref().is_some_and(|past| !past.has_ended(now.as_nanos()))
    }

    fn most_owed(&self, _: Timestamp) -> Option<u64> {
        None
    }

    fn reset(&self, hash: u64, _: Timestamp) {
        let tag = tag_of(hash);
        let (low, high) = self.candidates(hash);
        let mut low = self.lock(low);
        low.remove(tag);
        // The lower set stays locked, because otherwise another thread could insert the key there, with its inherited
        // state, before that is cleared.
        let mut high = self.lock(high);
        high.remove(tag);
        if let Some(past) = &self.inherited {
            past.set(hash, None);
        }
        if let Some(mut set) = self.overflow_set(Tag::from_hash(hash)) {
            // This drops the shared states under all quotas, because this function does not know the quotas of the
            // key's requests.
            *set = StateSet::new();
        }
    }

    fn has_states(&self, wanted: StateType) -> bool {
        [wanted.alone, wanted.with_quota].contains(&TypeId::of::<S>())
    }

    fn each_any(&self, part: TablePart, _: StateType, _: &Quota, _: Timestamp, act: &mut ActOnAny<'_>) {
        if matches!(part, TablePart::Overflow) {
            let sets = (0..).map(Tag::of_group).zip(&self.overflow);
            return sets.for_each(|(tag, set)| set.lock().each(|_, state| act(0, tag, &state)));
        }
        // The copies are read before the table, as in `Ledger`.
        if let Some((past, (geometry, page))) = self.inherited.as_ref().zip(part.copies()) {
            past.each_left(geometry, page, &mut |set, tag, state| act(set, tag, &state));
        }
        if let Some(page) = part.of_table(self.geometry) {
            let sets = self.sets.iter().skip(page * SETS_PER_PAGE).take(SETS_PER_PAGE);
            for (index, set) in sets.enumerate() {
                set.lock().each(|tag, state| act(index, Tag::from_hash(tag.get()), &state));
            }
        }
    }
}

/// Makes `count` values, in memory that is requested at once.
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
    *state = algorithm.after_step_back(*state, now);
    let (decision, next) = algorithm.decide(Some(*state), now, cost);
    if let Some(next) = next {
        *state = next;
    }
    decision
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use super::*;
    #[cfg(target_pointer_width = "64")]
    use crate::algorithm::GcraState;
    use crate::algorithm::{FixedWindow, FixedWindowState, SlidingWindowState};
    use std::sync::Weak;

    use crate::store::memory::debt_copies::Debtor;
    use crate::store::memory::quota_state::QuotaState;
    use crate::store::memory::read_states::ReadStates;

    /// On 32 bits, words are aligned to four bytes, and keys take less.
    #[cfg(target_pointer_width = "64")]
    #[test]
    fn bytes_per_key_are_as_documented() {
        fn bytes_per_key<S: Copy + Send + 'static>() -> usize {
            LockedTable::<S>::new(10_000, WhenFull::EvictLeast).size_in_bytes() / 10_000
        }
        assert_eq!(bytes_per_key::<FixedWindowState>(), 52);
        assert_eq!(bytes_per_key::<SlidingWindowState>(), 68);
        assert_eq!(bytes_per_key::<GcraState>(), 52);
        assert_eq!(bytes_per_key::<QuotaState<GcraState>>(), 98);
        assert_eq!(bytes_per_key::<QuotaState<FixedWindowState>>(), 98);
        assert_eq!(bytes_per_key::<QuotaState<SlidingWindowState>>(), 114);
    }

    #[test]
    fn candidates_spread_over_all_sets() {
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

    /// The inherited state for the hash [`HASH`].
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

    /// A table with two sets, in which the hash [`HASH`] has inherited.
    fn heir(when_full: WhenFull, inherited: u64) -> LockedTable<FixedWindowState> {
        let mut table = LockedTable::new(SLOTS, when_full);
        table.inherit(&[table.geometry], Box::new(Inherited(state(inherited))));
        table
    }

    fn admits(table: &LockedTable<FixedWindowState>, cost: u64) -> bool {
        let now = Timestamp::ZERO;
        table.check(&FixedWindow::new(Quota::per_day(10)), HASH, cost, || now, || now).is_allowed()
    }

    /// The state for the hash [`HASH`], in a copy of a table with 256 sets.
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

    /// Copies a table's states.
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

    /// Like `a_debt_moved_during_copying_is_found` in `ledger.rs`.
    #[test]
    fn a_state_moved_during_copying_is_found() {
        let before = Geometry::with_sets(4 * SETS_PER_PAGE);
        let mut table = LockedTable::new(SLOTS, WhenFull::EvictLeast);
        table.inherit(&[before], Box::new(InFourPages(state(10))));
        let table = Arc::new(table);
        let source = Box::new(FromTable(Arc::clone(&table)));
        let heir = DebtCopies::<_, CopiedStates<_>>::new(&[table.geometry(), before], table.occupancy(), source);
        let inherited = |hash| heir.get(hash, 0, &|state| state.used);
        // The other key may only be in pages in which `HASH` may not be.
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
    fn keys_with_different_tags_inherit_apart() {
        for other in [HASH ^ 1 << 9, HASH ^ 1 << 20, HASH ^ 1 << 27] {
            let table = heir(WhenFull::EvictLeast, 10);
            let now = Timestamp::ZERO;
            assert!(table.check(&FixedWindow::new(TEN), other, 10, || now, || now).is_allowed());
            assert!(!admits(&table, 1));
        }
    }

    const TEN: Quota = Quota::per_day(10);

    #[test]
    fn inherited_and_shared_states_are_added() {
        for (inherited, shared, left) in [(1, 10, 0), (10, 1, 0), (4, 3, 3), (9, 9, 0)] {
            let table = heir(WhenFull::Overflow, inherited);
            table.inherit_overflow((Tag::from_hash(HASH), &TEN), state(shared), |_| 0);
            let peeked = table.peek(&FixedWindow::new(TEN), HASH, 1, Timestamp::ZERO);
            let context = format!("inherited {inherited}, shared {shared}");
            assert_eq!((peeked.is_allowed(), peeked.remaining()), (left > 0, left.max(1) - 1), "{context}");
            assert_eq!((0..5).filter(|_| admits(&table, 1)).count(), usize::try_from(left).unwrap(), "{context}");
        }
    }

    /// The shared state is left to the other keys.
    #[test]
    fn a_refund_lowers_only_the_inherited_state() {
        let table = heir(WhenFull::Overflow, 6);
        table.inherit_overflow((Tag::from_hash(HASH), &TEN), state(3), |_| 0);
        let window = FixedWindow::new(TEN);
        let charged = window.decide(None, Timestamp::ZERO, 1).0.receipt();
        table.refund(&window, HASH, 2, charged, Timestamp::ZERO);
        assert_eq!(table.peek(&window, HASH, 0, Timestamp::ZERO).remaining(), 10 - 4 - 3);
    }

    #[test]
    fn the_greatest_merged_shared_state_counts() {
        for states in [[3, 8], [8, 3]] {
            let table = LockedTable::new(SLOTS, WhenFull::Overflow);
            for used in states {
                table.inherit_overflow((Tag::from_hash(HASH), &TEN), state(used), |state| state.used);
            }
            assert_eq!(table.peek(&FixedWindow::new(TEN), HASH, 0, Timestamp::ZERO).remaining(), 2);
        }
    }

    /// The keys in a group share eight budgets, one for each quota, since a set has eight slots. Keys under a ninth
    /// quota are rejected until one budget is paid.
    #[test]
    fn a_group_shares_a_budget_per_quota() {
        let table = heir(WhenFull::Overflow, 10);
        for (set, tags) in [(0, 1..9), (1, 11..19)] {
            for tag in tags {
                assert!(table.lock(set).insert(tag_of(tag), state(1), |_, _| false));
            }
        }
        // A key in the same group that has inherited nothing.
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
        // A slot in the set is free once it owes nothing.
        assert!(quotas.skip(1).all(|quota| ask(quota, 0).is_allowed()));
        assert_eq!(ask(Quota::per_day(1), 0).retry_after(), Some(day));
    }

    #[test]
    fn an_heirs_key_evicts_the_smallest_debt() {
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
    fn a_full_table_rejects_with_a_reset() {
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
    fn every_hash_has_two_candidate_sets() {
        for keys in [1, 2, 3, 8, 9, 1_000] {
            let table = LockedTable::<SlidingWindowState>::new(keys, WhenFull::EvictLeast);
            for hash in [0, 1, u64::MAX, u64::MAX << 32, u64::MAX >> 32, 0x1234_5678_9abc_def0] {
                let (low, high) = table.candidates(hash);
                assert!(low < high && high < table.sets.len(), "{keys} keys, hash {hash:#x}: {low} and {high}");
            }
        }
    }
}
