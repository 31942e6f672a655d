//! The table for any algorithm: lines of eight slots, each behind a lock.

use std::any::TypeId;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::line::{Era, Line, SLOTS, Tag};
use super::{Pressure, WhenFull, census};
use crate::algorithm::{Adoption, Algorithm};
use crate::decision::{Decision, Receipt};
use crate::quota::Quota;
use crate::time::{self, Timestamp};

/// A table as one limiter sees it.
///
/// If another limiter takes over, with another quota, both have the same table. Each line says under which quota its
/// states were written, and whoever comes to it has them rewritten for its own first, under the line's lock: there
/// is no pass over the table. A request of the old limiter that was on its way may have a line rewritten once more.
pub(super) struct WideTable<S> {
    shared: Arc<Shared<S>>,
    era: Era,
}

struct Shared<S> {
    lines: Box<[Mutex<Line<S>>]>,
    /// What new keys share when the table is full and must not forget. Lines of which only one slot is used.
    overflow: Box<[Mutex<Line<S>>]>,
    when_full: WhenFull,
    pressure: Pressure,
    algorithm: TypeId,
    /// One more for each change after which states read otherwise.
    eras: Mutex<Vec<Written>>,
}

/// Under which quota states were written, and since when.
#[derive(Clone, Copy)]
struct Written {
    under: Quota,
    /// Whether the windows of each key begin at an instant of its own.
    staggered: bool,
    since: Timestamp,
}

impl Written {
    fn by<A: Algorithm>(algorithm: &A, since: Timestamp) -> Self {
        Self { under: algorithm.quota(), staggered: !algorithm.phase(u64::MAX).is_zero(), since }
    }
}

/// Keys are drawn into as many groups, by their hashes. Those of one group share a slot when the table is full, and have
/// the same [phase](Algorithm::phase), so that the state in that slot means the same to all of them.
const GROUPS: usize = 512;

#[allow(clippy::cast_possible_truncation)] // It is below 512.
const fn group_of(hash: u64) -> usize {
    (hash >> 32) as usize % GROUPS
}

/// The time by which a key is judged.
#[inline]
fn local<A: Algorithm>(algorithm: &A, tag: Tag, now: Timestamp) -> Timestamp {
    let draw = group_of(tag.get()) as u64 * (u64::MAX / GROUPS as u64);
    now.saturating_add(algorithm.phase(draw))
}

impl<S: Copy> WideTable<S> {
    /// Slots for `keys` keys at half load.
    pub(super) fn new<A: Algorithm<State = S>>(algorithm: &A, keys: usize, when_full: WhenFull) -> Self {
        let lines = keys.saturating_mul(2).div_ceil(SLOTS).max(2);
        let overflow = if when_full == WhenFull::Overflow { GROUPS } else { 0 };
        let lines_of = |count| reserved(count, keys, || Mutex::new(Line::new()));
        let shared = Shared {
            lines: lines_of(lines),
            overflow: lines_of(overflow),
            when_full,
            pressure: Pressure::new(),
            algorithm: TypeId::of::<A>(),
            eras: Mutex::new(vec![Written::by(algorithm, Timestamp::ZERO)]),
        };
        Self { shared: Arc::new(shared), era: 0 }
    }

    /// The same keys under another quota, if the algorithm can go on with its states.
    pub(super) fn succeed<A: Algorithm<State = S>>(
        &self,
        algorithm: &A,
        clock: impl Fn() -> Timestamp,
    ) -> Option<Self> {
        if self.shared.algorithm != TypeId::of::<A>() {
            return None;
        }
        let mut eras = self.shared.eras();
        let (old, new) = (*eras.last()?, Written::by(algorithm, clock()));
        match algorithm.adoption(&old.under) {
            Adoption::Nothing => return None,
            // Other windows begin at other instants, for each key by as much as its phase changes.
            _ if old.staggered != new.staggered => return None,
            Adoption::Rewritten if new.staggered => return None,
            Adoption::AsTheyAre => {}
            Adoption::Rewritten => eras.push(new),
        }
        Some(Self { shared: Arc::clone(&self.shared), era: Era::try_from(eras.len() - 1).ok()? })
    }

    pub(super) fn pressure(&self) -> &Pressure {
        &self.shared.pressure
    }

    pub(super) fn size_in_bytes(&self) -> usize {
        size_of_val(&*self.shared.lines) + size_of_val(&*self.shared.overflow)
    }

    /// The two lines in which a key may live, the one to be locked first in front.
    ///
    /// Always locking the lower line first is what keeps two threads with the same pair from
    /// waiting for each other.
    fn homes(&self, hash: u64) -> (usize, usize) {
        let count = self.shared.lines.len() as u64;
        // The high and the low half of the hash each choose a line by multiplying, as dividing
        // would be slower and masking would need a power of two.
        #[allow(clippy::cast_possible_truncation)]
        let (a, b) = ((((hash >> 32) * count) >> 32) as usize, (((hash & 0xffff_ffff) * count) >> 32) as usize);
        let b = if a == b { (b + 1) % self.shared.lines.len() } else { b };
        (a.min(b), a.max(b))
    }

    fn lock<A: Algorithm<State = S>>(
        &self,
        line: usize,
        algorithm: &A,
        clock: impl Fn() -> Timestamp,
    ) -> MutexGuard<'_, Line<S>> {
        self.open(&self.shared.lines[line], algorithm, clock)
    }

    fn open<'a, A: Algorithm<State = S>>(
        &self,
        line: &'a Mutex<Line<S>>,
        algorithm: &A,
        clock: impl Fn() -> Timestamp,
    ) -> MutexGuard<'a, Line<S>> {
        // A panicking algorithm leaves the line as it was: states are replaced whole.
        let mut line = line.lock().unwrap_or_else(PoisonError::into_inner);
        if line.era != self.era {
            self.rewrite(&mut line, algorithm, clock());
        }
        line
    }

    #[cold]
    fn rewrite<A: Algorithm<State = S>>(&self, line: &mut Line<S>, algorithm: &A, now: Timestamp) {
        let eras = self.shared.eras();
        let (from, to) = (line.era as usize, self.era as usize);
        if from < to {
            // As it read when the quota changed, each time, however long nobody came.
            for step in eras[from..=to].windows(2) {
                line.rewrite(|state| algorithm.adopt(state, &step[0].under, &step[1].under, step[1].since));
            }
        } else {
            // This is of an old limiter.
            line.rewrite(|state| algorithm.adopt(state, &eras[from].under, &eras[to].under, now));
        }
        line.era = self.era;
    }

    /// Decides, and remembers what is charged.
    ///
    /// A key lives in at most one of its homes, because it is only ever put into one while both are
    /// locked and neither has it. So the first home may be searched, and a key found there served,
    /// under that home's lock alone.
    pub(super) fn check<A: Algorithm<State = S>>(
        &self,
        algorithm: &A,
        hash: u64,
        cost: u32,
        clock: impl Fn() -> Timestamp,
        fresh: impl Fn() -> Timestamp,
    ) -> Decision {
        let (tag, (low, high)) = (tag_of(hash), self.homes(hash));
        let mut low = self.lock(low, algorithm, &clock);
        if let Some(state) = low.find(tag) {
            return charge(algorithm, state, local(algorithm, tag, clock()), cost);
        }
        let mut high = self.lock(high, algorithm, &clock);
        // Read now that it is certain what is remembered: a key that is not found owes nothing by now, but
        // may have owed something when the lock was waited for.
        let now = fresh();
        if let Some(state) = high.find(tag) {
            return charge(algorithm, state, local(algorithm, tag, now), cost);
        }

        // What the key has spent of a shared budget it must not have once more.
        let shared = self.shared_line(hash, algorithm, &clock).and_then(|mut line| line.find(Tag::MIN).copied());
        let (decision, next) = algorithm.decide(shared, local(algorithm, tag, now), cost);
        let Some(next) = next else { return decision };
        let is_free = |tag, state: &S| algorithm.expires_at(state) <= local(algorithm, tag, now);
        let (in_low, in_high) = (low.free(is_free), high.free(is_free));
        self.shared.pressure.note_arrival(hash, in_low.max(in_high));
        // The emptier of the two: choosing it is what keeps both from filling up early.
        let (emptier, fuller) = if in_low >= in_high { (&mut low, &mut high) } else { (&mut high, &mut low) };
        if emptier.put(tag, next, is_free) {
            return decision;
        }
        match self.shared.when_full {
            WhenFull::ForgetLeast => {
                let owed = |tag, state: &S| algorithm.owed(state, local(algorithm, tag, now));
                let line = if emptier.least(owed) <= fuller.least(owed) { emptier } else { fuller };
                line.replace_least(tag, next, owed);
                self.shared.pressure.note_evicted();
                decision
            }
            WhenFull::Refuse => {
                self.shared.pressure.note_turned_away();
                let left = |tag, state: &S| {
                    let left = algorithm.expires_at(state).saturating_since(local(algorithm, tag, now));
                    time::nanos_of(left)
                };
                let first = Duration::from_nanos(emptier.least(left).min(fuller.least(left)));
                Decision::deny(decision.limit(), 0, Some(first))
            }
            WhenFull::Overflow => {
                self.shared.pressure.note_turned_away();
                let mut line = self.shared_line(hash, algorithm, &clock).expect("it is made with the table");
                let now = local(algorithm, tag, now);
                if let Some(state) = line.find(Tag::MIN) {
                    return charge(algorithm, state, now, cost);
                }
                let (decision, next) = algorithm.decide(None, now, cost);
                if let Some(next) = next {
                    line.put(Tag::MIN, next, |_, _| true);
                }
                decision
            }
        }
    }

    /// What [`check`](Self::check) would decide.
    pub(super) fn peek<A: Algorithm<State = S>>(
        &self,
        algorithm: &A,
        hash: u64,
        now: Timestamp,
        cost: u32,
    ) -> Decision {
        self.with_found(algorithm, hash, now, |state, now| algorithm.decide(state.copied(), now, cost).0)
    }

    /// Gives back what is still owed for a charge.
    pub(super) fn give_back<A: Algorithm<State = S>>(
        &self,
        algorithm: &A,
        hash: u64,
        now: Timestamp,
        cost: u32,
        receipt: Receipt,
    ) {
        self.with_found(algorithm, hash, now, |state, now| {
            if let Some(state) = state {
                *state = algorithm.give_back(*state, now, cost, receipt);
            }
        });
    }

    pub(super) fn is_the_table_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Lets a key owe nothing; also what it shares with others.
    pub(super) fn reset<A: Algorithm<State = S>>(&self, algorithm: &A, hash: u64, now: Timestamp) {
        let (tag, (low, high)) = (tag_of(hash), self.homes(hash));
        let mut low = self.lock(low, algorithm, || now);
        low.remove(tag);
        // Both stay locked: see below.
        let mut high = self.lock(high, algorithm, || now);
        high.remove(tag);
        if let Some(mut line) = self.shared_line(hash, algorithm, || now) {
            line.remove(Tag::MIN);
        }
    }

    /// How many keys owe something, estimated from some lines if there are many. Keys are spread evenly.
    pub(super) fn live<A: Algorithm<State = S>>(&self, algorithm: &A, now: Timestamp) -> u64 {
        let lines = self.shared.lines.len();
        let seen = lines.min(census::LINES);
        let is_free = |tag, state: &S| algorithm.expires_at(state) <= local(algorithm, tag, now);
        let live =
            (0..seen).map(|index| SLOTS - self.lock(index * lines / seen, algorithm, || now).free(is_free)).sum();
        census::extrapolate(live, seen, lines)
    }

    /// The line whose one slot a new key shares with others when the table is full, if there is one. To be locked after the
    /// key's homes.
    fn shared_line<A: Algorithm<State = S>>(
        &self,
        hash: u64,
        algorithm: &A,
        clock: impl Fn() -> Timestamp,
    ) -> Option<MutexGuard<'_, Line<S>>> {
        self.shared.overflow.get(group_of(hash)).map(|line| self.open(line, algorithm, clock))
    }

    /// Has the state of a key acted upon, with the time by which it is judged; the one that it shares with others if it has
    /// none of its own.
    fn with_found<A: Algorithm<State = S>, R>(
        &self,
        algorithm: &A,
        hash: u64,
        now: Timestamp,
        act: impl FnOnce(Option<&mut S>, Timestamp) -> R,
    ) -> R {
        let (tag, (low, high)) = (tag_of(hash), self.homes(hash));
        let local = local(algorithm, tag, now);
        let mut low = self.lock(low, algorithm, || now);
        if let Some(state) = low.find(tag) {
            return act(Some(state), local);
        }
        // Both stay locked, or the key could be put into the first meanwhile.
        let mut high = self.lock(high, algorithm, || now);
        if let Some(state) = high.find(tag) {
            return act(Some(state), local);
        }
        let mut shared = self.shared_line(hash, algorithm, || now);
        act(shared.as_mut().and_then(|line| line.find(Tag::MIN)), local)
    }
}

impl<S> Shared<S> {
    fn eras(&self) -> MutexGuard<'_, Vec<Written>> {
        self.eras.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// So many of them, in memory that is asked for at once.
fn reserved<T>(count: usize, keys: usize, make: impl FnMut() -> T) -> Box<[T]> {
    let mut all = Vec::new();
    if all.try_reserve_exact(count).is_err() {
        super::no_memory(keys, count.saturating_mul(size_of::<T>()));
    }
    all.extend(std::iter::repeat_with(make).take(count));
    all.into()
}

fn tag_of(hash: u64) -> Tag {
    Tag::new(hash).unwrap_or(Tag::MIN)
}

fn charge<A: Algorithm>(algorithm: &A, state: &mut A::State, now: Timestamp, cost: u32) -> Decision {
    let (decision, next) = algorithm.decide(Some(*state), now, cost);
    if let Some(next) = next {
        *state = next;
    }
    decision
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{FixedWindow, SlidingWindow};

    /// What the documentation of the store says.
    #[test]
    fn bytes_per_key() {
        fn of<A: Algorithm>(algorithm: &A) -> usize {
            WideTable::new(algorithm, 10_000, WhenFull::ForgetLeast).size_in_bytes() / 10_000
        }
        assert_eq!(of(&FixedWindow::new(Quota::per_hour(1))), 52);
        assert_eq!(of(&SlidingWindow::new(Quota::per_hour(1))), 52);
    }

    #[test]
    fn a_table_of_any_size_has_two_homes_for_every_hash() {
        for keys in [1, 2, 3, 8, 9, 1_000] {
            let table = WideTable::new(&SlidingWindow::new(Quota::per_hour(1)), keys, WhenFull::ForgetLeast);
            for hash in [0, 1, u64::MAX, u64::MAX << 32, u64::MAX >> 32, 0x1234_5678_9abc_def0] {
                let (low, high) = table.homes(hash);
                assert!(low < high && high < table.shared.lines.len(), "{keys} keys, hash {hash:#x}: {low} and {high}");
            }
        }
    }
}
