use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use super::driver::Grant;
use crate::algorithm::gcra::{Gcra, GcraState};
use crate::decision::{Decision, Receipt};
use crate::quota::Quota;
use crate::time::{Timestamp, duration_from_nanos, nanos_of};

/// What a queue refuses to exceed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) capacity: usize,
    /// Nanoseconds.
    pub(super) max_wait: u64,
    pub(super) max_waiters: usize,
}

/// Stands for a key: 128 bits of a keyed hash, so that keys of any length take the same room. Among a
/// million keys, two are taken for one with a probability of 10⁻²⁷.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct LineId(pub(super) u128);

/// All lines of a queue: who waits, and when each line's head may leave. Knows the time only as it
/// is told, and wakes nobody itself.
///
/// # Schedule
///
/// A key's line is a bucket that is paid *after* the fact. `tat` is when everything that has left
/// will be paid for, in the units of [`Gcra`]; the next may leave at `tat − (burst − 1) × interval`,
/// whoever it is, and moves `tat` up by its cost. Those in line leave as soon as they may, so the
/// turn of the last one is known on arrival: it is that of the head with `tat` moved up by the cost
/// of all who wait.
///
/// # Invariants
///
/// 1. Every line is in exactly one index: `due` if somebody waits, else `idle`.
/// 2. `waiting` is the number of waiters in all lines, and a line's `backlog` the cost of its own.
/// 3. A waiter's number is greater than those of all before it in its line.
pub(super) struct Lines {
    pace: Gcra,
    /// (burst − 1) × interval: how far ahead of its payment the head may leave.
    ahead: u128,
    /// The greatest cost that is admitted: what leaks while one waits as long as one may, and the
    /// burst. A greater one would close its line to everybody for longer than that.
    max_cost: u32,
    bounds: Bounds,
    lines: HashMap<LineId, Line>,
    /// Lines with waiters, by the time at which their heads may leave.
    due: BTreeSet<(Timestamp, LineId)>,
    /// Lines without, by the time from which they are as good as new.
    idle: BTreeSet<(Timestamp, LineId)>,
    waiting: usize,
    next_number: u64,
}

#[derive(Default)]
struct Line {
    tat: u128,
    waiters: BTreeMap<u64, Waiter>,
    backlog: u128,
}

struct Waiter {
    cost: u32,
    since: Timestamp,
    /// `None` for a place that was taken for nobody, to rehearse.
    grant: Option<Grant>,
}

/// A turn whose time has come, to be handed over once the lock is released.
pub(super) struct Release {
    pub(super) grant: Grant,
    pub(super) id: LineId,
    pub(super) cost: u32,
    pub(super) decision: Decision,
}

/// Keys without waiters that are remembered until their last departure is paid for.
const MAX_IDLE: usize = 65_536;

/// How late a head may be released and the next still leave on time. Tokio's timer ticks at 1 ms,
/// and a busy scheduler adds a few; what is later than this is a stall, and catching up on it would
/// be a burst.
const CATCH_UP: Duration = Duration::from_millis(10);

/// Heads that are released before others get at the lock.
const BATCH: usize = 256;

impl Lines {
    pub(super) fn new(quota: &Quota, bounds: Bounds) -> Self {
        let burst = quota.explicit_burst_or(1);
        let pace = Gcra::new(quota, burst);
        let ahead = pace.price(burst - 1);
        let units = pace.units(Timestamp::from_nanos(bounds.max_wait)) + ahead;
        Self {
            pace,
            ahead,
            max_cost: u32::try_from(units / pace.price(1) + 1).unwrap_or(u32::MAX),
            bounds,
            lines: HashMap::new(),
            due: BTreeSet::new(),
            idle: BTreeSet::new(),
            waiting: 0,
            next_number: 0,
        }
    }

    pub(super) const fn waiting(&self) -> usize {
        self.waiting
    }

    pub(super) const fn is_full(&self) -> bool {
        self.waiting >= self.bounds.max_waiters
    }

    /// When the next head may leave, over all lines.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        self.due.first().map(|(due, _)| *due)
    }

    /// How many requests of cost one a fresh key could send at once, without any being refused.
    pub(super) fn limit(&self) -> u32 {
        self.numbers(Timestamp::ZERO, 0, (0, 0), Decision::allow).limit()
    }

    pub(super) const fn max_cost(&self) -> u32 {
        self.max_cost
    }

    /// Judges an arrival that waits for at most `max_wait` nanoseconds, without letting it in. `Ok`
    /// says when it would leave.
    pub(super) fn judge(&self, now: Timestamp, id: LineId, cost: u32, max_wait: u64) -> Result<Timestamp, Decision> {
        let nobody = Line::default();
        let line = self.lines.get(&id).unwrap_or(&nobody);
        if cost > self.max_cost {
            return Err(self.describe(now, line, |limit, left| Decision::deny(limit, left, None)));
        }
        let head_leaves = self.leaves(line.tat);
        if cost == 0 || (line.waiters.is_empty() && head_leaves <= now) {
            return Ok(now);
        }

        let leaves = self.leaves(line.tat + line.backlog);
        let mut accepted_at = Timestamp::from_nanos(leaves.as_nanos().saturating_sub(max_wait));
        if line.waiters.len() >= self.bounds.capacity {
            accepted_at = accepted_at.max(head_leaves);
        }
        if self.is_full() {
            // Not before somebody has left, however late that is.
            let soonest = Timestamp::from_nanos(now.as_nanos().saturating_add(1));
            accepted_at = accepted_at.max(self.next_due().unwrap_or(head_leaves)).max(soonest);
        }
        if accepted_at > now {
            let wait = accepted_at.saturating_since(now);
            // Others may wait longer than this one, so there may be room; there is none for it.
            return Err(self.describe(now, line, |limit, _| Decision::deny(limit, 0, Some(wait))));
        }
        Ok(leaves)
    }

    /// A request that leaves at once, by [`judge`](Self::judge).
    pub(super) fn pass(&mut self, now: Timestamp, id: LineId, cost: u32) -> Decision {
        if cost > 0 {
            self.open(id);
            self.edit(id, |pace, line| line.tat = line.tat.max(pace.units(now)) + pace.price(cost));
            self.forget_idle(now);
        }
        self.admitted(now, id, Duration::ZERO)
    }

    /// Puts a request at the end of its line; returns its number.
    pub(super) fn join(&mut self, now: Timestamp, id: LineId, cost: u32, grant: Option<Grant>) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        self.waiting += 1;
        self.open(id);
        self.edit(id, |pace, line| {
            line.backlog += pace.price(cost);
            line.waiters.insert(number, Waiter { cost, since: now, grant });
        });
        number
    }

    /// The decision on what [`judge`](Self::judge) let in to leave at `leaves`, if it were let in.
    pub(super) fn foretell(&self, now: Timestamp, id: LineId, cost: u32, leaves: Timestamp) -> Decision {
        let line = self.lines.get(&id);
        let (tat, backlog) = line.map_or((0, 0), |line| (line.tat, line.backlog));
        let waits = usize::from(leaves > now);
        let waiting = line.map_or(0, |line| line.waiters.len()) + waits;
        let end = tat.max(self.pace.units(now)) + backlog + self.pace.price(cost);
        self.numbers(now, end, (waiting, self.waiting + waits), Decision::allow)
            .with_delay(leaves.saturating_since(now))
    }

    /// Takes a waiter out of its line, if it is still there. Those behind it move up by that alone:
    /// the head's turn does not depend on who is the head.
    pub(super) fn leave(&mut self, id: LineId, number: u64) -> Option<Grant> {
        self.lines.get(&id).filter(|line| line.waiters.contains_key(&number))?;
        let left = self.edit(id, |pace, line| {
            let waiter = line.waiters.remove(&number)?;
            line.backlog -= pace.price(waiter.cost);
            Some(waiter)
        })??;
        self.waiting -= 1;
        left.grant
    }

    /// Gives a waiter another way to learn of its turn; `false` if it is not in line any more.
    pub(super) fn regrant(&mut self, id: LineId, number: u64, grant: Grant) -> bool {
        let waiter = self.lines.get_mut(&id).and_then(|line| line.waiters.get_mut(&number));
        waiter.map(|waiter| waiter.grant = Some(grant)).is_some()
    }

    /// Takes from all who wait their ways to learn of their turns. They keep their places.
    pub(super) fn take_grants(&mut self) -> Vec<Grant> {
        let waiters = self.lines.values_mut().flat_map(|line| line.waiters.values_mut());
        waiters.filter_map(|waiter| waiter.grant.take()).collect()
    }

    /// Releases every head of one line whose time has come.
    pub(super) fn release(&mut self, now: Timestamp, id: LineId, released: &mut Vec<Release>) {
        let ahead = self.ahead;
        loop {
            let waiter = self.edit(id, |pace, line| {
                let leaves = pace.nanos_ceil(line.tat.saturating_sub(ahead));
                if leaves > u128::from(now.as_nanos()) {
                    return None;
                }
                let (_, waiter) = line.waiters.pop_first()?;
                // On time as of its deadline, so that late timers do not add up, unless that is too
                // long ago.
                let earliest = Timestamp::from_nanos(now.as_nanos().saturating_sub(nanos_of(CATCH_UP)));
                line.tat = line.tat.max(pace.units(earliest)) + pace.price(waiter.cost);
                line.backlog -= pace.price(waiter.cost);
                Some(waiter)
            });
            let Some(waiter) = waiter.flatten() else { break };
            self.waiting -= 1;
            if let Some(grant) = waiter.grant {
                let decision = self.admitted(now, id, now.saturating_since(waiter.since));
                released.push(Release { grant, id, cost: waiter.cost, decision });
            }
        }
    }

    /// Releases heads whose time has come, of any line, up to a batch; `true` if that was all.
    pub(super) fn release_some(&mut self, now: Timestamp, released: &mut Vec<Release>) -> bool {
        for _ in 0..BATCH {
            match self.due.first() {
                Some((due, id)) if *due <= now => {
                    let id = *id;
                    self.release(now, id, released);
                    self.forget_idle(now);
                }
                _ => return true,
            }
        }
        false
    }

    /// Undoes a departure, as far as it is not paid for yet.
    pub(super) fn give_back(&mut self, now: Timestamp, id: LineId, cost: u32, receipt: Receipt) {
        self.edit(id, |pace, line| {
            line.tat = pace.give_back(GcraState { tat: line.tat }, now, cost, receipt).tat;
        });
    }

    /// When the head of a line with this `tat` may leave.
    fn leaves(&self, tat: u128) -> Timestamp {
        let nanos = self.pace.nanos_ceil(tat.saturating_sub(self.ahead));
        u64::try_from(nanos).map_or(Timestamp::MAX, Timestamp::from_nanos)
    }

    fn admitted(&self, now: Timestamp, id: LineId, delay: Duration) -> Decision {
        let nobody = Line::default();
        let line = self.lines.get(&id).unwrap_or(&nobody);
        self.describe(now, line, Decision::allow).with_delay(delay).with_receipt(Receipt::new(line.tat))
    }

    fn describe(&self, now: Timestamp, line: &Line, outcome: impl FnOnce(u32, u32) -> Decision) -> Decision {
        let end = line.tat.max(self.pace.units(now)) + line.backlog;
        self.numbers(now, end, (line.waiters.len(), self.waiting), outcome)
    }

    /// The numbers of a decision on a line that is paid for at `end` and in which, and over all keys,
    /// so many wait: how many requests of cost one a fresh key could send at once, and how many this
    /// one still could, without any being refused.
    fn numbers(
        &self,
        now: Timestamp,
        end: u128,
        waiting: (usize, usize),
        outcome: impl FnOnce(u32, u32) -> Decision,
    ) -> Decision {
        let (start, interval) = (self.pace.units(now), self.pace.price(1));
        let last = start + self.pace.units(Timestamp::from_nanos(self.bounds.max_wait));
        let count = |end: u128, (in_line, in_all): (usize, usize)| {
            let fitting_by = |deadline: u128| match (deadline + self.ahead).checked_sub(end) {
                Some(room) => room / interval + 1,
                None => 0,
            };
            let at_once = if in_line == 0 { fitting_by(start) } else { 0 };
            let places = self.bounds.capacity.saturating_sub(in_line);
            let places = places.min(self.bounds.max_waiters.saturating_sub(in_all)) as u128;
            u32::try_from((at_once + places).min(fitting_by(last))).unwrap_or(u32::MAX)
        };
        let limit = count(start, (0, 0));
        let remaining = count(end, waiting).min(limit);
        let reset = self.pace.nanos_ceil(end - start);
        outcome(limit, remaining).with_reset_after(duration_from_nanos(reset))
    }

    /// Begins a line for a key that has none.
    fn open(&mut self, id: LineId) {
        if !self.lines.contains_key(&id) {
            self.idle.insert((Timestamp::ZERO, id));
            self.lines.insert(id, Line::default());
        }
    }

    /// Changes a line, if there is one, and keeps it in the right index (invariant 1).
    fn edit<R>(&mut self, id: LineId, change: impl FnOnce(&Gcra, &mut Line) -> R) -> Option<R> {
        match self.index_entry(id, self.lines.get(&id)?) {
            (true, entry) => self.due.remove(&entry),
            (false, entry) => self.idle.remove(&entry),
        };
        let result = change(&self.pace, self.lines.get_mut(&id)?);
        match self.index_entry(id, &self.lines[&id]) {
            (true, entry) => self.due.insert(entry),
            (false, entry) => self.idle.insert(entry),
        };
        Some(result)
    }

    /// Whether somebody waits in a line, and its entry in the index for that case.
    fn index_entry(&self, id: LineId, line: &Line) -> (bool, (Timestamp, LineId)) {
        if line.waiters.is_empty() {
            let paid = u64::try_from(self.pace.nanos_ceil(line.tat)).map_or(Timestamp::MAX, Timestamp::from_nanos);
            (false, (paid, id))
        } else {
            (true, (self.leaves(line.tat), id))
        }
    }

    /// Forgets idle lines: those that owe nothing, a few at a time (an arrival adds at most one, so
    /// two keep pace), and beyond [`MAX_IDLE`] the one that owes least.
    fn forget_idle(&mut self, now: Timestamp) {
        for _ in 0..2 {
            match self.idle.first() {
                Some((paid, _)) if *paid <= now || self.idle.len() > MAX_IDLE => {
                    let (_, id) = self.idle.pop_first().expect("just seen");
                    self.lines.remove(&id);
                }
                _ => break,
            }
        }
    }
}
