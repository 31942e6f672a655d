use super::WhenFull;
use super::compact::CompactTable;
use super::ticks::{Tick, TickBucket};
use crate::decision::{Decision, Receipt};
use crate::quota::Quota;
use crate::time::{self, Timestamp};

/// A table for buckets, with their quota and when their clock began.
pub(super) struct Ledger {
    bucket: TickBucket,
    started: Timestamp,
    table: CompactTable,
}

#[cold]
const fn before_the_beginning() -> Timestamp {
    Timestamp::ZERO
}

impl Ledger {
    pub(super) fn new(bucket: TickBucket, keys: usize, when_full: WhenFull, now: Timestamp) -> Self {
        Self { bucket, started: bucket.beginning(now), table: CompactTable::new(keys, when_full) }
    }

    pub(super) const fn table(&self) -> &CompactTable {
        &self.table
    }

    /// Whether this is how it judges.
    pub(super) fn is_under(&self, quota: &Quota) -> bool {
        self.bucket.is_of(quota)
    }

    /// The tick of an instant. Counted from when the clock began, so that counts are small. A clock that is set back
    /// beyond that stands still there.
    #[inline(always)]
    fn tick(&self, now: Timestamp) -> Tick {
        // Not saturating: a branch that is predicted is not waited for.
        self.bucket.tick(match now.as_nanos().checked_sub(self.started.as_nanos()) {
            Some(nanos) => Timestamp::from_nanos(nanos),
            None => before_the_beginning(),
        })
    }

    #[inline(always)]
    pub(super) fn check(&self, hash: u64, cost: u32, clock: impl Fn() -> Timestamp) -> Decision {
        self.table.check(&self.bucket, hash, cost, self.tick(clock()), || {
            time::let_go();
            self.tick(clock())
        })
    }

    pub(super) fn peek(&self, hash: u64, cost: u32, now: Timestamp) -> Decision {
        self.table.peek(&self.bucket, hash, cost, self.tick(now))
    }

    pub(super) fn give_back(&self, hash: u64, cost: u32, receipt: Receipt, now: Timestamp) {
        let paid_at = u64::try_from(receipt.value()).unwrap_or(0);
        self.table.give_back(&self.bucket, hash, cost, paid_at, self.tick(now));
    }

    pub(super) fn reset(&self, hash: u64, now: Timestamp) {
        self.table.reset(hash, self.tick(now));
    }

    /// How many keys owe something.
    pub(super) fn live(&self, now: Timestamp) -> u64 {
        self.table.live(self.tick(now))
    }
}
