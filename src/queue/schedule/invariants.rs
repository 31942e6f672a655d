//! Checks of the [invariants](Schedule#invariants), for tests.

use std::collections::HashMap;

use super::waiter_slab::{SlabSlot, WaiterId};
use super::{Fifo, FifoId, Schedule, Spacing};
use crate::values::time::Timestamp;

impl Schedule {
    /// Checks every invariant, in time linear in the numbers of keys and slots.
    ///
    /// # Panics
    ///
    /// If one is broken.
    pub(in crate::queue) fn check_invariants(&self) {
        for (id, fifo) in &self.fifos {
            self.check_index(*id, fifo);
            self.check_wait_list(*id, fifo);
        }
        assert_eq!(self.due.len() + self.idle.len(), self.fifos.len(), "an index has an entry without a FIFO");
        for id in self.rules.with_own() {
            assert!(self.fifos.contains_key(&id) && !id.is_shared(), "{id:?} has rules of its own, and is no key");
        }
        self.check_counts();
        self.slab.check_invariants();
    }

    /// Invariant 1.
    fn check_index(&self, id: FifoId, fifo: &Fifo) {
        let (has_waiters, entry) = self.rules.of(id).pace.index_entry(id, fifo, &self.slab);
        let is_in = [&self.idle, &self.due].map(|index| index.contains(&entry));
        assert_eq!(is_in, [!has_waiters, has_waiters], "{id:?} is in the wrong index, or under another time");
    }

    /// Invariant 3, and the `backlog` of invariant 2.
    fn check_wait_list(&self, id: FifoId, fifo: &Fifo) {
        let mut waiter_id = fifo.waiters.oldest;
        let mut older = WaiterId::NONE;
        let mut len = 0;
        let mut backlog = 0;
        let mut turn = Timestamp::ZERO;
        while waiter_id != WaiterId::NONE {
            let waiter = self.slab.waiter(waiter_id).expect("a wait list links to a slot without a waiter");
            assert_eq!((waiter.fifo, waiter.older), (id, older), "{waiter_id:?} is linked into another list");
            assert!(waiter.since <= waiter.until, "{waiter_id:?} would have to depart before it came");
            len += 1;
            assert!(len <= self.waiting, "the wait list of {id:?} is a circle");
            match self.rules.of(id).pace.spacing {
                Spacing::Even { .. } => backlog += u128::from(waiter.cost),
                Spacing::Growing(_) => {
                    assert!(turn <= waiter.until, "{waiter_id:?} would overtake an older waiter");
                    turn = waiter.until;
                }
            }
            older = waiter_id;
            waiter_id = waiter.newer;
        }
        assert_eq!((fifo.waiters.newest, fifo.waiters.len), (older, len), "{id:?}: the end of the list");
        assert_eq!(fifo.backlog, backlog, "{id:?}: the cost of its waiters that are not charged yet");
    }

    /// The counts of invariant 2.
    fn check_counts(&self) {
        let listed: usize = self.fifos.values().map(|fifo| fifo.waiters.len).sum();
        let mut waiting_by_driver = HashMap::new();
        for waiter_id in self.slab.waiter_ids() {
            if let SlabSlot::Waiting(waiter) = self.slab.get(waiter_id) {
                *waiting_by_driver.entry(waiter.driver.index()).or_insert(0) += 1;
            }
        }
        assert_eq!([self.waiting, waiting_by_driver.values().sum()], [listed; 2], "the number of waiters");
        for (driver, count) in self.waiting_by_driver.iter().enumerate() {
            assert_eq!(
                *count,
                waiting_by_driver.remove(&driver).unwrap_or(0),
                "the number of waiters of driver {driver}"
            );
        }
        assert!(waiting_by_driver.is_empty(), "waiters of drivers that have no count: {waiting_by_driver:?}");
        let shared = self.fifos.keys().filter(|id| id.is_shared()).count();
        assert_eq!(self.counts.shared, shared, "the number of shared FIFOs");
    }
}
