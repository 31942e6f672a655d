//! The queue's scripts, as the server runs them, and how to read their replies.

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "small numbers, short tests")]
mod tests;

use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use tower_sluice::algorithm::GcraState;
use tower_sluice::internal::redis::{StateParts as _, bucket_receipt};
use tower_sluice::limiter::Receipt;
use tower_sluice::time::Timestamp;
use tower_sluice::{Decision, Quota};

use crate::script::{
    BadReply, Grid, Key, MicrosSpan, NO_MARK, Script, ScriptCall, ScriptReply, UnfitQuota, duration_of, nanos_of, whole,
};

/// A queue is a bucket with holes: its scripts are made of the blocks of a bucket, and of some of its own.
macro_rules! queue_script {
    ($new:ident, $block:literal) => {
        Script::$new(concat!(
            include_str!("../../script/lua/open.lua"),
            include_str!("../../script/lua/each_key.lua"),
            include_str!("lua/open.lua"),
            include_str!("../../script/lua/bucket_read.lua"),
            include_str!(concat!("lua/", $block, ".lua")),
            include_str!("lua/close.lua"),
            include_str!("../../script/lua/close.lua"),
        ))
    };
}

static QUEUE: Script = queue_script!(bundled, "take");

static QUEUE_REFUND: Script = queue_script!(new, "refund");

/// The schedule of a key that many processes share: a bucket that is paid after the fact.
///
/// The server keeps the time at which all requests that were let in will be paid for. An arrival may depart when its
/// cost and the debt before it fit into the burst, or if its cost alone does not, when the debt before it is paid. It
/// is let in if that is soon enough. So the order of arrival at the server is the order of departure; each process does
/// its own waiting.
///
/// A reservation is a stretch of that time, whose length is its price, and no two overlap. If the last one is returned,
/// the backlog becomes shorter. Any other becomes a *hole*, because those behind it know already when to depart; the
/// next arrival for which it is wide enough takes it. The part of a hole that has passed is trimmed, so a reservation
/// begins no earlier than its arrival. That keeps the rate: of the requests that depart within *t*, all reservations
/// lie within *t* and the burst, or the cost of the last one if that is greater.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueScript {
    grid: Grid,
    /// How many units may depart at once.
    burst: u64,
    /// The longest wait of any request: the shorter of the set bound and `max_queue` intervals. In units of 1/`limit`
    /// ns, as the others.
    longest: u128,
    max_cost: u64,
}

/// The state of a key: until when time is reserved, and the holes before that.
#[derive(Clone, Debug, Default)]
struct Timeline {
    tat: u128,
    holes: SmallVec<[Hole; 2]>,
}

/// A free stretch before the end of the timeline.
#[derive(Clone, Copy, Debug)]
struct Hole {
    first: u128,
    last: u128,
}

impl QueueScript {
    /// Creates a queue in which at most `max_queue` requests of cost one wait per key, for at most `max_wait`.
    pub(crate) fn new(quota: &Quota, max_queue: usize, max_wait: Duration) -> Result<Self, UnfitQuota> {
        let burst = quota.explicit_burst_or(1);
        let grid = Grid::new(quota);
        let interval = grid.price(1);
        let wait = u128::from(nanos_of(max_wait)) * u128::from(quota.limit());
        let full = interval.saturating_mul(max_queue as u128);
        // As in a queue in memory: a cost that takes longer than the longest wait to pay for would block its key.
        let max_cost = u64::try_from(wait / interval + u128::from(burst))
            .map_or(Quota::MAX_UNITS, |cost| cost.min(Quota::MAX_UNITS));
        let queue = Self { grid, burst, longest: wait.min(full), max_cost };
        grid.check_fit(queue.max_debt())?;
        Ok(queue)
    }

    pub(crate) const fn max_cost(&self) -> u64 {
        self.max_cost
    }

    /// Returns how many requests of cost one would be let in at once, without a debt.
    pub(crate) fn limit(&self) -> u64 {
        self.fitting(0)
    }

    /// Returns how far ahead of its reservation a request of this cost may depart, so that its cost and the debt before
    /// it fit into the burst. A cost above the burst departs when the debt before it is paid.
    fn ahead(&self, cost: u64) -> u128 {
        self.grid.price(self.burst.saturating_sub(cost))
    }

    /// Returns how many requests of cost one would be let in at once, with this `debt`.
    fn fitting(&self, debt: u128) -> u64 {
        match (self.ahead(1) + self.longest).checked_sub(debt) {
            Some(room) => u64::try_from(room / self.grid.price(1) + 1).unwrap_or(u64::MAX),
            None => 0,
        }
    }

    /// Returns the greatest debt that a key can have.
    fn max_debt(&self) -> u128 {
        self.longest + self.grid.price(self.max_cost.max(self.burst))
    }

    /// Returns the longest wait of a request that gives up after `patience`.
    fn longest_wait(&self, patience: Option<Duration>) -> u128 {
        let patience = patience.map_or(u64::MAX, nanos_of);
        self.longest.min(u128::from(patience) * u128::from(self.grid.limit))
    }

    /// Returns the script's numbers, and how much more than their capacity other requests may owe, in microseconds.
    fn numbers(&self, cost: u64, longest: u128) -> ([u64; 5], u64) {
        let price = self.grid.price(cost.min(self.max_cost));
        let capacity = self.ahead(cost) + longest + price;
        let [numbers, most] = [capacity, self.max_debt()].map(|units| self.grid.span(units).micros);
        // Rounded up, since both sides were rounded down.
        let beyond = most.saturating_sub(numbers) + 1;
        (self.grid.numbers(self.grid.span(price), self.grid.span(capacity), NO_MARK), beyond)
    }

    /// Returns the call that makes a reservation for a request of `cost` that waits for `patience` at most. It is made
    /// once: if its answer gets lost, the reservation stays.
    pub(crate) fn call(&self, key: Key, cost: u64, patience: Option<Duration>) -> ScriptCall {
        let (numbers, beyond) = self.numbers(cost, self.longest_wait(patience));
        let is_charge = (1..=self.max_cost).contains(&cost);
        let mut args = smallvec![u64::from(is_charge)];
        args.extend_from_slice(&numbers);
        args.push(beyond);
        ScriptCall { script: &QUEUE, keys: smallvec![key], args, texts: Vec::new() }
    }

    /// Reads the answer to a [`call`](Self::call) with the same arguments: a request that is admitted departs after the
    /// decision's delay, on the server's clock. Also returns the present state of the key for the negative cache,
    /// unless it has no state, or has a hole with room for a request: the end of the timeline does not say when a
    /// request fits into a hole.
    pub(crate) fn admission(
        &self,
        answer: &ScriptReply,
        cost: u64,
        patience: Option<Duration>,
    ) -> Result<(Decision, Option<GcraState>), BadReply> {
        let old = answer.old(0)?.map(|old| self.read(old, answer.now).ok_or(BadReply::State)).transpose()?;
        let (decision, new) = self.arrive(old.as_ref(), answer.now, cost, patience);
        if answer.admitted != u32::from(new.is_some()) {
            return Err(BadReply::Disagreement);
        }
        let known = new.or(old).filter(|timeline| timeline.holes.iter().all(|hole| self.places(*hole) == 0));
        Ok((decision, known.map(|timeline| GcraState::from_parts(timeline.tat))))
    }

    /// Reads a stored timeline. Drops the parts of holes that have passed, and holes beyond its end.
    fn read(&self, stored: &[u8], now: Timestamp) -> Option<Timeline> {
        let (bucket, holes) = match stored.iter().position(|byte| *byte == b' ') {
            Some(space) => (&stored[..space], &stored[space + 1..]),
            None => (stored, &[][..]),
        };
        let now = self.grid.now(now);
        // The script reduces a debt that is above the greatest.
        let tat = self.grid.read(bucket, now + self.max_debt())?.parts();
        let holes = holes.split(|byte| *byte == b' ').filter(|hole| !hole.is_empty()).map(|hole| self.read_hole(hole));
        let holes: Option<SmallVec<[Hole; 2]>> = holes.collect();
        let trimmed = holes?.into_iter().map(|hole| Hole { first: hole.first.max(now), ..hole });
        Some(Timeline { tat, holes: trimmed.filter(|hole| hole.first < hole.last && hole.last <= tat).collect() })
    }

    /// Reads `<first>+<rest>:<last>+<rest>`.
    fn read_hole(&self, stored: &[u8]) -> Option<Hole> {
        let ends = stored.splitn(2, |byte| *byte == b':').map(|end| {
            let plus = end.iter().position(|byte| *byte == b'+')?;
            let micros = whole(&end[..plus])?;
            let rest = whole(&end[plus + 1..])?;
            // As for the end of the timeline: another quota may have had finer parts.
            Some(self.grid.units(MicrosSpan { micros, rest: rest.min(self.grid.parts() - 1) }))
        });
        let ends: Option<SmallVec<[u128; 2]>> = ends.collect();
        match ends?[..] {
            [first, last] => Some(Hole { first, last }),
            _ => None,
        }
    }

    /// Returns how many requests of cost one fit into a hole.
    fn places(&self, hole: Hole) -> u64 {
        u64::try_from((hole.last - hole.first) / self.grid.price(1)).unwrap_or(u64::MAX)
    }

    /// Returns the rejection of a request that comes at `at` to a key in that state, if it is rejected.
    pub(crate) fn rejection(
        &self,
        state: GcraState,
        at: Timestamp,
        cost: u64,
        patience: Option<Duration>,
    ) -> Option<Decision> {
        let timeline = Timeline { tat: state.parts(), holes: SmallVec::new() };
        Some(self.arrive(Some(&timeline), at, cost, patience).0).filter(|decision| !decision.is_allowed())
    }

    /// Whether a request of cost one that cannot wait at all would be rejected.
    pub(crate) fn has_backlog(&self, state: GcraState, at: Timestamp) -> bool {
        state.parts() > self.grid.now(at) + self.ahead(1)
    }

    /// Returns the decision on a request that comes at `at`, and the timeline after it if it makes a reservation.
    fn arrive(
        &self,
        timeline: Option<&Timeline>,
        at: Timestamp,
        cost: u64,
        patience: Option<Duration>,
    ) -> (Decision, Option<Timeline>) {
        let now = self.grid.now(at);
        let longest = self.longest_wait(patience);
        let mut timeline = timeline.cloned().unwrap_or_default();
        timeline.tat = timeline.tat.max(now);
        if cost > self.max_cost {
            return (self.decision(&timeline, now, |limit, left| Decision::reject(limit, left, None)), None);
        }
        if cost == 0 {
            return (self.decision(&timeline, now, Decision::allow), None);
        }
        let price = self.grid.price(cost);
        let hole = timeline.holes.iter().position(|hole| hole.first + price <= hole.last);
        let first = hole.map_or(timeline.tat, |index| timeline.holes[index].first);
        let wait = (first - now).saturating_sub(self.ahead(cost));
        if wait > longest {
            let wait = duration_of(self.grid.nanos_ceil(wait - longest));
            // Zero remaining: there may be room for requests that accept a longer wait, but not for this one.
            return (self.decision(&timeline, now, |limit, _| Decision::reject(limit, 0, Some(wait))), None);
        }
        match hole {
            Some(index) => timeline.holes[index].first += price,
            None => timeline.tat += price,
        }
        let delay = duration_of(self.grid.nanos_ceil(wait));
        let decision = self.decision(&timeline, now, Decision::allow).with_delay(delay);
        (decision.with_receipt(bucket_receipt(first + price)), Some(timeline))
    }

    /// Returns a decision with the numbers of a timeline: how many requests of cost one would be let in at once, if it
    /// were empty, and now.
    fn decision(&self, timeline: &Timeline, now: u128, outcome: impl FnOnce(u64, u64) -> Decision) -> Decision {
        let limit = self.limit();
        let debt = timeline.tat - now;
        let holes = timeline.holes.iter().fold(0_u64, |sum, hole| sum.saturating_add(self.places(*hole)));
        let left = self.fitting(debt).saturating_add(holes).min(limit);
        outcome(limit, left).with_reset_after(duration_of(self.grid.nanos_ceil(debt)))
    }

    /// Returns the call that returns a reservation, to the next arrival for which it is wide enough.
    pub(crate) fn refund(&self, key: Key, cost: u64, receipt: Receipt) -> Option<ScriptCall> {
        if receipt.is_none() || cost == 0 {
            return None;
        }
        let (numbers, beyond) = self.numbers(cost, self.longest);
        let mut args = smallvec![1];
        args.extend_from_slice(&numbers);
        args.push(beyond);
        args.extend_from_slice(&self.grid.receipt_numbers(receipt));
        Some(ScriptCall { script: &QUEUE_REFUND, keys: smallvec![key], args, texts: Vec::new() })
    }
}
