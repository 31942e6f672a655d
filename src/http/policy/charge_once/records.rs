//! The requests that were charged and are over, with the free retries that each has left.

use std::sync::Arc;
use std::time::Duration;

use crate::algorithm::Algorithm;
use crate::store::{MemoryStore, MemoryTable};
use crate::values::time::{Clock, Timestamp};
use crate::values::{Ask, Decision, PartitionKey, Quota};

/// One record per request, for a time. Its table has a fixed size, and evicts the record that ends next when it is full: the
/// retries of that request are charged.
pub(super) struct Records {
    table: MemoryTable<Record, Arc<dyn Clock>>,
    clock: Arc<dyn Clock>,
}

/// The free retries that a request has left, until an instant. It stays when none is left, or the next retry, which is
/// charged, would have free ones in turn.
#[derive(Clone, Copy)]
pub(super) struct Record {
    until: Timestamp,
    free: u32,
}

impl Records {
    pub(super) fn new(capacity: usize, clock: Arc<dyn Clock>) -> Self {
        Self { table: MemoryStore::with_capacity(capacity).with_clock(Arc::clone(&clock)).table(), clock }
    }

    pub(super) fn capacity(&self) -> usize {
        self.table.capacity()
    }

    /// Records that a charged request is over: `free` retries are free `within` a time. One that has a record keeps it.
    pub(super) fn begin(&self, key: &PartitionKey, within: Duration, free: u32) {
        let until = self.clock.now().saturating_add(within);
        let _ = self.step(key, &Step::Begin(Record { until, free }));
    }

    /// Takes a free retry, if one is left. Returns when the record ends.
    pub(super) fn take(&self, key: &PartitionKey) -> Option<Timestamp> {
        // Before the step, so that the end is not too late.
        let now = self.clock.now();
        let decision = self.step(key, &Step::Take);
        decision.is_allowed().then(|| now.saturating_add(decision.reset_after()))
    }

    /// Whether a record that ends at `until` will have ended in a time.
    pub(super) fn ends_within(&self, until: Timestamp, time: Duration) -> bool {
        until <= self.clock.now().saturating_add(time)
    }

    /// Returns a retry that was taken and not admitted, if the record is still there. A record never has more than `most`.
    pub(super) fn put_back(&self, key: &PartitionKey, most: u32) {
        let _ = self.step(key, &Step::PutBack { most });
    }

    fn step(&self, key: &PartitionKey, step: &Step) -> Decision {
        self.table.charge(step, &Ask::charge(key, 1))
    }
}

/// A step on the record of a request. It is an algorithm, so that records live in a memory store of fixed size, where each
/// step is atomic.
enum Step {
    Begin(Record),
    Take,
    PutBack { most: u32 },
}

impl Algorithm for Step {
    type State = Record;

    /// Unused, but stores require one.
    fn quota(&self) -> Quota {
        Quota::per_second(1)
    }

    fn decide(&self, state: Option<Record>, now: Timestamp, _: u64) -> (Decision, Option<Record>) {
        let current = state.filter(|record| record.until > now);
        let next = match (self, current) {
            (Self::Begin(record), None) => Some(*record),
            (Self::Take, Some(record)) => record.free.checked_sub(1).map(|free| Record { free, ..record }),
            (Self::PutBack { most }, Some(record)) if record.free < *most => {
                Some(Record { free: record.free + 1, ..record })
            }
            _ => None,
        };
        let decision = next.map_or(Decision::reject(1, 0, None), |record| {
            Decision::allow(1, 0).with_reset_after(record.until.saturating_since(now))
        });
        (decision, next)
    }

    fn expires_at(&self, record: &Record) -> Timestamp {
        record.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::time::ManualClock;

    const HOUR: Duration = Duration::from_secs(3_600);

    #[test]
    fn a_record_grants_so_many_retries_until_it_ends() {
        let clock = ManualClock::new();
        let (records, key) = (Records::new(16, Arc::new(clock.clone())), PartitionKey::from("a"));
        assert_eq!(records.take(&key), None, "there is no record");
        records.put_back(&key, 2);
        assert_eq!(records.take(&key), None, "nothing was taken");
        records.begin(&key, HOUR, 2);
        let until = Some(clock.now().saturating_add(HOUR));
        assert_eq!([(); 3].map(|()| records.take(&key)), [until, until, None]);
        records.begin(&key, HOUR, 2);
        assert_eq!(records.take(&key), None, "a charged retry has no free ones in turn");
        records.put_back(&key, 2);
        assert_eq!([(); 2].map(|()| records.take(&key)), [until, None]);
        clock.advance(HOUR);
        records.put_back(&key, 2);
        assert_eq!(records.take(&key), None);
        records.begin(&key, HOUR, 2);
        records.put_back(&key, 2);
        let until = Some(clock.now().saturating_add(HOUR));
        assert_eq!([(); 3].map(|()| records.take(&key)), [until, until, None], "no more than two");
    }

    #[test]
    fn a_full_table_forgets_what_ends_next() {
        let clock = ManualClock::new();
        let records = Records::new(1, Arc::new(clock.clone()));
        let key = |number: u32| PartitionKey::from(number);
        for number in 0..1_000 {
            records.begin(&key(number), HOUR, 1);
            clock.advance(Duration::from_secs(1));
        }
        let kept: Vec<_> = (0..1_000).filter(|number| records.take(&key(*number)).is_some()).collect();
        assert!(!kept.is_empty() && kept.len() < 100, "{kept:?}");
        assert!(kept.iter().all(|number| *number > 900), "{kept:?}");
    }
}
