//! A live change. [`Limiter::inherit`](crate::Limiter::inherit) lists which limiters inherit what. All that can fail is done
//! here, before the change is in force; [`debt_copies`](super::debt_copies) then copies what is owed.
//!
//! An heir keeps what its keys owe as words, as states, or as states with their quotas: the [`Form`]s. Its copies are made
//! [from the table](FromTable) of its predecessor, which is read in pages as states; each is converted into the form once.

use std::any::TypeId;
use std::sync::{Arc, OnceLock, Weak};

use super::debt_copies::{DebtSource, Debtor, MOST_COPIES, PastDebts};
use super::ledger::{Ledger, base_of};
use super::locked::{LockedTable, local_of};
use super::own_quota::UnderQuota;
use super::quota_state::{QuotaState, cast, is_same};
use super::read_states::{AnyTable, ReadStates, TablePart};
use super::table::{Codec, Geometry, Rule, Tag, TickBucket, Ticks};
use super::tables::{KeyTable, QuotaTable, Tables};
use super::when_full::WhenFull;
use super::{MemoryTable, TableStart};
use crate::algorithm::{Algorithm, GcraState, Kind};
use crate::store::quota_change;
use crate::values::time::{Clock, Timestamp};
use crate::values::{Finish, Heritage, Inheritance, Quota};

impl<S: Copy + Send + 'static, C: Clock> MemoryTable<S, C> {
    /// Inherits from a table with the same kind of clock and state: see [`Limiter::inherit`](crate::Limiter::inherit).
    pub(crate) fn inherit<A: Algorithm<State = S>>(
        &self,
        algorithm: &Arc<A>,
        heritage: &Heritage,
    ) -> Option<Inheritance<Self>> {
        let predecessor: Arc<Tables<S>> = heritage.downcast()?;
        let finish = |heir: &Tables<S>| {
            let past = heir.current().inherited()?;
            Some(Box::new(move || past.copy_all()) as Finish)
        };
        if let Some(own) = self.in_use() {
            if Arc::ptr_eq(own, &predecessor) {
                return Some(Inheritance::in_place());
            }
            // Another layer was first. To inherit once more would forget what was used since.
            let past = own.current().inherited();
            if past.is_some_and(|past| past.predecessor() == predecessor.occupancy().number()) {
                return Some(Inheritance::in_place().and_then(finish(own)));
            }
        }
        let heir = Arc::new(self.heir(algorithm, &predecessor)?);
        let (keeps_capacity, finish) = (heir.capacity != self.store.capacity, finish(&heir));
        let inheritance = match self.start.in_use.set(heir) {
            Ok(()) => Inheritance::in_place(),
            // The table has debts of its own.
            Err(heir) => {
                let start = TableStart::new(OnceLock::from(heir), self.start.takes_quotas());
                Inheritance::by(Self::starting(self.store.clone(), start))
            }
        };
        Some(inheritance.keeping_capacity(keeps_capacity).and_then(finish))
    }

    /// Makes tables that begin with what keys owe in the predecessor's; `None` if this limiter cannot inherit that.
    fn heir<A: Algorithm<State = S>>(&self, algorithm: &Arc<A>, predecessor: &Arc<Tables<S>>) -> Option<Tables<S>> {
        let before = predecessor.terms;
        if before.clock != TypeId::of::<C>() {
            return None;
        }
        let with_capacity = |keys| Tables::new(&**algorithm, &self.store, keys);
        let (made, takes_quotas) = (self.start.made.lock().take(), self.start.takes_quotas());
        let mut heir = made.unwrap_or_else(|| with_capacity(self.store.capacity));
        // One instant for all of it, read once.
        let origin = Predecessor::new(predecessor, self.store.clock.now());
        let geometries = origin.geometries();
        if geometries.len() >= MOST_COPIES && !geometries.contains(&heir.current().geometry()) {
            // With another capacity, the heir of this heir would have to inherit from more tables than it can.
            heir = with_capacity(predecessor.capacity);
        }
        let terms = heir.terms;
        let inherits_states =
            before.has_windows_of(&terms) && algorithm.can_inherit(&before.quota) && origin.table::<S>().is_read();
        let size = (heir.capacity, self.store.when_full);
        let with_quotas = |change| OnceLock::from(quota_table(&**algorithm, &origin, change, size));
        let begins_with_words = match &mut heir.key_table {
            _ if takes_quotas && !inherits_states => return None,
            _ if takes_quotas => {
                let is_rescheduled = terms.schedule != before.schedule;
                heir.quota_table = with_quotas(if is_rescheduled { TableChange::Schedule } else { TableChange::None });
                false
            }
            KeyTable::Bucket(own) if before.is_bucket => {
                let begins_with_words = origin.begin_bucket(own, &**algorithm, inherits_states)?;
                if !begins_with_words {
                    heir.quota_table = with_quotas(TableChange::Quota);
                }
                begins_with_words
            }
            KeyTable::Bucket(_) => return None,
            _ if !inherits_states => return None,
            KeyTable::Fixed(own) => origin.begin_windows(own, algorithm, terms.staggered),
            KeyTable::Sliding(own) => origin.begin_windows(own, algorithm, terms.staggered),
            KeyTable::Locked(_) => false,
        };
        if !begins_with_words && heir.quota_table.get().is_none() {
            if !matches!(heir.key_table, KeyTable::Locked(_)) {
                heir.key_table = KeyTable::Locked(LockedTable::new(size.0, size.1));
            }
            if let KeyTable::Locked(own) = &mut heir.key_table {
                let form = States { algorithm: Arc::clone(algorithm), at: origin.at };
                origin.begin_locked(own, form, |_| terms.quota);
            }
        }
        heir.secret = predecessor.secret;
        // Receipts name windows by number: after another change of the schedule, that may be the number of another window.
        // Those of a bucket that keeps states count in the units of its rate; each key that keeps its quota keeps them.
        let has_units = !begins_with_words && !origin.has_quotas && before.quota.has_rate_of(&terms.quota);
        let voids_receipts = if terms.is_bucket {
            !takes_quotas && origin.bucket().is_none() && !has_units
        } else {
            terms.schedule != before.schedule
        };
        heir.resets = if voids_receipts { predecessor.resets.all_reset() } else { predecessor.resets.inherited() };
        heir.occupancy().inherit(predecessor.occupancy());
        Some(heir)
    }
}

/// The table of a predecessor that has the keys at the instant of a change.
#[derive(Clone)]
pub(super) struct Predecessor<S> {
    tables: Arc<Tables<S>>,
    /// Whether it is that of keys with quotas. Looked at once: a question may make that table meanwhile, and the heir may
    /// be that table.
    has_quotas: bool,
    /// The limiter's own.
    quota: Quota,
    at: Timestamp,
}

impl<S: Copy + Send + 'static> Predecessor<S> {
    pub(super) fn new(tables: &Arc<Tables<S>>, at: Timestamp) -> Self {
        let has_quotas = tables.quota_table.get().is_some();
        Self { tables: Arc::clone(tables), has_quotas, quota: tables.terms.quota, at }
    }

    /// Returns the table, to be read as states of type `T`.
    fn table<T: Copy + 'static>(&self) -> &dyn ReadStates<T> {
        if self.has_quotas { self.tables.current_as() } else { self.tables.without_quotas() }
    }

    /// Returns the table if it is that of words of a bucket.
    fn bucket(&self) -> Option<&Ledger<TickBucket>> {
        match &self.tables.key_table {
            KeyTable::Bucket(ledger) if !self.has_quotas => Some(ledger),
            _ => None,
        }
    }

    fn geometries(&self) -> Vec<Geometry> {
        self.table::<S>().geometries(self.at)
    }

    fn number(&self) -> u64 {
        self.table::<S>().occupancy().number()
    }

    /// Lets a bucket begin with words, unless some key owes more tokens than these hold: one of a quota with a burst of more
    /// than 2^18, say, that a slow one follows. Then `false`, if its keys can be kept as states with the quota, and the next
    /// change tries again. `None` if there is no such bucket, or the predecessor's keys are no buckets of this crate.
    fn begin_bucket<A: Algorithm<State = S>>(
        &self,
        own: &mut Ledger<TickBucket>,
        algorithm: &A,
        inherits_states: bool,
    ) -> Option<bool> {
        let Kind::Bucket { quota } = algorithm.kind() else { return None };
        if !self.table::<GcraState>().is_read() {
            return None;
        }
        let (at, tokens) = (self.at, self.most_owed::<TickBucket>());
        let rule = TickBucket::holding(&quota, false, tokens)?;
        // An algorithm of a user's own may have the kind of a bucket, and no states that can be converted.
        if tokens > rule.most_units(true) && inherits_states && UnderQuota::without_conversion(algorithm).is_some() {
            return Some(false);
        }
        if let Some(from) = self.bucket() {
            let rule = rule.continuing(from.rule(), at);
            let conversion = rule.conversion(from.rule(), from.rule().read(at));
            let debt_of = move |_, entry: QuotaState<Ticks>| Some(conversion.debt(entry.state.0));
            let has_overflow = self.begin_words(own, rule, debt_of);
            own.remember(from, at, has_overflow);
        } else {
            let rule = rule.started_before(at);
            let base = base_of(&rule, at);
            self.begin_words(own, rule, move |tag, entry: QuotaState<GcraState>| {
                rule.stamp_of(tag, entry, at).checked_sub(base)
            });
        }
        Some(true)
    }

    /// Lets windows begin with words; `false` if not all counts fit into these.
    fn begin_windows<R: Codec, A: Algorithm<State = S>>(
        &self,
        own: &mut Ledger<R>,
        algorithm: &Arc<A>,
        staggered: bool,
    ) -> bool {
        let (at, quota) = (self.at, algorithm.quota());
        let rule = R::holding(&quota, staggered, self.most_owed::<R>()).filter(|_| is_same::<S, R::State>());
        let Some(rule) = rule else { return false };
        let (base, states) = (base_of(&rule, at), States { algorithm: Arc::clone(algorithm), at });
        self.begin_words(own, rule, move |tag, entry| {
            let state = cast(states.debt(tag, entry)?)?;
            rule.stamp_of(tag, QuotaState { state, quota }, at).checked_sub(base)
        });
        true
    }

    /// Lets a table of words begin with the debts that `debt_of` returns of states of type `T`; returns whether anything is
    /// owed in its overflow slots.
    fn begin_words<R: Codec, T: Copy + 'static>(
        &self,
        own: &mut Ledger<R>,
        rule: R,
        debt_of: impl Fn(Tag, QuotaState<T>) -> Option<u64> + Send + Sync + 'static,
    ) -> bool {
        let at = self.at;
        let form = Words { rule, base: base_of(&rule, at), at, debt_of: Box::new(debt_of) };
        let source = FromTable { origin: self.clone(), form };
        let overflow = source.overflow();
        own.inherit(rule, (self.number(), self.geometries()), at, &overflow, Box::new(source));
        !overflow.is_empty()
    }

    /// Lets a table with locks begin. Keys share a state with those of the same quota.
    fn begin_locked<F: Form<Debt: Send>>(
        &self,
        own: &mut LockedTable<F::Debt>,
        form: F,
        quota_of: impl Fn(&F::Debt) -> Quota,
    ) {
        let source = FromTable { origin: self.clone(), form };
        for (tag, state) in source.overflow() {
            own.inherit_overflow((tag, &quota_of(&state)), state, |state| source.form.size(tag, state));
        }
        own.inherit((self.number(), self.geometries()), Box::new(source));
    }

    /// Returns the most units that a key may owe, with what it may be charged until the change is in force.
    fn most_owed<R: Codec>(&self) -> u64 {
        let known = self.table::<R::State>().most_owed(self.at);
        let mut most = known.unwrap_or_else(|| R::most_of(&self.quota));
        let mut look_at = |part| {
            self.table().each(part, &self.quota, self.at, &mut |_, _, entry: QuotaState<R::State>| {
                most = most.max(R::units_of(&entry, self.at)).max(R::most_of(&entry.quota));
            });
        };
        look_at(TablePart::Overflow);
        if known.is_none() {
            let pages = |geometry: Geometry| (0..geometry.pages()).map(move |page| TablePart::Page(geometry, page));
            self.geometries().into_iter().flat_map(pages).for_each(look_at);
        }
        most
    }
}

/// Makes a table of keys with their quotas that begin with what they owe at the origin; with nothing, if the
/// algorithm takes no quotas.
pub(super) fn quota_table<A: Algorithm>(
    algorithm: &A,
    origin: &Predecessor<A::State>,
    change: TableChange,
    (capacity, when_full): (usize, WhenFull),
) -> QuotaTable<A::State> {
    let mut table = LockedTable::new(capacity, when_full);
    table.occupancy().inherit(origin.table::<A::State>().occupancy());
    if let Some(under) = UnderQuota::without_conversion(algorithm) {
        let form = WithQuotas { under, change, at: origin.at };
        origin.begin_locked(&mut table, form, |entry| entry.quota);
    }
    table
}

/// Copies what keys owe in a predecessor's table, in the form of the heir.
struct FromTable<S, F> {
    origin: Predecessor<S>,
    form: F,
}

impl<S: Copy + Send + 'static, F: Form> FromTable<S, F> {
    /// Returns what keys share that something is owed of, each with a tag of the keys.
    fn overflow(&self) -> Vec<(Tag, F::Debt)> {
        let (origin, mut overflow) = (&self.origin, Vec::new());
        origin.table().each(TablePart::Overflow, &origin.quota, origin.at, &mut |_, tag, entry| {
            overflow.extend(self.form.debt(tag, entry).map(|debt| (tag, debt)));
        });
        overflow
    }
}

impl<S: Copy + Send + 'static, F: Form> DebtSource<F::Debt> for FromTable<S, F> {
    fn announce(&self, heir: &Weak<dyn PastDebts>) {
        if let Some(past) = self.origin.table::<S>().inherited() {
            past.announce(heir);
        }
    }

    fn copy(&self, geometry: Geometry, page: usize, put: &mut dyn FnMut(Debtor<F::Debt>)) {
        let origin = &self.origin;
        origin.table().each(TablePart::Page(geometry, page), &origin.quota, origin.at, &mut |set, tag, entry| {
            if let Some(debt) = self.form.debt(tag, entry) {
                put(Debtor { set, tag, debt, ends: self.form.ends(&debt) });
            }
        });
    }

    fn size(&self, tag: Tag, debt: &F::Debt) -> u64 {
        self.form.size(tag, debt)
    }
}

/// How an heir keeps what a key owes at the instant of the change.
trait Form: Send + Sync + 'static {
    /// The state as which the predecessor's table is read.
    type State: Copy + 'static;

    type Debt: Copy + 'static;

    /// Returns a state as the heir keeps it; `None` if nothing of it counts any more.
    fn debt(&self, tag: Tag, entry: QuotaState<Self::State>) -> Option<Self::Debt>;

    /// Returns until when a debt is owed, by the heir's clock.
    fn ends(&self, debt: &Self::Debt) -> u64;

    /// See [`DebtSource::size`].
    fn size(&self, tag: Tag, debt: &Self::Debt) -> u64;
}

/// Stamps of a rule, counted from that of nothing; made of states of type `T`.
struct Words<R, T> {
    rule: R,
    /// The stamp of nothing.
    base: u64,
    at: Timestamp,
    debt_of: Box<DebtOf<T>>,
}

type DebtOf<T> = dyn Fn(Tag, QuotaState<T>) -> Option<u64> + Send + Sync;

impl<R: Codec, T: Copy + 'static> Form for Words<R, T> {
    type State = T;
    type Debt = u64;

    fn debt(&self, tag: Tag, entry: QuotaState<T>) -> Option<u64> {
        (self.debt_of)(tag, entry).filter(|debt| *debt > 0)
    }

    fn ends(&self, debt: &u64) -> u64 {
        self.rule.ends(self.base + debt)
    }

    fn size(&self, tag: Tag, debt: &u64) -> u64 {
        let rule = &self.rule;
        rule.size(rule.stamped(self.base + debt, rule.local(rule.read(self.at), tag)))
    }
}

/// States alone, under the heir's own quota.
struct States<A> {
    algorithm: Arc<A>,
    at: Timestamp,
}

impl<A: Algorithm> Form for States<A> {
    type State = A::State;
    type Debt = A::State;

    fn debt(&self, tag: Tag, entry: QuotaState<A::State>) -> Option<A::State> {
        let now = local_of(&*self.algorithm, tag, self.at);
        let state = quota_change::converted(&*self.algorithm, entry.state, &entry.quota, now)?;
        (self.algorithm.owed(&state, now) > 0).then_some(state)
    }

    fn ends(&self, state: &A::State) -> u64 {
        self.algorithm.expires_at(state).as_nanos()
    }

    fn size(&self, tag: Tag, state: &A::State) -> u64 {
        self.algorithm.owed(state, local_of(&*self.algorithm, tag, self.at))
    }
}

/// States with quotas.
struct WithQuotas<A> {
    under: UnderQuota<A>,
    change: TableChange,
    at: Timestamp,
}

/// What a change does to a state with its quota.
#[derive(Clone, Copy)]
pub(super) enum TableChange {
    /// Each key keeps its quota until it is asked about under another, and is converted then.
    None,
    /// The same, but windows begin at other instants than the predecessor's, although quotas may be equal: in another time
    /// zone, say.
    Schedule,
    /// All keys are converted to the heir's own quota.
    Quota,
}

impl<A: Algorithm> Form for WithQuotas<A> {
    type State = A::State;
    type Debt = QuotaState<A::State>;

    fn debt(&self, tag: Tag, entry: QuotaState<A::State>) -> Option<QuotaState<A::State>> {
        let now = local_of(&self.under, tag, self.at);
        let entry = match self.change {
            TableChange::None => entry,
            TableChange::Schedule => self.under.rescheduled(entry, now),
            TableChange::Quota => self.under.taken_over(&entry, now)?,
        };
        (self.under.expires_at(&entry) > now).then_some(entry)
    }

    fn ends(&self, entry: &QuotaState<A::State>) -> u64 {
        self.under.expires_at(entry).as_nanos()
    }

    fn size(&self, tag: Tag, entry: &QuotaState<A::State>) -> u64 {
        self.under.owed(entry, local_of(&self.under, tag, self.at))
    }
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::algorithm::SlidingWindowState;
    use crate::algorithm::{FixedWindow, SlidingWindow, TokenBucket};
    use crate::store::MemoryStore;
    use crate::values::Ask;
    use crate::values::time::ManualClock;

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
            assert_eq!(matches!(heir.key_table, KeyTable::Locked(_)), limit == 100_000);
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
            let _: crate::values::Decision = before.charge(&algorithm, &Ask::charge(&"key".into(), 1));
            let tables = Arc::downgrade(before.in_use().unwrap());
            let inheritance = after.inherit(&Arc::new(algorithm), &before.heritage(&algorithm)).unwrap();
            drop(before);
            assert!(tables.upgrade().is_some(), "the heir copies from it");
            inheritance.finish();
            assert!(tables.upgrade().is_none());
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
            match &before.tables(&window(limit)).key_table {
                KeyTable::Sliding(ledger) => {
                    let stamp =
                        ledger.rule().stamp_of(tag, QuotaState { state: used, quota: Quota::per_minute(limit) }, NOW);
                    ledger.inherit_overflow(NOW, tag, stamp);
                }
                KeyTable::Locked(table) => table.inherit_overflow((tag, &window(limit).quota()), used, |_| 0),
                KeyTable::Bucket(_) | KeyTable::Fixed(_) => unreachable!("a sliding window"),
            }
            for lower in [10, 5] {
                let heir = table();
                heir.inherit(&Arc::new(window(lower)), &before.heritage(&window(limit))).unwrap().finish();
                before = heir;
            }
            let mut states = Vec::new();
            let table = before.in_use().unwrap().current();
            table.each(TablePart::Overflow, &Quota::per_minute(5), NOW, &mut |_, _, shared| states.push(shared.state));
            assert_eq!(states, [used], "from a limit of {limit}");
        }
    }
}
