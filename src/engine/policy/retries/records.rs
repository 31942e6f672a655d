//! Requests that were charged and are over, with the free retries that each has left.

use std::time::Duration;

use crate::engine::policy::expiring::{Ends, ExpiringTable, SavedValue};
use crate::values::PartitionKey;
use crate::values::snapshot::{Gap, Input, put_number};
use crate::values::time::Timestamp;

/// One record per request, for a time. If a full table forgets a request, its retries are charged.
pub(in crate::engine::policy) type Records = ExpiringTable<RetryRecord>;

/// The free retries that a request has left, until an instant. The record stays when the last one is used. Otherwise,
/// the next retry, which is charged, would have free retries in turn.
#[derive(Clone, Copy)]
pub(in crate::engine::policy) struct RetryRecord {
    until: Timestamp,
    free: u32,
}

impl Ends for RetryRecord {
    fn ends(&self) -> Timestamp {
        self.until
    }
}

impl SavedValue for RetryRecord {
    fn write(&self, then: Timestamp, bytes: &mut Vec<u8>) {
        self.until.write(then, bytes);
        put_number(bytes, self.free);
    }

    fn read(then: Timestamp, bytes: &mut Input<'_>) -> Option<Self> {
        Some(Self { until: Timestamp::read(then, bytes)?, free: bytes.u32()? })
    }

    fn moved(self, gap: Gap) -> Option<Self> {
        self.until.moved(gap).map(|until| Self { until, ..self })
    }
}

impl Records {
    /// Records that a charged request is over, so that `free` retries are free `within` a time. If the request has a
    /// record, that stays.
    pub(super) fn begin(&self, key: &PartitionKey, within: Duration, free: u32) {
        self.update(key, |record, now| {
            record.get_or_insert(RetryRecord { until: now.saturating_add(within), free });
        });
    }

    /// Takes a free retry, if the request has one left. Returns when the record ends.
    pub(super) fn take(&self, key: &PartitionKey) -> Option<Timestamp> {
        if self.is_over() {
            return None;
        }
        self.update(key, |record, _| {
            let record = record.as_mut()?;
            record.free = record.free.checked_sub(1)?;
            Some(record.until)
        })
    }

    /// Whether a record that ends at `until` will have ended in a time.
    pub(super) fn ends_within(&self, until: Timestamp, time: Duration) -> bool {
        until <= self.now().saturating_add(time)
    }

    /// Returns a retry that was taken and not admitted, if the record is still there. A record never has more than
    /// `most`.
    pub(super) fn put_back(&self, key: &PartitionKey, most: u32) {
        self.update(key, |record, _| {
            if let Some(record) = record.as_mut().filter(|record| record.free < most) {
                record.free += 1;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::values::time::{Clock, ManualClock};

    const HOUR: Duration = Duration::from_secs(3_600);

    #[test]
    fn records_grant_retries_until_they_end() {
        let clock = ManualClock::new();
        let records = Records::new(16, Arc::new(clock.clone()));
        let key = PartitionKey::from("a");
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
        assert_eq!([(); 3].map(|()| records.take(&key)), [until, until, None], "at most two");
    }

    #[test]
    fn full_tables_forget_earliest_ending_records() {
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
