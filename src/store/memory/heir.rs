//! Makes an heir, at a live change. [`Limiter::inherit`](crate::Limiter::inherit) lists which limiters inherit what. All
//! that can fail is done here, before the change is in force; [`debt_copies`](super::debt_copies) then copies what is owed.

use std::any::TypeId;
use std::sync::{Arc, OnceLock};

use super::debt_copies::MOST_COPIES;
use super::forms::{Form, FromTable, Predecessor, States, TableChange, WithQuotas, WordForm};
use super::keeps::{Keeps, TablePart};
use super::kept::{Kept, KeptTable, QuotaTable};
use super::ledger::Ledger;
use super::locked::LockedTable;
use super::own_quota::UnderQuota;
use super::quota_state::{QuotaState, cast, is_same};
use super::settings::MemoryStore;
use super::table::{Codec, Geometry, Rule, Tag, TickBucket, Ticks};
use super::when_full::WhenFull;
use crate::algorithm::{Algorithm, GcraState, Kind};
use crate::values::Quota;
use crate::values::time::{Clock, Timestamp};

/// Makes a limiter's tables begin with what keys owe in its predecessor's; `None` if it cannot inherit that. `made` are the
/// tables that the limiter has already.
pub(super) fn make<A: Algorithm, C: Clock>(
    store: &MemoryStore<C>,
    made: Option<Kept<A::State>>,
    takes_quotas: bool,
    algorithm: &Arc<A>,
    predecessor: &Arc<Kept<A::State>>,
) -> Option<Kept<A::State>> {
    let before = predecessor.terms;
    if before.clock != TypeId::of::<C>() {
        return None;
    }
    let mut heir = made.unwrap_or_else(|| Kept::new(&**algorithm, store, store.capacity));
    // One instant for all of it, read once.
    let at = store.clock.now();
    let origin = Predecessor::new(predecessor, at);
    let geometries = origin.geometries();
    if geometries.len() >= MOST_COPIES && !geometries.contains(&heir.keeps().geometry()) {
        // With another capacity, the heir of this heir would have to inherit from more tables than it can.
        heir = Kept::new(&**algorithm, store, predecessor.capacity);
    }
    let terms = heir.terms;
    let inherits_states =
        before.has_windows_of(&terms) && algorithm.can_inherit(&before.quota) && origin.table::<A::State>().is_read();
    let beginning = Beginning { algorithm, origin: &origin, at };
    let form = match &mut heir.table {
        _ if takes_quotas => HeldForm::WithQuotas,
        KeptTable::Bucket(own) if before.is_bucket => beginning.bucket(own, inherits_states)?,
        KeptTable::Bucket(_) => return None,
        _ if !inherits_states => return None,
        KeptTable::Fixed(own) => beginning.windows(own, terms.staggered),
        KeptTable::Sliding(own) => beginning.windows(own, terms.staggered),
        KeptTable::Locked(_) => HeldForm::States,
    };
    match form {
        HeldForm::Words => {}
        HeldForm::WithQuotas if !inherits_states => return None,
        HeldForm::WithQuotas => {
            let is_rescheduled = !terms.is_bucket && terms.schedule != before.schedule;
            let change = match takes_quotas {
                false => TableChange::Quota,
                true if is_rescheduled => TableChange::Schedule,
                true => TableChange::None,
            };
            heir.quotas = OnceLock::from(quotas(&**algorithm, &origin, change, (heir.capacity, store.when_full)));
        }
        HeldForm::States => {
            if !matches!(heir.table, KeptTable::Locked(_)) {
                heir.table = KeptTable::Locked(LockedTable::new(heir.capacity, store.when_full));
            }
            if let KeptTable::Locked(own) = &mut heir.table {
                let source = beginning.source(States { algorithm: Arc::clone(algorithm), at });
                begin_locked(own, source, |_| terms.quota);
            }
        }
    }
    heir.secret = predecessor.secret;
    // Receipts name windows by number: after another change of the schedule, that may be the number of another window. Those
    // of a bucket that keeps states count in the units of its rate; each key that keeps its quota keeps them.
    let has_units = || !matches!(form, HeldForm::Words) && !origin.has_quotas && before.quota.has_rate_of(&terms.quota);
    let voids_receipts = if terms.is_bucket {
        !takes_quotas && origin.bucket().is_none() && !has_units()
    } else {
        terms.schedule != before.schedule
    };
    heir.resets = if voids_receipts { predecessor.resets.all_reset() } else { predecessor.resets.inherited() };
    heir.occupancy().inherit(predecessor.occupancy());
    Some(heir)
}

/// The form in which an heir holds what its keys owe.
enum HeldForm {
    /// It has begun with words.
    Words,
    /// It is to begin with states behind locks: under its own quota, or each with its quota.
    States,
    WithQuotas,
}

/// An heir that is to begin with what is owed at an instant.
struct Beginning<'a, A: Algorithm> {
    algorithm: &'a Arc<A>,
    origin: &'a Predecessor<A::State>,
    at: Timestamp,
}

impl<A: Algorithm> Beginning<'_, A> {
    /// Lets a bucket begin with words, unless some key owes more tokens than these hold: one of a quota with a burst of more
    /// than 2^18, say, that a slow one follows. Its keys are kept as states with the quota then, if there are such states,
    /// and the next change tries again. `None` if there is no such bucket, or the predecessor's keys are no buckets of this
    /// crate.
    fn bucket(&self, own: &mut Ledger<TickBucket>, inherits_states: bool) -> Option<HeldForm> {
        let Kind::Bucket { quota } = self.algorithm.kind() else { return None };
        if !self.origin.table::<GcraState>().is_read() {
            return None;
        }
        let (at, tokens) = (self.at, self.most_owed::<TickBucket>());
        let rule = TickBucket::holding(&quota, false, tokens)?;
        // An algorithm of a user's own may have the kind of a bucket, and no states that can be converted.
        if !rule.holds(tokens) && inherits_states && UnderQuota::keeping(&**self.algorithm).is_some() {
            return Some(HeldForm::WithQuotas);
        }
        if let Some(from) = self.origin.bucket() {
            let rule = rule.continuing(from.rule(), at);
            let (base, conversion) = (rule.read(at).count, rule.conversion(from.rule(), from.rule().read(at)));
            let stamp_of = move |_, kept: QuotaState<Ticks>| Some(base + conversion.debt(kept.state.0));
            let has_overflow = self.begin_words(own, rule, stamp_of);
            own.remember(from, at, has_overflow);
        } else {
            let rule = rule.started_before(at);
            self.begin_words(own, rule, move |tag, kept: QuotaState<GcraState>| Some(rule.stamp_of(tag, kept, at)));
        }
        Some(HeldForm::Words)
    }

    /// Lets windows begin with words, if all counts fit into these.
    fn windows<R: Codec>(&self, own: &mut Ledger<R>, staggered: bool) -> HeldForm {
        let (at, quota) = (self.at, self.algorithm.quota());
        let rule = R::holding(&quota, staggered, self.most_owed::<R>()).filter(|_| is_same::<A::State, R::State>());
        let Some(rule) = rule else { return HeldForm::States };
        let states = States { algorithm: Arc::clone(self.algorithm), at };
        self.begin_words(own, rule, move |tag, kept| {
            let state = cast(states.debt(tag, kept)?)?;
            Some(rule.stamp_of(tag, QuotaState { state, quota }, at))
        });
        HeldForm::Words
    }

    /// Lets a table of words begin; returns whether anything is owed in its overflow slots.
    fn begin_words<R: Codec, T: Copy + 'static>(
        &self,
        own: &mut Ledger<R>,
        rule: R,
        stamp_of: impl Fn(Tag, QuotaState<T>) -> Option<u64> + Send + Sync + 'static,
    ) -> bool {
        let source = self.source(WordForm::new(rule, self.at, Box::new(stamp_of)));
        let (from, overflow) = ((self.origin.number(), self.origin.geometries()), source.overflow());
        own.inherit(rule, from, self.at, &overflow, Box::new(source));
        !overflow.is_empty()
    }

    fn source<F: Form>(&self, form: F) -> FromTable<A::State, F> {
        FromTable { origin: self.origin.clone(), form }
    }

    /// Returns the most units that a key may owe, with what it may be charged until the change is in force.
    fn most_owed<R: Codec>(&self) -> u64 {
        let known = self.origin.table::<R::State>().most_owed(self.at);
        let mut most = known.unwrap_or_else(|| R::most_of(&self.origin.predecessor.terms.quota));
        let mut look_at = |part| {
            self.origin.each(part, &mut |_, _, kept: QuotaState<R::State>| {
                most = most.max(R::units_of(&kept, self.at)).max(R::most_of(&kept.quota));
            });
        };
        look_at(TablePart::Overflow);
        if known.is_none() {
            let pages = |geometry: Geometry| (0..geometry.pages()).map(move |page| TablePart::Page(geometry, page));
            self.origin.geometries().into_iter().flat_map(pages).for_each(look_at);
        }
        most
    }
}

/// Makes a table of keys with their quotas that begin with what they owe at the origin; with nothing, if the
/// algorithm takes no quotas.
pub(super) fn quotas<A: Algorithm>(
    algorithm: &A,
    origin: &Predecessor<A::State>,
    change: TableChange,
    (capacity, when_full): (usize, WhenFull),
) -> QuotaTable<A::State> {
    let mut quotas = LockedTable::new(capacity, when_full);
    quotas.occupancy().inherit(origin.table::<A::State>().occupancy());
    if let Some(under) = UnderQuota::keeping(algorithm) {
        let form = WithQuotas { under, change, at: origin.at };
        begin_locked(&mut quotas, FromTable { origin: origin.clone(), form }, |kept| kept.quota);
    }
    quotas
}

/// Lets a table with locks begin. Keys share a state with those of the same quota.
fn begin_locked<S: Copy + Send + 'static, F: Form<Debt: Send>>(
    own: &mut LockedTable<F::Debt>,
    source: FromTable<S, F>,
    quota_of: impl Fn(&F::Debt) -> Quota,
) {
    for (tag, state) in source.overflow() {
        own.inherit_overflow((tag, &quota_of(&state)), state, |state| source.form.size(tag, state));
    }
    own.inherit((source.origin.number(), source.origin.geometries()), Box::new(source));
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use super::*;
    use std::time::Duration;

    use crate::algorithm::SlidingWindowState;
    use crate::algorithm::{FixedWindow, SlidingWindow, TokenBucket};
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
            assert_eq!(matches!(heir.table, KeptTable::Locked(_)), limit == 100_000);
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
                KeptTable::Sliding(ledger) => {
                    let stamp =
                        ledger.rule().stamp_of(tag, QuotaState { state: used, quota: Quota::per_minute(limit) }, NOW);
                    ledger.inherit_overflow(NOW, tag, stamp);
                }
                KeptTable::Locked(table) => table.inherit_overflow((tag, &window(limit).quota()), used, |_| 0),
                KeptTable::Bucket(_) | KeptTable::Fixed(_) => unreachable!("a sliding window"),
            }
            for lower in [10, 5] {
                let heir = table();
                heir.inherit(&Arc::new(window(lower)), &before.heritage(&window(limit))).unwrap().finish();
                before = heir;
            }
            let mut kept = Vec::new();
            let table = before.in_use().unwrap().keeps();
            table.each(TablePart::Overflow, &Quota::per_minute(5), NOW, &mut |_, _, shared| kept.push(shared.state));
            assert_eq!(kept, [used], "from a limit of {limit}");
        }
    }
}
