//! Credits and charges by hand, at a policy.

use crate::engine::domain::Domain;
use crate::engine::policy::definition::Policy;
use crate::engine::policy::log;
use crate::values::time::{Clock, Monotonic};
use crate::values::{Adjusted, Ask, Credit, Debit, LimiterError, PartitionKey, Quota, REFERENCE_KEPT};

impl<D: Domain> Policy<D> {
    /// Adds units to a key, if its limiter keeps units that are credited.
    pub(crate) async fn credit_by_hand(&self, key: &PartitionKey, credit: &Credit) -> Result<Adjusted, LimiterError> {
        let pending = self.description.adjusts().and_then(|adjusting| adjusting.credit(key, credit));
        let pending = pending.ok_or_else(|| LimiterError::no_balance(&format!("policy `{}`", self.name)))?;
        let adjusted = pending.await?;
        self.log_adjustment(key, adjusted, true, (credit.units, credit.reference.as_deref()));
        Ok(adjusted)
    }

    /// Charges units to a key: first the remaining units, and the others as a debt. `quota` is the key's own quota, if
    /// a request provides it.
    pub(crate) async fn charge_by_hand(
        &self,
        key: &PartitionKey,
        quota: Option<Quota>,
        debit: &Debit,
    ) -> Result<Adjusted, LimiterError> {
        debit.check()?;
        let adjusted = self.charge_once_by_hand(key, quota, debit).await?;
        self.log_adjustment(key, adjusted, false, (debit.units, debit.reference.as_deref()));
        Ok(adjusted)
    }

    async fn charge_once_by_hand(
        &self,
        key: &PartitionKey,
        quota: Option<Quota>,
        debit: &Debit,
    ) -> Result<Adjusted, LimiterError> {
        if self.costs.quota.is_some() && quota.is_none() {
            return Err(LimiterError::quota_unknown(&self.name));
        }
        let ask = Ask::charge(key, debit.units).under(quota);
        let reference = debit.reference.as_deref();
        if let Some(adjusting) = self.description.adjusts() {
            return adjusting.charge(&ask, reference).await;
        }
        let quota_of_debt = self.quota_of_debts(quota).filter(|_| !self.description.delays());
        let quota_of_debt = quota_of_debt.ok_or_else(|| LimiterError::not_charged_by_hand(&self.name))?;
        if self.exception_here(key).is_some_and(|exception| !exception.is_ban) {
            return Err(LimiterError::allowed_by_hand());
        }
        // Claim the reference before asking the limiter, because a server may take its time. If two charges have one
        // reference, the second does nothing.
        let references = &self.lineage.record.charges_by_hand;
        let now = Monotonic.now();
        let claimed = references.once(key, reference, now, now.saturating_add(REFERENCE_KEPT), || Ok(()))?;
        if claimed.is_some() {
            if let Err(error) = self.charge_now(&ask, quota_of_debt).await {
                reference.iter().for_each(|reference| references.forget(key, reference));
                return Err(error);
            }
        }
        Ok(Adjusted { decision: self.peek_at_key(key, quota).await?, is_repeated: claimed.is_none() })
    }

    fn log_adjustment(
        &self,
        key: &PartitionKey,
        adjusted: Adjusted,
        is_credit: bool,
        (units, reference): (u64, Option<&str>),
    ) {
        if !adjusted.is_repeated {
            let route = self.lineage.meter.route().map(AsRef::as_ref);
            let line = log::KeyLine { policy: &self.name, route, key, left_out: 0 };
            log::key_adjusted(line, is_credit, units, reference);
        }
    }

    /// Charges the remaining units, and adds the others to the key's debt, on the server if it keeps debts.
    async fn charge_now(&self, ask: &Ask<'_>, quota: Quota) -> Result<(), LimiterError> {
        if let Some(server) = self.description.keeps_standing() {
            return server.owe(ask).await.map(drop);
        }
        let (charged, _) = self.charge_left(ask, self.mode_of_shortfalls(false)).await?;
        let record = &self.lineage.record;
        record.debts_by(|| self.clock()).add(ask.key(), quota, charged, ask.cost() - charged);
        Ok(())
    }
}
