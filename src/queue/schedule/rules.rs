//! Each key's rules: the queue's, or rules that follow from the key's own quota.

use std::collections::HashMap;

use super::change::History;
use super::pace::{GrowingDelay, QueuePace, Spacing};
use super::{FifoId, QueueBounds};
use crate::algorithm::gcra::Gcra;
use crate::values::Quota;
use crate::values::time::{Timestamp, nanos_of};

/// The rules that a FIFO follows.
#[derive(Clone, Copy)]
pub(in crate::queue) struct FifoRules {
    /// The key's own quota; `None` if it has the queue's.
    pub(super) quota: Option<Quota>,
    pub(super) pace: QueuePace,
    /// The greatest cost that is admitted. With even spacing, the units that leak during the longest wait, plus the
    /// burst: a request of a greater cost would block its FIFO for longer than the longest wait. With growing delays,
    /// the burst.
    pub(super) max_cost: u64,
    /// How many requests of cost one a fresh key could send at once without a rejection.
    pub(super) limit: u64,
    /// The quota changes, to read receipts from before them.
    pub(super) history: History,
}

/// The rules for all FIFOs. A FIFO has its own rules from the first question under the key's own quota until it is
/// forgotten. While the key has the queue's quota again, they are a copy of the common ones.
pub(super) struct RulesOfKeys {
    pub(super) common: FifoRules,
    /// Boxed, because the map has up to twice as many buckets as entries.
    own: HashMap<FifoId, Box<FifoRules>>,
    /// The number of changes, modulo 2^16: to the common quota, and to any key's quota.
    changes: u16,
}

impl FifoRules {
    /// Rules with even spacing.
    pub(super) fn even(quota: &Quota, bounds: &QueueBounds) -> Self {
        let burst = quota.explicit_burst_or(1);
        let gcra = Gcra::new(quota, burst);
        let max_wait = nanos_of(bounds.waits.max_wait);
        // The tokens that leak during the longest wait, plus the burst.
        let max_cost = gcra.units(Timestamp::from_nanos(max_wait)) / gcra.price(1) + u128::from(burst);
        let max_cost = u64::try_from(max_cost).map_or(Quota::MAX_UNITS, |cost| cost.min(Quota::MAX_UNITS));
        Self::new(QueuePace { gcra, spacing: Spacing::Even { burst } }, max_cost, bounds)
    }

    /// Rules with growing delays.
    pub(super) fn growing(quota: &Quota, delay: GrowingDelay, bounds: &QueueBounds) -> Self {
        let burst = quota.max_burst();
        Self::new(QueuePace { gcra: Gcra::new(quota, burst), spacing: Spacing::Growing(delay) }, burst, bounds)
    }

    fn new(pace: QueuePace, max_cost: u64, bounds: &QueueBounds) -> Self {
        let mut rules = Self { quota: None, pace, max_cost, limit: 0, history: History::default() };
        rules.limit =
            rules.count_fitting(bounds, nanos_of(bounds.waits.max_wait), [0, 0], [0, 0]).min(Quota::MAX_UNITS);
        rules
    }

    /// The rules for a key whose own quota this is, with even spacing.
    pub(super) fn of_quota(quota: Quota, bounds: &QueueBounds) -> Self {
        Self { quota: Some(quota), ..Self::even(&quota, bounds) }
    }

    /// Counts the requests with cost one that would not be rejected at `start`: behind `in_fifo` waiters of the same
    /// key, which are paid for at `paid_at`, and with `in_all` waiters over all keys.
    pub(super) fn count_fitting(
        &self,
        bounds: &QueueBounds,
        max_wait: u64,
        [start, paid_at]: [u128; 2],
        [in_fifo, in_all]: [usize; 2],
    ) -> u64 {
        let waits = &bounds.waits;
        let room = waits.max_queue.saturating_sub(in_fifo).min(waits.max_waiters.saturating_sub(in_all)) as u128;
        let (at_once, in_time) = match self.pace.spacing {
            Spacing::Even { burst } => {
                let latest = start + self.pace.gcra.units(Timestamp::from_nanos(max_wait));
                let count = |deadline| self.pace.count_departures(paid_at, deadline, burst);
                (count(start), count(latest))
            }
            Spacing::Growing(delay) => {
                let count = |most_owed| self.pace.count_charges(paid_at - start, most_owed);
                (count(delay.free), count(self.max_cost))
            }
        };
        let at_once = if in_fifo == 0 { at_once } else { 0 };
        u64::try_from((at_once + room).min(in_time)).unwrap_or(u64::MAX)
    }

    /// These rules, which replace `before` at `now`, as change number `number`.
    fn after(self, before: &Self, number: u16, now: Timestamp) -> Self {
        Self { history: before.history.next(number, &before.pace.gcra, now), ..self }
    }
}

impl RulesOfKeys {
    pub(super) fn new(common: FifoRules) -> Self {
        Self { common, own: HashMap::new(), changes: 0 }
    }

    /// Returns a FIFO's rules. Unless keys have their own quotas, nothing is hashed.
    #[inline]
    pub(super) fn of(&self, id: FifoId) -> &FifoRules {
        self.get_own(id).unwrap_or(&self.common)
    }

    #[inline]
    pub(super) fn has_own(&self, id: FifoId) -> bool {
        self.get_own(id).is_some()
    }

    #[inline]
    fn get_own(&self, id: FifoId) -> Option<&FifoRules> {
        if self.own.is_empty() { None } else { self.look_up(id) }
    }

    #[inline(never)]
    fn look_up(&self, id: FifoId) -> Option<&FifoRules> {
        self.own.get(&id).map(|own| &**own)
    }

    /// Returns the rules that a question under `quota` gives its key, unless it has them already.
    #[inline]
    pub(super) fn others(&self, id: FifoId, quota: Option<Quota>, bounds: &QueueBounds) -> Option<Box<FifoRules>> {
        let has_common = quota.is_none() && self.own.is_empty();
        if has_common { None } else { self.others_than_own(id, quota, bounds) }
    }

    #[inline(never)]
    fn others_than_own(&self, id: FifoId, quota: Option<Quota>, bounds: &QueueBounds) -> Option<Box<FifoRules>> {
        let present = self.get_own(id).and_then(|own| own.quota);
        let rules = || quota.map_or(self.common, |quota| FifoRules::of_quota(quota, bounds));
        (quota != present).then(|| Box::new(rules()))
    }

    /// Gives a FIFO other rules.
    pub(super) fn set(&mut self, id: FifoId, mut rules: Box<FifoRules>, now: Timestamp) {
        let number = self.next_number();
        *rules = rules.after(self.of(id), number, now);
        self.own.insert(id, rules);
    }

    /// Replaces the common rules and the bounds. The keys' own quotas stay.
    pub(super) fn change(&mut self, common: FifoRules, bounds: &QueueBounds, now: Timestamp) {
        let number = self.next_number();
        self.common = common.after(&self.common, number, now);
        for own in self.own.values_mut() {
            **own = match own.quota {
                Some(quota) => FifoRules { history: own.history, ..FifoRules::of_quota(quota, bounds) },
                None => common.after(own, number, now),
            };
        }
    }

    #[inline]
    pub(super) fn forget(&mut self, id: FifoId) {
        if !self.own.is_empty() {
            self.own.remove(&id);
        }
    }

    pub(super) fn forget_all(&mut self) {
        self.own = HashMap::new();
    }

    /// The FIFOs that have their own rules.
    #[cfg(feature = "test-util")]
    pub(super) fn with_own(&self) -> impl Iterator<Item = FifoId> {
        self.own.keys().copied()
    }

    fn next_number(&mut self) -> u16 {
        self.changes = self.changes.wrapping_add(1);
        self.changes
    }
}
