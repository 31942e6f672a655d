//! Leases: units that are taken from a budget in advance, and spent without a call.

use std::time::Duration;

use super::tag::{KeyTag, KnownKeys, known_keys};
use crate::algorithm::Kind;
use crate::values::time::Timestamp;
use crate::values::{Decision, Issuer, Proof, Quota, Receipt};

/// The leases that this process holds, one per key.
///
/// The size of a lease follows the demand: none for a key with one request now and then; as many requests as wait for the
/// call at first, twice as many as before when they were spent in time; and never more than half of what was left, so that
/// other processes find some.
pub(crate) struct Leases {
    held: KnownKeys<Lease>,
    most: u32,
    lifetime: Duration,
}

/// What a request costs, and under which quota of its key: a lease pays for requests that are alike in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Price {
    pub(crate) cost: u64,
    pub(crate) quota: Quota,
}

/// What was taken in advance from one key.
#[derive(Clone, Copy)]
pub(crate) struct Lease {
    /// What each of its requests costs.
    price: Price,
    /// How many requests it was granted for.
    granted: u32,
    /// How many of them it still pays for.
    left: u32,
    /// How many requests it was asked for: the next lease is asked for twice as many.
    size: u32,
    /// Whether a call in flight asks for more, or asked and was granted nothing: another one does not.
    is_asked_for: bool,
    /// Our clock before it was asked for. Distinguishes it from the key's other leases.
    since: Timestamp,
    /// Whether it was taken from a window, and ends with it.
    is_of_window: bool,
    /// The decision on the last request that it was granted for, with the receipt of that charge. Once it is spent,
    /// limit and remaining are those of the last call.
    decision: Decision,
}

/// What a call does beside its own charge.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LeaseAction {
    /// Asks for so many requests more.
    More(u32),
    /// Refunds what was not spent in time.
    Refund(Unspent),
}

/// What is left of a lease that has ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unspent {
    pub(crate) requests: u32,
    /// The price of each.
    pub(crate) price: Price,
    /// The receipt of the last of the charges.
    pub(crate) receipt: Receipt,
}

/// The [`since`](Lease::since) of the lease that paid for a request: a refund goes to this lease and not to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseReceipt(Timestamp);

impl Proof for LeaseReceipt {
    const ISSUER: Issuer = Issuer::Lease;

    fn into_value(self) -> u128 {
        self.0.as_nanos().into()
    }

    #[allow(clippy::cast_possible_truncation, reason = "no more was written")]
    fn from_value(since: u128) -> Self {
        Self(Timestamp::from_nanos(since as u64))
    }
}

impl Leases {
    /// The most requests that a lease may be for. The server decides on each in turn, and nothing else meanwhile: for up
    /// to 0.1 ms (Redis 7, `commandstats`). Other keys should not wait for longer.
    pub(crate) const MOST: u32 = 1_024;

    /// Leases of up to `most` requests each, to be spent within `lifetime`.
    pub(crate) fn new(most: u32, lifetime: Duration) -> Self {
        Self { held: known_keys(), most, lifetime }
    }

    /// Admits a request, if a lease pays for it.
    pub(crate) fn spend(&self, tag: KeyTag, price: Price, now: Timestamp) -> Option<Decision> {
        self.held.change(tag, |lease| self.spend_from(lease, price, now)).flatten()
    }

    /// Returns what [`spend`](Self::spend) would.
    pub(crate) fn peek(&self, tag: KeyTag, price: Price, now: Timestamp) -> Option<Decision> {
        self.spend_from(&mut self.held.get(tag)?, price, now)
    }

    fn spend_from(&self, lease: &mut Lease, price: Price, now: Timestamp) -> Option<Decision> {
        if lease.left == 0 || !self.is_for(lease, price, now) {
            return None;
        }
        lease.left -= 1;
        Some(lease.decision(now))
    }

    /// Whether a lease pays for requests of this price, or did and was spent in time: then the next call takes another.
    pub(crate) fn is_in_demand(&self, tag: KeyTag, price: Price, now: Timestamp) -> bool {
        self.held.get(tag).is_some_and(|lease| self.is_for(&lease, price, now))
    }

    fn is_for(&self, lease: &Lease, price: Price, now: Timestamp) -> bool {
        lease.price == price && now < self.end_of(lease)
    }

    /// Returns what a call for `waiting` requests that is about to be made does as well.
    pub(crate) fn next_action(&self, tag: KeyTag, price: Price, waiting: u32, now: Timestamp) -> LeaseAction {
        let next_action = |lease: &mut Lease| {
            if now >= self.end_of(lease) {
                let Lease { price, decision, .. } = *lease;
                let requests = std::mem::take(&mut lease.left);
                let unspent = Unspent { requests, price, receipt: decision.receipt() };
                return if requests > 0 { LeaseAction::Refund(unspent) } else { LeaseAction::More(0) };
            }
            if lease.price != price || lease.is_asked_for {
                return LeaseAction::More(0);
            }
            let affordable = u32::try_from(lease.decision.remaining() / 2 / price.cost).unwrap_or(u32::MAX);
            // Where calls are slow, many requests wait for each: a lease of one would not save the next call.
            let more = lease.size.saturating_mul(2).max(waiting).clamp(1, self.most).min(affordable);
            // If that call admits nothing, no more is asked for until this lease ends.
            lease.is_asked_for = more > 0;
            LeaseAction::More(more)
        };
        self.held.change(tag, next_action).unwrap_or(LeaseAction::More(0))
    }

    /// Lets the next call ask for as much as one that has failed. Otherwise one timeout would end the leases of a key when
    /// they are needed most.
    pub(crate) fn ask_again(&self, tag: KeyTag) {
        self.held.change(tag, |lease| lease.is_asked_for = false);
    }

    /// Stores what a call was granted beyond what it needed. An empty lease is stored, too: it shows that there is a
    /// demand.
    pub(crate) fn hold(&self, tag: KeyTag, lease: Lease) {
        let keep = |held: &mut Lease| {
            if lease.size > 0 {
                held.is_asked_for = false;
            }
            // Never added up: what is left of an earlier window is worth nothing in the next.
            let stays = lease.left == 0 && lease.since < self.end_of(held);
            // Under another quota, the numbers are others.
            if stays && held.left == 0 && held.price.quota == lease.price.quota {
                // A request that is returned is refunded by the receipt of its own charge. And the lease ends with the
                // window that it was taken from: the later call may have been decided in the next.
                let (receipt, reset_after) = (held.decision.receipt(), held.decision.reset_after());
                held.decision = lease.decision.with_receipt(receipt).with_reset_after(reset_after);
            }
            stays
        };
        if !self.held.change(tag, keep).unwrap_or(false) {
            // In a full set, an empty lease is replaced first, then the one that ends first.
            let end = |lease: &Lease| if lease.left == 0 { Timestamp::ZERO } else { self.end_of(lease) };
            self.held.update(tag, lease.since, end, |value| *value = Some(lease));
        }
    }

    /// Removes the lease of a key that was reset.
    pub(crate) fn forget(&self, tag: KeyTag) {
        self.held.remove(tag);
    }

    /// Returns the units of a request to the lease that paid for it. They are forfeited if that was replaced or has
    /// ended.
    pub(crate) fn return_to_lease(&self, tag: KeyTag, cost: u64, lease: LeaseReceipt, now: Timestamp) {
        self.held.change(tag, |held| {
            let has_paid = held.since == lease.0 && held.price.cost == cost;
            if has_paid && held.left < held.granted && now < self.end_of(held) {
                held.left += 1;
            }
        });
    }

    /// Returns when a lease ends: with its lifetime, or earlier with its window, since what is taken from a window is worth
    /// nothing in the next. What is taken from a bucket may be spent when the bucket is full again: that is what the
    /// lifetime adds to the bound.
    fn end_of(&self, lease: &Lease) -> Timestamp {
        let window = if lease.is_of_window { lease.decision.reset_after() } else { Duration::MAX };
        lease.since.saturating_add(self.lifetime.min(window))
    }
}

impl Lease {
    /// A lease for `left` requests of `price` each, which was asked for at `since` with `size` requests; `decision` is
    /// that on the last of them.
    pub(crate) const fn new(price: Price, left: u32, size: u32, decision: Decision, since: Timestamp) -> Self {
        Self { price, granted: left, left, size, is_asked_for: false, since, is_of_window: true, decision }
    }

    /// The same lease, taken from the state of such an algorithm: a window unless said otherwise.
    pub(crate) const fn taken_from(self, kind: Kind) -> Self {
        Self { is_of_window: !matches!(kind, Kind::Bucket { .. }), ..self }
    }

    /// Returns the decision on a request that this lease pays for.
    fn decision(&self, now: Timestamp) -> Decision {
        let limit = self.decision.limit();
        let remaining =
            self.decision.remaining().saturating_add(u64::from(self.left).saturating_mul(self.price.cost)).min(limit);
        let reset = self.decision.reset_after().saturating_sub(now.saturating_since(self.since));
        Decision::allow(limit, remaining)
            .with_reset_after(reset)
            .with_receipt(Receipt::from_proof(LeaseReceipt(self.since)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Algorithm, TokenBucket};
    use crate::store::remote::tag::{SETS, Tags};
    use crate::values::PartitionKey;
    use crate::values::counterexamples::{Counterexample, each};

    fn tag() -> KeyTag {
        Tags::new(b"").of(&PartitionKey::from("a"))
    }

    fn at_cost(cost: u64) -> Price {
        Price { cost, quota: Quota::per_minute(100) }
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_nanos(millis * 1_000_000)
    }

    fn granted(remaining: u64) -> Decision {
        Decision::allow(100, remaining).with_reset_after(Duration::from_secs(60)).with_receipt(Receipt::new(7))
    }

    /// Leases of up to ten requests, for a second.
    fn leases() -> Leases {
        Leases::new(10, Duration::from_secs(1))
    }

    /// Spends all that the lease pays for, and returns how many requests that were.
    fn spend_all(leases: &Leases, cost: u64, now: u64) -> usize {
        std::iter::from_fn(|| leases.spend(tag(), at_cost(cost), at(now))).count()
    }

    #[test]
    fn sizes_follow_the_demand() {
        let (leases, mut sizes, mut now) = (leases(), Vec::new(), 0);
        for _ in 0..7 {
            let LeaseAction::More(extra) = leases.next_action(tag(), at_cost(1), 1, at(now)) else {
                panic!("all was spent")
            };
            sizes.push(extra);
            leases.hold(tag(), Lease::new(at_cost(1), extra, extra, granted(90), at(now)));
            now += 100;
            assert_eq!(spend_all(&leases, 1, now), extra as usize);
        }
        assert_eq!(sizes, [0, 1, 2, 4, 8, 10, 10]);
        // After a pause, the size starts at zero; and no more is taken than half of what is left.
        assert_eq!(leases.next_action(tag(), at_cost(1), 1, at(now + 1_000)), LeaseAction::More(0));
        leases.hold(tag(), Lease::new(at_cost(1), 0, 8, granted(6), at(now)));
        assert_eq!(leases.next_action(tag(), at_cost(1), 1, at(now)), LeaseAction::More(3));
        assert_eq!(leases.next_action(tag(), at_cost(2), 1, at(now)), LeaseAction::More(0));
    }

    #[test]
    fn what_is_not_spent_in_time_is_refunded_once() {
        let leases = leases();
        leases.hold(tag(), Lease::new(at_cost(3), 5, 8, granted(50), at(0)));
        assert!(leases.spend(tag(), at_cost(1), at(1)).is_none() && leases.spend(tag(), at_cost(3), at(999)).is_some());
        assert!(leases.spend(tag(), at_cost(3), at(1_000)).is_none());
        let unspent = Unspent { requests: 4, price: at_cost(3), receipt: Receipt::new(7) };
        assert_eq!(leases.next_action(tag(), at_cost(3), 1, at(1_000)), LeaseAction::Refund(unspent));
        assert_eq!(leases.next_action(tag(), at_cost(3), 1, at(1_000)), LeaseAction::More(0));
    }

    #[test]
    fn the_numbers_count_what_is_held() {
        let leases = leases();
        leases.hold(tag(), Lease::new(at_cost(2), 4, 4, granted(50), at(0)));
        let decision = leases.spend(tag(), at_cost(2), at(250)).unwrap();
        assert_eq!((decision.limit(), decision.remaining()), (100, 56));
        assert_eq!(decision.reset_after(), Duration::from_millis(59_750));
    }

    #[test]
    fn a_request_is_returned_to_the_lease_that_paid_for_it() {
        let leases = leases();
        leases.hold(tag(), Lease::new(at_cost(2), 4, 4, granted(50), at(0)));
        let paid_by: LeaseReceipt = leases.spend(tag(), at_cost(2), at(250)).unwrap().receipt().read().unwrap();
        assert_eq!(spend_all(&leases, 2, 250), 3);
        leases.return_to_lease(tag(), 2, LeaseReceipt(at(1)), at(500));
        assert_eq!(spend_all(&leases, 2, 500), 0, "another lease had paid");
        leases.return_to_lease(tag(), 1, paid_by, at(500));
        assert_eq!(spend_all(&leases, 2, 500), 0, "it pays for another cost");
        leases.return_to_lease(tag(), 2, paid_by, at(500));
        assert_eq!(spend_all(&leases, 2, 500), 1);
        leases.return_to_lease(tag(), 2, paid_by, at(1_000));
        assert_eq!(spend_all(&leases, 2, 999), 0, "it was returned too late");
    }

    #[test]
    fn no_more_is_returned_to_a_lease_than_it_was_granted_for() {
        let leases = leases();
        leases.hold(tag(), Lease::new(at_cost(2), 4, 4, granted(50), at(0)));
        let paid_by: LeaseReceipt = leases.spend(tag(), at_cost(2), at(1)).unwrap().receipt().read().unwrap();
        (0..2).for_each(|_| leases.return_to_lease(tag(), 2, paid_by, at(2)));
        assert_eq!(spend_all(&leases, 2, 2), 4);
    }

    #[test]
    fn a_receipt_of_the_server_is_none_of_a_lease() {
        assert_eq!(Receipt::new(7).read::<LeaseReceipt>(), None);
    }

    #[test]
    fn a_lease_does_not_outlive_its_window_and_none_is_added_to_another() {
        let leases = leases();
        let ends_soon = Decision::allow(10, 8).with_reset_after(Duration::from_millis(300));
        leases.hold(tag(), Lease::new(at_cost(1), 2, 2, ends_soon, at(0)));
        leases.hold(tag(), Lease::new(at_cost(1), 3, 3, ends_soon, at(100)));
        assert_eq!(spend_all(&leases, 1, 399), 3);
        leases.hold(tag(), Lease::new(at_cost(1), 2, 2, ends_soon, at(200)));
        // A call without a lease takes nothing away.
        leases.hold(tag(), Lease::new(at_cost(1), 0, 0, ends_soon, at(201)));
        let peeked = leases.peek(tag(), at_cost(1), at(499)).unwrap();
        let spent = leases.spend(tag(), at_cost(1), at(499)).unwrap();
        assert_eq!((peeked.remaining(), peeked.receipt()), (spent.remaining(), spent.receipt()));
        assert!(
            leases.peek(tag(), at_cost(1), at(500)).is_none() && leases.spend(tag(), at_cost(1), at(500)).is_none()
        );
    }

    #[test]
    fn a_returned_request_is_refunded_by_the_receipt_of_its_own_charge() {
        let leases = leases();
        leases.hold(tag(), Lease::new(at_cost(1), 1, 1, granted(90), at(0)));
        let lease = leases.spend(tag(), at_cost(1), at(1)).unwrap().receipt().read().unwrap();
        // A later call charges the key, too.
        leases.hold(tag(), Lease::new(at_cost(1), 0, 0, granted(80).with_receipt(Receipt::new(8)), at(2)));
        leases.return_to_lease(tag(), 1, lease, at(3));
        let unspent = Unspent { requests: 1, price: at_cost(1), receipt: Receipt::new(7) };
        assert_eq!(leases.next_action(tag(), at_cost(1), 1, at(1_000)), LeaseAction::Refund(unspent));
    }

    #[test]
    fn a_lease_outlives_the_debt_of_its_bucket() {
        let leases = leases();
        let (bucket, full_soon) =
            (TokenBucket::new(Quota::per_second(1_000)), granted(90).with_reset_after(Duration::from_millis(5)));
        leases.hold(tag(), Lease::new(at_cost(1), 3, 3, full_soon, at(0)).taken_from(bucket.kind()));
        assert!(leases.spend(tag(), at_cost(1), at(6)).is_some() && leases.spend(tag(), at_cost(1), at(999)).is_some());
        assert!(leases.spend(tag(), at_cost(1), at(1_000)).is_none(), "its own lifetime is over");
    }

    /// The later call is made in the lease's window, and decided in the next, which ends in a minute.
    #[test]
    fn a_later_call_does_not_carry_a_lease_into_the_next_window() {
        let leases = leases();
        let window_ends = granted(90).with_reset_after(Duration::from_millis(800));
        leases.hold(tag(), Lease::new(at_cost(1), 1, 1, window_ends, at(0)));
        let lease = leases.spend(tag(), at_cost(1), at(500)).unwrap().receipt().read().unwrap();
        leases.hold(tag(), Lease::new(at_cost(1), 0, 0, granted(90), at(799)));
        leases.return_to_lease(tag(), 1, lease, at(850));
        assert!(leases.spend(tag(), at_cost(1), at(850)).is_none());
    }

    /// As documented for `RedisStore::leasing`; less on 32 bits.
    #[cfg(target_pointer_width = "64")]
    #[test]
    fn leases_take_up_to_eleven_tenths_of_a_mebibyte() {
        assert_eq!((10 * KnownKeys::<Lease>::size_of(SETS)).div_ceil(1 << 20), 11);
    }

    #[test]
    fn a_key_is_in_demand_until_its_lease_ends_even_if_that_is_spent() {
        let leases = leases();
        assert!(!leases.is_in_demand(tag(), at_cost(1), at(0)));
        leases.hold(tag(), Lease::new(at_cost(1), 0, 0, granted(90), at(0)));
        assert!(leases.is_in_demand(tag(), at_cost(1), at(999)) && !leases.is_in_demand(tag(), at_cost(1), at(1_000)));
        assert!(!leases.is_in_demand(tag(), at_cost(2), at(1)), "of another cost");
    }

    #[test]
    fn one_of_several_concurrent_calls_asks_for_more() {
        let leases = leases();
        leases.hold(tag(), Lease::new(at_cost(1), 0, 2, granted(90), at(0)));
        assert_eq!(leases.next_action(tag(), at_cost(1), 1, at(1)), LeaseAction::More(4));
        assert_eq!(leases.next_action(tag(), at_cost(1), 1, at(1)), LeaseAction::More(0));
        // The other call returns, and then the one that asked for more, and was granted nothing.
        leases.hold(tag(), Lease::new(at_cost(1), 0, 0, granted(90), at(1)));
        assert_eq!(leases.next_action(tag(), at_cost(1), 1, at(2)), LeaseAction::More(0));
        leases.hold(tag(), Lease::new(at_cost(1), 0, 4, granted(90), at(1)));
        assert_eq!(leases.next_action(tag(), at_cost(1), 1, at(3)), LeaseAction::More(4));
    }

    /// Of 32 processes at one key, most calls time out. One that did ended the leases of its process for their lifetime.
    #[test]
    fn a_call_that_failed_leaves_the_next_one_to_ask_for_as_much() {
        let leases = leases();
        leases.hold(tag(), Lease::new(at_cost(1), 0, 2, granted(90), at(0)));
        for _ in 0..3 {
            assert_eq!(leases.next_action(tag(), at_cost(1), 1, at(1)), LeaseAction::More(4));
            assert_eq!(leases.next_action(tag(), at_cost(1), 1, at(1)), LeaseAction::More(0));
            leases.ask_again(tag());
        }
    }

    #[test]
    fn a_lease_is_for_as_many_requests_at_least_as_wait_for_the_call() {
        let leases = leases();
        leases.hold(tag(), Lease::new(at_cost(1), 0, 0, granted(90), at(0)));
        assert_eq!(leases.next_action(tag(), at_cost(1), 7, at(1)), LeaseAction::More(7));
        leases.hold(tag(), Lease::new(at_cost(1), 7, 7, granted(90), at(1)));
        assert_eq!(spend_all(&leases, 1, 2), 7);
        assert_eq!(leases.next_action(tag(), at_cost(1), 7, at(2)), LeaseAction::More(10), "never more than the most");
        // Nor more than half of what is left.
        leases.hold(tag(), Lease::new(at_cost(1), 10, 10, granted(6), at(2)));
        assert_eq!(spend_all(&leases, 1, 3), 10);
        assert_eq!(leases.next_action(tag(), at_cost(1), 7, at(3)), LeaseAction::More(3));
    }

    /// The lease that a lemma speaks of, and the present instant.
    fn held(case: &Counterexample) -> (Leases, Price, Timestamp) {
        let [lifetime, reset] = ["lifetime", "reset"].map(|span| Duration::from_nanos(case.number(span)));
        let leases = Leases::new(case.number_or("most", Leases::MOST), lifetime);
        let (price, quota) = (at_cost(case.number("cost")), Quota::per_minute(100));
        let decision = Decision::allow(Quota::MAX_UNITS, case.number_or("remaining", 0)).with_reset_after(reset);
        let (granted, since) = (case.number("granted"), Timestamp::from_nanos(case.number("since")));
        let lease = Lease::new(price, granted, case.number_or("size", 0), decision, since);
        let is_of_window = case.number::<u32>("of_window") == 1;
        leases.hold(tag(), if is_of_window { lease } else { lease.taken_from(Kind::Bucket { quota }) });
        leases.held.change(tag(), |lease| lease.left = case.number("left"));
        (leases, price, Timestamp::from_nanos(case.number("now")))
    }

    fn left(leases: &Leases) -> u128 {
        leases.held.get(tag()).unwrap().left.into()
    }

    #[test]
    fn leases_withstand_the_counterexamples() {
        each("src/store/remote/leases.rs: Leases::spend_from", |case| {
            let (leases, price, now) = held(case);
            let paid = leases.spend(tag(), price, now).is_some();
            [("paid", paid.into()), ("left", left(&leases))]
        });
        each("src/store/remote/leases.rs: Leases::return_to_lease", |case| {
            let (leases, price, now) = held(case);
            let lease = LeaseReceipt(leases.held.get(tag()).unwrap().since);
            leases.return_to_lease(tag(), price.cost, lease, now);
            [("left", left(&leases))]
        });
        each("src/store/remote/leases.rs: Leases::next_action", |case| {
            let (leases, price, now) = held(case);
            let (refunded, more) = match leases.next_action(tag(), price, 1, now) {
                LeaseAction::Refund(unspent) => (unspent.requests, 0),
                LeaseAction::More(more) => (0, more),
            };
            [("refunded", refunded.into()), ("left", left(&leases)), ("more", more.into())]
        });
    }
}
