use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use super::driver::{Grant, Turn};
use crate::algorithm::gcra::Gcra;
use crate::decision::{Decision, Receipt};
use crate::partition::PartitionKey;
use crate::quota::Quota;
use crate::time::Timestamp;

/// What a queue refuses to exceed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) capacity: usize,
    /// Nanoseconds.
    pub(super) max_wait: u64,
    pub(super) max_waiters: usize,
}

/// Where an arrival ends up.
pub(super) enum Place<W = Turn> {
    Now(Decision),
    InLine(W),
    Refused(Decision),
}

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
    bounds: Bounds,
    lines: HashMap<PartitionKey, Line>,
    /// Lines with waiters, by the time at which their heads may leave.
    due: BTreeSet<(Timestamp, PartitionKey)>,
    /// Lines without, by the time from which they are as good as new.
    idle: BTreeSet<(Timestamp, PartitionKey)>,
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
    pub(super) key: PartitionKey,
    pub(super) cost: u32,
    pub(super) decision: Decision,
}

/// Keys without waiters that are remembered until their last departure is paid for.
const MAX_IDLE: usize = 65_536;

/// How late a head may be released and the next still leave on time. Tokio's timer ticks at 1 ms,
/// and a busy scheduler adds a few; what is later than this is a stall, and catching up on it would
/// be a burst.
const CATCH_UP: Duration = Duration::from_millis(10);

impl Lines {
    pub(super) fn new(quota: &Quota, bounds: Bounds) -> Self {
        let burst = quota.explicit_burst_or(1);
        let pace = Gcra::new(quota, burst);
        Self {
            pace,
            ahead: pace.price(burst - 1),
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

    /// When the next head may leave, over all lines.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Judges an arrival without letting it in. `Ok` says when it would leave.
    pub(super) fn judge(&self, now: Timestamp, key: &PartitionKey, cost: u32) -> Result<Timestamp, Decision> {
        let nobody = Line::default();
        let line = self.lines.get(key).unwrap_or(&nobody);
        let head_leaves = self.leaves(line.tat);
        if cost == 0 || (line.waiters.is_empty() && head_leaves <= now) {
            return Ok(now);
        }

        let leaves = self.leaves(line.tat + line.backlog);
        let mut accepted_at = Timestamp::from_nanos(leaves.as_nanos().saturating_sub(self.bounds.max_wait));
        if line.waiters.len() >= self.bounds.capacity {
            accepted_at = accepted_at.max(head_leaves);
        }
        if self.waiting >= self.bounds.max_waiters {
            accepted_at = accepted_at.max(self.next_due().unwrap_or(head_leaves));
        }
        if accepted_at > now {
            let wait = accepted_at.saturating_since(now);
            return Err(self.describe(now, line, |limit, left| Decision::deny(limit, left, Some(wait))));
        }
        Ok(leaves)
    }

    /// A request that leaves at once, by [`judge`](Self::judge).
    pub(super) fn pass(&mut self, now: Timestamp, key: &PartitionKey, cost: u32) -> Decision {
        if cost == 0 {
            return self.describe_waiter(now, key, now);
        }
        self.open(key);
        self.edit(key, |pace, line| {
            line.tat = line.tat.max(pace.units(now)) + pace.price(cost);
        });
        self.forget_idle(now);
        self.admitted(now, key, Duration::ZERO)
    }

    /// Puts a request at the end of its line; returns its number.
    pub(super) fn join(&mut self, now: Timestamp, key: &PartitionKey, cost: u32, grant: Option<Grant>) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        self.waiting += 1;
        self.open(key);
        self.edit(key, |pace, line| {
            line.backlog += pace.price(cost);
            line.waiters.insert(number, Waiter { cost, since: now, grant });
        });
        number
    }

    /// Takes a waiter out of its line, if it is still there. Those behind it move up by that alone:
    /// the head's turn does not depend on who is the head.
    pub(super) fn leave(&mut self, key: &PartitionKey, number: u64) -> Option<Grant> {
        let left = self.edit(key, |pace, line| {
            let waiter = line.waiters.remove(&number)?;
            line.backlog -= pace.price(waiter.cost);
            Some(waiter)
        })??;
        self.waiting -= 1;
        left.grant
    }

    /// Releases every head of one line whose time has come.
    pub(super) fn release(&mut self, now: Timestamp, key: &PartitionKey, released: &mut Vec<Release>) {
        loop {
            let (ahead, forgiven) = (self.ahead, now.as_nanos().saturating_sub(crate::time::nanos_of(CATCH_UP)));
            let waiter = self.edit(key, |pace, line| {
                let leaves = pace.nanos_ceil(line.tat.saturating_sub(ahead));
                if leaves > u128::from(now.as_nanos()) {
                    return None;
                }
                let (_, waiter) = line.waiters.pop_first()?;
                // On time as of its deadline, so that late timers do not add up, unless that is
                // too long ago.
                let earliest = pace.units(Timestamp::from_nanos(forgiven));
                line.tat = line.tat.max(earliest) + pace.price(waiter.cost);
                line.backlog -= pace.price(waiter.cost);
                Some(waiter)
            });
            let Some(waiter) = waiter.flatten() else { break };
            self.waiting -= 1;
            if let Some(grant) = waiter.grant {
                let decision = self.admitted(now, key, now.saturating_since(waiter.since));
                released.push(Release { grant, key: key.clone(), cost: waiter.cost, decision });
            }
        }
    }

    /// Releases every head, of any line, whose time has come.
    pub(super) fn release_all(&mut self, now: Timestamp, released: &mut Vec<Release>) {
        while let Some((due, key)) = self.due.first().filter(|(due, _)| *due <= now).cloned() {
            self.release(now, &key, released);
            debug_assert!(!self.due.contains(&(due, key)));
        }
        self.forget_idle(now);
    }

    /// Undoes a departure, as far as it is not paid for yet: see [`Gcra::give_back`].
    pub(super) fn give_back(&mut self, now: Timestamp, key: &PartitionKey, cost: u32, receipt: Receipt) {
        self.edit(key, |pace, line| {
            let unpaid = receipt.value().saturating_sub(pace.units(now));
            line.tat = line.tat.saturating_sub(unpaid.min(pace.price(cost)));
        });
    }

    /// Takes everybody out of every line.
    pub(super) fn dismiss_all(&mut self) -> Vec<Grant> {
        let mut dismissed = Vec::new();
        while let Some((_, key)) = self.due.first().cloned() {
            let waiters = self.edit(&key, |_, line| {
                line.backlog = 0;
                std::mem::take(&mut line.waiters)
            });
            let waiters = waiters.expect("a line that is due exists");
            self.waiting -= waiters.len();
            dismissed.extend(waiters.into_values().filter_map(|waiter| waiter.grant));
        }
        dismissed
    }

    /// When the head of a line with this `tat` may leave.
    fn leaves(&self, tat: u128) -> Timestamp {
        let nanos = self.pace.nanos_ceil(tat.saturating_sub(self.ahead));
        u64::try_from(nanos).map_or(Timestamp::MAX, Timestamp::from_nanos)
    }

    fn admitted(&self, now: Timestamp, key: &PartitionKey, delay: Duration) -> Decision {
        let line = &self.lines[key];
        self.describe(now, line, Decision::allow).with_delay(delay).with_receipt(Receipt::new(line.tat))
    }

    /// The decision for one that would be let in now and leave at `leaves`.
    pub(super) fn describe_waiter(&self, now: Timestamp, key: &PartitionKey, leaves: Timestamp) -> Decision {
        let nobody = Line::default();
        let line = self.lines.get(key).unwrap_or(&nobody);
        self.describe(now, line, Decision::allow).with_delay(leaves.saturating_since(now))
    }

    /// The numbers of a decision: how many requests of cost one a fresh key could send at once, and
    /// how many this one still could, without any being refused.
    fn describe(&self, now: Timestamp, line: &Line, outcome: impl FnOnce(u32, u32) -> Decision) -> Decision {
        let end = line.tat.max(self.pace.units(now)) + line.backlog;
        let count = |end: u128, waiting: usize| {
            let interval = self.pace.price(1);
            let fitting_by = |deadline: u128| match (deadline + self.ahead).checked_sub(end) {
                Some(room) => room / interval + 1,
                None => 0,
            };
            let at_once = if waiting == 0 { fitting_by(self.pace.units(now)) } else { 0 };
            let in_time =
                fitting_by(self.pace.units(now) + self.pace.units(Timestamp::from_nanos(self.bounds.max_wait)));
            let places = self.bounds.capacity.saturating_sub(waiting) as u128;
            u32::try_from((at_once + places).min(in_time)).unwrap_or(u32::MAX)
        };
        let limit = count(self.pace.units(now), 0);
        let remaining = count(end, line.waiters.len()).min(limit);
        let reset = self.pace.nanos_ceil(end - self.pace.units(now));
        outcome(limit, remaining).with_reset_after(crate::time::duration_from_nanos(reset))
    }

    /// Begins a line for a key that has none.
    fn open(&mut self, key: &PartitionKey) {
        if !self.lines.contains_key(key) {
            self.idle.insert((Timestamp::ZERO, key.clone()));
            self.lines.insert(key.clone(), Line::default());
        }
    }

    /// Changes a line, if there is one, and keeps it in the right index (invariant 1).
    fn edit<R>(&mut self, key: &PartitionKey, change: impl FnOnce(&Gcra, &mut Line) -> R) -> Option<R> {
        match self.index_entry(key, self.lines.get(key)?) {
            (true, entry) => self.due.remove(&entry),
            (false, entry) => self.idle.remove(&entry),
        };
        let result = change(&self.pace, self.lines.get_mut(key)?);
        match self.index_entry(key, &self.lines[key]) {
            (true, entry) => self.due.insert(entry),
            (false, entry) => self.idle.insert(entry),
        };
        Some(result)
    }

    /// Whether somebody waits in a line, and its entry in the index for that case.
    fn index_entry(&self, key: &PartitionKey, line: &Line) -> (bool, (Timestamp, PartitionKey)) {
        if line.waiters.is_empty() {
            let paid = u64::try_from(self.pace.nanos_ceil(line.tat)).map_or(Timestamp::MAX, Timestamp::from_nanos);
            (false, (paid, key.clone()))
        } else {
            (true, (self.leaves(line.tat), key.clone()))
        }
    }

    /// Forgets idle lines: those that owe nothing, a few at a time (an arrival adds at most one, so
    /// two keep pace), and beyond [`MAX_IDLE`] the one that owes least.
    fn forget_idle(&mut self, now: Timestamp) {
        for _ in 0..2 {
            match self.idle.first() {
                Some((paid, _)) if *paid <= now || self.idle.len() > MAX_IDLE => {
                    let (_, key) = self.idle.pop_first().expect("just seen");
                    self.lines.remove(&key);
                }
                _ => break,
            }
        }
    }
}
