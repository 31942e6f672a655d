//! Leases: units that are taken from a budget in advance, and spent without a call.

use std::time::Duration;

use super::tag::{KeyTag, KnownKeys, known_keys};
use crate::algorithm::Kind;
use crate::values::time::Timestamp;
use crate::values::{Decision, Issuer, Proof, Quota, Receipt};

/// The leases that this process holds, one per key.
///
/// A lease's size follows the demand. A key with one request now and then gets no lease. The first lease is for the
/// requests that wait for the call; each further one is twice as large if the last was spent in time. A lease takes at
/// most half the remaining units, so that other processes find some.
pub(crate) struct Leases {
    held: KnownKeys<Lease>,
    most: u32,
    lifetime: Duration,
}

/// A request's cost, and its key's quota. A lease pays for requests that are alike in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Price {
    pub(crate) cost: u64,
    pub(crate) quota: Quota,
}

/// Units that were taken from one key in advance.
#[derive(Clone, Copy)]
pub(crate) struct Lease {
    /// The price of each request.
    price: Price,
    /// The number of requests that it was granted for.
    granted: u32,
    /// The number of requests that it still pays for.
    left: u32,
    /// The number of requests that the call asked for. The next call asks for twice that number.
    size: u32,
    /// Whether a call in flight asks for more, or has asked and was granted nothing. Then no other call asks.
    is_asked_for: bool,
    /// Our clock before it was asked for. Distinguishes it from the key's other leases.
    since: Timestamp,
    /// Whether it was taken from a window, and ends with it.
    is_of_window: bool,
    /// The decision on the last request that it was granted for, with the receipt of that charge. Once the lease is
    /// spent, later calls update limit and remaining.
    decision: Decision,
}

/// The part in a call that concerns leases, beside its own charge.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LeaseAction {
    /// Asks for units for this number of further requests.
    More(u32),
    /// Refunds the units that were not spent in time.
    Refund(Unspent),
}

/// The unspent part of a lease that has ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unspent {
    pub(crate) requests: u32,
    /// The price for each request.
    pub(crate) price: Price,
    /// The last charge's receipt.
    pub(crate) receipt: Receipt,
}

/// The [`since`](Lease::since) of the lease that paid for a request, so that a refund goes to this lease and not to the
/// server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseReceipt(Timestamp);

impl Proof for LeaseReceipt {
    const ISSUER: Issuer = Issuer::Lease;

    fn into_value(self) -> u128 {
        self.0.as_nanos().into()
    }

    #[allow(clippy::cast_possible_truncation, reason = "64 bits were written")]
    fn from_value(since: u128) -> Self {
        Self(Timestamp::from_nanos(since as u64))
    }
}

impl Leases {
    /// The largest number of requests that a lease may be for. The server decides on each in turn and serves no other
    /// key meanwhile, for up to 0.1 ms (Redis 7, `commandstats`). Other keys should not wait for longer.
    pub(crate) const MOST: u32 = 1_024;

    /// Creates a set without leases, for leases with up to `most` requests each, which are spent within `lifetime`.
    pub(crate) fn new(most: u32, lifetime: Duration) -> Self {
        Self { held: known_keys(), most, lifetime }
    }

    /// Admits a request, if a lease pays for it.
    pub(crate) fn spend(&self, tag: KeyTag, price: Price, now: Timestamp) -> Option<Decision> {
        self.held.change(tag, |lease| self.spend_from(lease, price, now)).flatten()
    }

    /// Returns the decision that [`spend`](Self::spend) would make, and spends nothing.
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

    /// Whether a lease pays for requests at this price, or did and was spent in time. Then the next call takes another.
    pub(crate) fn is_in_demand(&self, tag: KeyTag, price: Price, now: Timestamp) -> bool {
        self.held.get(tag).is_some_and(|lease| self.is_for(&lease, price, now))
    }

    fn is_for(&self, lease: &Lease, price: Price, now: Timestamp) -> bool {
        lease.price == price && now < self.end_of(lease)
    }

    /// Returns the lease action for the next call, which is for `waiting` requests.
    pub(crate) fn next_action(&self, tag: KeyTag, price: Price, waiting: u32, now: Timestamp) -> LeaseAction {
        let action = self.held.change(tag, |lease| {
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
            // Where calls are slow, many requests wait for each, and a lease of one would not save the next call.
            let more = lease.size.saturating_mul(2).max(waiting).clamp(1, self.most).min(affordable);
            // If that call is granted nothing, no other call asks until this lease ends.
            lease.is_asked_for = more > 0;
            LeaseAction::More(more)
        });
        action.unwrap_or(LeaseAction::More(0))
    }

    /// Lets the next call ask for the lease that a failed call did not get. Otherwise one timeout would end a key's
    /// leases when they are needed most.
    pub(crate) fn ask_again(&self, tag: KeyTag) {
        self.held.change(tag, |lease| lease.is_asked_for = false);
    }

    /// Stores the lease that a call was granted. An empty lease is stored, too, because it shows that there is a
    /// demand.
    pub(crate) fn hold(&self, tag: KeyTag, lease: Lease) {
        let is_stored = self.held.change(tag, |held| {
            if lease.size > 0 {
                held.is_asked_for = false;
            }
            // Leases are never added up, because a window's units are worth nothing in the next one.
            let stays = lease.left == 0 && lease.since < self.end_of(held);
            // Under another quota, the numbers mean something else.
            if stays && held.left == 0 && held.price.quota == lease.price.quota {
                // A returned request is refunded by its own charge's receipt. And the lease ends with the window that
                // it was taken from, because the later call may have been decided in the next one.
                let receipt = held.decision.receipt();
                let reset_after = held.decision.reset_after();
                held.decision = lease.decision.with_receipt(receipt).with_reset_after(reset_after);
            }
            stays
        });
        if !is_stored.unwrap_or(false) {
            // In a full set, an empty lease is replaced first, then the lease that ends first.
            self.held.update(
                tag,
                lease.since,
                &|lease: &Lease| if lease.left == 0 { Timestamp::ZERO } else { self.end_of(lease) },
                |value| *value = Some(lease),
            );
        }
    }

    /// Removes a key's lease when the key was reset.
    pub(crate) fn forget(&self, tag: KeyTag) {
        self.held.remove(tag);
    }

    /// Returns a request's units to the lease that paid for it. They are forfeited if that lease was replaced or has
    /// ended.
    pub(crate) fn return_to_lease(&self, tag: KeyTag, cost: u64, lease: LeaseReceipt, now: Timestamp) {
        self.held.change(tag, |held| {
            let has_paid = held.since == lease.0 && held.price.cost == cost;
            if has_paid && held.left < held.granted && now < self.end_of(held) {
                held.left += 1;
            }
        });
    }

    /// Returns when a lease ends: with its lifetime, or earlier with its window, since a window's units are worth
    /// nothing in the next one. A bucket's units may be spent when the bucket is full again, and therefore the lifetime
    /// adds to the bound.
    fn end_of(&self, lease: &Lease) -> Timestamp {
        let window = if lease.is_of_window { lease.decision.reset_after() } else { Duration::MAX };
        lease.since.saturating_add(self.lifetime.min(window))
    }
}

impl Lease {
    /// Creates a lease for `left` requests that cost `price` each. The call asked for `size` requests at `since`, and
    /// `decision` is the decision on the last request that it was granted.
    pub(crate) const fn new(price: Price, left: u32, size: u32, decision: Decision, since: Timestamp) -> Self {
        Self { price, granted: left, left, size, is_asked_for: false, since, is_of_window: true, decision }
    }

    /// Sets the kind of algorithm whose state the lease was taken from. Unless set, it is a window.
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

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use super::*;
    use crate::algorithm::{Algorithm, TokenBucket};
    #[cfg(target_pointer_width = "64")]
    use crate::store::remote::tag::SETS;
    use crate::store::remote::tag::Tags;
    use crate::values::PartitionKey;
    use crate::values::counterexamples::{Counterexample, each};

    fn tag() -> KeyTag {
        Tags::new(b"").of(&PartitionKey::from("a"))
    }

    fn at_cost(cost: u64) -> Price {
        Price { cost, quota: Quota::per_minute(100) }
    }

    fn at_millis(millis: u64) -> Timestamp {
        Timestamp::from_nanos(millis * 1_000_000)
    }

    fn granted(remaining: u64) -> Decision {
        Decision::allow(100, remaining).with_reset_after(Duration::from_secs(60)).with_receipt(Receipt::new(7))
    }

    /// Leases for up to ten requests, for a second.
    fn leases() -> Leases {
        Leases::new(10, Duration::from_secs(1))
    }

    /// Spends the whole lease, and returns the number of requests that it paid for.
    fn spend_all(leases: &Leases, cost: u64, now: u64) -> usize {
        std::iter::from_fn(|| leases.spend(tag(), at_cost(cost), at_millis(now))).count()
    }

    #[test]
    fn sizes_follow_the_demand() {
        let leases = leases();
        let mut sizes = Vec::new();
        let mut now = 0;
        for _ in 0..7 {
            let LeaseAction::More(extra) = leases.next_action(tag(), at_cost(1), 1, at_millis(now)) else {
                panic!("all was spent")
            };
            sizes.push(extra);
            leases.hold(tag(), Lease::new(at_cost(1), extra, extra, granted(90), at_millis(now)));
            now += 100;
            assert_eq!(spend_all(&leases, 1, now), extra as usize);
        }
        assert_eq!(sizes, [0, 1, 2, 4, 8, 10, 10]);
        // After a pause, the size starts at zero. A lease takes at most half the remaining units.
        assert_eq!(leases.next_action(tag(), at_cost(1), 1, at_millis(now + 1_000)), LeaseAction::More(0));
        leases.hold(tag(), Lease::new(at_cost(1), 0, 8, granted(6), at_millis(now)));
        assert_eq!(leases.next_action(tag(), at_cost(1), 1, at_millis(now)), LeaseAction::More(3));
        assert_eq!(leases.next_action(tag(), at_cost(2), 1, at_millis(now)), LeaseAction::More(0));
    }

    #[test]
    fn unspent_units_are_refunded_once() {
        let leases = leases();
        leases.hold(tag(), Lease::new(at_cost(3), 5, 8, granted(50), at_millis(0)));
        assert!(
            leases.spend(tag(), at_cost(1), at_millis(1)).is_none()
                && leases.spend(tag(), at_cost(3), at_millis(999)).is_some()
        );
        assert!(leases.spend(tag(), at_cost(3), at_millis(1_000)).is_none());
        let unspent = Unspent { requests: 4, price: at_cost(3), receipt: Receipt::new(7) };
        assert_eq!(leases.next_action(tag(), at_cost(3), 1, at_millis(1_000)), LeaseAction::Refund(unspent));
        assert_eq!(leases.next_action(tag(), at_cost(3), 1, at_millis(1_000)), LeaseAction::More(0));
    }

    #[test]
    fn remaining_includes_the_leased_units() {
        let leases = leases();
        leases.hold(tag(), Lease::new(at_cost(2), 4, 4, granted(50), at_millis(0)));
        let decision = leases.spend(tag(), at_cost(2), at_millis(250)).unwrap();
        assert_eq!((decision.limit(), decision.remaining()), (100, 56));
        assert_eq!(decision.reset_after(), Duration::from_millis(59_750));
    }

    #[test]
    fn a_request_returns_to_its_lease() {
        let leases = leases();
        leases.hold(tag(), Lease::new(at_cost(2), 4, 4, granted(50), at_millis(0)));
        let paid_by: LeaseReceipt = leases.spend(tag(), at_cost(2), at_millis(250)).unwrap().receipt().read().unwrap();
        assert_eq!(spend_all(&leases, 2, 250), 3);
        leases.return_to_lease(tag(), 2, LeaseReceipt(at_millis(1)), at_millis(500));
        assert_eq!(spend_all(&leases, 2, 500), 0, "another lease had paid");
        leases.return_to_lease(tag(), 1, paid_by, at_millis(500));
        assert_eq!(spend_all(&leases, 2, 500), 0, "it pays for another cost");
        leases.return_to_lease(tag(), 2, paid_by, at_millis(500));
        assert_eq!(spend_all(&leases, 2, 500), 1);
        leases.return_to_lease(tag(), 2, paid_by, at_millis(1_000));
        assert_eq!(spend_all(&leases, 2, 999), 0, "it was returned too late");
    }

    #[test]
    fn returns_to_a_lease_are_bounded() {
        let leases = leases();
        leases.hold(tag(), Lease::new(at_cost(2), 4, 4, granted(50), at_millis(0)));
        let paid_by: LeaseReceipt = leases.spend(tag(), at_cost(2), at_millis(1)).unwrap().receipt().read().unwrap();
        (0..2).for_each(|_| leases.return_to_lease(tag(), 2, paid_by, at_millis(2)));
        assert_eq!(spend_all(&leases, 2, 2), 4);
    }

    #[test]
    fn server_receipts_are_not_lease_receipts() {
        assert_eq!(Receipt::new(7).read::<LeaseReceipt>(), None);
    }

    /// A new lease replaces the one before; they are not added up.
    #[test]
    fn a_lease_ends_with_its_window() {
        let leases = leases();
        let ends_soon = Decision::allow(10, 8).with_reset_after(Duration::from_millis(300));
        leases.hold(tag(), Lease::new(at_cost(1), 2, 2, ends_soon, at_millis(0)));
        leases.hold(tag(), Lease::new(at_cost(1), 3, 3, ends_soon, at_millis(100)));
        assert_eq!(spend_all(&leases, 1, 399), 3);
        leases.hold(tag(), Lease::new(at_cost(1), 2, 2, ends_soon, at_millis(200)));
        // A call without a lease takes nothing away.
        leases.hold(tag(), Lease::new(at_cost(1), 0, 0, ends_soon, at_millis(201)));
        let peeked = leases.peek(tag(), at_cost(1), at_millis(499)).unwrap();
        let spent = leases.spend(tag(), at_cost(1), at_millis(499)).unwrap();
        assert_eq!((peeked.remaining(), peeked.receipt()), (spent.remaining(), spent.receipt()));
        assert!(
            leases.peek(tag(), at_cost(1), at_millis(500)).is_none()
                && leases.spend(tag(), at_cost(1), at_millis(500)).is_none()
        );
    }

    #[test]
    fn returned_requests_keep_their_own_receipt() {
        let leases = leases();
        leases.hold(tag(), Lease::new(at_cost(1), 1, 1, granted(90), at_millis(0)));
        let lease = leases.spend(tag(), at_cost(1), at_millis(1)).unwrap().receipt().read().unwrap();
        // A later call charges the key, too.
        leases.hold(tag(), Lease::new(at_cost(1), 0, 0, granted(80).with_receipt(Receipt::new(8)), at_millis(2)));
        leases.return_to_lease(tag(), 1, lease, at_millis(3));
        let unspent = Unspent { requests: 1, price: at_cost(1), receipt: Receipt::new(7) };
        assert_eq!(leases.next_action(tag(), at_cost(1), 1, at_millis(1_000)), LeaseAction::Refund(unspent));
    }

    #[test]
    fn a_lease_outlives_its_buckets_debt() {
        let leases = leases();
        let bucket = TokenBucket::new(Quota::per_second(1_000));
        let full_soon = granted(90).with_reset_after(Duration::from_millis(5));
        leases.hold(tag(), Lease::new(at_cost(1), 3, 3, full_soon, at_millis(0)).taken_from(bucket.kind()));
        assert!(
            leases.spend(tag(), at_cost(1), at_millis(6)).is_some()
                && leases.spend(tag(), at_cost(1), at_millis(999)).is_some()
        );
        assert!(leases.spend(tag(), at_cost(1), at_millis(1_000)).is_none(), "its own lifetime is over");
    }

    /// The later call is made in the lease's window, and decided in the next, which ends in a minute.
    #[test]
    fn later_calls_do_not_extend_a_lease() {
        let leases = leases();
        let window_ends = granted(90).with_reset_after(Duration::from_millis(800));
        leases.hold(tag(), Lease::new(at_cost(1), 1, 1, window_ends, at_millis(0)));
        let lease = leases.spend(tag(), at_cost(1), at_millis(500)).unwrap().receipt().read().unwrap();
        leases.hold(tag(), Lease::new(at_cost(1), 0, 0, granted(90), at_millis(799)));
        leases.return_to_lease(tag(), 1, lease, at_millis(850));
        assert!(leases.spend(tag(), at_cost(1), at_millis(850)).is_none());
    }

    /// The figure that `RedisStore::leasing` documents. It is less on 32 bits.
    #[cfg(target_pointer_width = "64")]
    #[test]
    fn leases_take_the_documented_memory() {
        assert_eq!((10 * KnownKeys::<Lease>::size_of(SETS)).div_ceil(1 << 20), 11);
    }

    #[test]
    fn spent_leases_keep_their_key_in_demand() {
        let leases = leases();
        assert!(!leases.is_in_demand(tag(), at_cost(1), at_millis(0)));
        leases.hold(tag(), Lease::new(at_cost(1), 0, 0, granted(90), at_millis(0)));
        assert!(
            leases.is_in_demand(tag(), at_cost(1), at_millis(999))
                && !leases.is_in_demand(tag(), at_cost(1), at_millis(1_000))
        );
        assert!(!leases.is_in_demand(tag(), at_cost(2), at_millis(1)), "of another cost");
    }

    #[test]
    fn one_concurrent_call_asks_for_more() {
        let leases = leases();
        leases.hold(tag(), Lease::new(at_cost(1), 0, 2, granted(90), at_millis(0)));
        assert_eq!(leases.next_action(tag(), at_cost(1), 1, at_millis(1)), LeaseAction::More(4));
        assert_eq!(leases.next_action(tag(), at_cost(1), 1, at_millis(1)), LeaseAction::More(0));
        // The other call returns first. Then the call that asked for more returns, and was granted nothing.
        leases.hold(tag(), Lease::new(at_cost(1), 0, 0, granted(90), at_millis(1)));
        assert_eq!(leases.next_action(tag(), at_cost(1), 1, at_millis(2)), LeaseAction::More(0));
        leases.hold(tag(), Lease::new(at_cost(1), 0, 4, granted(90), at_millis(1)));
        assert_eq!(leases.next_action(tag(), at_cost(1), 1, at_millis(3)), LeaseAction::More(4));
    }

    /// With 32 processes at one key, most calls time out. Once, each timeout ended its process's leases for their
    /// lifetime.
    #[test]
    fn the_next_call_retries_a_failed_lease() {
        let leases = leases();
        leases.hold(tag(), Lease::new(at_cost(1), 0, 2, granted(90), at_millis(0)));
        for _ in 0..3 {
            assert_eq!(leases.next_action(tag(), at_cost(1), 1, at_millis(1)), LeaseAction::More(4));
            assert_eq!(leases.next_action(tag(), at_cost(1), 1, at_millis(1)), LeaseAction::More(0));
            leases.ask_again(tag());
        }
    }

    #[test]
    fn a_lease_covers_the_waiting_requests() {
        let leases = leases();
        leases.hold(tag(), Lease::new(at_cost(1), 0, 0, granted(90), at_millis(0)));
        assert_eq!(leases.next_action(tag(), at_cost(1), 7, at_millis(1)), LeaseAction::More(7));
        leases.hold(tag(), Lease::new(at_cost(1), 7, 7, granted(90), at_millis(1)));
        assert_eq!(spend_all(&leases, 1, 2), 7);
        assert_eq!(
            leases.next_action(tag(), at_cost(1), 7, at_millis(2)),
            LeaseAction::More(10),
            "never more than `most`"
        );
        // The lease is still for at most half the remaining units.
        leases.hold(tag(), Lease::new(at_cost(1), 10, 10, granted(6), at_millis(2)));
        assert_eq!(spend_all(&leases, 1, 3), 10);
        assert_eq!(leases.next_action(tag(), at_cost(1), 7, at_millis(3)), LeaseAction::More(3));
    }

    /// Holds a counterexample's lease. Returns also its price and the present instant.
    fn held(case: &Counterexample) -> (Leases, Price, Timestamp) {
        let [lifetime, reset] = ["lifetime", "reset"].map(|span| Duration::from_nanos(case.number(span)));
        let leases = Leases::new(case.number_or("most", Leases::MOST), lifetime);
        let price = at_cost(case.number("cost"));
        let quota = Quota::per_minute(100);
        let decision = Decision::allow(Quota::MAX_UNITS, case.number_or("remaining", 0)).with_reset_after(reset);
        let granted = case.number("granted");
        let since = Timestamp::from_nanos(case.number("since"));
        let lease = Lease::new(price, granted, case.number_or("size", 0), decision, since);
        let is_of_window = case.number::<u32>("of_window") == 1;
        leases.hold(tag(), if is_of_window { lease } else { lease.taken_from(Kind::Bucket { quota }) });
        leases.held.change(tag(), |lease| lease.left = case.number("left"));
        (leases, price, Timestamp::from_nanos(case.number("now")))
    }

    fn requests_left(leases: &Leases) -> u128 {
        leases.held.get(tag()).unwrap().left.into()
    }

    #[test]
    fn leases_withstand_the_counterexamples() {
        each("src/store/remote/leases.rs: Leases::spend_from", |case| {
            let (leases, price, now) = held(case);
            let paid = leases.spend(tag(), price, now).is_some();
            [("paid", paid.into()), ("left", requests_left(&leases))]
        });
        each("src/store/remote/leases.rs: Leases::return_to_lease", |case| {
            let (leases, price, now) = held(case);
            let lease = LeaseReceipt(leases.held.get(tag()).unwrap().since);
            leases.return_to_lease(tag(), price.cost, lease, now);
            [("left", requests_left(&leases))]
        });
        each("src/store/remote/leases.rs: Leases::next_action", |case| {
            let (leases, price, now) = held(case);
            let (refunded, more) = match leases.next_action(tag(), price, 1, now) {
                LeaseAction::Refund(unspent) => (unspent.requests, 0),
                LeaseAction::More(more) => (0, more),
            };
            [("refunded", refunded.into()), ("left", requests_left(&leases)), ("more", more.into())]
        });
    }
}
