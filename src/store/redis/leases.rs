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

/// What was taken in advance from one key.
#[derive(Clone, Copy)]
pub(super) struct Lease {
    /// What each of its requests costs.
    cost: u32,
    /// How many requests it is still good for.
    left: u32,
    /// How many were asked for.
    size: u32,
    since: Timestamp,
    /// On the last of the requests that it was granted with.
    decision: Decision,
}

/// What a call is to do beside its own.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// To ask for so many requests more.
    More(u32),
    /// To give back what was not spent in time.
    GiveBack(Unspent),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unspent {
    pub(super) requests: u32,
    /// Of each.
    pub(super) cost: u32,
    /// Of the last of the charges.
    pub(super) receipt: Receipt,
}

/// On the receipts of requests that were paid for in advance: they are put back here and not on the server.
pub(super) const LEASED: Receipt = Receipt::new(1 << 126);

impl Leases {
    /// Of up to `most` requests each, to be spent within `lifetime`.
    pub(super) fn new(most: u32, lifetime: Duration) -> Self {
        Self { held: Lines::new(), most, lifetime }
    }

    /// Admits a request, if it is paid for.
    pub(super) fn spend(&self, tag: Tag, cost: u32, now: Timestamp) -> Option<Decision> {
        let spend = |lease: &mut Lease| {
            if lease.cost != cost || lease.left == 0 || now >= self.end_of(lease) {
                return None;
            }
            lease.left -= 1;
            Some(lease.decision(now))
        };
        self.held.change(tag, spend).flatten()
    }

    /// What a call that is about to be made should do as well.
    pub(super) fn want(&self, tag: Tag, cost: u32, now: Timestamp) -> Want {
        let want = |lease: &mut Lease| {
            if now >= self.end_of(lease) {
                let Lease { cost, decision, .. } = *lease;
                let requests = std::mem::take(&mut lease.left);
                let unspent = Unspent { requests, cost, receipt: decision.receipt() };
                return if requests > 0 { Want::GiveBack(unspent) } else { Want::More(0) };
            }
            if lease.cost != cost {
                return Want::More(0);
            }
            let affordable = lease.decision.remaining() / 2 / cost;
            Want::More(lease.size.saturating_mul(2).clamp(1, self.most).min(affordable))
        };
        self.held.change(tag, want).unwrap_or(Want::More(0))
    }

    /// Takes over what was granted beyond what was needed. Nothing is a lease, too: it shows that there is a demand.
    pub(super) fn hold(&self, tag: Tag, lease: Lease) {
        let add = |held: &mut Lease| {
            let is_alike = held.cost == lease.cost && held.left > 0 && lease.since < self.end_of(held);
            if is_alike {
                *held = Lease { left: held.left.saturating_add(lease.left), since: held.since, ..lease };
            }
            is_alike || (held.left > 0 && lease.left == 0 && lease.since < self.end_of(held))
        };
        if !self.held.change(tag, add).unwrap_or(false) {
            // Where there is no room, what ends first goes, unspent.
            self.held.put(tag, lease, |lease| self.end_of(lease).as_nanos());
        }
    }

    /// Puts a request back that a lease paid for; whether that could be done.
    pub(super) fn put_back(&self, tag: Tag, cost: u32, now: Timestamp) -> bool {
        let back = |lease: &mut Lease| {
            let fits = lease.cost == cost && now < self.end_of(lease);
            lease.left += u32::from(fits);
            fits
        };
        self.held.change(tag, back).unwrap_or(false)
    }

    /// What is taken from a window is worth nothing in the next; and no bucket owes anything after its reset.
    fn end_of(&self, lease: &Lease) -> Timestamp {
        lease.since.saturating_add(self.lifetime.min(lease.decision.reset_after()))
    }
}

impl Lease {
    /// Of `left` requests of `cost` each, of `size` that were asked for, granted with `decision` as the last one after
    /// `since`.
    pub(super) const fn new(cost: u32, left: u32, size: u32, decision: Decision, since: Timestamp) -> Self {
        Self { cost, left, size, since, decision }
    }

    fn decision(&self, now: Timestamp) -> Decision {
        let limit = self.decision.limit();
        let remaining = self.decision.remaining().saturating_add(self.left.saturating_mul(self.cost)).min(limit);
        let reset = self.decision.reset_after().saturating_sub(now.saturating_since(self.since));
        Decision::allow(limit, remaining).with_reset_after(reset).with_receipt(LEASED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition::PartitionKey;
    use crate::store::redis::key::Names;

    fn tag() -> Tag {
        Names::new("", "", b"").tag(&PartitionKey::from("a"))
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_nanos(millis * 1_000_000)
    }

    fn granted(remaining: u32) -> Decision {
        Decision::allow(100, remaining).with_reset_after(Duration::from_secs(60)).with_receipt(Receipt::new(7))
    }

    fn leases() -> Leases {
        Leases::new(10, Duration::from_secs(1))
    }

    #[test]
    fn sizes_follow_the_demand() {
        let (leases, mut sizes, mut now) = (leases(), Vec::new(), 0);
        for _ in 0..7 {
            let Want::More(extra) = leases.want(tag(), 1, at(now)) else { panic!("nothing is left unspent") };
            sizes.push(extra);
            leases.hold(tag(), Lease::new(1, extra, extra, granted(90), at(now)));
            now += 100;
            assert_eq!((0..20).filter(|_| leases.spend(tag(), 1, at(now)).is_some()).count(), extra as usize);
        }
        assert_eq!(sizes, [0, 1, 2, 4, 8, 10, 10]);
        // A pause, and it begins anew; nor is more taken than half of what there is.
        assert_eq!(leases.want(tag(), 1, at(now + 1_000)), Want::More(0));
        leases.hold(tag(), Lease::new(1, 0, 8, granted(6), at(now)));
        assert_eq!(leases.want(tag(), 1, at(now)), Want::More(3));
        assert_eq!(leases.want(tag(), 2, at(now)), Want::More(0));
    }

    #[test]
    fn what_is_not_spent_in_time_is_given_back_once() {
        let leases = leases();
        leases.hold(tag(), Lease::new(3, 5, 8, granted(50), at(0)));
        assert!(leases.spend(tag(), 1, at(1)).is_none() && leases.spend(tag(), 3, at(999)).is_some());
        assert!(leases.spend(tag(), 3, at(1_000)).is_none());
        let unspent = Unspent { requests: 4, cost: 3, receipt: Receipt::new(7) };
        assert_eq!(leases.want(tag(), 3, at(1_000)), Want::GiveBack(unspent));
        assert_eq!(leases.want(tag(), 3, at(1_000)), Want::More(0));
    }

    #[test]
    fn the_numbers_count_what_is_held() {
        let leases = leases();
        leases.hold(tag(), Lease::new(2, 4, 4, granted(50), at(0)));
        let decision = leases.spend(tag(), 2, at(250)).unwrap();
        assert_eq!((decision.limit(), decision.remaining()), (100, 56));
        assert_eq!(decision.reset_after(), Duration::from_millis(59_750));
        assert_eq!(decision.receipt(), LEASED);
        assert!(leases.put_back(tag(), 2, at(500)) && !leases.put_back(tag(), 1, at(500)));
        assert_eq!((0..9).filter(|_| leases.spend(tag(), 2, at(500)).is_some()).count(), 4);
        assert!(!leases.put_back(tag(), 2, at(1_000)));
    }

    #[test]
    fn a_lease_does_not_outlive_its_window_and_two_are_added_up() {
        let leases = leases();
        let ends_soon = Decision::allow(10, 8).with_reset_after(Duration::from_millis(300));
        leases.hold(tag(), Lease::new(1, 2, 2, ends_soon, at(0)));
        leases.hold(tag(), Lease::new(1, 2, 2, ends_soon, at(100)));
        assert_eq!((0..3).filter(|_| leases.spend(tag(), 1, at(299)).is_some()).count(), 3);
        assert!(leases.spend(tag(), 1, at(300)).is_none());
    }
}
