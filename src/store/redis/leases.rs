//! Units that were taken from a budget in advance, to be spent without asking.

use std::time::Duration;

use super::key::Tag;
use super::lines::Lines;
use crate::decision::{Decision, Receipt};
use crate::time::Timestamp;

/// The leases that this process holds, one per key.
///
/// How many units one is for follows the demand: none for a key of which there is one request now and then; twice as
/// many as before when they were spent in time; and never more than half of what was left, so that others find some.
pub(super) struct Leases {
    held: Lines<Lease>,
    most: u32,
    lifetime: Duration,
}

#[derive(Clone, Copy)]
struct Lease {
    /// What each of its requests costs.
    cost: u32,
    /// How many requests it is still good for.
    left: u32,
    /// How many it was for.
    size: u32,
    until: Timestamp,
    since: Timestamp,
    /// As of when it was taken.
    decision: Decision,
}

impl Leases {
    /// Of up to `most` requests each, to be spent within `lifetime`.
    pub(super) fn new(most: u32, lifetime: Duration) -> Self {
        Self { held: Lines::new(), most, lifetime }
    }

    /// Admits a request, if it is paid for.
    pub(super) fn spend(&self, tag: Tag, cost: u32, now: Timestamp) -> Option<Decision> {
        let spent = |lease: &mut Lease| {
            if lease.cost != cost || lease.left == 0 || now >= lease.until {
                return None;
            }
            lease.left -= 1;
            Some(lease.decision(now))
        };
        self.held.change(tag, spent).flatten()
    }

    /// How many requests more to ask for than there are, and those of an earlier lease that were not spent in time.
    pub(super) fn want(&self, tag: Tag, cost: u32, now: Timestamp) -> (u32, Option<Unspent>) {
        let Some(lease) = self.held.remove(tag) else { return (0, None) };
        if now >= lease.until {
            let unspent = Unspent { requests: lease.left, cost: lease.cost, receipt: lease.decision.receipt() };
            return (0, Some(unspent).filter(|unspent| unspent.requests > 0));
        }
        let affordable = lease.decision.remaining() / 2 / cost.max(1);
        let size =
            if lease.cost == cost { lease.size.saturating_mul(2).clamp(1, self.most).min(affordable) } else { 0 };
        (size, None)
    }

    /// Takes over what was granted beyond what was needed, of `size` requests that were asked for in advance. It was
    /// granted by then with `decision`.
    pub(super) fn hold(&self, tag: Tag, cost: u32, (left, size): (u32, u32), decision: Decision, since: Timestamp) {
        // By the reset, units are earned anew; those of a window are worth nothing in the next.
        let until = since.saturating_add(self.lifetime.min(decision.reset_after()));
        let lease = Lease { cost, left, size, until, since, decision };
        self.held.put(tag, lease, |lease| lease.until.as_nanos());
    }

    /// Whether a request that was paid for by a lease could be put back into it.
    pub(super) fn put_back(&self, tag: Tag, cost: u32) -> bool {
        let back = |lease: &mut Lease| {
            let fits = lease.cost == cost && lease.left < lease.size;
            lease.left += u32::from(fits);
            fits
        };
        self.held.change(tag, back).unwrap_or(false)
    }
}

impl Lease {
    fn decision(&self, now: Timestamp) -> Decision {
        let limit = self.decision.limit();
        let remaining = self.decision.remaining().saturating_add(self.left.saturating_mul(self.cost)).min(limit);
        let reset = self.decision.reset_after().saturating_sub(now.saturating_since(self.since));
        Decision::allow(limit, remaining).with_reset_after(reset)
    }
}

/// What is to be given back to the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unspent {
    pub(super) requests: u32,
    pub(super) cost: u32,
    /// Of the last of the charges.
    pub(super) receipt: Receipt,
}
