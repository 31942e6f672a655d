//! Another quota and other bounds, while requests wait: for the queue, or for one key.

use std::task::Waker;

use super::waiter_slab::{SlabSlot, WaiterId};
use super::{Fifo, FifoId, FifoRules, Gcra, Schedule, Spacing};
use crate::values::time::{Timestamp, nanos_of};
use crate::values::{Issuer, Proof, Quota, Receipt};

/// How to read receipts that were issued before a change.
#[derive(Clone, Copy, Default)]
pub(super) struct History {
    /// The last change's number, modulo 2^16. Until it wraps, no two changes to a queue and its keys have the same
    /// number.
    number: u16,
    /// The last change.
    last: Option<LastChange>,
}

#[derive(Clone, Copy)]
struct LastChange {
    /// The previous change's number.
    number: u16,
    /// The quota before this change.
    gcra: Gcra,
    at: Timestamp,
}

/// A FIFO's TAT after a charge.
struct Charge {
    tat: u128,
}

impl Proof for Charge {
    const ISSUER: Issuer = Issuer::Queue;

    fn into_value(self) -> u128 {
        self.tat
    }

    fn from_value(tat: u128) -> Self {
        Self { tat }
    }
}

impl History {
    /// The history after another change, which replaces the quota `gcra`.
    pub(super) fn next(&self, number: u16, gcra: &Gcra, now: Timestamp) -> Self {
        Self { number, last: Some(LastChange { number: self.number, gcra: *gcra, at: now }) }
    }

    pub(super) fn receipt(&self, tat: u128) -> Receipt {
        Receipt::from_proof(Charge { tat }).after(self.number)
    }

    /// Returns a receipt's TAT in the present quota's units. After two changes it is zero, as if all were paid, so that
    /// the refund is lost, and nothing is refunded twice.
    pub(super) fn read(&self, present: &Gcra, receipt: Receipt) -> u128 {
        let Some(Charge { tat }) = receipt.read() else { return 0 };
        match self.last {
            _ if receipt.changes() == self.number => tat,
            Some(LastChange { number, gcra, at }) if receipt.changes() == number => present.carried(tat, &gcra, at),
            _ => 0,
        }
    }
}

impl Schedule {
    /// Continues under the quota and the bounds of `rules`, an empty schedule.
    ///
    /// Waiters that are due by now depart by the old quota. The debt is then carried over in tokens, so that turns
    /// follow the new rate. All others are checked in their order, as if they arrived now, except that the time which
    /// they have waited already counts: those that could not join their FIFO are rejected. The bounds over all keys
    /// (`max_waiters`, `max_keys`) hold for arrivals only.
    ///
    /// With growing delays, the others keep their turns, or get earlier ones if the longest delay is shorter now.
    ///
    /// Keys with their own quotas keep them, and follow the new bounds.
    pub(in crate::queue) fn change(&mut self, now: Timestamp, rules: &Self, woken: &mut Vec<Waker>) {
        self.release_all(now, None, woken);
        let before = self.rules.common.pace.gcra;
        self.max_wait = rules.max_wait;
        self.bounds = rules.bounds;
        self.rules.change(rules.rules.common, &self.bounds, now);

        for waiter_id in self.slab.waiter_ids() {
            if let SlabSlot::Released { fifo, receipt, .. } = self.slab.get_mut(waiter_id) {
                let FifoRules { pace, history, .. } = self.rules.of(*fifo);
                *receipt = history.receipt(history.read(&pace.gcra, *receipt));
            }
            let Some(waiter) = self.slab.waiter_mut(waiter_id) else { continue };
            let latest = waiter.since.as_nanos().saturating_add(self.max_wait);
            waiter.until = waiter.until.min(Timestamp::from_nanos(latest));
            let pace = &self.rules.common.pace;
            if let Spacing::Growing(_) = pace.spacing {
                waiter.paid_at = pace.floor(pace.gcra.carried(before.units(waiter.paid_at), &before, now));
            }
        }
        self.due.clear();
        self.idle.clear();
        for (id, fifo) in &mut self.fifos {
            let FifoRules { quota, pace, .. } = self.rules.of(*id);
            if quota.is_none() {
                fifo.tat = pace.gcra.carried(fifo.tat, &before, now);
            }
            let (waits, entry) = pace.index_entry(*id, fifo, &self.slab);
            if waits { &mut self.due } else { &mut self.idle }.insert(entry);
        }
        let waited_in: Vec<FifoId> = self.due.iter().map(|(_, id)| *id).collect();
        for id in waited_in {
            self.reject_displaced(now, id, woken);
        }
        self.release_all(now, None, woken);
    }

    /// Returns the rules that a question under the key's own quota (`None`: under the queue's) gives its key, unless it
    /// has them already.
    pub(in crate::queue) fn other_rules(&self, id: FifoId, quota: Option<Quota>) -> Option<Box<FifoRules>> {
        self.rules.others(id, quota, &self.bounds)
    }

    /// Continues one FIFO under other rules, as [`change`](Self::change) does all. Waiters that are due must have
    /// departed. Creates the FIFO if there is none: see [`forget_unused`](Self::forget_unused).
    pub(in crate::queue) fn set_rules(
        &mut self,
        now: Timestamp,
        id: FifoId,
        rules: Box<FifoRules>,
        woken: &mut Vec<Waker>,
    ) {
        self.ensure_fifo(id);
        let Some(fifo) = self.fifos.get_mut(&id) else { return };
        let before = self.rules.of(id).pace;
        let old_entry = before.index_entry(id, fifo, &self.slab);
        let present = rules.pace;
        self.rules.set(id, rules, now);
        fifo.tat = present.gcra.carried(fifo.tat, &before.gcra, now);
        let new_entry = present.index_entry(id, fifo, &self.slab);
        self.reindex(old_entry, new_entry);
        self.reject_displaced(now, id, woken);
        self.release_all(now, Some(id), woken);
    }

    /// Forgets a FIFO with its own rules that owes nothing and has no waiters.
    pub(in crate::queue) fn forget_unused(&mut self, id: FifoId) {
        if self.rules.has_own(id) && self.fifos.get(&id).is_some_and(|fifo| fifo.tat == 0 && fifo.waiters.len == 0) {
            self.forget(id);
        }
    }

    /// Ends the waits in a FIFO that the present quota and bounds would not let in.
    fn reject_displaced(&mut self, now: Timestamp, id: FifoId, woken: &mut Vec<Waker>) {
        for waiter_id in self.displaced(now, id) {
            woken.extend(self.end_wait(waiter_id, |rules, _, waiter| {
                let patience = nanos_of(waiter.until.saturating_since(waiter.since));
                SlabSlot::Rejected { fifo: id, quota: rules.quota.map(Box::new), cost: waiter.cost, patience }
            }));
        }
    }

    /// Returns the waiters of a FIFO that the present quota and bounds would not let in.
    fn displaced(&self, now: Timestamp, id: FifoId) -> Vec<WaiterId> {
        let mut displaced = Vec::new();
        let FifoRules { pace, max_cost, .. } = self.rules.of(id);
        let Spacing::Even { burst } = pace.spacing else { return displaced };
        let Some(fifo) = self.fifos.get(&id) else { return displaced };
        let mut waiter_id = fifo.waiters.oldest;
        let mut kept = 0;
        let mut before = Fifo { tat: fifo.tat, ..Fifo::default() };
        while let Some(waiter) = self.slab.waiter(waiter_id) {
            let stays = kept < self.bounds.waits.max_queue
                && waiter.cost <= *max_cost
                // A waiter that may depart at once stays, after a wait of any length.
                && pace.departs_at(pace.all_paid_at(&before, Timestamp::ZERO), burst, waiter.cost)
                    <= waiter.until.max(now);
            if stays {
                kept += 1;
                before.backlog += u128::from(waiter.cost);
            } else {
                displaced.push(waiter_id);
            }
            waiter_id = waiter.newer;
        }
        displaced
    }
}
