mod change;
mod keys;
pub(super) mod waiter_slab;

use std::collections::{BTreeSet, HashMap};
use std::task::Waker;
use std::time::Duration;

use self::change::History;
pub(super) use self::keys::Found;
use self::keys::Keys;
use self::waiter_slab::{Chain, Seat, SeatNo, Seats, Waiter};
use super::drivers::DriverNo;
use crate::algorithm::gcra::{Gcra, GcraState};
use crate::store::WhenFull;
use crate::values::time::{Timestamp, duration_from_nanos, nanos_of};
use crate::values::{Decision, Quota, Receipt};

/// What a queue refuses to exceed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) capacity: usize,
    /// Nanoseconds.
    pub(super) max_wait: u64,
    pub(super) max_waiters: usize,
    /// How many keys have lines of their own.
    pub(super) max_keys: usize,
    pub(super) when_full: WhenFull,
}

/// Stands for a key: 128 bits of a keyed hash, so that keys of any length take the same room. Among a
/// million keys, two are taken for one with a probability of 10⁻²⁷.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
/// # Cost
///
/// Joining and leaving are two or three steps in a list, whatever its length, and a look-up of the
/// key. Only if the turn of the *head* changes (the first to wait, the last to leave, a release) is the
/// line moved in an index, whose cost is the logarithm of the number of keys.
///
/// # Invariants
///
/// 1. Every line is in exactly one index: `due` if somebody waits, else `idle`.
/// 2. `waiting` is the number of waiters in all lines, and a line's `backlog` the cost of its own. `waiting_at` is the
///    number by their drivers.
/// 3. A chain goes from the oldest to the newest waiter.
pub(super) struct Lines {
    pace: Pace,
    /// The greatest cost that is admitted: what leaks while one waits as long as one may, and the
    /// burst. A greater one would close its line to everybody for longer than that.
    max_cost: u32,
    bounds: Bounds,
    lines: HashMap<LineId, Line>,
    seats: Seats,
    /// Lines with waiters, by the time at which their heads may leave.
    due: BTreeSet<(Timestamp, LineId)>,
    /// Lines without, by the time from which they are as good as new.
    idle: BTreeSet<(Timestamp, LineId)>,
    waiting: usize,
    waiting_at: Vec<usize>,
    history: History,
    keys: Keys,
}

#[derive(Clone, Copy)]
struct Pace {
    gcra: Gcra,
    /// (burst − 1) × interval: how far ahead of its payment the head may leave.
    ahead: u128,
}

#[derive(Default)]
struct Line {
    tat: u128,
    backlog: u128,
    waiters: Chain,
}

/// What became of a waiter, as its future finds it.
pub(super) enum Answer {
    Decided(Decision),
    Closed,
    Waiting,
}

/// How late a head may be released and the next still leave on time. Tokio's timer ticks at 1 ms, and on
/// shared processors stalls of twenty to forty were measured, several times a minute: not made good, they
/// take a thousandth of the rate. What is later than this is no hiccup, and catching up on it would be a burst.
const CATCH_UP: Duration = Duration::from_millis(50);

/// How many waiters are released or refused before other threads get the lock, and other tasks the thread: some
/// hundred microseconds' worth.
const BATCH: usize = 256;

impl Pace {
    /// When the head of a line with this `tat` may leave.
    fn leaves(&self, tat: u128) -> Timestamp {
        let nanos = self.gcra.nanos_ceil(tat.saturating_sub(self.ahead));
        u64::try_from(nanos).map_or(Timestamp::MAX, Timestamp::from_nanos)
    }

    /// Whether somebody waits in a line, and its entry in the index for that case.
    fn index_entry(&self, id: LineId, line: &Line) -> (bool, (Timestamp, LineId)) {
        if line.waiters.len == 0 {
            let paid = u64::try_from(self.gcra.nanos_ceil(line.tat)).map_or(Timestamp::MAX, Timestamp::from_nanos);
            (false, (paid, id))
        } else {
            (true, (self.leaves(line.tat), id))
        }
    }
}

impl Lines {
    pub(super) fn new(quota: &Quota, bounds: Bounds) -> Self {
        let burst = quota.explicit_burst_or(1);
        let gcra = Gcra::new(quota, burst);
        let ahead = gcra.price(burst - 1);
        let units = gcra.units(Timestamp::from_nanos(bounds.max_wait)) + ahead;
        Self {
            pace: Pace { gcra, ahead },
            max_cost: u32::try_from(units / gcra.price(1) + 1).unwrap_or(u32::MAX),
            bounds,
            lines: HashMap::new(),
            seats: Seats::new(),
            due: BTreeSet::new(),
            idle: BTreeSet::new(),
            waiting: 0,
            waiting_at: Vec::new(),
            history: History::default(),
            keys: Keys::new(),
        }
    }

    pub(super) const fn waiting(&self) -> usize {
        self.waiting
    }

    /// How many waiters have this driver.
    pub(super) fn waiting_at(&self, driver: DriverNo) -> usize {
        self.waiting_at.get(driver.index()).copied().unwrap_or(0)
    }

    /// The number of waiters that have a driver, to be changed.
    fn waiting_at_mut(&mut self, driver: DriverNo) -> &mut usize {
        let index = driver.index();
        if index >= self.waiting_at.len() {
            self.waiting_at.resize(index + 1, 0);
        }
        &mut self.waiting_at[index]
    }

    /// The driver of a waiter; `None` if it waits no more.
    pub(super) fn driver_of(&self, number: SeatNo) -> Option<DriverNo> {
        self.seats.waiter(number).map(|waiter| waiter.driver)
    }

    /// Gives a waiter another driver.
    pub(super) fn move_to(&mut self, number: SeatNo, driver: DriverNo) {
        let Some(waiter) = self.seats.waiter_mut(number) else { return };
        let before = std::mem::replace(&mut waiter.driver, driver);
        *self.waiting_at_mut(before) -= 1;
        *self.waiting_at_mut(driver) += 1;
    }

    pub(super) const fn is_full(&self) -> bool {
        self.waiting >= self.bounds.max_waiters || self.seats.is_full()
    }

    /// When the first of all heads may leave.
    pub(super) fn next_release(&self) -> Option<Timestamp> {
        self.due.first().map(|(due, _)| *due)
    }

    /// How many requests of cost one a fresh key could send at once, without any being refused.
    pub(super) fn limit(&self) -> u32 {
        self.numbers(Timestamp::ZERO, 0, (0, 0), Decision::allow).limit()
    }

    pub(super) const fn max_cost(&self) -> u32 {
        self.max_cost
    }

    #[cfg(all(test, sluice_loom))]
    pub(super) const fn taken(&self) -> u32 {
        self.seats.taken()
    }

    /// Judges an arrival that waits for at most `max_wait` nanoseconds, without letting it in. `Ok`
    /// says when it would leave, if nobody came after it.
    pub(super) fn judge(&self, now: Timestamp, id: LineId, cost: u32, max_wait: u64) -> Result<Timestamp, Decision> {
        let max_wait = max_wait.min(self.bounds.max_wait);
        let nobody = Line::default();
        let line = self.lines.get(&id).unwrap_or(&nobody);
        if cost > self.max_cost {
            return Err(self.describe(now, line, |limit, left| Decision::deny(limit, left, None)));
        }
        let head_leaves = self.pace.leaves(line.tat);
        if cost == 0 || (line.waiters.len == 0 && head_leaves <= now) {
            return Ok(now);
        }

        let leaves = self.pace.leaves(line.tat + line.backlog);
        let mut accepted_at = Timestamp::from_nanos(leaves.as_nanos().saturating_sub(max_wait));
        if line.waiters.len >= self.bounds.capacity {
            accepted_at = accepted_at.max(head_leaves);
        }
        if self.is_full() {
            // Not before somebody has left, however late that is.
            let soonest = Timestamp::from_nanos(now.as_nanos().saturating_add(1));
            accepted_at = accepted_at.max(self.next_release().unwrap_or(head_leaves)).max(soonest);
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
            self.edit(id, |pace, line, _| line.tat = line.tat.max(pace.units(now)) + pace.price(cost));
            self.forget_paid(now);
        }
        let tat = self.lines.get(&id).map_or(0, |line| line.tat);
        self.admitted(now, id, Duration::ZERO, self.history.receipt(tat))
    }

    /// Puts a request at the end of its line, to wait for at most `max_wait` nanoseconds.
    pub(super) fn join(
        &mut self,
        now: Timestamp,
        id: LineId,
        cost: u32,
        max_wait: u64,
        is_owned: bool,
        driver: DriverNo,
    ) -> SeatNo {
        self.waiting += 1;
        *self.waiting_at_mut(driver) += 1;
        self.open(id);
        let max_wait = max_wait.min(self.bounds.max_wait);
        let until = Timestamp::from_nanos(now.as_nanos().saturating_add(max_wait));
        let (older, newer) = (SeatNo::NONE, SeatNo::NONE);
        let waiter = Waiter { line: id, older, newer, cost, driver, is_owned, since: now, until, waker: None };
        let seat = self.edit(id, |pace, line, seats| {
            line.backlog += pace.price(cost);
            seats.push(&mut line.waiters, waiter)
        });
        seat.expect("opened above")
    }

    /// The decision on what [`judge`](Self::judge) let in to leave at `leaves`, if it were let in.
    pub(super) fn foretell(&self, now: Timestamp, id: LineId, cost: u32, leaves: Timestamp) -> Decision {
        let line = self.lines.get(&id);
        let (tat, backlog) = line.map_or((0, 0), |line| (line.tat, line.backlog));
        let waits = usize::from(leaves > now);
        let waiting = line.map_or(0, |line| line.waiters.len) + waits;
        let end = tat.max(self.pace.gcra.units(now)) + backlog + self.pace.gcra.price(cost);
        self.numbers(now, end, (waiting, self.waiting + waits), Decision::allow)
            .with_delay(leaves.saturating_since(now))
    }

    /// What has become of a waiter. Unless it still waits, its place is free from now on. If it does, it keeps `waker`;
    /// what is left there is to be dropped without the lock.
    pub(super) fn answer(&mut self, now: Timestamp, number: SeatNo, waker: &mut Option<Waker>) -> Answer {
        if let Seat::Waiting(waiter) = self.seats.get_mut(number) {
            std::mem::swap(&mut waiter.waker, waker);
            return Answer::Waiting;
        }
        match self.seats.free(number) {
            Seat::Released { line, delay, receipt, .. } => {
                Answer::Decided(self.admitted(now, line, Duration::from_nanos(delay), receipt))
            }
            Seat::Refused { line, cost, patience } => Answer::Decided(self.refused(now, line, cost, patience)),
            Seat::Closed | Seat::Free { .. } | Seat::Waiting(_) => Answer::Closed,
        }
    }

    /// Gives up a place, whatever has become of the waiter in it. Those behind it move up by that alone:
    /// the head's turn does not depend on who is the head. A turn that has come goes back to the line,
    /// which is returned then, for its next may leave. The waker is to be dropped without the lock.
    pub(super) fn leave(&mut self, now: Timestamp, number: SeatNo) -> (Option<LineId>, Option<Waker>) {
        let waker = self.unlink(number, Seat::Closed).and_then(|waiter| waiter.waker);
        match self.seats.free(number) {
            Seat::Released { line, cost, receipt, .. } => {
                self.give_back(now, line, cost, receipt);
                (Some(line), waker)
            }
            _ => (None, waker),
        }
    }

    /// The wakers of all waiters that have this driver. They keep their places.
    pub(super) fn take_wakers_at(&mut self, driver: DriverNo) -> Vec<Waker> {
        self.seats.take_wakers(|waiter| waiter.driver == driver)
    }

    /// Sends everybody away, and forgets all lines.
    pub(super) fn close(&mut self) -> Vec<Waker> {
        let wakers = self.seats.take_wakers(|_| true);
        for number in self.seats.numbers() {
            let is_owned = match self.seats.get(number) {
                Seat::Waiting(waiter) => waiter.is_owned,
                // There is no time to tell it any more at which it could come again.
                Seat::Refused { .. } => true,
                Seat::Free { .. } | Seat::Released { .. } | Seat::Closed => continue,
            };
            self.seats.replace(number, Seat::Closed);
            if !is_owned {
                self.seats.free(number);
            }
        }
        self.forget_all();
        self.waiting = 0;
        self.waiting_at.clear();
        for index in [&mut self.due, &mut self.idle] {
            index.clear();
        }
        wakers
    }

    /// Releases every head of one line whose time has come.
    pub(super) fn release(&mut self, now: Timestamp, id: LineId, woken: &mut Vec<Waker>) {
        let mut left = usize::MAX;
        self.release_up_to(now, id, woken, &mut left);
    }

    /// Releases the heads of one line whose time has come, up to as many as are `left`.
    fn release_up_to(&mut self, now: Timestamp, id: LineId, woken: &mut Vec<Waker>, left: &mut usize) {
        while let Some(line) = self.lines.get(&id) {
            let Chain { oldest: head, len, .. } = line.waiters;
            if len == 0 || self.pace.leaves(line.tat) > now || *left == 0 {
                break;
            }
            *left -= 1;
            let Some(mut waiter) = self.unlink(head, Seat::Closed) else { break };
            // On time as of its deadline, so that late timers do not add up, unless that is too
            // long ago.
            let earliest = Timestamp::from_nanos(now.as_nanos().saturating_sub(nanos_of(CATCH_UP)));
            let tat = self.edit(id, |pace, line, _| {
                line.tat = line.tat.max(pace.units(earliest)) + pace.price(waiter.cost);
                line.tat
            });
            let delay = nanos_of(now.saturating_since(waiter.since));
            let receipt = self.history.receipt(tat.unwrap_or_default());
            woken.extend(waiter.waker.take());
            self.settle(head, &waiter, Seat::Released { line: id, cost: waiter.cost, delay, receipt });
        }
    }

    /// Releases heads whose time has come, of any line and in the order of time, up to a batch; `true` if that was all.
    pub(super) fn release_some(&mut self, now: Timestamp, woken: &mut Vec<Waker>) -> bool {
        let mut left = BATCH;
        while left > 0 {
            let Some((_, id)) = self.due.first().filter(|(due, _)| *due <= now).copied() else { return true };
            self.release_up_to(now, id, woken, &mut left);
            self.forget_paid(now);
        }
        false
    }

    /// Does, before an arrival, what is due: what is told to one that is refused ("a place is free at that
    /// time") must not depend on a timer's being on time.
    pub(super) fn catch_up(&mut self, now: Timestamp, id: LineId, woken: &mut Vec<Waker>) {
        self.release(now, id, woken);
        if self.is_full() {
            self.release_some(now, woken);
        }
    }

    /// Undoes a departure, as far as it is not paid for yet.
    pub(super) fn give_back(&mut self, now: Timestamp, id: LineId, cost: u32, receipt: Receipt) {
        let departure = self.history.read(&self.pace.gcra, receipt);
        self.edit(id, |pace, line, _| {
            line.tat = pace.refund(GcraState { tat: line.tat }, now, cost, departure).tat;
        });
    }

    /// Takes a waiter out of its line, if it still waits, and leaves `seat` for its future to find.
    fn unlink(&mut self, number: SeatNo, seat: Seat) -> Option<Waiter> {
        let id = self.seats.waiter(number)?.line;
        let waiter = self.edit(id, |pace, line, seats| {
            let waiter = seats.unlink(&mut line.waiters, number, seat)?;
            line.backlog -= pace.price(waiter.cost);
            Some(waiter)
        })??;
        self.waiting -= 1;
        *self.waiting_at_mut(waiter.driver) -= 1;
        Some(waiter)
    }

    /// Refuses one that was taken out of its line.
    fn refuse(&mut self, number: SeatNo, mut waiter: Waiter) -> Option<Waker> {
        let patience = nanos_of(waiter.until.saturating_since(waiter.since));
        let waker = waiter.waker.take();
        self.settle(number, &waiter, Seat::Refused { line: waiter.line, cost: waiter.cost, patience });
        waker
    }

    /// What a waiter is answered that was taken out of its line: what an arrival would be answered.
    fn refused(&self, now: Timestamp, id: LineId, cost: u32, patience: u64) -> Decision {
        self.judge(now, id, cost, patience).err().unwrap_or_else(|| {
            let nobody = Line::default();
            let line = self.lines.get(&id).unwrap_or(&nobody);
            self.describe(now, line, |limit, _| Decision::deny(limit, 0, Some(Duration::from_nanos(1))))
        })
    }

    /// Leaves word for the future of one that was taken out of its line, if there is one.
    fn settle(&mut self, number: SeatNo, waiter: &Waiter, seat: Seat) {
        self.seats.replace(number, seat);
        if !waiter.is_owned {
            self.seats.free(number);
        }
    }

    fn admitted(&self, now: Timestamp, id: LineId, delay: Duration, receipt: Receipt) -> Decision {
        let nobody = Line::default();
        let line = self.lines.get(&id).unwrap_or(&nobody);
        self.describe(now, line, Decision::allow).with_delay(delay).with_receipt(receipt)
    }

    fn describe(&self, now: Timestamp, line: &Line, outcome: impl FnOnce(u32, u32) -> Decision) -> Decision {
        let end = line.tat.max(self.pace.gcra.units(now)) + line.backlog;
        self.numbers(now, end, (line.waiters.len, self.waiting), outcome)
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
        let (start, interval) = (self.pace.gcra.units(now), self.pace.gcra.price(1));
        let last = start + self.pace.gcra.units(Timestamp::from_nanos(self.bounds.max_wait));
        let count = |end: u128, (in_line, in_all): (usize, usize)| {
            let fitting_by = |deadline: u128| match (deadline + self.pace.ahead).checked_sub(end) {
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
        let reset = self.pace.gcra.nanos_ceil(end - start);
        outcome(limit, remaining).with_reset_after(duration_from_nanos(reset))
    }

    /// Changes a line, if there is one, and keeps it in the right index (invariant 1).
    fn edit<R>(&mut self, id: LineId, change: impl FnOnce(&Gcra, &mut Line, &mut Seats) -> R) -> Option<R> {
        let line = self.lines.get_mut(&id)?;
        let before = self.pace.index_entry(id, line);
        let result = change(&self.pace.gcra, line, &mut self.seats);
        let after = self.pace.index_entry(id, line);
        if before != after {
            let indexes = [&mut self.idle, &mut self.due];
            indexes[usize::from(before.0)].remove(&before.1);
            indexes[usize::from(after.0)].insert(after.1);
        }
        Some(result)
    }
}
