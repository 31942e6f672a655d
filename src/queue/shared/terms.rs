//! A request's question to a server, and the decision from the answer.

use std::time::Duration;

use crate::algorithm::GcraState;
use crate::algorithm::gcra::{Gcra, Tat};
use crate::store::remote::{Arrival, DepartureTerms, Reserved, Timeline};
use crate::values::time::{Timestamp, duration_from_nanos};
use crate::values::{Decision, Quota, Receipt};

/// A key's schedule, which many processes share: a bucket that is paid after the fact.
///
/// The server keeps the time at which all requests that were let in will be paid for. An arrival may depart when its
/// cost and the debt before it fit into the burst, or if its cost alone does not, when the debt before it is paid. It
/// is let in if that is soon enough. So requests depart in the order in which they reach the server; each process does
/// its own waiting.
///
/// A reservation is a stretch of that time, whose length is its price, and no two overlap. If the last one is returned,
/// the backlog becomes shorter. Any other becomes a *hole*, because those behind it know already when to depart; the
/// next arrival for which it is wide enough takes it. The part of a hole that has passed is trimmed, so a reservation
/// begins no earlier than its arrival. That keeps the rate: if requests depart within *t*, their reservations all lie
/// within *t* and the burst, or within *t* and the last one's cost if that is greater.
#[derive(Clone, Copy, Debug)]
pub struct QueueTerms {
    quota: Quota,
    gcra: Gcra,
    /// How many units may depart at once.
    burst: u64,
    /// The longest wait of any request, in ticks: the shorter of the set bound and `max_queue` intervals.
    longest: u128,
    max_cost: u64,
}

impl QueueTerms {
    /// Creates a queue in which at most `max_queue` requests of cost one wait per key, for at most `max_wait`.
    pub fn new(quota: &Quota, max_queue: usize, max_wait: Duration) -> Self {
        let burst = quota.explicit_burst_or(1);
        let gcra = Gcra::new(quota, burst);
        let interval = gcra.price(1);
        let wait = u128::from(nanos_of(max_wait)) * u128::from(quota.limit());
        let full = interval.saturating_mul(max_queue as u128);
        // As in a queue in memory: a cost that takes longer than the longest wait to pay for would block its key.
        let max_cost = u64::try_from(wait / interval + u128::from(burst))
            .map_or(Quota::MAX_UNITS, |cost| cost.min(Quota::MAX_UNITS));
        Self { quota: *quota, gcra, burst, longest: wait.min(full), max_cost }
    }

    /// Returns the greatest cost that is ever let in.
    pub const fn max_cost(&self) -> u64 {
        self.max_cost
    }

    /// Returns the part of the terms that the server needs.
    pub fn for_server(&self) -> DepartureTerms {
        let most_ahead = self.longest + self.gcra.price(self.max_cost.max(self.burst));
        DepartureTerms::new(self.quota, most_ahead)
    }

    /// Returns how many requests of cost one would be let in at once, without a debt.
    pub fn limit(&self) -> u64 {
        self.fitting(0)
    }

    /// Returns how far ahead of its reservation a request of this cost may depart, so that its cost and the debt before
    /// it fit into the burst. A cost above the burst departs when the debt before it is paid.
    fn ahead(&self, cost: u64) -> u128 {
        self.gcra.price(self.burst.saturating_sub(cost))
    }

    /// Returns how many requests of cost one would be let in at once, with this `debt`.
    fn fitting(&self, debt: u128) -> u64 {
        match (self.ahead(1) + self.longest).checked_sub(debt) {
            Some(room) => u64::try_from(room / self.gcra.price(1) + 1).unwrap_or(u64::MAX),
            None => 0,
        }
    }

    /// Returns the longest wait of a request that gives up after `patience`, in ticks.
    fn longest_wait(&self, patience: Option<Duration>) -> u128 {
        let patience = patience.map_or(u64::MAX, nanos_of);
        self.longest.min(u128::from(patience) * u128::from(self.quota.limit()))
    }

    /// Returns the question for a request that costs `cost` and waits for at most `patience`. If its cost is zero, or
    /// can never be let in, it only looks.
    pub fn arrival(&self, cost: u64, patience: Option<Duration>) -> Arrival {
        let length = if cost > self.max_cost { 0 } else { self.gcra.price(cost) };
        Arrival { length, reach: self.ahead(cost) + self.longest_wait(patience) + length }
    }

    /// Returns the length and the end of the reservation in a receipt, unless nothing was reserved.
    pub fn reservation(&self, cost: u64, receipt: Receipt) -> Option<(u128, u128)> {
        (!receipt.is_none() && cost > 0).then(|| (self.gcra.price(cost), Tat::read(receipt)))
    }

    /// Reads the answer to an [`arrival`](Self::arrival) with the same arguments: a request that is admitted departs
    /// after the decision's delay. The key's present state is also returned, for the negative cache, unless a hole has
    /// room for a request, because the timeline's end does not say when a request fits into a hole. Returns `None` if
    /// the server has made a forbidden reservation, or has not made a required one.
    pub fn decide(
        &self,
        answer: &Reserved,
        cost: u64,
        patience: Option<Duration>,
    ) -> Option<(Decision, Option<GcraState>)> {
        let Reserved { now, end, ref timeline, .. } = *answer;
        let decision = self.decision(timeline, now, cost, patience, end)?;
        let is_full = timeline.holes().all(|hole| self.places(hole) == 0);
        Some((decision, is_full.then(|| GcraState { tat: timeline.end() })))
    }

    /// Returns the decision on a request that comes at `now` and has got a reservation up to `end`, if any, which
    /// `timeline` has already. `None` if the request should have got another answer.
    fn decision(
        &self,
        timeline: &Timeline,
        now: Timestamp,
        cost: u64,
        patience: Option<Duration>,
        end: Option<u128>,
    ) -> Option<Decision> {
        let now = self.gcra.units(now);
        let Arrival { length, .. } = self.arrival(cost, patience);
        let longest = self.longest_wait(patience);
        if length == 0 {
            let outcome = if cost == 0 { Decision::allow } else { |limit, left| Decision::reject(limit, left, None) };
            return end.is_none().then(|| self.numbers(timeline, now, outcome));
        }
        let begin = end.map_or_else(|| Some(timeline.first_fit(length)), |end| end.checked_sub(length))?;
        let wait = begin.checked_sub(now)?.saturating_sub(self.ahead(cost));
        let Some(end) = end else {
            let beyond = wait.checked_sub(longest).filter(|beyond| *beyond > 0)?;
            let wait = self.span(beyond);
            // Zero remaining: there may be room for requests that accept a longer wait, but not for this one.
            return Some(self.numbers(timeline, now, |limit, _| Decision::reject(limit, 0, Some(wait))));
        };
        let decision = (wait <= longest).then(|| self.numbers(timeline, now, Decision::allow))?;
        Some(decision.with_delay(self.span(wait)).with_receipt(Receipt::from_proof(Tat(end))))
    }

    /// Returns the rejection of a request that comes at `at` to a key in that state, if it is rejected.
    pub fn rejection(
        &self,
        state: GcraState,
        at: Timestamp,
        cost: u64,
        patience: Option<Duration>,
    ) -> Option<Decision> {
        // No bound, because others may wait for any time: the state was learnt from the server.
        let timeline = Timeline::as_of(at, &self.for_server(), state.tat, u128::MAX, []);
        // A request that would be let in is not decided without a reservation.
        let decision = self.decision(&timeline, at, cost, patience, None)?;
        (!decision.is_allowed()).then_some(decision)
    }

    /// Whether a request with cost one, which cannot wait at all, would be rejected.
    pub fn has_backlog(&self, state: GcraState, at: Timestamp) -> bool {
        state.tat > self.gcra.units(at) + self.ahead(1)
    }

    /// Returns how many requests of cost one fit into a hole.
    fn places(&self, [begin, end]: [u128; 2]) -> u64 {
        u64::try_from((end - begin) / self.gcra.price(1)).unwrap_or(u64::MAX)
    }

    /// Returns a decision with a timeline's numbers: how many requests of cost one would be let in at once, if it were
    /// empty, and now.
    fn numbers(&self, timeline: &Timeline, now: u128, outcome: impl FnOnce(u64, u64) -> Decision) -> Decision {
        let limit = self.limit();
        let debt = timeline.end().saturating_sub(now);
        let holes = timeline.holes().fold(0_u64, |sum, hole| sum.saturating_add(self.places(hole)));
        let left = self.fitting(debt).saturating_add(holes).min(limit);
        outcome(limit, left).with_reset_after(self.span(debt))
    }

    fn span(&self, ticks: u128) -> Duration {
        duration_from_nanos(self.gcra.nanos_ceil(ticks))
    }
}

fn nanos_of(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
