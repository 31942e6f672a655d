use super::WhenFull;
use super::compact::CompactTable;
use super::rule::Rule;
use crate::decision::{Decision, Receipt};
use crate::time::{self, Timestamp};

/// A table of words, with the rule by which they are judged.
pub(super) struct Ledger<R> {
    rule: R,
    table: CompactTable,
}

impl<R: Rule> Ledger<R> {
    pub(super) fn new(rule: R, keys: usize, when_full: WhenFull) -> Self {
        Self { rule, table: CompactTable::new(keys, when_full) }
    }

    pub(super) const fn rule(&self) -> &R {
        &self.rule
    }

    pub(super) const fn table(&self) -> &CompactTable {
        &self.table
    }

    #[inline(always)]
    pub(super) fn check(&self, hash: u64, cost: u32, clock: impl Fn() -> Timestamp) -> Decision {
        self.table.check(&self.rule, hash, cost, self.rule.read(clock()), || {
            time::let_go();
            self.rule.read(clock())
        })
    }

    pub(super) fn peek(&self, hash: u64, cost: u32, now: Timestamp) -> Decision {
        self.table.peek(&self.rule, hash, cost, self.rule.read(now))
    }

    pub(super) fn give_back(&self, hash: u64, cost: u32, receipt: Receipt, now: Timestamp) {
        let receipt = u64::try_from(receipt.value()).unwrap_or(0);
        self.table.give_back(&self.rule, hash, cost, receipt, self.rule.read(now));
    }

    pub(super) fn reset(&self, hash: u64, now: Timestamp) {
        self.table.reset(&self.rule, hash, self.rule.read(now));
    }

    /// How many keys owe something.
    pub(super) fn live(&self, now: Timestamp) -> u64 {
        self.table.live(&self.rule, self.rule.read(now))
    }
}
