//! A live change. [`Limiter::inherit`](crate::Limiter::inherit) lists which limiters can inherit from which. All steps
//! that can fail are done here, before the change is in force; [`debt_copies`](super::debt_copies) then copies the
//! debts.
//!
//! An heir keeps its keys' debts in one [`Form`]: words, states, or states with their quotas. [`FromTable`] reads the
//! tables of the [`Origin`] page by page as states, and converts each state into that form once.

use std::sync::{Arc, OnceLock, Weak};

use super::debt_copies::{DebtSource, Debtor, MOST_COPIES, PastDebts};
use super::ledger::{BeginWords, DebtOrigin, Form, HeirOfWords, Ledger, TableChange, WordHeir, base_of};
use super::locked::{LockedTable, local_of};
use super::own_quota::UnderQuota;
use super::quota_state::{QuotaState, StateType};
use super::read_states::{AnyTable, ReadStates, TablePart};
use super::restored::RestoredTable;
use super::start::SharedTable;
use super::table::{Codec, Geometry, Rule, Tag, TickBucket, Ticks, WindowRule, WindowState};
use super::tables::{AnyTables, HeirTerms, KeyTable, QuotaTable, Tables};
use super::when_full::WhenFull;
use crate::algorithm::{Algorithm, GcraState, Kind};
use crate::store::quota_change;
use crate::util::keyed_hash::Secret;
use crate::values::snapshot::Unfit;
use crate::values::time::Timestamp;
use crate::values::{Finish, Heritage, Inheritance, Quota};

impl<S: Copy + Send + 'static> SharedTable<S> {
    /// Inherits from a table with the same kind of clock and state, as [`Limiter::inherit`](crate::Limiter::inherit)
    /// describes.
    pub(crate) fn inherit<A: Algorithm<State = S>>(
        &self,
        algorithm: &Arc<A>,
        heritage: &Heritage,
    ) -> Option<Inheritance<Self>> {
        let predecessor: Arc<Tables<S>> = heritage.downcast()?;
        if let Some(own) = self.whole_in_use(&**algorithm) {
            if Arc::ptr_eq(own, &predecessor) {
                return Some(Inheritance::in_place());
            }
            // Another layer was first. If this one inherited again, it would forget the units used since then.
            if std::ptr::eq(own.predecessor.as_ptr(), Arc::as_ptr(&predecessor)) {
                return Some(Inheritance::in_place().and_then(finish_copies(own)));
            }
        }
        // The whole change has one instant, which is read once.
        let origin = Origin::new(&predecessor, self.settings.time(&**algorithm));
        let mut heir = self.heir(algorithm, &origin, predecessor.capacity)?;
        heir.predecessor = Arc::downgrade(&predecessor);
        let heir = Arc::new(heir);
        let keeps_capacity = heir.capacity != self.settings.capacity;
        let finish = finish_copies(&heir);
        let inheritance = match self.put_in_use(heir) {
            Ok(()) => Inheritance::in_place(),
            // The table has debts of its own.
            Err(heir) => Inheritance::by(self.beside(heir)),
        };
        Some(inheritance.keeping_capacity(keeps_capacity).and_then(finish))
    }

    /// Begins with the debts of a table in a snapshot. Fails if the limiter was in use before, or cannot inherit from
    /// that table.
    pub(super) fn restore<A: Algorithm<State = S>>(
        &self,
        algorithm: &Arc<A>,
        table: RestoredTable,
    ) -> Result<(), Unfit> {
        let cannot = || Unfit::skipped("its algorithm cannot inherit from the one in the snapshot");
        let was_used = || Unfit::skipped("its limiter was in use before");
        if self.in_use().is_some() {
            return Err(was_used());
        }
        let at = table.now();
        let origin = Arc::new(Origin { tables: OriginTables::Restored(Arc::new(table)), has_quotas: false, at });
        let heir = Arc::new(self.heir(algorithm, &origin, self.settings.capacity).ok_or_else(cannot)?);
        self.put_in_use(Arc::clone(&heir)).map_err(|_| was_used())?;
        if let Some(finish) = finish_copies(&heir) {
            finish();
        }
        Ok(())
    }

    /// Makes tables whose keys begin with their debts at the origin, if this limiter can inherit these. `capacity` is
    /// the predecessor's.
    fn heir<A: Algorithm<State = S>>(
        &self,
        algorithm: &Arc<A>,
        origin: &Arc<Origin>,
        capacity: usize,
    ) -> Option<Tables<S>> {
        if origin.terms().clock != self.settings.clock_type {
            return None;
        }
        let with_capacity = |keys| Tables::new(&**algorithm, &self.settings, keys);
        let made = self.made.lock().take();
        let mut heir = made.unwrap_or_else(|| with_capacity(self.settings.capacity));
        heir.complete(&**algorithm);
        let geometries = origin.table().geometries(origin.at);
        if geometries.len() >= MOST_COPIES && !geometries.contains(&heir.current().geometry()) {
            // With another capacity, this table's own heir would have to inherit from more tables than it can.
            heir = with_capacity(capacity);
        }
        let form = origin.form(&**algorithm, &heir, self.takes_quotas())?;
        if let OriginTables::Replaced(predecessor) = &origin.tables {
            let resets = predecessor.resets();
            let voids_receipts = form.voids_receipts(origin, &heir.terms);
            heir.resets = if voids_receipts { resets.all_reset() } else { resets.inherited() };
        }
        form.begin(origin, &mut heir, algorithm, self.settings.when_full);
        heir.secret = origin.secret();
        heir.occupancy().inherit(origin.table().occupancy());
        Some(heir)
    }
}

/// Returns the call that copies all pages that no request has needed yet, if the heir inherits.
fn finish_copies<S: Copy + Send + 'static>(heir: &Tables<S>) -> Option<Finish> {
    let past = heir.current().inherited()?;
    Some(Box::new(move || past.copy_all()))
}

/// The keys' debts at the instant of a change: the [`DebtOrigin`] from which an heir copies.
pub(super) struct Origin {
    tables: OriginTables,
    /// Whether the keys are in the table for keys with quotas. Read once: a question may make that table meanwhile, and
    /// the heir may be that table.
    has_quotas: bool,
    at: Timestamp,
}

/// The tables that have an origin's keys.
enum OriginTables {
    /// From a limiter that is replaced.
    Replaced(Arc<dyn AnyTables>),
    /// From a snapshot. This process has no receipts for its keys.
    Restored(Arc<RestoredTable>),
}

impl Origin {
    pub(super) fn new<S: Copy + Send + 'static>(tables: &Arc<Tables<S>>, at: Timestamp) -> Arc<Self> {
        let has_quotas = tables.quota_table.get().is_some();
        Arc::new(Self { tables: OriginTables::Replaced(Arc::<Tables<S>>::clone(tables)), has_quotas, at })
    }

    fn terms(&self) -> &HeirTerms {
        match &self.tables {
            OriginTables::Replaced(tables) => tables.terms(),
            OriginTables::Restored(table) => table.terms(),
        }
    }

    fn secret(&self) -> Secret {
        match &self.tables {
            OriginTables::Replaced(tables) => tables.secret(),
            OriginTables::Restored(table) => table.secret(),
        }
    }

    /// Chooses the form in which an heir keeps these debts. Returns `None` if it cannot inherit them. Changes nothing.
    fn form<A: Algorithm>(&self, algorithm: &A, heir: &Tables<A::State>, takes_quotas: bool) -> Option<Form> {
        let before = self.terms();
        let terms = &heir.terms;
        let inherits_states =
            before.has_windows_of(terms) && algorithm.can_inherit(&before.quota) && self.table().is_read::<A::State>();
        if takes_quotas {
            let is_rescheduled = terms.schedule != before.schedule;
            let change = if is_rescheduled { TableChange::Schedule } else { TableChange::None };
            return inherits_states.then_some(Form::Entries(change));
        }
        let Some(words) = heir.key_table.words() else { return inherits_states.then_some(Form::States) };
        let quota = match algorithm.kind() {
            Kind::Bucket { quota } => quota,
            _ => terms.quota,
        };
        words.form(&HeirOfWords {
            origin: self,
            quota,
            staggered: terms.staggered,
            state: StateType::of::<A::State>(),
            inherits_states,
            takes_quotas: UnderQuota::without_conversion(algorithm).is_some(),
        })
    }

    /// Whether the windows have other numbers than the clock's. The heir numbers its windows in the same way.
    fn is_skewed(&self) -> bool {
        match &self.tables {
            OriginTables::Replaced(tables) => !self.has_quotas && tables.is_skewed(),
            OriginTables::Restored(_) => false,
        }
    }
}

impl Form {
    /// Lets an heir begin with the debts at the origin, in this form.
    fn begin<A: Algorithm>(
        self,
        origin: &Arc<Origin>,
        heir: &mut Tables<A::State>,
        algorithm: &Arc<A>,
        when_full: WhenFull,
    ) {
        let states = || States { algorithm: Arc::clone(algorithm), at: origin.at };
        let origin: Arc<dyn DebtOrigin> = Arc::<Origin>::clone(origin);
        let quota = heir.terms.quota;
        match self {
            Self::Words(rule) => {
                let convert: Arc<OwnStates<A::State>> = Arc::new(states());
                let words = heir.key_table.words_mut().expect("the form is one of words");
                words.begin(BeginWords { origin, rule, convert: Box::new(convert), quota });
            }
            Self::Entries(change) => {
                let table = quota_table(&**algorithm, &origin, change, (heir.capacity, when_full));
                heir.quota_table = OnceLock::from(table);
            }
            Self::States => {
                if !matches!(heir.key_table, KeyTable::Locked(_)) {
                    heir.key_table = KeyTable::Locked(LockedTable::new(heir.capacity, when_full));
                }
                if let KeyTable::Locked(own) = &mut heir.key_table {
                    begin_locked(&origin, own, states(), |_| quota);
                }
            }
        }
    }

    /// Whether an heir in this form, with these terms, cannot refund charges from before the change. The table at
    /// [`Form`] lists the cases.
    fn voids_receipts(&self, origin: &Origin, terms: &HeirTerms) -> bool {
        let before = origin.terms();
        if !terms.is_bucket {
            return terms.schedule != before.schedule || origin.is_skewed();
        }
        if origin.bucket().is_some() {
            return false;
        }
        match self {
            // The origin's states are behind locks, and their receipts are not those of words.
            Self::Words(_) => true,
            // A receipt counts in units of the rate under which it was made.
            Self::States | Self::Entries(TableChange::Quota) => {
                origin.has_quotas || !before.quota.has_rate_of(&terms.quota)
            }
            // Each key keeps the quota under which it was charged.
            Self::Entries(TableChange::None | TableChange::Schedule) => false,
        }
    }
}

impl DebtOrigin for Origin {
    fn at(&self) -> Timestamp {
        self.at
    }

    fn quota(&self) -> &Quota {
        &self.terms().quota
    }

    fn is_bucket(&self) -> bool {
        self.terms().is_bucket
    }

    fn table(&self) -> &dyn AnyTable {
        match &self.tables {
            OriginTables::Replaced(tables) if self.has_quotas => tables.current(),
            OriginTables::Replaced(tables) => tables.without_quotas(),
            OriginTables::Restored(table) => &**table,
        }
    }

    fn bucket(&self) -> Option<&Ledger<TickBucket>> {
        match &self.tables {
            OriginTables::Replaced(tables) if !self.has_quotas => tables.bucket(),
            _ => None,
        }
    }
}

impl dyn DebtOrigin + '_ {
    /// Calls `act` as [`ReadStates::each`] does, with the limiter's own quota.
    fn each<T: Copy + 'static>(&self, part: TablePart, act: &mut dyn FnMut(usize, Tag, QuotaState<T>)) {
        self.table().each(part, self.quota(), self.at(), act);
    }

    fn geometries(&self) -> Vec<Geometry> {
        self.table().geometries(self.at())
    }

    /// Returns the most units that a key may owe, including charges until the change is in force.
    fn most_owed<R: Codec>(&self) -> u64 {
        let known = self.table().most_owed(self.at());
        let mut most = known.unwrap_or_else(|| R::most_of(self.quota()));
        let mut look_at = |part| {
            self.each(part, &mut |_, _, entry: QuotaState<R::State>| {
                most = most.max(R::units_of(&entry, self.at())).max(R::most_of(&entry.quota));
            });
        };
        look_at(TablePart::Overflow);
        if known.is_none() {
            for geometry in self.geometries() {
                (0..geometry.pages()).for_each(|page| look_at(TablePart::Page(geometry, page)));
            }
        }
        most
    }
}

/// Lets a word table begin with the debts that `debt_of` returns for states with the type `T`. Returns whether its
/// overflow slots have debts.
fn begin_words<R: Codec, T: Copy + 'static>(
    origin: &Arc<dyn DebtOrigin>,
    own: &mut Ledger<R>,
    rule: R,
    debt_of: impl Fn(Tag, QuotaState<T>) -> Option<u64> + Send + Sync + 'static,
) -> bool {
    let at = origin.at();
    let form = Words { rule, base: base_of(&rule, at), at, debt_of: Box::new(debt_of) };
    let source = FromTable { origin: Arc::clone(origin), form };
    let overflow = source.overflow();
    own.inherit(rule, &origin.geometries(), at, &overflow, Box::new(source));
    !overflow.is_empty()
}

/// Lets a table with locks begin with the origin's debts in this `form`. Keys share an overflow state only with keys
/// under the same quota.
fn begin_locked<F: DebtForm<Debt: Send>>(
    origin: &Arc<dyn DebtOrigin>,
    own: &mut LockedTable<F::Debt>,
    form: F,
    quota_of: impl Fn(&F::Debt) -> Quota,
) {
    let source = FromTable { origin: Arc::clone(origin), form };
    for (tag, state) in source.overflow() {
        own.inherit_overflow((tag, &quota_of(&state)), state, |state| source.form.size(tag, state));
    }
    own.inherit(&origin.geometries(), Box::new(source));
}

/// Converts states into states under the heir's own quota.
type OwnStates<S> = dyn DebtForm<State = S, Debt = S>;

/// Returns the rule that [`WordHeir::form`] has chosen.
fn rule_of<R: Codec>(words: &BeginWords) -> R {
    *words.rule.downcast_ref().expect("the form has the rule of the table")
}

impl WordHeir for TickBucket {
    /// Words, unless a key owes more tokens than words can hold, for example after a burst of more than 2^18 was
    /// replaced by a slow quota. In that case the keys become states with the heir's quota, if they can, and the next
    /// change tries words again. `None` if no words hold the heir's quota, or if the predecessor's keys are not buckets
    /// of this crate.
    fn form(heir: &HeirOfWords<'_>) -> Option<Form> {
        let origin = heir.origin;
        if !origin.is_bucket() || !origin.table().is_read::<GcraState>() {
            return None;
        }
        let tokens = origin.most_owed::<Self>();
        let rule = Self::holding(&heir.quota, false, tokens)?;
        // A user's own algorithm may have a bucket's kind, although its states cannot be converted.
        let becomes_states = tokens > rule.most_units(true) && heir.inherits_states && heir.takes_quotas;
        Some(if becomes_states { Form::Entries(TableChange::Quota) } else { Form::Words(Box::new(rule)) })
    }

    fn begin(own: &mut Ledger<Self>, words: BeginWords) {
        let (origin, rule) = (&words.origin, rule_of::<Self>(&words));
        let at = origin.at();
        if let Some(from) = origin.bucket() {
            let rule = rule.continuing(from.rule(), at);
            let conversion = rule.conversion(from.rule(), from.rule().read(at));
            let debt_of = move |_, entry: QuotaState<Ticks>| Some(conversion.debt(entry.state.0));
            let has_overflow = begin_words(origin, own, rule, debt_of);
            own.remember(from, at, has_overflow);
        } else {
            let rule = rule.started_before(at);
            let base = base_of(&rule, at);
            begin_words(origin, own, rule, move |tag, entry: QuotaState<GcraState>| {
                rule.stamp_of(tag, entry, at).checked_sub(base)
            });
        }
    }
}

impl<S: WindowState> WordHeir for WindowRule<S> {
    /// Words if they can hold all counts, otherwise states.
    fn form(heir: &HeirOfWords<'_>) -> Option<Form> {
        if !heir.inherits_states {
            return None;
        }
        let most = heir.origin.most_owed::<Self>();
        let rule = Self::holding(&heir.quota, heir.staggered, most);
        let rule = rule.filter(|_| heir.state.is::<S>());
        Some(rule.map_or(Form::States, |rule| Form::Words(Box::new(rule))))
    }

    fn begin(own: &mut Ledger<Self>, words: BeginWords) {
        let rule = rule_of::<Self>(&words);
        let BeginWords { origin, convert, quota, .. } = words;
        // Passed as `Any`, because a ledger does not name the type of states.
        let convert: Box<Arc<OwnStates<S>>> = convert.downcast().expect("the form was chosen by the type of states");
        let at = origin.at();
        let base = base_of(&rule, at);
        begin_words(&origin, own, rule, move |tag, entry| {
            let state = convert.debt(tag, entry)?;
            rule.stamp_of(tag, QuotaState { state, quota }, at).checked_sub(base)
        });
    }
}

/// Makes a table for keys with their quotas. The keys begin with their debts at the origin, or without debts if the
/// algorithm does not take quotas.
pub(super) fn quota_table<A: Algorithm>(
    algorithm: &A,
    origin: &Arc<dyn DebtOrigin>,
    change: TableChange,
    (capacity, when_full): (usize, WhenFull),
) -> QuotaTable<A::State> {
    let mut table = LockedTable::new(capacity, when_full);
    table.occupancy().inherit(origin.table().occupancy());
    if let Some(under) = UnderQuota::without_conversion(algorithm) {
        let form = Entries { under, change, at: origin.at() };
        begin_locked(origin, &mut table, form, |entry| entry.quota);
    }
    table
}

/// Copies the keys' debts from a predecessor's table, in the heir's form.
struct FromTable<F> {
    origin: Arc<dyn DebtOrigin>,
    form: F,
}

impl<F: DebtForm> FromTable<F> {
    /// Returns the debts in overflow slots, each with a tag that the sharing keys have.
    fn overflow(&self) -> Vec<(Tag, F::Debt)> {
        let mut overflow = Vec::new();
        self.origin.each(TablePart::Overflow, &mut |_, tag, entry| {
            overflow.extend(self.form.debt(tag, entry).map(|debt| (tag, debt)));
        });
        overflow
    }
}

impl<F: DebtForm> DebtSource<F::Debt> for FromTable<F> {
    fn announce(&self, heir: &Weak<dyn PastDebts>) {
        if let Some(past) = self.origin.table().inherited() {
            past.announce(heir);
        }
    }

    fn copy(&self, geometry: Geometry, page: usize, put: &mut dyn FnMut(Debtor<F::Debt>)) {
        self.origin.each(TablePart::Page(geometry, page), &mut |set, tag, entry| {
            if let Some(debt) = self.form.debt(tag, entry) {
                put(Debtor { set, tag, debt, ends: self.form.ends(&debt) });
            }
        });
    }

    fn size(&self, tag: Tag, debt: &F::Debt) -> u64 {
        self.form.size(tag, debt)
    }
}

/// Converts a key's debt at the instant of the change into the heir's [`Form`].
trait DebtForm: Send + Sync + 'static {
    /// The state type as which the predecessor's table is read.
    type State: Copy + 'static;

    type Debt: Copy + 'static;

    /// Returns a state as the heir keeps it, if it still counts.
    fn debt(&self, tag: Tag, entry: QuotaState<Self::State>) -> Option<Self::Debt>;

    /// Returns the time at which a debt is paid, by the heir's clock.
    fn ends(&self, debt: &Self::Debt) -> u64;

    /// See [`DebtSource::size`].
    fn size(&self, tag: Tag, debt: &Self::Debt) -> u64;
}

/// Debts as table words, made from states of type `T`. A word is the rule's stamp minus the stamp of a key without
/// debt.
struct Words<R, T> {
    rule: R,
    /// The stamp of a key without debt at the change.
    base: u64,
    at: Timestamp,
    debt_of: Box<DebtOf<T>>,
}

type DebtOf<T> = dyn Fn(Tag, QuotaState<T>) -> Option<u64> + Send + Sync;

impl<R: Codec, T: Copy + 'static> DebtForm for Words<R, T> {
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

/// Debts as states under the heir's own quota.
struct States<A> {
    algorithm: Arc<A>,
    at: Timestamp,
}

impl<A: Algorithm> DebtForm for States<A> {
    type State = A::State;
    type Debt = A::State;

    fn debt(&self, tag: Tag, entry: QuotaState<A::State>) -> Option<A::State> {
        let now = local_of(&*self.algorithm, tag, self.at);
        let state = quota_change::converted(&*self.algorithm, entry.state, &entry.quota, now)?;
        let state = self.algorithm.after_step_back(state, now);
        (self.algorithm.owed(&state, now) > 0).then_some(state)
    }

    fn ends(&self, state: &A::State) -> u64 {
        self.algorithm.expires_at(state).as_nanos()
    }

    fn size(&self, tag: Tag, state: &A::State) -> u64 {
        self.algorithm.owed(state, local_of(&*self.algorithm, tag, self.at))
    }
}

/// Debts as states, each with its quota.
struct Entries<A> {
    under: UnderQuota<A>,
    change: TableChange,
    at: Timestamp,
}

impl<A: Algorithm> DebtForm for Entries<A> {
    type State = A::State;
    type Debt = QuotaState<A::State>;

    fn debt(&self, tag: Tag, entry: QuotaState<A::State>) -> Option<QuotaState<A::State>> {
        let now = local_of(&self.under, tag, self.at);
        let entry = match self.change {
            TableChange::None => entry,
            TableChange::Schedule => self.under.rescheduled(entry, now),
            TableChange::Quota => self.under.taken_over(&entry, now)?,
        };
        let entry = self.under.after_step_back(entry, now);
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
    use crate::algorithm::{FixedWindow, FixedWindowState, SlidingWindow, SlidingWindowState, TokenBucket};
    use crate::store::MemoryStore;
    use crate::store::memory::MemoryTable;
    use crate::store::memory::table::FixedRule;
    use crate::values::Ask;
    use crate::values::time::ManualClock;

    /// A large limit's counts do not fit into a small limit's words, so the heir gets another table.
    #[test]
    fn an_heir_does_not_repeat_the_warning() {
        let window = |limit| SlidingWindow::new(Quota::per_minute(limit));
        for limit in [100, 100_000] {
            let before = MemoryStore::with_capacity(16).table();
            let after = MemoryStore::with_capacity(16).table();
            let heritage = before.shared().heritage(&window(limit));
            before.shared().in_use().unwrap().occupancy().note_evicted();
            assert!(after.inherit(&Arc::new(window(10)), &heritage).is_some());
            let heir = after.shared().in_use().unwrap();
            assert_eq!(matches!(heir.key_table, KeyTable::Locked(_)), limit == 100_000);
            assert!(heir.occupancy().has_warned(), "from a limit of {limit}");
        }
    }

    /// Otherwise each change would keep the earlier table forever.
    #[test]
    fn a_finished_change_frees_the_old_table() {
        fn frees<A: Algorithm + Copy>(algorithm: A, has_quotas: bool) {
            let [before, after] = [(); 2].map(|()| {
                let clock = ManualClock::starting_at(Timestamp::from_nanos(7));
                let table = MemoryStore::with_capacity(16).with_clock(clock).table();
                if has_quotas {
                    table.shared().take_quotas(&algorithm);
                }
                table
            });
            let _: crate::values::Decision = before.charge(&algorithm, &Ask::charge(&"key".into(), 1));
            let tables = Arc::downgrade(before.shared().in_use().unwrap());
            let inheritance = after.inherit(&Arc::new(algorithm), &before.shared().heritage(&algorithm)).unwrap();
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

    /// Two layers share a limiter, and both change to the same heir. Once, when the heir had made its table for keys
    /// with quotas in between, it inherited again, and each layer had its own budget.
    #[test]
    fn two_layers_share_one_heir() {
        let quota = Quota::per_minute(10);
        let algorithm = TokenBucket::new(quota);
        let table = || MemoryStore::with_capacity(16).with_clock(ManualClock::starting_at(Timestamp::ZERO)).table();
        let before = table();
        let heir = table();
        let key = "key".into();
        let charge = |table: &MemoryTable<_, _>, quota| -> crate::values::Decision {
            table.charge(&algorithm, &Ask::charge(&key, 1).under(quota))
        };
        let _ = charge(&before, None);
        let inherit = || heir.inherit(&Arc::new(algorithm), &before.shared().heritage(&algorithm)).unwrap();
        assert!(inherit().heir.is_none());
        for changed in [None, Some(quota), None] {
            let _ = charge(&heir, changed);
            let _ = charge(&before, changed);
            assert!(inherit().heir.is_none(), "the heir is the same, with or without a table of keys with quotas");
        }
    }

    /// The second change cut the count to the bits that the first lowered limit takes, if no other key had a debt from
    /// before. A limit that is raised again would then have admitted the used units once more.
    #[test]
    fn overflow_counts_survive_two_lowered_limits() {
        const NOW: Timestamp = Timestamp::from_nanos(90_000_000_000);
        let tag = Tag::from_hash(7);
        let window = |limit| SlidingWindow::new(Quota::per_minute(limit));
        let table = || {
            let clock = ManualClock::starting_at(NOW);
            MemoryStore::with_capacity(16).when_full(WhenFull::Overflow).with_clock(clock).table()
        };
        // A large limit's counts are kept behind locks.
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
                heir.inherit(&Arc::new(window(lower)), &before.shared().heritage(&window(limit))).unwrap().finish();
                before = heir;
            }
            let mut states = Vec::new();
            let table = before.shared().in_use().unwrap().current();
            let mut push = |_, _, shared: QuotaState<SlidingWindowState>| states.push(shared.state);
            table.each(TablePart::Overflow, &Quota::per_minute(5), NOW, &mut push);
            assert_eq!(states, [used], "from a limit of {limit}");
        }
    }

    /// A page with more debtors than slots forgets the keys that owe least, measured by their own budgets if these
    /// differ.
    #[test]
    fn every_form_sizes_debts_by_use() {
        const NOW: Timestamp = Timestamp::from_nanos(90_000_000_000);
        fn sizes<F: DebtForm<State = FixedWindowState>>(form: F, of: [(u64, u64); 3]) -> [u64; 3] {
            let tables =
                Tables::new(&FixedWindow::new(Quota::per_minute(10)), &MemoryStore::with_capacity(16).settings(), 16);
            let source = FromTable { origin: Origin::new(&Arc::new(tables), NOW), form };
            of.map(|(used, limit)| {
                let state = FixedWindowState { window: 1, used };
                let tag = Tag::from_hash(7);
                let debt = source.form.debt(tag, QuotaState { state, quota: Quota::per_minute(limit) });
                source.size(tag, &debt.expect("it is owed until the window ends"))
            })
        }
        let quota = Quota::per_minute(10);
        let rule = FixedRule::holding(&quota, false, 0).unwrap();
        let base = base_of(&rule, NOW);
        let debt_of = Box::new(move |tag, entry| rule.stamp_of(tag, entry, NOW).checked_sub(base));
        let words = Words { rule, base, at: NOW, debt_of };
        let states = States { algorithm: Arc::new(FixedWindow::new(quota)), at: NOW };
        let under = UnderQuota::without_conversion(&FixedWindow::new(quota)).unwrap();
        let entries = Entries { under, change: TableChange::None, at: NOW };
        assert_eq!(sizes(words, [(1, 10), (4, 10), (10, 10)]), [1, 4, 10]);
        assert_eq!(sizes(states, [(1, 10), (4, 10), (10, 10)]), [1, 4, 10]);
        let [first, second, third] = sizes(entries, [(1, 10), (5, 100), (2, 2)]);
        assert!(0 < first && first < second && second < third, "{first}, {second}, {third}");
    }
}
