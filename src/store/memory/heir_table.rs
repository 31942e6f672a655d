//! Makes the table of an heir, at a live change. [`Limiter::inherit`](crate::Limiter::inherit) lists which limiters
//! inherit what. All that can fail is done here, before the change is in force;
//! [`debt_copies`](super::debt_copies) then copies what is owed.

use std::any::TypeId;
use std::sync::{Arc, OnceLock, Weak};

use super::debt_copies::{Copying, DebtCopies, Geometry, MOST_COPIES, PageDebts, Source};
use super::debt_sources::{FromBuckets, FromStates, Owed, States, WithQuotas, cast, owed_by};
use super::ledger::Ledger;
use super::locked::LockedTable;
use super::own_quota::{QuotaState, Under};
use super::table::{Counts, Tag, TickBucket, WindowRule};
use super::{Kept, MemoryTable, QuotaTable, Start, Table, Terms, WhenFull, any_table};
use crate::algorithm::{Algorithm, FixedWindowState, GcraState, Kind, SlidingWindowState};
use crate::values::time::{Clock, Timestamp};
use crate::values::{Finish, Inheritance};

/// Makes `table` inherit, if it was not used yet; else another table that is like it.
pub(super) fn inherit<A: Algorithm, C: Clock>(
    table: &MemoryTable<A::State, C>,
    algorithm: &Arc<A>,
    predecessor: &Arc<Kept<A::State>>,
) -> Option<Inheritance<MemoryTable<A::State, C>>> {
    if let Some(own) = table.in_use() {
        if Arc::ptr_eq(own, predecessor) {
            return Some(Inheritance::in_place());
        }
        // Another layer was first. To inherit once more would forget what was used since.
        if own.inherits_from(predecessor) {
            return Some(Inheritance::in_place().and_then(own.finish()));
        }
    }
    let heir = make_heir(table, algorithm, predecessor)?;
    let keeps_capacity = heir.capacity != table.store.capacity;
    let finish = heir.finish();
    let inheritance = match table.start.in_use.set(Arc::new(heir)) {
        Ok(()) => Inheritance::in_place(),
        // The table has debts of its own.
        Err(heir) => {
            let start = Start::new(OnceLock::from(heir), table.start.takes_quotas());
            Inheritance::by(MemoryTable::starting(table.store.clone(), start))
        }
    };
    Some(inheritance.keeping_capacity(keeps_capacity).and_then(finish))
}

fn make_heir<A: Algorithm, C: Clock>(
    table: &MemoryTable<A::State, C>,
    algorithm: &Arc<A>,
    predecessor: &Arc<Kept<A::State>>,
) -> Option<Kept<A::State>> {
    if predecessor.terms.clock != TypeId::of::<C>() {
        return None;
    }
    let made = table.start.made().take();
    let mut heir = made.unwrap_or_else(|| table.make(&**algorithm, table.store.capacity));
    // One instant for all of it, read once.
    let now = table.store.clock.now();
    let geometries = predecessor.geometries(now);
    if geometries.len() >= MOST_COPIES && !geometries.contains(&heir.geometry()) {
        // With another capacity, the heir of this heir would have to inherit from more tables than it can.
        heir = table.make(&**algorithm, predecessor.capacity);
    }
    heir.secret = predecessor.secret;
    heir.resets = predecessor.resets.inherited();
    let takes_quotas = table.start.takes_quotas();
    let tokens = if takes_quotas || !predecessor.terms.is_bucket { 0 } else { most_tokens(predecessor, now) };
    if takes_quotas || is_kept_in_states(&**algorithm, &heir, predecessor, tokens) {
        if !(predecessor.terms.has_windows_of(&heir.terms) && algorithm.can_inherit(&predecessor.terms.quota)) {
            return None;
        }
        let quotas = quotas_from(&**algorithm, predecessor, takes_quotas, (heir.capacity, table.store.when_full), now);
        let voids_receipts = if heir.terms.is_bucket {
            // Each key that keeps its quota keeps the units of its receipts.
            !takes_quotas && !predecessor.has_receipts_for(&heir.terms)
        } else {
            heir.terms.schedule != predecessor.terms.schedule
        };
        if voids_receipts {
            heir.resets = predecessor.resets.all_reset();
        }
        heir.quotas = OnceLock::from(quotas);
        return Some(heir);
    }
    let keeps_gcra_states = heir.has_gcra_states();
    match (&mut heir.table, &predecessor.table) {
        (Table::Bucket(own), _) if predecessor.has_states() => {
            let Kind::Bucket { quota } = algorithm.kind() else { return None };
            if !predecessor.terms.is_bucket || (predecessor.quotas.get().is_none() && !predecessor.has_gcra_states()) {
                return None;
            }
            let (number, overflow) = (predecessor.occupancy().number(), overflow_of_states(predecessor, now));
            own.inherit_from_states(&quota, (number, tokens, now), &geometries, &overflow, |rule, base| {
                Box::new(FromStates { predecessor: Arc::clone(predecessor), rule, base, at: now })
            })?;
        }
        (Table::Bucket(own), Table::Bucket(ledger)) => {
            let Kind::Bucket { quota } = algorithm.kind() else { return None };
            own.inherit_from(ledger, &quota, now, &geometries, |rule, base| {
                Box::new(FromBuckets { predecessor: Arc::clone(predecessor), rule, base, at: now })
            })?;
        }
        (Table::Bucket(_), _) => return None,
        // A bucket of too many units for words, whose states are those of a bucket in this crate.
        (_, Table::Bucket(_)) if !predecessor.has_states() && !keeps_gcra_states => return None,
        _ => {
            let states = States::new(algorithm, predecessor, now, &heir.terms)?;
            begin_with(&mut heir, table.store.when_full, states, &geometries);
        }
    }
    // Last, since the heir may have got another table.
    heir.occupancy().inherit(predecessor.occupancy());
    Some(heir)
}

/// Makes a table of keys with their quotas that begin with what they owe in `predecessor`'s table. If a key does not keep
/// its quota, it has that of `algorithm`.
pub(super) fn quotas_from<A: Algorithm>(
    algorithm: &A,
    predecessor: &Arc<Kept<A::State>>,
    keeps_quotas: bool,
    (capacity, when_full): (usize, WhenFull),
    now: Timestamp,
) -> QuotaTable<A::State> {
    let mut quotas = LockedTable::new(capacity, when_full);
    quotas.occupancy().inherit(predecessor.occupancy());
    if let Some(source) = WithQuotas::new(algorithm, predecessor, keeps_quotas, now) {
        source.each_overflow(|tag, kept| {
            quotas.inherit_overflow((tag, &kept.quota), kept, |kept| source.size(tag, kept))
        });
        let (number, geometries) = (predecessor.occupancy().number(), predecessor.geometries(now));
        quotas.inherit(number, &geometries, Box::new(source), 0);
    }
    quotas
}

/// Returns whether a bucket's keys are kept as states in a table with locks, since they may owe more tokens than its words
/// hold: those of a quota with a burst of more than 2^18, say, that a slow one follows. The next change tries again.
fn is_kept_in_states<A: Algorithm>(
    algorithm: &A,
    heir: &Kept<A::State>,
    predecessor: &Kept<A::State>,
    tokens: u64,
) -> bool {
    let (Table::Bucket(_), Kind::Bucket { quota }) = (&heir.table, algorithm.kind()) else { return false };
    // An algorithm of a user's own may have the kind of a bucket, and no states that can be converted.
    let has_states = Under::keeping(algorithm).is_some() && algorithm.can_inherit(&predecessor.terms.quota);
    has_states && TickBucket::holding(&quota, tokens).is_some_and(|bucket| !bucket.holds(tokens))
}

/// Returns the most tokens that a key of a bucket may owe.
fn most_tokens<S: Copy + Send + 'static>(predecessor: &Kept<S>, now: Timestamp) -> u64 {
    if !predecessor.has_states() {
        let Table::Bucket(ledger) = &predecessor.table else { return 0 };
        return ledger.most_tokens(now);
    }
    // What a key owes by then, and what it may be charged until the change is in force.
    let mut tokens = predecessor.terms.quota.max_burst();
    predecessor.each_in_states(now, |kept| {
        let owed = owed_by(kept, now).map_or(0, |(debt, price)| debt.div_ceil(price.into()));
        let owed = u64::try_from(owed).unwrap_or(u64::MAX);
        tokens = tokens.max(owed).max(kept.quota.max_burst());
    });
    tokens
}

/// Returns what overflow slots of keys that are kept as states owe.
fn overflow_of_states<S: Copy + Send + 'static>(predecessor: &Kept<S>, now: Timestamp) -> Vec<(Tag, Owed)> {
    let mut overflow = Vec::new();
    let mut add = |tag, kept| overflow.extend(owed_by(kept, now).map(|debt| (tag, debt)));
    match (predecessor.quotas.get(), &predecessor.table) {
        (Some(quotas), _) => quotas.each_overflow(add),
        (None, Table::Locked(table)) => table.each_overflow(|tag, state| add(tag, predecessor.under_own_quota(state))),
        (None, _) => {}
    }
    overflow
}

/// Lets an heir begin with the states of windows, or of a user's algorithm.
fn begin_with<A: Algorithm>(
    heir: &mut Kept<A::State>,
    when_full: WhenFull,
    states: States<A>,
    geometries: &[Geometry],
) {
    let predecessor = Arc::clone(&states.predecessor);
    // Receipts name windows by number. After another change of the schedule, that may be the number of another window.
    let is_rescheduled = heir.terms.schedule != predecessor.terms.schedule;
    if is_rescheduled || heir.terms.is_bucket && !predecessor.has_receipts_for(&heir.terms) {
        heir.resets = predecessor.resets.all_reset();
    }
    let greatest = predecessor.greatest(states.at);
    let staggered = heir.terms.staggered;
    let fits = match &mut heir.table {
        Table::Fixed(own) => states.begin_in(own, staggered, greatest, geometries),
        Table::Sliding(own) => states.begin_in(own, staggered, greatest, geometries),
        Table::Locked(_) | Table::Bucket(_) => false,
    };
    if fits {
        return;
    }
    // Counts that do not fit into the words of this limit are kept behind locks.
    if !matches!(heir.table, Table::Locked(_)) {
        heir.table = Table::Locked(LockedTable::new(heir.capacity, when_full));
    }
    if let Table::Locked(own) = &mut heir.table {
        let quota = heir.terms.quota;
        states.each_overflow(|tag, state| {
            own.inherit_overflow((tag, &quota), state, |state| states.size(tag, state));
        });
        own.inherit(predecessor.occupancy().number(), geometries, Box::new(states), greatest);
    }
}

impl<S: Copy + Send + 'static> Kept<S> {
    /// Adds an heir to those that copy what this store has inherited.
    pub(super) fn announce(&self, heir: &Weak<dyn Copying>) {
        if let Some(past) = self.quotas.get().and_then(|quotas| quotas.inherited()) {
            past.announce(heir);
        }
        self.announce_in_table(heir);
    }

    /// The same, for an heir that does not read the table of keys with quotas of their own.
    pub(super) fn announce_in_table(&self, heir: &Weak<dyn Copying>) {
        any_table!(&self.table, table => if let Some(past) = table.inherited() {
            past.announce(heir);
        });
    }

    fn inherits_from(&self, predecessor: &Self) -> bool {
        let number = match self.quotas.get() {
            Some(quotas) => quotas.inherited().map(|past| past.predecessor()),
            None => any_table!(&self.table, table => table.inherited().map(|past| past.predecessor())),
        };
        number == Some(predecessor.occupancy().number())
    }

    /// Returns what is to be done once the change is in force.
    fn finish(&self) -> Option<Finish> {
        match self.quotas.get() {
            Some(quotas) => quotas.inherited().map(finish),
            None => any_table!(&self.table, table => table.inherited().map(finish)),
        }
    }

    fn geometry(&self) -> Geometry {
        match self.quotas.get() {
            Some(quotas) => quotas.geometry(),
            None => any_table!(&self.table, table => table.geometry()),
        }
    }

    fn geometries(&self, now: Timestamp) -> Vec<Geometry> {
        match self.quotas.get() {
            Some(quotas) => quotas.geometries(now),
            None => any_table!(&self.table, table => table.geometries(now)),
        }
    }

    /// Whether its keys are kept as states, behind locks: with quotas of their own, or since words cannot hold them.
    fn has_states(&self) -> bool {
        self.quotas.get().is_some() || matches!(self.table, Table::Locked(_))
    }

    /// Whether its states are those of a bucket in this crate.
    fn has_gcra_states(&self) -> bool {
        self.terms.is_bucket && TypeId::of::<S>() == TypeId::of::<GcraState>()
    }

    /// Whether an heir of these terms, a bucket that keeps states, can read the receipts for states: if they are in its
    /// units. (Those of words it cannot read anyway.)
    fn has_receipts_for(&self, heir: &Terms) -> bool {
        !self.has_states() || self.quotas.get().is_none() && self.terms.quota.has_rate_of(&heir.quota)
    }

    /// Returns the state of a key that has no quota of its own.
    pub(super) fn under_own_quota(&self, state: S) -> QuotaState<S> {
        QuotaState { state, quota: self.terms.quota }
    }

    /// Calls `act` with each state that is kept behind a lock, in whichever slot.
    fn each_in_states(&self, now: Timestamp, mut act: impl FnMut(QuotaState<S>)) {
        match (self.quotas.get(), &self.table) {
            (Some(quotas), _) => {
                for geometry in quotas.geometries(now) {
                    (0..geometry.pages()).for_each(|page| quotas.each_kept((geometry, page), |_, _, kept| act(kept)));
                }
                quotas.each_overflow(|_, kept| act(kept));
            }
            (None, Table::Locked(table)) => {
                let mut act = |state| act(self.under_own_quota(state));
                for geometry in table.geometries(now) {
                    (0..geometry.pages()).for_each(|page| table.each_kept((geometry, page), |_, _, state| act(state)));
                }
                table.each_overflow(|_, state| act(state));
            }
            (None, _) => {}
        }
    }

    /// Returns the greatest count that any key of a window may have at `now`: more than the limit, if that was lowered.
    /// Not that of overflow slots, which [`States::begin_in`] looks at.
    fn greatest(&self, now: Timestamp) -> u64 {
        fn of<W: Counts>(ledger: &Ledger<WindowRule<W>>, now: Timestamp) -> u64 {
            if ledger.has_past(now) { ledger.rule().greatest().into() } else { ledger.rule().limit() }
        }
        if self.quotas.get().is_some() {
            let mut greatest = self.terms.quota.limit();
            self.each_in_states(now, |kept| {
                let counts = count_of(kept.state).unwrap_or(u64::MAX);
                greatest = greatest.max(counts).max(kept.quota.limit());
            });
            return greatest;
        }
        match &self.table {
            Table::Fixed(ledger) => of(ledger, now),
            Table::Sliding(ledger) => of(ledger, now),
            Table::Locked(table) => table.greatest(now).max(self.terms.quota.limit()),
            Table::Bucket(_) => self.terms.quota.limit(),
        }
    }
}

/// Returns the greatest count of a window's state, if it is one.
fn count_of<S: Copy + 'static>(state: S) -> Option<u64> {
    let fixed = cast(state).map(|state: FixedWindowState| state.used);
    fixed.or_else(|| cast(state).map(|state: SlidingWindowState| state.previous.max(state.current)))
}

fn finish<T: Copy + 'static, D: PageDebts<Debt = T>>(past: &Arc<DebtCopies<T, D>>) -> Finish {
    let past = Arc::clone(past);
    Box::new(move || past.copy_all())
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use super::*;
    use std::time::Duration;

    use crate::algorithm::{FixedWindow, SlidingWindow, TokenBucket};
    use crate::store::MemoryStore;
    use crate::store::memory::table::Rule;
    use crate::values::time::ManualClock;
    use crate::values::{Ask, Quota};

    /// The counts of a great limit do not fit into the words of a small one, so the heir gets another table.
    #[test]
    fn an_heir_warns_no_more_whichever_table_it_gets() {
        let window = |limit| SlidingWindow::new(Quota::per_minute(limit));
        for limit in [100, 100_000] {
            let (before, after) = (MemoryStore::with_capacity(16).table(), MemoryStore::with_capacity(16).table());
            let heritage = before.heritage(&window(limit));
            before.in_use().unwrap().occupancy().note_evicted();
            assert!(after.inherit(&Arc::new(window(10)), &heritage).is_some());
            let heir = after.in_use().unwrap();
            assert_eq!(matches!(heir.table, Table::Locked(_)), limit == 100_000);
            assert!(heir.occupancy().has_warned(), "from a limit of {limit}");
        }
    }

    /// Else each change would keep the table before it for ever.
    #[test]
    fn a_change_that_is_finished_frees_the_table_before_it() {
        fn frees<A: Algorithm + Copy>(algorithm: A, has_quotas: bool) {
            let [before, after] = [(); 2].map(|()| {
                let clock = ManualClock::starting_at(Timestamp::from_nanos(7));
                let table = MemoryStore::with_capacity(16).with_clock(clock).table();
                if has_quotas {
                    table.take_quotas(&algorithm);
                }
                table
            });
            let _ = before.charge(&algorithm, &Ask::charge(&"key".into(), 1));
            let kept = Arc::downgrade(before.in_use().unwrap());
            let inheritance = after.inherit(&Arc::new(algorithm), &before.heritage(&algorithm)).unwrap();
            drop(before);
            assert!(kept.upgrade().is_some(), "the heir copies from it");
            inheritance.finish();
            assert!(kept.upgrade().is_none());
        }
        for has_quotas in [false, true] {
            frees(TokenBucket::new(Quota::per_minute(10)), has_quotas);
            frees(FixedWindow::new(Quota::per_minute(10)), has_quotas);
            frees(SlidingWindow::new(Quota::per_minute(10)), has_quotas);
            // Too short for words.
            frees(SlidingWindow::new(Quota::per(10, Duration::from_nanos(10))), has_quotas);
        }
    }

    /// The second change cut the count to the bits that the first lowered limit takes, if nothing else was owed from
    /// before: a limit that is raised again would then admit what was used already.
    #[test]
    fn a_count_in_an_overflow_slot_survives_two_lowered_limits() {
        const NOW: Timestamp = Timestamp::from_nanos(90_000_000_000);
        let tag = Tag::from_hash(7);
        let window = |limit| SlidingWindow::new(Quota::per_minute(limit));
        let table = || {
            let clock = ManualClock::starting_at(NOW);
            MemoryStore::with_capacity(16).when_full(WhenFull::Overflow).with_clock(clock).table()
        };
        // The counts of a great limit are kept behind locks.
        for limit in [100, 100_000] {
            let used = SlidingWindowState { window: 1, previous: 0, current: limit };
            let mut before = table();
            match &before.kept(&window(limit)).table {
                Table::Sliding(ledger) => {
                    let stamp = ledger.rule().stamp(ledger.rule().clipped(used), ledger.rule().read(NOW));
                    ledger.inherit_overflow(NOW, [(tag, stamp)].into_iter());
                }
                Table::Locked(table) => table.inherit_overflow((tag, &window(limit).quota()), used, |_| 0),
                Table::Bucket(_) | Table::Fixed(_) => unreachable!("a sliding window"),
            }
            for lower in [10, 5] {
                let heir = table();
                heir.inherit(&Arc::new(window(lower)), &before.heritage(&window(limit))).unwrap().finish();
                before = heir;
            }
            let mut kept = Vec::new();
            match &before.in_use().unwrap().table {
                Table::Sliding(ledger) => ledger.each_overflow(NOW, |_, debt| kept.push(debt.state())),
                Table::Locked(table) => table.each_overflow(|_, state| kept.push(state)),
                Table::Bucket(_) | Table::Fixed(_) => unreachable!("a sliding window"),
            }
            assert_eq!(kept, [used], "from a limit of {limit}");
        }
    }
}
