//! A queue's schedule: for each key, a FIFO of waiters, whose turns follow from a [`Gcra`]. It reads no clock, takes no
//! lock and wakes no task.
//!
//! Turns are spaced evenly (`LeakyQueue`), or delayed by a wait that grows with the debt (`SlowDown`): see [`Spacing`].

mod change;
#[cfg(feature = "test-util")]
mod invariants;
mod keys;
mod pace;
mod rules;
#[cfg(all(test, feature = "test-util", not(sluice_loom)))]
mod tests;
pub(super) mod waiter_slab;

use std::collections::{BTreeSet, HashMap};
use std::task::{Poll, Waker};
use std::time::Duration;

use self::keys::FifoCounts;
pub(super) use self::pace::GrowingDelay;
use self::pace::Spacing;
pub(super) use self::rules::FifoRules;
use self::rules::RulesOfKeys;
use self::waiter_slab::{DriverId, LinkedWaiter, SlabSlot, WaitList, WaiterId, WaiterSlab};
use crate::algorithm::gcra::Gcra;
use crate::limiter::WaitBounds;
use crate::store::WhenFull;
use crate::values::time::{Timestamp, duration_from_nanos, nanos_of};
use crate::values::{Decision, Quota, Receipt};

/// A queue's bounds.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueBounds {
    pub(super) waits: WaitBounds,
    /// How many keys have their own FIFOs.
    pub(super) max_keys: usize,
    pub(super) when_full: WhenFull,
}

impl QueueBounds {
    pub(super) const fn new(waits: WaitBounds) -> Self {
        Self { waits, max_keys: 65_536, when_full: WhenFull::Reject }
    }
}

/// The identity of a FIFO. It stands for a key: 128 bits from a keyed hash, so that keys of any length take the same
/// memory. Among a million keys, two share a hash with a probability of 10⁻²⁷.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct FifoId(pub(super) u128);

/// The FIFOs of all keys: which waiters are in each, and when its head may depart. Every method gets the time as an
/// argument, and returns wakers instead of waking.
///
/// # Even spacing
///
/// Each departure adds its price to its FIFO's debt, and time pays the debt. `tat` (the theoretical arrival time of
/// [`Gcra`], in its units) is the instant at which all departures so far will be paid for. The FIFO's head may depart
/// at `tat − (burst − cost) × interval`, when its cost fits into the burst, and then `tat` moves up by its price. A
/// head that costs more than the burst departs at `tat`, when nothing is owed. So in any interval, the units that
/// depart are at most the burst, or the cost of the last departure if that is greater, and rate × length. A later
/// waiter may not depart before an earlier one: if their costs are *a* and *b*, its turn is at least *b* intervals
/// later.
///
/// Waiters depart as soon as they may. So an arrival's turn is known at once: it is the turn of a head whose `tat` has
/// been moved up by the price of all waiters before it.
///
/// # Growing delays
///
/// Each request is charged when it arrives, and the debt after its charge determines its delay. Its turn comes when the
/// delay has passed, or together with the last waiter before it, if that departs later. The turn does not move any
/// more: it is the waiter's `until`.
///
/// # Cost
///
/// Joining and leaving take a look-up of the key, and two or three steps in a linked list of any length. If the turn of
/// the *head* changes (the first waiter joins, the last leaves, a head is released), the FIFO also moves in an index,
/// which takes the logarithm of the number of keys.
///
/// # Invariants
///
/// 1. Every FIFO is in exactly one index: `due` if it has waiters, and `idle` otherwise.
/// 2. `waiting` is the number of waiters in all FIFOs, and `waiting_by_driver` each driver's number of waiters. A
///    FIFO's `backlog` is its own waiters' cost, unless they were charged when they arrived.
/// 3. A wait list is linked from the oldest to the newest waiter. With growing delays, no turn comes before an older
///    waiter's turn.
/// 4. Only a key's own FIFO has its own rules, and never a shared one.
pub(super) struct Schedule {
    rules: RulesOfKeys,
    /// The longest wait, or the longest delay. In nanoseconds.
    max_wait: u64,
    bounds: QueueBounds,
    /// The FIFOs with waiters or a debt, and some whose debt is paid by now.
    fifos: HashMap<FifoId, Fifo>,
    slab: WaiterSlab,
    /// FIFOs with waiters, by the time at which their heads may depart.
    due: BTreeSet<(Timestamp, FifoId)>,
    /// FIFOs without waiters, by the time from which they owe nothing.
    idle: BTreeSet<(Timestamp, FifoId)>,
    waiting: usize,
    waiting_by_driver: Vec<usize>,
    counts: FifoCounts,
}

/// A key's state.
#[derive(Clone, Copy, Default)]
struct Fifo {
    /// When all charges so far will be paid for, see [`Schedule`].
    tat: u128,
    /// The cost of the waiters that are charged when they depart, in tokens. Cannot overflow: fewer than 2^32 waiters
    /// cost less than 2^50 each.
    backlog: u128,
    waiters: WaitList,
}

/// A head that is released at most this late does not delay the next head, whose turn follows from the first one's
/// turn, and not from its release.
///
/// Tokio's timer ticks at 1 ms, and on shared processors stalls of 20 to 40 ms were measured, several times a minute.
/// If each delayed all later heads, they would cost a thousandth of the rate. After a longer stall, only this time is
/// made up for, because the departures that make up for it are a burst.
const CATCH_UP: Duration = Duration::from_millis(50);

/// How many waiters are released at a time, some hundred microseconds of work. Then other threads can take the lock,
/// and other tasks can run on the thread.
const BATCH: usize = 256;

impl Schedule {
    /// Creates a schedule with even spacing.
    pub(super) fn new(quota: &Quota, bounds: QueueBounds) -> Self {
        Self::empty(FifoRules::even(quota, &bounds), bounds)
    }

    /// Creates a schedule with growing delays.
    pub(super) fn slowing_down(quota: &Quota, delay: GrowingDelay, bounds: QueueBounds) -> Self {
        Self::empty(FifoRules::growing(quota, delay, &bounds), bounds)
    }

    fn empty(rules: FifoRules, bounds: QueueBounds) -> Self {
        Self {
            rules: RulesOfKeys::new(rules),
            max_wait: nanos_of(bounds.waits.max_wait),
            bounds,
            fifos: HashMap::new(),
            slab: WaiterSlab::new(),
            due: BTreeSet::new(),
            idle: BTreeSet::new(),
            waiting: 0,
            waiting_by_driver: Vec::new(),
            counts: FifoCounts::new(),
        }
    }

    pub(super) const fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns how many waiters have this driver.
    pub(super) fn waiting_by_driver(&self, driver: DriverId) -> usize {
        self.waiting_by_driver.get(driver.index()).copied().unwrap_or(0)
    }

    fn waiting_by_driver_mut(&mut self, driver: DriverId) -> &mut usize {
        let index = driver.index();
        if index >= self.waiting_by_driver.len() {
            self.waiting_by_driver.resize(index + 1, 0);
        }
        &mut self.waiting_by_driver[index]
    }

    /// Returns the driver of a waiter, if it still waits.
    pub(super) fn driver_of(&self, waiter_id: WaiterId) -> Option<DriverId> {
        self.slab.waiter(waiter_id).map(|waiter| waiter.driver)
    }

    /// Gives a waiter another driver.
    pub(super) fn set_driver(&mut self, waiter_id: WaiterId, driver: DriverId) {
        let Some(waiter) = self.slab.waiter_mut(waiter_id) else { return };
        let before = std::mem::replace(&mut waiter.driver, driver);
        *self.waiting_by_driver_mut(before) -= 1;
        *self.waiting_by_driver_mut(driver) += 1;
    }

    pub(super) const fn is_full(&self) -> bool {
        self.waiting >= self.bounds.waits.max_waiters || self.slab.is_full()
    }

    /// Returns when the first of all heads may depart.
    pub(super) fn next_release(&self) -> Option<Timestamp> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Returns how many requests of cost one a fresh key could send at once without a rejection.
    pub(super) const fn limit(&self) -> u64 {
        self.rules.common.limit
    }

    pub(super) const fn max_cost(&self) -> u64 {
        self.rules.common.max_cost
    }

    #[cfg(all(test, sluice_loom))]
    pub(super) const fn taken(&self) -> u32 {
        self.slab.taken()
    }

    /// Computes when an arrival that accepts a wait of `max_wait` nanoseconds would depart. Otherwise returns its
    /// rejection, with the time after which the same arrival would be accepted, if there is one. Changes nothing.
    pub(super) fn check_arrival(
        &self,
        now: Timestamp,
        id: FifoId,
        cost: u64,
        max_wait: u64,
    ) -> Result<Timestamp, Decision> {
        self.check_under(self.rules.of(id), now, id, cost, max_wait)
    }

    /// [`check_arrival`](Self::check_arrival) under these rules.
    fn check_under(
        &self,
        rules: &FifoRules,
        now: Timestamp,
        id: FifoId,
        cost: u64,
        max_wait: u64,
    ) -> Result<Timestamp, Decision> {
        let fifo = self.fifo(id);
        if cost > rules.max_cost {
            let reject = |limit, left| Decision::reject(limit, left, None);
            return Err(self.describe(rules, now, &fifo, self.waiting, reject));
        }
        match rules.pace.spacing {
            Spacing::Even { burst } => self.check_even(rules, now, &fifo, burst, cost, max_wait.min(self.max_wait)),
            Spacing::Growing(delay) => self.check_growing(rules, now, &fifo, delay, cost, max_wait),
        }
    }

    /// [`check_arrival`](Self::check_arrival) for a cost that may be admitted, with even spacing.
    fn check_even(
        &self,
        rules: &FifoRules,
        now: Timestamp,
        fifo: &Fifo,
        burst: u64,
        cost: u64,
        max_wait: u64,
    ) -> Result<Timestamp, Decision> {
        let reject = |wait| self.describe(rules, now, fifo, self.waiting, |limit, _| Decision::reject(limit, 0, wait));
        // The head's turn; without waiters, this arrival's turn.
        let head = rules.pace.head_departs_at(fifo, &self.slab);
        let head_departs_at = head.unwrap_or_else(|| rules.pace.departs_at(fifo.tat, burst, cost));
        if cost == 0 || (fifo.waiters.len == 0 && head_departs_at <= now) {
            return Ok(now);
        }

        let departs_at = rules.pace.departs_at(rules.pace.all_paid_at(fifo, Timestamp::ZERO), burst, cost);
        if departs_at == Timestamp::MAX {
            // The turn would come after the greatest timestamp, so no wait is long enough.
            return Err(reject(None));
        }
        // An arrival is accepted from the latest of three times on: when the wait for its turn is short enough, when
        // its FIFO has room, and when the queue has room.
        let mut accepted_at = Timestamp::from_nanos(departs_at.as_nanos().saturating_sub(max_wait));
        if fifo.waiters.len >= self.bounds.waits.max_queue {
            accepted_at = accepted_at.max(head_departs_at);
        }
        if self.is_full() {
            // A waiter has to depart first. If it is late, its turn has come already, but its slot is not free yet.
            let soonest = Timestamp::from_nanos(now.as_nanos().saturating_add(1));
            accepted_at = accepted_at.max(self.next_release().unwrap_or(head_departs_at)).max(soonest);
        }
        if accepted_at > now {
            // Zero remaining: there may be room for requests that accept a longer wait, but not for this one.
            return Err(reject(Some(accepted_at.saturating_since(now))));
        }
        Ok(departs_at)
    }

    /// [`check_arrival`](Self::check_arrival) for a cost that may be admitted, with growing delays.
    fn check_growing(
        &self,
        rules: &FifoRules,
        now: Timestamp,
        fifo: &Fifo,
        delay: GrowingDelay,
        cost: u64,
        max_wait: u64,
    ) -> Result<Timestamp, Decision> {
        if cost == 0 {
            return Ok(now);
        }
        let last_departs_at = self.last_departs_at(fifo).unwrap_or(now);
        let departs_at = self.growing_turn(rules, now, fifo, delay, cost);
        // The greatest debt after the charge with which the delay is short enough.
        let most_owed = match max_wait.checked_div(delay.step) {
            Some(steps) if max_wait < self.max_wait => delay.free.saturating_add(steps).min(rules.max_cost),
            _ => rules.max_cost,
        };
        // An arrival is accepted from the latest of three times on: when the debt is small enough, when the last waiter
        // departs early enough, and when there is room for another waiter, or the arrival does not have to wait.
        let in_time = Timestamp::from_nanos(last_departs_at.as_nanos().saturating_sub(max_wait));
        let mut accepted_at = rules.pace.fits_at(fifo, cost, most_owed).map(|fits_at| fits_at.max(in_time));
        if departs_at > now && self.is_full() {
            let soonest = Timestamp::from_nanos(now.as_nanos().saturating_add(1));
            let has_room_at = self.next_release().map(|due| due.max(soonest));
            let is_free_at = rules.pace.fits_at(fifo, cost, delay.free).map(|fits_at| fits_at.max(last_departs_at));
            let enters_at = has_room_at.into_iter().chain(is_free_at).min();
            accepted_at = accepted_at.zip(enters_at).map(|(accepted_at, enters_at)| accepted_at.max(enters_at));
        }
        if accepted_at.is_some_and(|accepted_at| accepted_at <= now) {
            return Ok(departs_at);
        }
        let wait = accepted_at.map(|accepted_at| accepted_at.saturating_since(now));
        // The remaining units count requests that accept the longest delay.
        let counts = max_wait >= self.max_wait;
        Err(self.describe(rules, now, fifo, self.waiting, |limit, left| {
            Decision::reject(limit, if counts { left } else { 0 }, wait)
        }))
    }

    /// Returns an arrival's turn with growing delays.
    fn growing_turn(
        &self,
        rules: &FifoRules,
        now: Timestamp,
        fifo: &Fifo,
        delay: GrowingDelay,
        cost: u64,
    ) -> Timestamp {
        let wait = delay.after(rules.pace.tokens_owed(fifo, now, cost)).min(self.max_wait);
        let turn = Timestamp::from_nanos(now.as_nanos().saturating_add(wait));
        self.last_departs_at(fifo).map_or(turn, |last| last.max(turn))
    }

    /// Returns the turn of the newest waiter in a FIFO, if it has one, with growing delays.
    fn last_departs_at(&self, fifo: &Fifo) -> Option<Timestamp> {
        self.slab.waiter(fifo.waiters.newest).map(|newest| newest.until)
    }

    /// Lets a request depart at once, as [`check_arrival`](Self::check_arrival) allowed.
    pub(super) fn depart_now(&mut self, now: Timestamp, id: FifoId, cost: u64) -> Decision {
        let mut charged = None;
        if cost > 0 {
            self.ensure_fifo(id);
            charged = self.edit(id, |rules, fifo, _| {
                rules.pace.charge(fifo, now, cost);
                *fifo
            });
            self.forget_paid(now);
        }
        let fifo = charged.unwrap_or_else(|| self.fifo(id));
        let rules = self.rules.of(id);
        let decision = self.describe(rules, now, &fifo, self.waiting, Decision::allow);
        decision.with_receipt(rules.history.receipt(fifo.tat))
    }

    /// Appends a waiter to its FIFO, to wait for at most `max_wait` nanoseconds. A waiter without a future
    /// (`has_future`) departs like any other, and its slot is freed then.
    pub(super) fn join(
        &mut self,
        now: Timestamp,
        id: FifoId,
        cost: u64,
        max_wait: u64,
        has_future: bool,
        driver: DriverId,
    ) -> WaiterId {
        self.waiting += 1;
        *self.waiting_by_driver_mut(driver) += 1;
        // With even spacing, only a FIFO that owes something, and so is stored, has its requests wait.
        if let Spacing::Growing(_) = self.rules.common.pace.spacing {
            self.ensure_fifo(id);
        }
        let rules = self.rules.of(id);
        let until = match rules.pace.spacing {
            Spacing::Even { .. } => Timestamp::from_nanos(now.as_nanos().saturating_add(max_wait.min(self.max_wait))),
            Spacing::Growing(delay) => self.growing_turn(rules, now, &self.fifo(id), delay, cost),
        };
        let mut waiter = LinkedWaiter {
            fifo: id,
            older: WaiterId::NONE,
            newer: WaiterId::NONE,
            cost,
            driver,
            has_future,
            since: now,
            until,
            paid_at: Timestamp::ZERO,
            waker: None,
        };
        let slot = self.edit(id, |FifoRules { pace, .. }, fifo, slab| {
            match pace.spacing {
                Spacing::Even { .. } => fifo.backlog += u128::from(cost),
                Spacing::Growing(_) => {
                    pace.charge(fifo, now, cost);
                    waiter.paid_at = pace.floor(fifo.tat);
                }
            }
            slab.push(&mut fifo.waiters, waiter)
        });
        slot.expect("it is stored, as above")
    }

    /// Returns the decision that an arrival would get if it joined now and departed at `departs_at`, as computed by
    /// [`check_arrival`](Self::check_arrival).
    pub(super) fn preview(&self, now: Timestamp, id: FifoId, cost: u64, departs_at: Timestamp) -> Decision {
        let mut fifo = self.fifo(id);
        let waits = usize::from(departs_at > now);
        fifo.backlog += u128::from(cost);
        fifo.waiters.len += waits;
        let decision = self.describe(self.rules.of(id), now, &fifo, self.waiting + waits, Decision::allow);
        decision.with_delay(departs_at.saturating_since(now))
    }

    /// Returns the decision on a waiter, or `None` if the queue is closed, and frees its slot. If it still waits, swaps
    /// `waker` with its previous waker, which the caller must drop outside of the lock.
    pub(super) fn poll_waiter(
        &mut self,
        now: Timestamp,
        waiter_id: WaiterId,
        waker: &mut Option<Waker>,
    ) -> Poll<Option<Decision>> {
        if let Some(waiter) = self.slab.waiter_mut(waiter_id) {
            // The waker is stored under the lock under which a release takes it. A release that comes later wakes this
            // waker; after an earlier release, the slot would not be `Waiting`. So no wake-up is lost between this look
            // and the task's sleep.
            std::mem::swap(&mut waiter.waker, waker);
            return Poll::Pending;
        }
        Poll::Ready(match self.slab.free(waiter_id) {
            SlabSlot::Released { fifo, quota, delay, receipt, .. } => Some(self.with_rules(fifo, quota, |rules| {
                let decision = self.describe(rules, now, &self.fifo(fifo), self.waiting, Decision::allow);
                decision.with_delay(Duration::from_nanos(delay)).with_receipt(receipt)
            })),
            // The rejection that an arrival would get now.
            SlabSlot::Rejected { fifo, quota, cost, patience } => Some(self.with_rules(fifo, quota, |rules| {
                self.check_under(rules, now, fifo, cost, patience).err().unwrap_or_else(|| {
                    // There is room by now, so a retry would be accepted at once.
                    let reject = |limit, _| Decision::reject(limit, 0, Some(Duration::from_nanos(1)));
                    self.describe(rules, now, &self.fifo(fifo), self.waiting, reject)
                })
            })),
            SlabSlot::Closed | SlabSlot::Free { .. } | SlabSlot::Waiting(_) => None,
        })
    }

    /// Calls `describe` with a FIFO's rules. If it was forgotten meanwhile, they follow from the quota that it had.
    fn with_rules<T>(&self, id: FifoId, quota: Option<Box<Quota>>, describe: impl FnOnce(&FifoRules) -> T) -> T {
        match quota.filter(|_| !self.fifos.contains_key(&id)) {
            Some(quota) => describe(&FifoRules::of_quota(*quota, &self.bounds)),
            None => describe(self.rules.of(id)),
        }
    }

    /// Removes a waiter that has a future, in any state. With even spacing, the waiters behind it move up without
    /// further work, because their turns follow from the FIFO's `tat`. With growing delays, they keep their turns. A
    /// charge is refunded. The FIFO is returned if its next waiter may depart: if the turn of the removed waiter has
    /// come, or if it was the head, since the next one may cost less. The waker must be dropped outside of the lock.
    pub(super) fn leave(&mut self, now: Timestamp, waiter_id: WaiterId) -> (Option<FifoId>, Option<Waker>) {
        let head_of = self.slab.waiter(waiter_id).filter(|waiter| waiter.older == WaiterId::NONE).map(|head| head.fifo);
        // `Closed` only until the slot is freed, in the next line.
        let waker = self.end_wait(waiter_id, |FifoRules { pace, .. }, fifo, waiter| {
            if let Spacing::Growing(_) = pace.spacing {
                pace.refund(fifo, now, waiter.cost, pace.gcra.units(waiter.paid_at));
            }
            SlabSlot::Closed
        });
        match self.slab.free(waiter_id) {
            SlabSlot::Released { fifo, cost, receipt, .. } => {
                self.refund(now, fifo, cost, receipt);
                (Some(fifo), waker)
            }
            _ => (head_of, waker),
        }
    }

    /// Takes the wakers of all waiters that have this driver. They keep waiting.
    pub(super) fn take_wakers_of(&mut self, driver: DriverId) -> Vec<Waker> {
        self.slab.take_wakers(|waiter| waiter.driver == driver)
    }

    /// Ends all waits, and forgets all FIFOs.
    pub(super) fn close(&mut self) -> Vec<Waker> {
        let wakers = self.slab.take_wakers(|_| true);
        for waiter_id in self.slab.waiter_ids() {
            let has_future = match self.slab.get(waiter_id) {
                SlabSlot::Waiting(waiter) => waiter.has_future,
                // Its rejection would carry a time after which to retry, but a closed queue admits no retry.
                SlabSlot::Rejected { .. } => true,
                SlabSlot::Free { .. } | SlabSlot::Released { .. } | SlabSlot::Closed => continue,
            };
            *self.slab.get_mut(waiter_id) = SlabSlot::Closed;
            if !has_future {
                self.slab.free(waiter_id);
            }
        }
        self.forget_all();
        self.waiting = 0;
        self.waiting_by_driver.clear();
        for index in [&mut self.due, &mut self.idle] {
            index.clear();
        }
        wakers
    }

    /// Releases up to [`BATCH`] heads whose turn has come: in the FIFO `only`, or otherwise in all FIFOs, in the order
    /// of their turns. Returns `true` if no waiter is due any more.
    pub(super) fn release_some(&mut self, now: Timestamp, only: Option<FifoId>, woken: &mut Vec<Waker>) -> bool {
        // A waiter departs as of its turn, even if it is released later, so that timer delays do not add up. A turn
        // before `earliest` is too long ago, and counts as `earliest`.
        let earliest = Timestamp::from_nanos(now.as_nanos().saturating_sub(nanos_of(CATCH_UP)));
        for _ in 0..BATCH {
            let first = only.or_else(|| self.due.first().map(|(_, id)| *id)).map(|id| (id, self.fifo(id)));
            let due = first.filter(|(id, fifo)| {
                self.rules.of(*id).pace.head_departs_at(fifo, &self.slab).is_some_and(|at| at <= now)
            });
            let Some((id, fifo)) = due else { return true };
            woken.extend(self.end_wait(fifo.waiters.oldest, |rules, fifo, waiter| {
                let FifoRules { quota, pace, history, .. } = rules;
                let paid_at = match pace.spacing {
                    Spacing::Even { .. } => {
                        pace.charge(fifo, earliest, waiter.cost);
                        fifo.tat
                    }
                    Spacing::Growing(_) => pace.gcra.units(waiter.paid_at),
                };
                let delay = nanos_of(now.saturating_since(waiter.since));
                SlabSlot::Released {
                    fifo: id,
                    quota: quota.map(Box::new),
                    cost: waiter.cost,
                    delay,
                    receipt: history.receipt(paid_at),
                }
            }));
            self.forget_paid(now);
        }
        false
    }

    /// Releases every head whose turn has come, in the FIFO `only`, or otherwise in all FIFOs.
    pub(super) fn release_all(&mut self, now: Timestamp, only: Option<FifoId>, woken: &mut Vec<Waker>) {
        while !self.release_some(now, only, woken) {}
    }

    /// Releases the waiters that are due and may stand in the way of an arrival in the FIFO `id`. A rejection
    /// advertises the time at which there will be room; so there must be room then, even if a timer is late.
    pub(super) fn catch_up(&mut self, now: Timestamp, id: FifoId, woken: &mut Vec<Waker>) {
        self.release_all(now, Some(id), woken);
        if self.is_full() {
            self.release_some(now, None, woken);
        }
    }

    /// Undoes a charge, as far as it is not paid for yet.
    pub(super) fn refund(&mut self, now: Timestamp, id: FifoId, cost: u64, receipt: Receipt) {
        self.edit(id, |FifoRules { pace, history, .. }, fifo, _| {
            pace.refund(fifo, now, cost, history.read(&pace.gcra, receipt));
        });
    }

    /// Removes a waiter from its FIFO, if it still waits, and returns its waker. If it has a future, the result of
    /// `outcome` stays in its slot until the future takes it; otherwise, the slot is freed.
    fn end_wait(
        &mut self,
        waiter_id: WaiterId,
        outcome: impl FnOnce(&FifoRules, &mut Fifo, &LinkedWaiter) -> SlabSlot,
    ) -> Option<Waker> {
        let id = self.slab.waiter(waiter_id)?.fifo;
        let waiter = self.edit(id, |rules, fifo, slab| {
            let waiter = slab.unlink(&mut fifo.waiters, waiter_id)?;
            if let Spacing::Even { .. } = rules.pace.spacing {
                fifo.backlog -= u128::from(waiter.cost);
            }
            *slab.get_mut(waiter_id) = outcome(rules, fifo, &waiter);
            Some(waiter)
        })??;
        self.waiting -= 1;
        *self.waiting_by_driver_mut(waiter.driver) -= 1;
        if !waiter.has_future {
            self.slab.free(waiter_id);
        }
        waiter.waker
    }

    /// Returns a key's state, by default an empty FIFO that owes nothing.
    fn fifo(&self, id: FifoId) -> Fifo {
        self.fifos.get(&id).copied().unwrap_or_default()
    }

    /// Returns a decision with its numbers, for a FIFO with these rules and `waiting` waiters over all keys. `outcome`
    /// makes it from these rules' limit and from *remaining*, the number of requests that this FIFO's key could still
    /// send.
    fn describe(
        &self,
        rules: &FifoRules,
        now: Timestamp,
        fifo: &Fifo,
        waiting: usize,
        outcome: impl FnOnce(u64, u64) -> Decision,
    ) -> Decision {
        let start = rules.pace.gcra.units(now);
        let paid_at = rules.pace.all_paid_at(fifo, now);
        let fitting = rules.count_fitting(&self.bounds, self.max_wait, [start, paid_at], [fifo.waiters.len, waiting]);
        let reset = rules.pace.gcra.nanos_ceil(paid_at - start);
        outcome(rules.limit, fitting.min(rules.limit)).with_reset_after(duration_from_nanos(reset))
    }

    /// Changes a FIFO, if it is stored, and keeps it in the right index (invariant 1).
    fn edit<R>(&mut self, id: FifoId, change: impl FnOnce(&FifoRules, &mut Fifo, &mut WaiterSlab) -> R) -> Option<R> {
        let fifo = self.fifos.get_mut(&id)?;
        let rules = self.rules.of(id);
        let old_entry = rules.pace.index_entry(id, fifo, &self.slab);
        let result = change(rules, fifo, &mut self.slab);
        let new_entry = rules.pace.index_entry(id, fifo, &self.slab);
        self.reindex(old_entry, new_entry);
        Some(result)
    }

    /// Moves a FIFO between the indexes, or in one.
    fn reindex(&mut self, old: (bool, (Timestamp, FifoId)), new: (bool, (Timestamp, FifoId))) {
        if old != new {
            self.index_mut(old.0).remove(&old.1);
            self.index_mut(new.0).insert(new.1);
        }
    }

    /// Returns the index for FIFOs with waiters, or without.
    fn index_mut(&mut self, has_waiters: bool) -> &mut BTreeSet<(Timestamp, FifoId)> {
        if has_waiters { &mut self.due } else { &mut self.idle }
    }
}
