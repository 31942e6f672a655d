//! The table for any algorithm: lines of eight slots, each behind a lock.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::line::{Line, SLOTS, Tag};
use super::{Pressure, WhenFull, census};
use crate::algorithm::Algorithm;
use crate::decision::{Decision, Receipt};
use crate::time::{self, Timestamp};

pub(super) struct WideTable<S> {
    lines: Box<[Mutex<Line<S>>]>,
    /// What new keys share when the table is full and must not forget.
    overflow: Box<[Mutex<Option<S>>]>,
    when_full: WhenFull,
    pressure: Pressure,
}

const OVERFLOW: usize = 512;

impl<S: Copy> WideTable<S> {
    /// Slots for `keys` keys at half load.
    pub(super) fn new(keys: usize, when_full: WhenFull) -> Self {
        let lines = keys.saturating_mul(2).div_ceil(SLOTS).max(2);
        let overflow = if when_full == WhenFull::Overflow { OVERFLOW } else { 0 };
        Self {
            lines: std::iter::repeat_with(|| Mutex::new(Line::new())).take(lines).collect(),
            overflow: std::iter::repeat_with(|| Mutex::new(None)).take(overflow).collect(),
            when_full,
            pressure: Pressure::default(),
        }
    }

    pub(super) const fn pressure(&self) -> &Pressure {
        &self.pressure
    }

    pub(super) fn size_in_bytes(&self) -> usize {
        size_of_val(&*self.lines) + size_of_val(&*self.overflow)
    }

    /// The two lines in which a key may live, the one to be locked first in front.
    ///
    /// Always locking the lower line first is what keeps two threads with the same pair from
    /// waiting for each other.
    fn homes(&self, hash: u64) -> (usize, usize) {
        let count = self.lines.len() as u64;
        // The high and the low half of the hash each choose a line by multiplying, as dividing
        // would be slower and masking would need a power of two.
        #[allow(clippy::cast_possible_truncation)]
        let (a, b) = ((((hash >> 32) * count) >> 32) as usize, (((hash & 0xffff_ffff) * count) >> 32) as usize);
        let b = if a == b { (b + 1) % self.lines.len() } else { b };
        (a.min(b), a.max(b))
    }

    fn lock(&self, line: usize) -> MutexGuard<'_, Line<S>> {
        // A panicking algorithm leaves the line as it was: states are replaced whole.
        self.lines[line].lock().unwrap_or_else(PoisonError::into_inner)
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
    ) -> Decision {
        let (tag, (low, high)) = (tag_of(hash), self.homes(hash));
        let mut low = self.lock(low);
        if let Some(state) = low.find(tag) {
            return charge(algorithm, state, clock(), cost);
        }
        let mut high = self.lock(high);
        // Read now that it is certain what is remembered: a key that is not found owes nothing by now, but
        // may have owed something when the lock was waited for.
        time::let_go();
        let now = clock();
        if let Some(state) = high.find(tag) {
            return charge(algorithm, state, now, cost);
        }

        let (decision, next) = algorithm.decide(None, now, cost);
        let Some(next) = next else { return decision };
        let is_free = |state: &S| algorithm.expires_at(state) <= now;
        let (in_low, in_high) = (low.free(is_free), high.free(is_free));
        self.pressure.note_arrival(hash, in_low.max(in_high));
        // The emptier of the two: choosing it is what keeps both from filling up early.
        let (emptier, fuller) = if in_low >= in_high { (&mut low, &mut high) } else { (&mut high, &mut low) };
        if emptier.put(tag, next, is_free) {
            return decision;
        }
        match self.when_full {
            WhenFull::ForgetLeast => {
                let owed = |state: &S| algorithm.owed(state, now);
                let line = if emptier.least(owed) <= fuller.least(owed) { emptier } else { fuller };
                line.replace_least(tag, next, owed);
                self.pressure.note_evicted();
                decision
            }
            WhenFull::Refuse => {
                self.pressure.note_turned_away();
                let expiry = |state: &S| algorithm.expires_at(state).as_nanos();
                let first = Timestamp::from_nanos(emptier.least(expiry).min(fuller.least(expiry)));
                Decision::deny(decision.limit(), 0, Some(first.saturating_since(now)))
            }
            WhenFull::Overflow => {
                self.pressure.note_turned_away();
                let slot = usize::try_from((hash >> 32) % self.overflow.len() as u64).expect("below a usize");
                let mut shared = self.overflow[slot].lock().unwrap_or_else(PoisonError::into_inner);
                let (decision, next) = algorithm.decide(*shared, now, cost);
                *shared = next.or(*shared);
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
        self.with_found(hash, |state| algorithm.decide(state.copied(), now, cost).0)
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
        self.with_found(hash, |state| {
            if let Some(state) = state {
                *state = algorithm.give_back(*state, now, cost, receipt);
            }
        });
    }

    pub(super) fn reset(&self, hash: u64) {
        let (tag, (low, high)) = (tag_of(hash), self.homes(hash));
        let mut low = self.lock(low);
        low.remove(tag);
        // Both stay locked: see below.
        self.lock(high).remove(tag);
    }

    /// How many keys owe something, estimated from some lines if there are many. Keys are spread evenly.
    pub(super) fn live<A: Algorithm<State = S>>(&self, algorithm: &A, now: Timestamp) -> u64 {
        let lines = self.lines.len();
        let seen = lines.min(census::LINES);
        let is_free = |state: &S| algorithm.expires_at(state) <= now;
        let live = (0..seen).map(|index| SLOTS - self.lock(index * lines / seen).free(is_free)).sum();
        census::extrapolate(live, seen, lines)
    }

    fn with_found<R>(&self, hash: u64, act: impl FnOnce(Option<&mut S>) -> R) -> R {
        let (tag, (low, high)) = (tag_of(hash), self.homes(hash));
        let mut low = self.lock(low);
        if let Some(state) = low.find(tag) {
            return act(Some(state));
        }
        // Both stay locked, or the key could be put into the first meanwhile.
        let mut high = self.lock(high);
        act(high.find(tag))
    }
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
        fn of<S: Copy>() -> usize {
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
