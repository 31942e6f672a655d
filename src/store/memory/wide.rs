//! The table for any algorithm: lines of eight slots, each behind a lock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::line::{Line, SLOTS, Tag};
use super::past::{self, Geometry, Inherited, KeptState};
use super::slots::LINES_PER_PAGE;
use super::word::Tag as Tag28;
use super::{Pressure, WhenFull, census};
use crate::algorithm::Algorithm;
use crate::values::time::{self, Timestamp};
use crate::values::{Decision, Receipt};

pub(super) struct WideTable<S> {
    lines: Box<[Mutex<Line<S>>]>,
    /// What new keys share when the table is full and must not forget. Lines of which only one slot is used.
    overflow: Box<[Mutex<Line<S>>]>,
    when_full: WhenFull,
    pressure: Pressure,
    past: Option<Arc<Inherited<KeptState<S>>>>,
    /// The greatest count of a window among that.
    greatest: u32,
}

/// Keys are drawn into as many groups, by their hashes. Those of one group share a slot when the table is full, and have
/// the same [phase](Algorithm::phase), so that the state in that slot means the same to all of them.
const GROUPS: usize = 512;

#[allow(clippy::cast_possible_truncation)] // It is below 512.
const fn group_of(hash: u64) -> usize {
    Tag28::from_hash(hash).value() as usize % GROUPS
}

/// The time by which a key is judged.
#[inline]
fn local<A: Algorithm>(algorithm: &A, tag: Tag, now: Timestamp) -> Timestamp {
    local_of(algorithm, tag.get(), now)
}

#[inline]
pub(super) fn local_of<A: Algorithm>(algorithm: &A, hash: u64, now: Timestamp) -> Timestamp {
    let draw = group_of(hash) as u64 * (u64::MAX / GROUPS as u64);
    now.saturating_add(algorithm.phase(draw))
}

impl<S> WideTable<S> {
    pub(super) fn pressure(&self) -> &Pressure {
        &self.pressure
    }

    pub(super) fn size_in_bytes(&self) -> usize {
        size_of_val(&*self.lines) + size_of_val(&*self.overflow)
    }
}

impl<S: Copy + Send> WideTable<S> {
    /// Slots for `keys` keys at half load.
    pub(super) fn new(keys: usize, when_full: WhenFull) -> Self {
        let lines = keys.saturating_mul(2).div_ceil(SLOTS).max(2);
        let overflow = if when_full == WhenFull::Overflow { GROUPS } else { 0 };
        let lines_of = |count| reserved(count, keys, || Mutex::new(Line::new()));
        Self {
            lines: lines_of(lines),
            overflow: lines_of(overflow),
            when_full,
            pressure: Pressure::new(),
            past: None,
            greatest: 0,
        }
    }

    pub(super) fn geometry(&self) -> Geometry {
        Geometry::Wide { lines: self.lines.len() }
    }

    pub(super) fn inherited(&self) -> Option<&Arc<Inherited<KeptState<S>>>> {
        self.past.as_ref()
    }

    /// How the keys are spread of which something may still count at `now`.
    pub(super) fn geometries(&self, now: Timestamp) -> Vec<Geometry> {
        let past = self.past.as_ref().filter(|past| !past.has_ended(now.as_nanos()));
        past::geometries(self.geometry(), past)
    }

    /// The greatest count of a window that may still count at `now` of what was inherited.
    pub(super) fn greatest(&self, now: Timestamp) -> u32 {
        let past = self.past.as_ref().filter(|past| !past.has_ended(now.as_nanos()));
        past.map_or(0, |_| self.greatest)
    }

    /// Begins with these states, of windows with counts up to `greatest`. For a table that was not asked for anything yet.
    pub(super) fn inherit(&mut self, past: Arc<Inherited<KeptState<S>>>, greatest: u32) {
        (self.past, self.greatest) = (Some(past), greatest);
    }

    /// Calls `act` with the line, the tag and the state of all that is kept in a page of a layer, for an heir.
    pub(super) fn each_kept(&self, (geometry, page): (Geometry, usize), mut act: impl FnMut(usize, Tag28, S)) {
        // Before the table: what is moved there meanwhile is seen twice then, and not missed.
        if let Some(past) = &self.past {
            past.each_left(geometry, page, &mut act);
        }
        if geometry == self.geometry() {
            let first = page * LINES_PER_PAGE;
            for (line, entries) in self.lines.iter().skip(first).take(LINES_PER_PAGE).enumerate() {
                open(entries).each(|tag, state| act(line, Tag28::from_hash(tag.get()), state));
            }
        }
    }

    /// The two lines in which a key may live, the one to be locked first in front.
    fn homes(&self, hash: u64) -> (usize, usize) {
        homes_among(self.lines.len(), hash)
    }

    fn lock(&self, line: usize) -> MutexGuard<'_, Line<S>> {
        open(&self.lines[line])
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
        let mut low = self.lock(low);
        if let Some(state) = low.find(tag) {
            return charge(algorithm, state, local(algorithm, tag, clock()), cost);
        }
        let mut high = self.lock(high);
        // Read now that it is certain what is remembered: a key that is not found owes nothing by now, but
        // may have owed something when the lock was waited for.
        let now = fresh();
        if let Some(state) = high.find(tag) {
            return charge(algorithm, state, local(algorithm, tag, now), cost);
        }

        let is_free = |tag, state: &S| algorithm.expires_at(state) <= local(algorithm, tag, now);
        let inherited = self.past.as_ref().and_then(|past| past.get(hash, now.as_nanos()));
        if let (Some(past), Some(state)) = (&self.past, inherited) {
            let line = if low.free(is_free) >= high.free(is_free) { &mut low } else { &mut high };
            let mut has_room = line.put(tag, state, is_free);
            if !has_room && self.when_full == WhenFull::ForgetLeast {
                line.replace_least(tag, state, |tag, state| algorithm.owed(state, local(algorithm, tag, now)));
                self.pressure.note_evicted();
                has_room = true;
            }
            if has_room {
                past.set(hash, None);
                let state = line.find(tag).expect("it was put there");
                return charge(algorithm, state, local(algorithm, tag, now), cost);
            }
        }
        // What the key has spent of a shared budget it must not have once more.
        let shared = || self.shared_line(hash).and_then(|mut line| line.find(Tag::MIN).copied());
        let (decision, next) = algorithm.decide(inherited.or_else(shared), local(algorithm, tag, now), cost);
        let Some(next) = next else { return decision };
        let (in_low, in_high) = (low.free(is_free), high.free(is_free));
        self.pressure.note_arrival(hash, in_low.max(in_high));
        // The emptier of the two: choosing it is what keeps both from filling up early.
        let (emptier, fuller) = if in_low >= in_high { (&mut low, &mut high) } else { (&mut high, &mut low) };
        if emptier.put(tag, next, is_free) {
            return decision;
        }
        match self.when_full {
            WhenFull::ForgetLeast => {
                let owed = |tag, state: &S| algorithm.owed(state, local(algorithm, tag, now));
                let line = if emptier.least(owed) <= fuller.least(owed) { emptier } else { fuller };
                line.replace_least(tag, next, owed);
                self.pressure.note_evicted();
                decision
            }
            WhenFull::Refuse => {
                self.pressure.note_turned_away();
                let left = |tag, state: &S| {
                    let left = algorithm.expires_at(state).saturating_since(local(algorithm, tag, now));
                    time::nanos_of(left)
                };
                let first = Duration::from_nanos(emptier.least(left).min(fuller.least(left)));
                Decision::deny(decision.limit(), 0, Some(first))
            }
            WhenFull::Overflow => {
                self.pressure.note_turned_away();
                let mut line = self.shared_line(hash).expect("it is made with the table");
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

    /// Lets a key owe nothing; also what it shares with others.
    pub(super) fn reset(&self, hash: u64) {
        let (tag, (low, high)) = (tag_of(hash), self.homes(hash));
        let mut low = self.lock(low);
        low.remove(tag);
        // Both stay locked: see below.
        let mut high = self.lock(high);
        high.remove(tag);
        if let Some(past) = &self.past {
            past.set(hash, None);
        }
        if let Some(mut line) = self.shared_line(hash) {
            line.remove(Tag::MIN);
        }
    }

    /// How many keys owe something, estimated from some lines if there are many. Keys are spread evenly.
    pub(super) fn live<A: Algorithm<State = S>>(&self, algorithm: &A, now: Timestamp) -> u64 {
        let lines = self.lines.len();
        let seen = lines.min(census::LINES);
        let is_free = |tag, state: &S| algorithm.expires_at(state) <= local(algorithm, tag, now);
        let live = (0..seen).map(|index| SLOTS - self.lock(index * lines / seen).free(is_free)).sum();
        census::extrapolate(live, seen, lines)
    }

    /// The line whose one slot a new key shares with others when the table is full, if there is one. To be locked after the
    /// key's homes.
    fn shared_line(&self, hash: u64) -> Option<MutexGuard<'_, Line<S>>> {
        self.overflow.get(group_of(hash)).map(open)
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
        let mut low = self.lock(low);
        if let Some(state) = low.find(tag) {
            return act(Some(state), local);
        }
        // Both stay locked, or the key could be put into the first meanwhile.
        let mut high = self.lock(high);
        if let Some(state) = high.find(tag) {
            return act(Some(state), local);
        }
        if let Some(past) = &self.past
            && let Some(mut state) = past.get(hash, now.as_nanos())
        {
            let result = act(Some(&mut state), local);
            past.set(hash, Some(state));
            return result;
        }
        let mut shared = self.shared_line(hash);
        act(shared.as_mut().and_then(|line| line.find(Tag::MIN)), local)
    }
}

fn open<S>(line: &Mutex<Line<S>>) -> MutexGuard<'_, Line<S>> {
    // A panicking algorithm leaves the line as it was: states are replaced whole.
    line.lock().unwrap_or_else(PoisonError::into_inner)
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

/// The lines in which a key may be, in a table of so many, the lower one first.
///
/// Always locking the lower line first is what keeps two threads with the same pair from
/// waiting for each other.
pub(super) fn homes_among(lines: usize, hash: u64) -> (usize, usize) {
    let count = lines as u64;
    // The high and the low half of the hash each choose a line by multiplying, as dividing
    // would be slower and masking would need a power of two.
    #[allow(clippy::cast_possible_truncation)]
    let (a, b) = ((((hash >> 32) * count) >> 32) as usize, (((hash & 0xffff_ffff) * count) >> 32) as usize);
    let b = if a == b { (b + 1) % lines } else { b };
    (a.min(b), a.max(b))
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
    use crate::algorithm::{FixedWindowState, SlidingWindowState};

    /// What the documentation of the store says.
    #[test]
    fn bytes_per_key() {
        fn of<S: Copy + Send>() -> usize {
            WideTable::<S>::new(10_000, WhenFull::ForgetLeast).size_in_bytes() / 10_000
        }
        assert_eq!(of::<FixedWindowState>(), 50);
        assert_eq!(of::<SlidingWindowState>(), 50);
    }

    #[test]
    fn a_table_of_any_size_has_two_homes_for_every_hash() {
        for keys in [1, 2, 3, 8, 9, 1_000] {
            let table = WideTable::<SlidingWindowState>::new(keys, WhenFull::ForgetLeast);
            for hash in [0, 1, u64::MAX, u64::MAX << 32, u64::MAX >> 32, 0x1234_5678_9abc_def0] {
                let (low, high) = table.homes(hash);
                assert!(low < high && high < table.lines.len(), "{keys} keys, hash {hash:#x}: {low} and {high}");
            }
        }
    }
}
