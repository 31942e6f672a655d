use std::time::Duration;

use super::bucket::Grid;
use super::calls::give_back_call;
use super::{Answer, BUCKET, BadReply, UnfitQuota};
use crate::algorithm::gcra::{Gcra, GcraState};
use crate::decision::{Decision, Receipt};
use crate::quota::Quota;
use crate::store::redis::call::Call;
use crate::store::redis::key::Key;
use crate::time::{Timestamp, duration_from_nanos, nanos_of};

/// A line that many processes share: a bucket that is paid after the fact.
///
/// The server keeps the time at which all who have been let in will be paid for. An arrival may leave when the
/// debt before it is down to `burst − 1` intervals, and is let in if that is soon enough. So the order of arrival
/// at the server is the order of departure; the waiting itself is up to each process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueScript {
    gcra: Gcra,
    grid: Grid,
    /// How far ahead of its payment one may leave, `burst − 1` intervals; in units of 1/`limit` ns, as the others.
    ahead: u128,
    /// The longest that anybody may wait: as it is set, or as long as a full line takes.
    longest: u128,
    max_cost: u32,
}

/// What an arrival is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It leaves after the decision's delay, on the server's clock.
    Given(Decision),
    Refused(Decision),
}

impl QueueScript {
    /// For at most `capacity` requests of a key, and `max_wait`.
    pub(crate) fn new(quota: &Quota, capacity: usize, max_wait: Duration) -> Result<Self, UnfitQuota> {
        let burst = quota.explicit_burst_or(1);
        let (gcra, grid) = (Gcra::new(quota, burst), Grid::new(quota));
        let (ahead, interval) = (gcra.price(burst - 1), gcra.price(1));
        let wait = u128::from(nanos_of(max_wait)) * u128::from(quota.limit());
        let full = interval.saturating_mul(capacity as u128);
        // As in a queue in memory: what takes longer than the longest wait to pay for would bar its line.
        let max_cost = u32::try_from((wait + ahead) / interval + 1).unwrap_or(u32::MAX);
        let queue = Self { gcra, grid, ahead, longest: wait.min(full), max_cost };
        grid.check_fit(queue.most())?;
        Ok(queue)
    }

    pub(crate) const fn max_cost(&self) -> u32 {
        self.max_cost
    }

    /// How many requests of cost one would be let in at once, if nothing were owed.
    pub(crate) fn limit(&self) -> u32 {
        self.fitting(0)
    }

    /// How many would be let in at once, if `debt` were owed.
    fn fitting(&self, debt: u128) -> u32 {
        match (self.ahead + self.longest).checked_sub(debt) {
            Some(room) => u32::try_from(room / self.gcra.price(1) + 1).unwrap_or(u32::MAX),
            None => 0,
        }
    }

    /// The most that can be owed.
    fn most(&self) -> u128 {
        self.ahead + self.longest + self.gcra.price(self.max_cost)
    }

    /// The longest that one may wait that gives up after `patience`.
    fn patient(&self, patience: Option<Duration>) -> u128 {
        let patience = patience.map_or(u64::MAX, nanos_of);
        self.longest.min(u128::from(patience) * u128::from(self.grid.limit))
    }

    /// The script's numbers, and how much more than their capacity others may owe, in microseconds.
    fn numbers(&self, cost: u32, longest: u128) -> ([u64; 5], u64) {
        let price = self.grid.price(cost.min(self.max_cost));
        let capacity = self.ahead + longest + price;
        let [numbers, most] = [capacity, self.most()].map(|units| self.grid.span(units).micros);
        // Rounded up, since a rest was cut off on either side.
        let beyond = most.saturating_sub(numbers) + 1;
        (self.grid.numbers(self.grid.span(price), self.grid.span(capacity)), beyond)
    }

    /// Asks for a place for a request of `cost` that waits for `patience` at most. A place is asked for once: what
    /// is lost on the way back stays taken.
    pub(crate) fn call(&self, key: Key, cost: u32, patience: Option<Duration>) -> Call {
        let (numbers, beyond) = self.numbers(cost, self.patient(patience));
        let is_charge = (1..=self.max_cost).contains(&cost);
        let mut args = smallvec::smallvec![u64::from(is_charge)];
        args.extend_from_slice(&numbers);
        args.push(beyond);
        Call { script: &BUCKET, keys: smallvec::smallvec![key], args }
    }

    /// What the answer to a [`call`](Self::call) with the same arguments means, and the state that the key has now.
    pub(crate) fn place(
        &self,
        answer: &Answer,
        cost: u32,
        patience: Option<Duration>,
    ) -> Result<(Place, Option<GcraState>), BadReply> {
        // One that owes more than anybody can is put right by the script; as is told here, it is refused.
        let most = self.grid.now(answer.now) + self.most();
        let old = answer.old(0)?.map(|old| self.grid.read(old, most).ok_or(BadReply::State)).transpose()?;
        let (place, state) = self.arrive(old, answer.now, cost, patience);
        if answer.admitted != u32::from(state.is_some()) {
            return Err(BadReply::Disagreement);
        }
        Ok((place, state.or(old)))
    }

    /// The refusal of a request that comes `at` that time to a key in that state, if it is refused.
    pub(crate) fn refused(
        &self,
        state: GcraState,
        at: Timestamp,
        cost: u32,
        patience: Option<Duration>,
    ) -> Option<Decision> {
        match self.arrive(Some(state), at, cost, patience).0 {
            Place::Refused(decision) => Some(decision),
            Place::Given(_) => None,
        }
    }

    /// Whether one that cannot wait at all would be refused: there is a line.
    pub(crate) fn has_line(&self, state: GcraState, at: Timestamp) -> bool {
        state.tat > self.grid.now(at) + self.ahead
    }

    /// What a request is told that comes `at` that time, and the state after it if it takes a place.
    fn arrive(
        &self,
        state: Option<GcraState>,
        at: Timestamp,
        cost: u32,
        patience: Option<Duration>,
    ) -> (Place, Option<GcraState>) {
        let (now, longest) = (self.grid.now(at), self.patient(patience));
        let debt = state.map_or(0, |state| state.tat.saturating_sub(now));
        let wait = debt.saturating_sub(self.ahead);
        if cost > self.max_cost {
            return (Place::Refused(self.describe(debt, |limit, left| Decision::deny(limit, left, None))), None);
        }
        if cost == 0 {
            return (Place::Given(self.describe(debt, Decision::allow)), None);
        }
        if wait > longest {
            let wait = duration_from_nanos(self.gcra.nanos_ceil(wait - longest));
            // Others may wait for longer than this one, so there may be room; there is none for it.
            return (Place::Refused(self.describe(debt, |limit, _| Decision::deny(limit, 0, Some(wait)))), None);
        }
        let debt = debt + self.gcra.price(cost);
        let tat = now + debt;
        let delay = duration_from_nanos(self.gcra.nanos_ceil(wait));
        let decision = self.describe(debt, Decision::allow).with_delay(delay).with_receipt(Receipt::new(tat));
        (Place::Given(decision), Some(GcraState { tat }))
    }

    /// The numbers of a key that owes `debt`: how many requests of cost one would be let in at once, if it owed
    /// nothing, and now.
    fn describe(&self, debt: u128, outcome: impl FnOnce(u32, u32) -> Decision) -> Decision {
        outcome(self.limit(), self.fitting(debt)).with_reset_after(duration_from_nanos(self.gcra.nanos_ceil(debt)))
    }

    /// Gives back a place if nobody came after it; one in the middle stays empty, for those behind it have been
    /// told already when to leave.
    pub(crate) fn give_back(&self, key: Key, cost: u32, receipt: Receipt) -> Option<Call> {
        if receipt == Receipt::NONE || cost == 0 {
            return None;
        }
        let (numbers, beyond) = self.numbers(cost, self.longest);
        Some(give_back_call(1, numbers, beyond, true, self.grid.receipt_numbers(receipt), key))
    }
}
