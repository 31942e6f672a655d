use std::cmp::Ordering;
use std::sync::Arc;

use super::Shared;
use super::bid::Bids;
use crate::head::ResponseHead;
use crate::time::{Clock, Monotonic, Timestamp};
use crate::told::{OpenBill, Told};

/// Bids that were charged before it was known what their request costs.
///
/// Dropped without a response, since the client has left or the service has failed, it leaves them charged.
pub(super) struct Unsettled {
    shared: Arc<Shared>,
    bids: Bids,
    since: Timestamp,
}

impl Unsettled {
    pub(super) fn new(shared: Arc<Shared>, mut bids: Bids) -> Self {
        let since = Monotonic.now();
        for bid in &mut bids {
            let policy = &shared.policies[bid.policy];
            if policy.is_billed_later() && bid.decision.is_some_and(|decision| decision.is_allowed()) {
                policy.open_charges().open(&bid.key, bid.cost, since);
                bid.is_open = true;
            }
        }
        Self { shared, bids, since }
    }
}

impl OpenBill for Unsettled {
    /// In the reverse order of the charges: see [`Receipt`](crate::decision::Receipt).
    fn settle(mut self: Box<Self>, response: &ResponseHead<'_>) -> Told {
        for bid in self.bids.iter_mut().rev().filter(|bid| bid.is_open) {
            let policy = &self.shared.policies[bid.policy];
            policy.open_charges().note_duration(Monotonic.now().saturating_since(self.since));
            let Some(decision) = bid.decision else { continue };
            let cost = policy.final_cost(bid.cost, response);
            match cost.cmp(&bid.cost) {
                Ordering::Less => policy.in_force(|limiter| {
                    limiter.give_back(&bid.key, bid.cost - cost, decision.receipt());
                }),
                // Of a store that fails nothing can be had now.
                Ordering::Greater if bid.guarded => drop(policy.limiter().guard(&bid.key, cost - bid.cost, None)),
                Ordering::Greater => policy.in_force(|limiter| limiter.surcharge(&bid.key, cost - bid.cost)),
                Ordering::Equal => continue,
            }
            let estimate = || decision.recharged(bid.cost, cost);
            let peeked = policy.in_force(|limiter| limiter.peek(&bid.key, 0));
            bid.decision = Some(peeked.unwrap_or_else(estimate).with_delay(decision.delay()));
        }
        self.shared.tell(&self.bids)
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        // After the refunds: in between, a rejection counts on a refund that has come already.
        for bid in self.bids.iter().filter(|bid| bid.is_open) {
            self.shared.policies[bid.policy].open_charges().close(&bid.key, bid.cost);
        }
    }
}
