//! Which keys are remembered, and how new keys are handled while the schedule is full.

use std::ops::Bound;
use std::time::Duration;

use super::{Fifo, FifoId, FifoRules, Schedule, Spacing};
use crate::store::{TableStats, WhenFull, next_table_number};
use crate::values::Decision;
use crate::values::time::Timestamp;

/// Counts of FIFOs, and of keys that found no room.
pub(super) struct FifoCounts {
    /// Unique among the process's tables.
    number: u64,
    /// The number of shared FIFOs in use.
    pub(super) shared: usize,
    evicted: u64,
    turned_away: u64,
    has_warned: bool,
}

impl FifoCounts {
    pub(super) fn new() -> Self {
        Self { number: next_table_number(), shared: 0, evicted: 0, turned_away: 0, has_warned: false }
    }
}

/// The number of FIFOs that are shared by keys without their own FIFO.
const SHARED: u128 = 512;

/// How many FIFOs are counted before other threads get the lock.
const STRETCH: usize = 4_096;

impl FifoId {
    /// Returns the shared FIFO of a key. The ids below `SHARED` are reserved for these: a hash is that small with a
    /// probability of 2⁻¹¹⁹.
    const fn shared(self) -> Self {
        Self(self.0 % SHARED)
    }

    pub(super) const fn is_shared(self) -> bool {
        self.0 < SHARED
    }
}

impl Schedule {
    /// Returns a request's FIFO, or its rejection if its key finds no room. For an arrival, makes room, or counts a key
    /// that finds no room. For a peek, forgets only FIFOs that owe nothing. `others` are the rules that the request
    /// gives its key, if any.
    pub(in crate::queue) fn find(
        &mut self,
        now: Timestamp,
        id: FifoId,
        cost: u64,
        others: Option<&FifoRules>,
        arrives: bool,
    ) -> Result<FifoId, Decision> {
        let max_cost = others.unwrap_or(self.rules.of(id)).max_cost;
        // A request that takes nothing, or is never admitted, needs no FIFO.
        let needs_room = cost > 0 && cost <= max_cost && !self.fifos.contains_key(&id);
        while needs_room && self.own_fifos() >= self.bounds.max_keys && self.forget_one(now) {}
        if !needs_room || self.own_fifos() < self.bounds.max_keys {
            return Ok(id);
        }
        match (self.bounds.when_full, self.owes_least()) {
            (WhenFull::EvictLeast, Some((_, least))) => {
                if arrives {
                    self.counts.evicted += 1;
                    self.forget(least);
                }
                Ok(id)
            }
            (when_full, _) => {
                self.counts.turned_away += u64::from(arrives);
                if when_full == WhenFull::Overflow { Ok(id.shared()) } else { Err(self.full_rejection(now, others)) }
            }
        }
    }

    /// Returns `true` once, after the first key that found no room or was forgotten for another.
    pub(in crate::queue) fn take_warning(&mut self) -> bool {
        let has_lost = self.counts.evicted > 0 || self.counts.turned_away > 0;
        has_lost && !std::mem::replace(&mut self.counts.has_warned, true)
    }

    /// Returns a key's rejection while the schedule is full. There is room when the first other key has paid, or if all
    /// have waiters, when one of them has paid.
    fn full_rejection(&self, now: Timestamp, others: Option<&FifoRules>) -> Decision {
        let soonest = self.owes_least().map(|(paid, _)| paid);
        let soonest = soonest.or_else(|| {
            let (_, id) = self.due.first()?;
            let fifo = self.fifos.get(id)?;
            let pace = &self.rules.of(*id).pace;
            let paid = pace.ceil(pace.all_paid_at(fifo, Timestamp::ZERO));
            Some(match pace.spacing {
                // The last waiter is paid for after it departs.
                Spacing::Even { .. } => paid,
                Spacing::Growing(_) => paid.max(self.last_departs_at(fifo).unwrap_or(paid)),
            })
        });
        let wait = soonest.map(|paid| paid.saturating_since(now).max(Duration::from_nanos(1)));
        let rules = others.unwrap_or(&self.rules.common);
        self.describe(rules, now, &Fifo::default(), self.waiting, |limit, _| Decision::reject(limit, 0, wait))
    }

    /// Returns the FIFO that a key was charged to, as far as that is known.
    pub(in crate::queue) fn charged_fifo(&self, id: FifoId) -> FifoId {
        let is_elsewhere = !self.fifos.contains_key(&id) && self.fifos.contains_key(&id.shared());
        if is_elsewhere { id.shared() } else { id }
    }

    fn own_fifos(&self) -> usize {
        self.fifos.len() - self.counts.shared
    }

    /// Returns the key that has paid first, among the keys with their own FIFOs and without waiters.
    fn owes_least(&self) -> Option<(Timestamp, FifoId)> {
        self.idle.iter().find(|(_, id)| !id.is_shared()).copied()
    }

    /// Creates a key's FIFO, unless it exists.
    pub(super) fn ensure_fifo(&mut self, id: FifoId) {
        if !self.fifos.contains_key(&id) {
            self.idle.insert((Timestamp::ZERO, id));
            self.fifos.insert(id, Fifo::default());
            self.counts.shared += usize::from(id.is_shared());
        }
    }

    /// Forgets FIFOs that owe nothing, two at a time: an arrival adds at most one, so this keeps pace.
    pub(super) fn forget_paid(&mut self, now: Timestamp) {
        let _ = self.forget_one(now) && self.forget_one(now);
    }

    /// Forgets a FIFO that owes nothing, if there is one.
    fn forget_one(&mut self, now: Timestamp) -> bool {
        let paid = self.idle.first().filter(|(paid, _)| *paid <= now).copied();
        paid.inspect(|(_, id)| self.forget(*id)).is_some()
    }

    /// Forgets a FIFO without waiters.
    pub(super) fn forget(&mut self, id: FifoId) {
        if let Some(fifo) = self.fifos.remove(&id) {
            self.idle.remove(&self.rules.of(id).pace.index_entry(id, &fifo, &self.slab).1);
            self.rules.forget(id);
            self.counts.shared -= usize::from(id.is_shared());
        }
    }

    pub(super) fn forget_all(&mut self) {
        self.fifos.clear();
        self.fifos.shrink_to_fit();
        self.rules.forget_all();
        self.counts.shared = 0;
    }

    /// Counts the keys in a stretch after `from` that owe nothing any more and are still in memory. Returns the end of
    /// the stretch, too, if there may be more.
    pub(in crate::queue) fn count_paid(
        &self,
        now: Timestamp,
        from: Option<(Timestamp, FifoId)>,
    ) -> (usize, Option<(Timestamp, FifoId)>) {
        let after = from.map_or(Bound::Unbounded, Bound::Excluded);
        let paid = self.idle.range((after, Bound::Unbounded)).take_while(|(paid, _)| *paid <= now);
        let mut looked_at = 0;
        let mut count = 0;
        let mut last = None;
        for entry in paid.take(STRETCH) {
            looked_at += 1;
            count += usize::from(!entry.1.is_shared());
            last = Some(*entry);
        }
        (count, last.filter(|_| looked_at == STRETCH))
    }

    /// Returns the occupancy, given how many keys owe nothing any more.
    pub(in crate::queue) fn table(&self, paid: usize) -> TableStats {
        TableStats {
            capacity: self.bounds.max_keys as u64,
            live_keys: self.own_fifos().saturating_sub(paid) as u64,
            evicted_live: self.counts.evicted,
            turned_away: self.counts.turned_away,
            number: Some(self.counts.number),
            ..TableStats::default()
        }
    }
}
