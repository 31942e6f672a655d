//! Another quota and other bounds, while requests wait.

use std::task::Waker;

use super::waiter_slab::{SlabSlot, WaiterId};
use super::{Fifo, FifoId, Gcra, Schedule, Spacing};
use crate::values::time::{Timestamp, nanos_of};
use crate::values::{Issuer, Proof, Receipt};

/// How to read receipts that were issued before a change.
#[derive(Clone, Copy, Default)]
pub(super) struct History {
    /// How often the quota was changed, modulo 2^16.
    changes: u16,
    /// The quota before the last change, and when it was changed.
    before: Option<(Gcra, Timestamp)>,
}

/// The TAT of a FIFO after a charge.
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
    pub(super) fn receipt(&self, tat: u128) -> Receipt {
        Receipt::from_proof(Charge { tat }).after(self.changes)
    }

    /// Returns the TAT of a receipt in the units of the present quota. After two changes it is zero, as if all were
    /// paid: the refund is lost, and nothing is refunded twice.
    pub(super) fn read(&self, present: &Gcra, receipt: Receipt) -> u128 {
        let Some(Charge { tat }) = receipt.read() else { return 0 };
        match (self.changes.wrapping_sub(receipt.changes()), self.before) {
            (0, _) => tat,
            (1, Some((before, at))) => present.carried(tat, &before, at),
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
    pub(in crate::queue) fn change(&mut self, now: Timestamp, rules: &Self, woken: &mut Vec<Waker>) {
        self.release_all(now, None, woken);
        let before = self.pace.gcra;
        self.pace = rules.pace;
        self.max_cost = rules.max_cost;
        self.max_wait = rules.max_wait;
        self.limit = rules.limit;
        self.bounds = rules.bounds;
        let present = self.pace.gcra;
        self.history = History { changes: self.history.changes.wrapping_add(1), before: Some((before, now)) };

        for waiter_id in self.slab.waiter_ids() {
            if let SlabSlot::Released { receipt, .. } = self.slab.get_mut(waiter_id) {
                let read = self.history.read(&present, *receipt);
                *receipt = self.history.receipt(read);
            }
            let Some(waiter) = self.slab.waiter_mut(waiter_id) else { continue };
            let latest = waiter.since.as_nanos().saturating_add(self.max_wait);
            waiter.until = waiter.until.min(Timestamp::from_nanos(latest));
            waiter.paid_at = self.pace.floor(present.carried(before.units(waiter.paid_at), &before, now));
        }
        self.due.clear();
        self.idle.clear();
        for (id, fifo) in &mut self.fifos {
            fifo.tat = present.carried(fifo.tat, &before, now);
            let (waits, entry) = self.pace.index_entry(*id, fifo, &self.slab);
            if waits { &mut self.due } else { &mut self.idle }.insert(entry);
        }
        let waited_in: Vec<FifoId> = self.due.iter().map(|(_, id)| *id).collect();
        for id in waited_in {
            for waiter_id in self.displaced(now, id) {
                woken.extend(self.end_wait(waiter_id, |_, _, waiter| {
                    let patience = nanos_of(waiter.until.saturating_since(waiter.since));
                    SlabSlot::Rejected { fifo: id, cost: waiter.cost, patience }
                }));
            }
        }
        self.release_all(now, None, woken);
    }

    /// Returns the waiters of a FIFO that the present quota and bounds would not let in.
    fn displaced(&self, now: Timestamp, id: FifoId) -> Vec<WaiterId> {
        let mut displaced = Vec::new();
        let Spacing::Even { ahead } = self.pace.spacing else { return displaced };
        let Some(fifo) = self.fifos.get(&id) else { return displaced };
        let mut waiter_id = fifo.waiters.oldest;
        let mut kept = 0;
        let mut before = Fifo { tat: fifo.tat, ..Fifo::default() };
        while let Some(waiter) = self.slab.waiter(waiter_id) {
            let stays = kept < self.bounds.waits.max_queue
                && waiter.cost <= self.max_cost
                // A waiter that may depart at once stays, after a wait of any length.
                && self.pace.departs_at(self.pace.all_paid_at(&before, Timestamp::ZERO), ahead) <= waiter.until.max(now);
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
