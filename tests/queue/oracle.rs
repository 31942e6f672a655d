//! A naive model for one key's queue: a list, searched from its beginning. Times are in nanoseconds.

/// All quotas are per seven milliseconds, so that departures fall on whole nanoseconds and on fractions.
pub(super) const PERIOD: u64 = 7_000_000;

/// A driver that is late by more than this does not catch up on the rest.
const CATCH_UP: u64 = 50_000_000;

#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) limit: u64,
    pub(super) burst: u64,
    pub(super) capacity: usize,
    pub(super) max_wait: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    Departs,
    Waits { delay: u64 },
    Rejected { retry_after: Option<u64> },
}

#[derive(Clone, Copy)]
struct Waiter {
    number: usize,
    cost: u64,
    since: u64,
    until: u64,
}

/// A waiter's outcome, until its future has seen it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outcome {
    Departed {
        delay: u64,
    },
    /// After a change.
    Displaced {
        cost: u64,
        patience: u64,
        /// The key's own limit and burst at the change.
        own: Option<(u64, u64)>,
    },
    Closed,
}

/// A departure that may be refunded.
struct Departure {
    number: usize,
    cost: u64,
    /// When it was paid for, in the units of `Oracle::paid`.
    paid: u64,
    /// How often the rules have changed since its future has seen it.
    changes: u32,
    /// When it is paid for at the slowest rate at which its receipt may be read, in nanoseconds: the charge's rate, or
    /// a later change's.
    last_paid: u64,
}

pub(super) struct Oracle {
    /// The queue's rules.
    pub(super) rules: Rules,
    /// The key's own limit and burst, at its latest question.
    pub(super) own: Option<(u64, u64)>,
    has_had_own: bool,
    /// When all departures are paid for: nanoseconds × the limit.
    paid: u64,
    waiters: Vec<Waiter>,
    outcomes: Vec<(usize, Outcome)>,
    departures: Vec<Departure>,
}

impl Oracle {
    pub(super) const fn new(rules: Rules) -> Self {
        Self {
            rules,
            own: None,
            has_had_own: false,
            paid: 0,
            waiters: Vec::new(),
            outcomes: Vec::new(),
            departures: Vec::new(),
        }
    }

    /// A key that owes nothing, with its own limit and burst.
    pub(super) fn idle(rules: Rules, own: Option<(u64, u64)>) -> Self {
        Self { own, ..Self::new(rules) }
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// Returns this key's rules.
    fn present(&self) -> Rules {
        let (limit, burst) = self.own.unwrap_or((self.rules.limit, self.rules.burst));
        Rules { limit, burst, ..self.rules }
    }

    /// Returns when a request with this cost departs behind waiters that cost `ahead`: when both together fit into the
    /// burst, or when nothing is owed.
    fn turn_behind(&self, ahead: u64, cost: u64) -> u64 {
        let Rules { limit, burst, .. } = self.present();
        (self.paid + ahead * PERIOD).saturating_sub(burst.saturating_sub(cost) * PERIOD).div_ceil(limit)
    }

    /// Returns when the first waiter departs. Without waiters, when a request with this cost does.
    fn head_turn(&self, cost: u64) -> u64 {
        self.turn_behind(0, self.waiters.first().map_or(cost, |head| head.cost))
    }

    fn depart(&mut self, now: u64, number: usize, cost: u64) {
        let limit = self.present().limit;
        self.paid = self.paid.max(now * limit) + cost * PERIOD;
        let last_paid = self.paid.div_ceil(limit);
        self.departures.push(Departure { number, cost, paid: self.paid, changes: 0, last_paid });
    }

    /// Releases the waiters that are due.
    pub(super) fn release(&mut self, now: u64) {
        while !self.waiters.is_empty() && self.head_turn(0) <= now {
            let Waiter { number, cost, since, .. } = self.waiters.remove(0);
            self.depart(now.saturating_sub(CATCH_UP), number, cost);
            self.outcomes.push((number, Outcome::Departed { delay: now - since }));
        }
    }

    /// Returns the answer to an arrival with this patience.
    pub(super) fn check(&self, now: u64, cost: u64, patience: u64) -> Arrival {
        let Rules { burst, capacity, max_wait, limit } = self.present();
        let head = self.head_turn(cost);
        if cost.saturating_sub(burst) * PERIOD > max_wait * limit {
            return Arrival::Rejected { retry_after: None };
        }
        if cost == 0 || (head <= now && self.waiters.is_empty()) {
            return Arrival::Departs;
        }
        let turn = self.turn_behind(self.waiters.iter().map(|waiter| waiter.cost).sum(), cost);
        let soon_enough = turn.saturating_sub(patience.min(max_wait));
        let has_place = if self.waiters.len() < capacity { 0 } else { head };
        match soon_enough.max(has_place).saturating_sub(now) {
            0 => Arrival::Waits { delay: turn.saturating_sub(now) },
            wait => Arrival::Rejected { retry_after: Some(wait) },
        }
    }

    pub(super) fn arrive(&mut self, now: u64, number: usize, cost: u64, patience: u64) -> Arrival {
        let arrival = self.check(now, cost, patience);
        match arrival {
            Arrival::Departs if cost > 0 => self.depart(now, number, cost),
            Arrival::Waits { .. } => {
                let until = now + patience.min(self.rules.max_wait);
                self.waiters.push(Waiter { number, cost, since: now, until });
            }
            Arrival::Departs | Arrival::Rejected { .. } => {}
        }
        arrival
    }

    /// Returns the outcome that the waiter's future sees now, if any, and forgets it.
    pub(super) fn take_outcome(&mut self, number: usize) -> Option<Outcome> {
        let index = self.outcomes.iter().position(|(waiter, _)| *waiter == number)?;
        Some(self.outcomes.remove(index).1)
    }

    /// A waiter leaves: the next one gets the unused part of its turn.
    pub(super) fn leave(&mut self, now: u64, number: usize) {
        self.waiters.retain(|waiter| waiter.number != number);
        if let Some(Outcome::Departed { .. }) = self.take_outcome(number) {
            self.refund(now, number);
        }
        self.release(now);
    }

    /// Refunds the part of a departure that is still owed.
    pub(super) fn refund(&mut self, now: u64, number: usize) {
        if let Some(departure) = self.departures.iter().find(|departure| departure.number == number) {
            let owed = departure.paid.saturating_sub(now * self.present().limit);
            // Another refund may have paid for it before.
            self.paid = self.paid.saturating_sub(owed.min(departure.cost * PERIOD));
        }
        self.departures.retain(|departure| departure.number != number);
        self.release(now);
    }

    /// Applies other rules: the debt keeps its number of requests, and waiters are checked again, in order.
    pub(super) fn change(&mut self, now: u64, rules: Rules) {
        self.release(now);
        let before = self.present().limit;
        self.rules = rules;
        if self.own.is_none() {
            self.carry(now, before);
        }
        // The queue reissues the receipts that no future has taken yet, even for keys with their own quotas.
        for departure in &mut self.departures {
            if self.outcomes.iter().any(|(number, _)| *number == departure.number) {
                departure.changes = 0;
            }
        }
        self.check_waiters(now);
    }

    /// A question for the key under its own quota, or under the queue's.
    pub(super) fn ask_under(&mut self, now: u64, own: Option<(u64, u64)>) {
        if self.own != own {
            self.release(now);
            let before = self.present().limit;
            self.own = own;
            self.has_had_own = true;
            self.carry(now, before);
            self.check_waiters(now);
        }
    }

    /// Whether the queue may have forgotten under which quota a charge was made. It forgets that with a key that owes
    /// nothing, and another refund or a faster quota may have paid the charge too soon. Then the size of a refund is
    /// not defined.
    pub(super) fn is_undefined(&self, now: u64) -> bool {
        self.has_had_own && self.is_idle(now) && self.departures.iter().any(|departure| departure.last_paid > now)
    }

    /// Whether the key has no waiters and owes nothing.
    pub(super) fn is_idle(&self, now: u64) -> bool {
        self.waiters.is_empty() && self.paid <= now * self.present().limit
    }

    /// Converts the debt to the present rate.
    fn carry(&mut self, now: u64, before: u64) {
        let limit = self.present().limit;
        let carried = |paid: u64| paid.saturating_sub(now * before) + now * limit;
        self.paid = carried(self.paid);
        for departure in &mut self.departures {
            departure.changes += 1;
            // A receipt is good for one change.
            departure.paid = if departure.changes > 1 { 0 } else { carried(departure.paid) };
            departure.last_paid = departure.last_paid.max(departure.paid.div_ceil(limit));
        }
    }

    fn check_waiters(&mut self, now: u64) {
        let rules = self.rules;
        for mut waiter in std::mem::take(&mut self.waiters) {
            waiter.until = waiter.until.min(waiter.since + rules.max_wait);
            let patience = waiter.until - waiter.since;
            // It may stay if it could join now, given the time that it has waited already.
            let left = waiter.until.saturating_sub(now);
            let may_stay = self.waiters.len() < rules.capacity
                && matches!(self.check(now, waiter.cost, left), Arrival::Departs | Arrival::Waits { .. });
            if may_stay {
                self.waiters.push(waiter);
            } else {
                self.outcomes.push((waiter.number, Outcome::Displaced { cost: waiter.cost, patience, own: self.own }));
            }
        }
        self.release(now);
    }

    pub(super) fn close(&mut self) {
        let waiters = self.waiters.drain(..).map(|waiter| (waiter.number, Outcome::Closed));
        let departed = |outcome: &Outcome| matches!(outcome, Outcome::Departed { .. });
        self.outcomes.iter_mut().filter(|(_, it)| !departed(it)).for_each(|(_, it)| *it = Outcome::Closed);
        self.outcomes.extend(waiters);
    }
}
