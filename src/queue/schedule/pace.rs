//! When waiters depart, and for how long departures are owed: the arithmetic of a schedule.

use super::waiter_slab::WaiterSlab;
use super::{Fifo, FifoId};
use crate::algorithm::gcra::{Gcra, GcraState};
use crate::values::time::Timestamp;

/// When the heads of FIFOs may depart. Instants and spans are in units of `gcra`, unless their type is [`Timestamp`].
#[derive(Clone, Copy)]
pub(super) struct QueuePace {
    pub(super) gcra: Gcra,
    pub(super) spacing: Spacing,
}

/// How waiters get their turns.
#[derive(Clone, Copy)]
pub(super) enum Spacing {
    /// Requests are charged when they depart, evenly spaced.
    Even {
        /// How many units may depart at once from a FIFO that owes nothing.
        burst: u64,
    },
    /// Requests are charged when they arrive, and wait longer the more their key owes.
    Growing(GrowingDelay),
}

/// How a request's delay grows with the tokens that its key owes after the charge.
#[derive(Clone, Copy, Debug)]
pub(in crate::queue) struct GrowingDelay {
    /// The tokens that may be owed without a delay.
    pub(in crate::queue) free: u64,
    /// The delay for each token beyond, in nanoseconds.
    pub(in crate::queue) step: u64,
}

impl GrowingDelay {
    /// Returns a request's delay, in nanoseconds, if `owed` tokens are owed after its charge.
    pub(super) fn after(&self, owed: u128) -> u64 {
        let steps = owed.saturating_sub(self.free.into());
        u64::try_from(steps.saturating_mul(self.step.into())).unwrap_or(u64::MAX)
    }
}

impl QueuePace {
    /// Returns when all waiters in a FIFO will be paid for, if its head departs at `earliest` or later.
    ///
    /// The sum does not overflow: a `tat` is below 2^121, as in a bucket, and the backlog's price is cut at 2^125. Such
    /// a price can only follow from a change to a slower quota, since a waiter whose turn is after the greatest
    /// [`Timestamp`] does not join. With the price cut, the turn is still after that timestamp.
    pub(super) fn all_paid_at(&self, fifo: &Fifo, earliest: Timestamp) -> u128 {
        fifo.tat.max(self.gcra.units(earliest)) + self.gcra.saturating_price(fifo.backlog).min(1 << 125)
    }

    /// Adds a charge at `at` to a FIFO's debt.
    pub(super) fn charge(&self, fifo: &mut Fifo, at: Timestamp, cost: u64) {
        fifo.tat = fifo.tat.max(self.gcra.units(at)) + self.gcra.price(cost);
    }

    /// Refunds the unpaid part of a charge, which is paid for at `paid_at`.
    pub(super) fn refund(&self, fifo: &mut Fifo, now: Timestamp, cost: u64, paid_at: u128) {
        fifo.tat = self.gcra.refund(GcraState { tat: fifo.tat }, now, cost, paid_at).tat;
    }

    /// Returns when a head with this cost may depart from a FIFO with this `tat`, with even spacing: when its whole
    /// cost fits into the burst beside the debt. A cost above the burst never fits, and departs when nothing is owed.
    pub(super) fn departs_at(&self, tat: u128, burst: u64, cost: u64) -> Timestamp {
        self.ceil(tat.saturating_sub(self.ahead(burst, cost)))
    }

    /// Returns how long before its FIFO's `tat` a request with this cost may depart, with even spacing.
    fn ahead(&self, burst: u64, cost: u64) -> u128 {
        self.gcra.price(burst.saturating_sub(cost))
    }

    /// Returns the tokens that a FIFO would owe after a charge, rounded up.
    pub(super) fn tokens_owed(&self, fifo: &Fifo, now: Timestamp, cost: u64) -> u128 {
        let owed = fifo.tat.saturating_sub(self.gcra.units(now)) + self.gcra.price(cost);
        owed.div_ceil(self.gcra.price(1))
    }

    /// Returns the instant from which a FIFO owes at most `most_owed` tokens after a charge. `None` if the charge alone
    /// is greater.
    pub(super) fn fits_at(&self, fifo: &Fifo, cost: u64, most_owed: u64) -> Option<Timestamp> {
        let spare = most_owed.checked_sub(cost)?;
        // At one unit of debt per unit of time, the debt is down to `spare` tokens at `tat` − `spare` × price.
        Some(self.ceil(fifo.tat.saturating_sub(self.gcra.price(spare))))
    }

    /// Counts the requests with cost one that may depart by `deadline`, after departures that are paid for at
    /// `paid_at`, with even spacing. The first may depart when the debt leaves room for one token, and each further one
    /// a token's price later.
    pub(super) fn count_departures(&self, paid_at: u128, deadline: u128, burst: u64) -> u128 {
        match (deadline + self.ahead(burst, 1)).checked_sub(paid_at) {
            Some(left) => left / self.gcra.price(1) + 1,
            None => 0,
        }
    }

    /// Counts the requests with cost one that can be charged to a debt until `most_owed` tokens are owed.
    pub(super) fn count_charges(&self, debt: u128, most_owed: u64) -> u128 {
        self.gcra.price(most_owed).saturating_sub(debt) / self.gcra.price(1)
    }

    /// Returns when a FIFO's head may depart, if it has one.
    pub(super) fn head_departs_at(&self, fifo: &Fifo, slab: &WaiterSlab) -> Option<Timestamp> {
        let head = slab.waiter(fifo.waiters.oldest)?;
        Some(match self.spacing {
            Spacing::Even { burst } => self.departs_at(fifo.tat, burst, head.cost),
            Spacing::Growing(_) => head.until,
        })
    }

    /// Returns whether a FIFO has waiters, and so belongs into the index `due` and not into `idle`; and its entry
    /// there.
    pub(super) fn index_entry(&self, id: FifoId, fifo: &Fifo, slab: &WaiterSlab) -> (bool, (Timestamp, FifoId)) {
        match self.head_departs_at(fifo, slab) {
            Some(due) => (true, (due, id)),
            None => (false, (self.ceil(fifo.tat), id)),
        }
    }

    /// Returns an instant, rounded up.
    pub(super) fn ceil(&self, units: u128) -> Timestamp {
        u64::try_from(self.gcra.nanos_ceil(units)).map_or(Timestamp::MAX, Timestamp::from_nanos)
    }

    /// Returns an instant, rounded down.
    pub(super) fn floor(&self, units: u128) -> Timestamp {
        u64::try_from(self.gcra.nanos_floor(units)).map_or(Timestamp::MAX, Timestamp::from_nanos)
    }
}
