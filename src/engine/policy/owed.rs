//! Costs above the charge: a policy charges the remaining units, and forgives the rest or lets the key owe it. A charge
//! by hand lets the key owe in any case.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use crate::engine::domain::Domain;
use crate::engine::policy::debts::{DebtCharge, Debts};
use crate::engine::policy::definition::Policy;
use crate::store::TableStats;
use crate::values::time::Monotonic;
use crate::values::{Ask, Decision, KeepsStanding, LimiterError, Mode, PartitionKey, Quota, Shape};

/// Called after a charge beyond the first, with its decision and its units.
pub(crate) type NoteCharge = Box<dyn FnOnce(&Decision, u64) + Send>;

impl<D: Domain> Policy<D> {
    /// The quota by which a key pays its debt, if time restores its units.
    pub(super) fn quota_of_debts(&self, quota: Option<Quota>) -> Option<Quota> {
        let terms = self.terms_under(quota)?;
        let quota = terms.quota()?;
        Some(if terms.shape() == Some(Shape::Bucket) { quota } else { quota.without_burst() })
    }

    /// The debt table, and the quota by which a key pays its debt, if a key may owe something.
    fn debts_of(&self, quota: Option<Quota>) -> Option<(&Arc<Debts>, Quota)> {
        Some((self.lineage.record.debts()?, self.quota_of_debts(quota)?))
    }

    /// Charges a request to its key's debt, if there is one.
    ///
    /// # Errors
    ///
    /// If the debt is too large for the request to be admitted now: the time that it has to wait.
    pub(crate) fn charge_debt(
        &self,
        key: &PartitionKey,
        units: u64,
        quota: Option<Quota>,
    ) -> Result<Option<DebtCharge>, Duration> {
        let Some((debts, quota)) = self.debts_of(quota).filter(|_| units > 0) else { return Ok(None) };
        DebtCharge::new(debts, key, quota, units)
    }

    /// Takes a part of a request's charge back from its key's debt.
    pub(crate) fn refund_debt(&self, key: &PartitionKey, units: u64) {
        if let Some(debts) = self.lineage.record.debts() {
            debts.refund(key, units);
        }
    }

    /// The time by which refunding `units` shortens a key's debt.
    pub(crate) fn pays_for(&self, units: u64, quota: Option<Quota>) -> Duration {
        self.quota_of_debts(quota).map_or(Duration::ZERO, |quota| quota.time_to_restore(units))
    }

    /// The decision on a request that will not be charged more, with its key's debt taken into account. `quota` is the
    /// key's own quota.
    pub(crate) fn after_debt(&self, key: &PartitionKey, quota: Option<Quota>, decision: Decision) -> Decision {
        let left = self.debts_of(quota).and_then(|(debts, quota)| debts.units_left(key, Some(quota)));
        left.map_or(decision, |left| left.of(decision))
    }

    /// As [`after_debt`](Self::after_debt), under the quota that the key had when it last owed something.
    pub(super) fn after_debt_as_kept(&self, key: &PartitionKey, decision: Decision) -> Decision {
        let left = self.lineage.record.debts().and_then(|debts| debts.units_left(key, None));
        left.map_or(decision, |left| left.of(decision))
    }

    /// Whether this process knows a key that may owe something.
    pub(crate) fn has_debts(&self) -> bool {
        self.lineage.record.debts().is_some_and(|debts| !debts.is_over())
    }

    /// Forgives a key's debt.
    pub(super) fn forgive(&self, key: &PartitionKey) {
        if let Some(debts) = self.lineage.record.debts() {
            debts.forget(key);
        }
    }

    /// The debt table's occupancy, if a key has ever owed something.
    pub(super) fn debt_table(&self) -> Option<TableStats> {
        self.lineage.record.debts().map(|debts| debts.stats())
    }

    /// Charges a request's cost beyond its charge, as far as units are left. The rest is forgiven, or
    /// [owed](Policy::owe_shortfalls). `fell_back` says whether the local fallback was charged the first part.
    /// Afterwards, `note` is called, if there is one, with the decision and the units that were charged.
    pub(crate) fn charge_shortfall(&self, ask: &Ask<'_>, fell_back: bool, note: Option<NoteCharge>) {
        let owes = self.billing.owes_shortfalls;
        if let Some(balance) = self.description.adjusts().filter(|_| owes && self.description.keeps_credits()) {
            // A balance in memory is charged by now, and a server's answer need not be awaited.
            let mut charge = balance.charge(ask, None);
            if charge.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                crate::util::spawn(async move { drop(charge.await) });
            }
            return;
        }
        // A key that owes something owes its further charges as well.
        match self.quota_of_debts(ask.quota()).filter(|_| owes || self.has_debts()) {
            Some(quota) => match self.description.keeps_standing().filter(|_| owes && !fell_back) {
                Some(server) => self.owe_on(server, ask, quota, note),
                None => self.charge_or_owe(ask, fell_back, Some(quota), note),
            },
            None if note.is_some() => self.charge_or_owe(ask, fell_back, None, note),
            // The limiter failed on this request, so the rest is charged where the first part was.
            None if fell_back => self.fall_back_up_to(ask),
            None => self.charge_up_to(ask),
        }
    }

    /// Adds to a key's debt on the server that keeps debts, or in this process if the call fails.
    fn owe_on(&self, server: &Arc<dyn KeepsStanding>, ask: &Ask<'_>, quota: Quota, note: Option<NoteCharge>) {
        let record = Arc::clone(&self.lineage.record);
        let owed = server.owe(ask);
        let key = ask.key().clone();
        let units = ask.cost();
        crate::util::spawn(async move {
            match (owed.await, note) {
                (Ok(decision), Some(note)) => note(&decision, units),
                (Ok(_), None) => {}
                (Err(_), _) => record.debts_by(|| Arc::new(Monotonic)).add(&key, quota, 0, units),
            }
        });
    }

    /// Charges the remaining units, and adds the rest to the key's debt, which it pays by `quota`. Without a `quota`,
    /// the rest is forgiven. A limiter that calls a server is charged in the background. If there is no runtime, the
    /// calls by this crate's stores fail, and all is owed, but a custom limiter's pending answer is dropped, and
    /// nothing is charged or owed.
    fn charge_or_owe(&self, ask: &Ask<'_>, fell_back: bool, quota: Option<Quota>, note: Option<NoteCharge>) {
        let record = Arc::clone(&self.lineage.record);
        let clock = self.clock();
        let key = ask.key().clone();
        let units = ask.cost();
        let owes = self.billing.owes_shortfalls;
        let charged = self.charge_left(ask, self.mode_of_shortfalls(fell_back));
        let mut charge = Box::pin(async move {
            let (charged, decision) = charged.await.unwrap_or_default();
            if let Some((note, decision)) = note.zip(decision) {
                note(&decision, charged);
            }
            if let Some(quota) = quota {
                let owed = if owes { units - charged } else { 0 };
                record.debts_by(|| clock).add(&key, quota, charged, owed);
            }
        });
        // A limiter in memory answers at once.
        if charge.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            crate::util::spawn(charge);
        }
    }

    /// Charges the remaining units, up to the cost, and waits for the answers. Returns the units, and the decision that
    /// charged them.
    pub(super) fn charge_left(
        &self,
        ask: &Ask<'_>,
        mode: Mode,
    ) -> impl Future<Output = Result<(u64, Option<Decision>), LimiterError>> + Send + use<D> {
        let limiter = Arc::clone(&self.limiter);
        let key = ask.key().clone();
        let quota = ask.quota();
        let mut units = ask.cost();
        async move {
            // First asks for all units, and if that is rejected, for the remaining ones. A concurrent request may have
            // used them by then, so we ask in a loop.
            while units > 0 {
                let decision = limiter.decide(&Ask::charge(&key, units).under(quota).to(mode)).decided().await?;
                if decision.is_allowed() {
                    return Ok((units, Some(decision)));
                }
                units = decision.partial_cost(units).filter(|left| *left < units).unwrap_or(0);
            }
            Ok((0, None))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::TokenBucket;
    use crate::limiter::RateLimiter;
    use crate::store::MemoryStore;
    use crate::values::time::ManualClock;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn policy(quota: Quota) -> (Policy, ManualClock) {
        let clock = ManualClock::new();
        let store = MemoryStore::default().with_clock(clock.clone());
        let limiter = RateLimiter::new(TokenBucket::new(quota), store);
        (Policy::new("p", limiter).settle_by_handler().owe_shortfalls(), clock)
    }

    fn owe(policy: &Policy, key: &PartitionKey, units: u64) {
        policy.charge_shortfall(&Ask::charge(key, units), false, None);
    }

    /// 25 units are charged to a bucket with ten, so fifteen are owed.
    #[test]
    fn time_pays_debts_and_waits_are_true() {
        let (policy, clock) = policy(Quota::per_hour(10));
        let key = PartitionKey::from("a");
        assert!(policy.charge_debt(&key, 1, None).is_ok_and(|charge| charge.is_none()), "it owes nothing");
        owe(&policy, &key, 25);
        let wait = policy.charge_debt(&key, 4, None).err().unwrap();
        assert_eq!(wait, HOUR * 19 / 10);
        clock.advance(wait - Duration::from_nanos(1));
        assert_eq!(policy.charge_debt(&key, 4, None).err(), Some(Duration::from_nanos(1)));
        clock.advance(Duration::from_nanos(1));
        let mut charge = policy.charge_debt(&key, 4, None).unwrap().unwrap();
        assert_eq!(policy.charge_debt(&key, 1, None).err(), Some(HOUR / 10), "the four are spent");
        drop(policy.charge_debt(&"b".into(), 10, None).unwrap());
        charge.keep();
        drop(charge);
        assert_eq!(policy.charge_debt(&key, 1, None).err(), Some(HOUR / 10));
        policy.refund_debt(&key, 3);
        assert!(policy.charge_debt(&key, 3, None).is_ok());
        assert!(policy.charge_debt(&key, 3, None).is_ok(), "a dropped charge is taken back");
        clock.advance(HOUR);
        assert!(policy.charge_debt(&key, 10, None).is_ok_and(|charge| charge.is_none()), "all is paid");
    }

    /// Ten requests come at once, and each has a whole bucket as its final cost.
    #[test]
    fn concurrent_requests_owe_together() {
        let (policy, _) = policy(Quota::per_hour(10));
        let key = PartitionKey::from("a");
        (0..10).for_each(|_| owe(&policy, &key, 10));
        assert_eq!(policy.charge_debt(&key, 1, None).err(), Some(HOUR * 91 / 10));
    }

    #[test]
    fn a_debt_keeps_units_across_quotas() {
        let (policy, _) = policy(Quota::per_hour(10));
        let key = PartitionKey::from("a");
        owe(&policy, &key, 20);
        // Twenty units at ten per hour become twenty at forty per hour.
        let faster = Some(Quota::per_hour(40));
        assert!(policy.charge_debt(&key, 20, faster).is_ok());
        assert_eq!(policy.charge_debt(&key, 21, faster).err(), Some(HOUR / 40));
        assert_eq!(policy.charge_debt(&key, 1, Some(Quota::per_hour(5))).err(), Some(HOUR * 16 / 5));
        policy.forgive(&key);
        assert!(policy.charge_debt(&key, 1, None).is_ok_and(|charge| charge.is_none()));
    }

    /// A key owes by one quota and asks by another, in turns. Each look keeps the debt.
    #[test]
    fn alternating_quotas_do_not_lengthen_debts() {
        let (policy, clock) = policy(Quota::per_hour(10));
        let key = PartitionKey::from("a");
        owe(&policy, &key, 20);
        let (slow, fast) = (Quota::per_hour(10), Quota::per(7, Duration::from_secs(3)));
        for _ in 0..1_000 {
            for quota in [fast, slow] {
                assert!(policy.charge_debt(&key, 11, Some(quota)).is_err());
            }
            clock.advance(HOUR / 2_000);
        }
        // It owed ten, and the time under the slow quota has paid five.
        let wait = policy.charge_debt(&key, 1, Some(slow)).err().unwrap();
        let expected = HOUR * (10 + 1 - 5) / 10;
        assert!(wait.abs_diff(expected) < Duration::from_secs(2), "{wait:?}");
    }

    /// Thirty units are charged to a burst of twenty. After an hour and a half at ten per hour, fifteen are owed, so
    /// five are left.
    #[test]
    fn debts_reduce_the_burst() {
        let (policy, clock) = policy(Quota::per_hour(10).burst(20));
        let key = PartitionKey::from("a");
        owe(&policy, &key, 30);
        clock.advance(HOUR * 3 / 2);
        let left = |quota: Option<Quota>, remaining| {
            let decision = policy.after_debt(&key, quota, Decision::allow(20, remaining));
            (decision.remaining(), decision.reset_after())
        };
        assert_eq!(left(None, 20), (5, HOUR * 3 / 2));
        assert_eq!(left(None, 4), (4, HOUR * 3 / 2), "its limiter has less left");
        assert_eq!(left(Some(Quota::per_hour(30).burst(20)), 20), (5, HOUR / 2));
        assert_eq!(left(Some(Quota::per_hour(30).burst(15)), 15), (0, HOUR / 2));
        assert_eq!(policy.after_debt_as_kept(&key, Decision::allow(20, 20)).remaining(), 5);
    }

    /// Keys that owe something and stop sending do not keep a later key from owing, and time frees their slots.
    /// Regression: there were slots for 65,536 debts, which only a later request with the same key freed, so that all
    /// further debts were forgiven for ever. Forgiven debts are counted.
    #[test]
    fn floods_forgive_the_shortest_debts() {
        let (policy, clock) = policy(Quota::per_hour(1));
        (0..150_000_u64).for_each(|key| owe(&policy, &key.into(), 2));
        let late = PartitionKey::from("late");
        owe(&policy, &late, 100);
        assert_eq!(policy.charge_debt(&late, 1, None).err(), Some(HOUR * 100));
        let TableStats { capacity, evicted_live, .. } = policy.debt_table().unwrap();
        assert_eq!((capacity, evicted_live > 0), (65_536, true));
        clock.advance(200 * HOUR);
        (0..30_000_u64).for_each(|key| owe(&policy, &key.into(), 2));
        assert_eq!(policy.debt_table().unwrap().evicted_live, evicted_live, "the others have paid");
    }

    #[test]
    fn without_owing_shortfalls_are_forgiven() {
        let clock = ManualClock::new();
        let store = MemoryStore::default().with_clock(clock);
        let limiter = RateLimiter::new(TokenBucket::new(Quota::per_hour(10)), store);
        let policy = Policy::new("p", limiter).settle_by_handler();
        owe(&policy, &"a".into(), 25);
        assert!(policy.debt_table().is_none());
    }
}
