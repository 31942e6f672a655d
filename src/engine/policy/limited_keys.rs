//! A policy's keys that are limited at present, and the bound on the events that they cause.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::policy::expiring::{CAPACITY, ExpiringTable};
use crate::util::lock::Lock;
use crate::values::PartitionKey;
use crate::values::time::{Clock, Timestamp};

/// One policy's keys that are limited at present, and the events in this second.
pub(crate) struct LimitedKeys {
    /// When a rejected key's budget is full again.
    limited: ExpiringTable<Timestamp>,
    recent: Lock<Recent>,
}

/// The events that were reported in the last second that had one.
#[derive(Default)]
struct Recent {
    second: u64,
    reported: u32,
    left_out: u64,
}

/// The number of events that clients can cause in a second, per policy. More are counted, and not reported.
const MOST_PER_SECOND: u32 = 10;

impl LimitedKeys {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { limited: ExpiringTable::new(CAPACITY, clock), recent: Lock::default() }
    }

    /// Records a rejection. Returns whether it is the first one since the key's budget was full.
    pub(in crate::engine::policy) fn begins(&self, key: &PartitionKey, full_in: Duration) -> bool {
        self.limited.update(key, |end, now| {
            let is_first = end.is_none();
            *end = (*end).max(Some(now.saturating_add(full_in)));
            is_first
        })
    }

    /// Returns the number of events that were left out before this one; `None` if this one is left out, too.
    pub(in crate::engine::policy) fn admit(&self) -> Option<u64> {
        let second = self.limited.now().as_nanos() / 1_000_000_000;
        let mut recent = self.recent.lock();
        if recent.second != second {
            (recent.second, recent.reported) = (second, 0);
        }
        if recent.reported >= MOST_PER_SECOND {
            recent.left_out += 1;
            return None;
        }
        recent.reported += 1;
        Some(std::mem::take(&mut recent.left_out))
    }
}
