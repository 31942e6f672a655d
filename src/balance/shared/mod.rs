//! [`SharedBalance`], the limiter.

#[cfg(all(test, not(sluice_loom)))]
mod tests;

use std::fmt;
use std::future::{Future, ready};
use std::sync::Arc;

use tokio::runtime::Handle;

use super::{UnitsLeft, admitted, judged};
use crate::limiter::{IntoLimiter, Limiter};
use crate::store::Stats;
use crate::store::remote::accounts::{AccountDone, AccountReply, AccountStep};
use crate::store::remote::limiter_keys::LimiterKeys;
use crate::store::remote::server::deadline_of;
use crate::store::remote::shared_reports::sharing_reports;
use crate::store::remote::tag::KeyTag;
use crate::store::remote::{Accounts, CallLimits, GaveUp};
use crate::util::undo::complete_or_undo;
use crate::values::{
    Adjusted, Adjusting, Answer, Ask, Credit, Decision, Description, Inheritance, LimiterError, Mode, Paid,
    PartitionKey, PendingAdjustment, Receipt, Shortfall,
};

/// A [`Balance`](crate::Balance) that many processes share, on a server: [Redis], [PostgreSQL], a
/// [key-value store](crate::store::remote::KeyValueRecords), or any other [`Accounts`] or
/// [`Records`](crate::store::remote::Records).
///
/// The documentation of `Balance` applies here, too: lots and their expiry, charges by hand, decisions and refunds.
/// The differences:
///
/// | | `Balance` | `SharedBalance` |
/// |---|---|---|
/// | balances are kept | in the process, until it ends | on the server, as durably as it keeps its data |
/// | a request takes | a lock | one round trip on Redis, two elsewhere |
/// | lots expire by | the process's clock | the server's clock |
/// | the number of keys | [`max_keys`](crate::Balance::max_keys) | what the server has room for |
/// | [peek](Mode::Peek) | yes | no |
///
/// ```no_run
/// use tower_sluice::store::remote::{KeyValue, KeyValueRecords};
/// # #[cfg(feature = "http")]
/// use tower_sluice::{Policy, SharedBalance, key::User};
///
/// # #[cfg(feature = "http")]
/// fn policy(store: std::sync::Arc<impl KeyValue>) -> Policy {
///     // On PostgreSQL: `postgres.records()`. On Redis: `redis.clone()`.
///     let records = KeyValueRecords::new(store, "bought");
///     Policy::new("bought", SharedBalance::new(records, "bought")).key(User::key())
/// }
/// ```
///
/// # When the server is out of reach
///
/// A call fails within the store's timeout, and at once while its circuit breaker is open. The policy
/// [decides](crate::FailureMode) on the request then. **There is no local fallback**, since no process knows the units
/// that others have used: with [`FailureMode::LocalFallback`](crate::FailureMode), the client gets a 503.
///
/// # Accuracy
///
/// Exact, with any number of processes, if each call is answered. If a charge or a refund runs into the timeout, we
/// don't know whether the server has done it, and we don't repeat it, so the key may have been charged for a request
/// that was not served. If a credit or a charge by hand fails, repeat it with its reference. It is entered once, even
/// if a process is killed while it enters it.
///
/// Data that the server loses is lost. So configure the server to keep everything that it has confirmed; the guide's
/// page `top_ups` says how.
///
/// # Cancel safety
///
/// If a request is dropped while the server is asked, a background task gives back the units that the call has taken.
///
/// # Memory and cost
///
/// | | Redis | [`Records`](crate::store::remote::Records) |
/// |---|---|---|
/// | a decision | 1 call | 2 calls: it reads, and swaps |
/// | a rejection | 1 call | 1 call |
/// | a credit or a charge by hand | 1 call | 2 calls |
/// | the same with a reference | 1 call | 5 calls; 2 if it is repeated |
/// | a key with one lot | 120 bytes | 36 bytes, and the name |
/// | each further lot | 15 bytes | 16 bytes |
///
/// Over records, a key changes at most once in the time that two calls take. One process's requests for one key take
/// turns, so only processes compete, and a process that was slower reads again [after a short
/// pause](crate::store::remote::Attempts). A step looks at all the key's lots, at most 64.
///
/// # Live change
///
/// The heir must have the same name on the same store.
///
/// [Redis]: https://docs.rs/tower-sluice-redis/latest/tower_sluice_redis/struct.Redis.html
/// [PostgreSQL]: https://docs.rs/tower-sluice-postgres/latest/tower_sluice_postgres/struct.Postgres.html#method.records
#[doc(alias("prepaid", "credits", "top-up", "wallet"))]
#[must_use]
pub struct SharedBalance<S>(Arc<Inner<S>>);

/// One name's accounts on the server.
struct Inner<S> {
    store: Arc<S>,
    keys: LimiterKeys,
}

impl<S: Accounts> SharedBalance<S> {
    /// Keeps balances in `store` under this `name`, which all processes that share them use. Other limiters on the
    /// store need other names.
    pub fn new(store: S, name: &str) -> Self {
        let keys = LimiterKeys::new(store.secret(), name);
        Self(Arc::new(Inner { store: Arc::new(store), keys }))
    }
}

impl<S: Accounts> Inner<S> {
    async fn apply(&self, tag: KeyTag, step: AccountStep) -> Result<AccountReply, LimiterError> {
        let limits = CallLimits::until(deadline_of(&*self.store));
        self.store.apply(&self.keys.key(tag), step, limits).await
    }

    async fn take(&self, tag: KeyTag, cost: u64, shortfall: Shortfall) -> Result<Decision, LimiterError> {
        let step = AccountStep::Take { units: cost, shortfall, reference: None };
        let reply = self.apply(tag, step).await?;
        Ok(match reply.done {
            AccountDone::Step if reply.taken > 0 => admitted(reply.taken, units_left(&reply), reply.paid),
            _ => judged(cost, units_left(&reply)),
        })
    }

    async fn give_back(self: Arc<Self>, tag: KeyTag, units: u64, paid: Paid) {
        // If it fails, the units stay charged.
        let _ = self.apply(tag, AccountStep::GiveBack { units, paid }).await;
    }

    fn runtime(&self) -> Result<Handle, LimiterError> {
        Handle::try_current().map_err(|_| self.store.gave_up(GaveUp::NoRuntime))
    }

    /// Takes a request's cost. If the request's future is dropped meanwhile, the units are given back.
    fn charge(self: &Arc<Self>, tag: KeyTag, cost: u64) -> Answer {
        let runtime = match self.runtime() {
            Ok(runtime) => runtime,
            Err(error) => return error.into(),
        };
        let taking = {
            let accounts = Arc::clone(self);
            async move { accounts.take(tag, cost, Shortfall::Rejected).await }
        };
        let accounts = Arc::clone(self);
        Answer::Pending(Box::pin(complete_or_undo(runtime, taking, move |answer: Result<Decision, _>| async move {
            if let Some(paid) = answer.ok().and_then(|decision| decision.receipt().read()) {
                accounts.give_back(tag, cost, paid).await;
            }
        })))
    }

    /// Takes the cost as far as units are left, even if the answer is dropped.
    fn charge_up_to(self: &Arc<Self>, tag: KeyTag, cost: u64) -> Answer {
        let accounts = Arc::clone(self);
        self.in_background(async move { accounts.take(tag, cost, Shortfall::Forgiven).await })
    }

    fn in_background(
        self: &Arc<Self>,
        charge: impl Future<Output = Result<Decision, LimiterError>> + Send + 'static,
    ) -> Answer {
        let task = match self.runtime() {
            Ok(runtime) => runtime.spawn(charge),
            Err(error) => return error.into(),
        };
        let accounts = Arc::clone(self);
        Answer::Pending(Box::pin(async move {
            task.await.unwrap_or_else(|_| Err(accounts.store.gave_up(GaveUp::Cancelled)))
        }))
    }

    fn reset(self: &Arc<Self>, tag: KeyTag) -> Answer {
        let accounts = Arc::clone(self);
        Answer::Pending(Box::pin(async move {
            let reply = accounts.apply(tag, AccountStep::Forgive).await?;
            Ok(judged(0, units_left(&reply)))
        }))
    }

    /// Enters a credit or a charge by hand.
    fn adjust(self: &Arc<Self>, tag: KeyTag, step: AccountStep) -> PendingAdjustment {
        let accounts = Arc::clone(self);
        Box::pin(async move {
            let reply = accounts.apply(tag, step).await?;
            let is_repeated = reply.done == AccountDone::Repeated;
            match reply.done {
                AccountDone::Unfit(unfit) => Err(unfit.into()),
                AccountDone::Nothing | AccountDone::Step | AccountDone::Repeated => {
                    Ok(Adjusted { decision: judged(0, units_left(&reply)), is_repeated })
                }
            }
        })
    }
}

fn units_left(reply: &AccountReply) -> UnitsLeft {
    UnitsLeft::new(reply.left, reply.suffices_until, reply.now)
}

/// Enters credits and charges by hand with their references.
struct Adjuster<S>(Arc<Inner<S>>);

impl<S: Accounts> Adjusting for Adjuster<S> {
    fn credit(&self, key: &PartitionKey, credit: &Credit) -> Option<PendingAdjustment> {
        if let Err(error) = credit.check() {
            return Some(Box::pin(ready(Err(error))));
        }
        let keys = &self.0.keys;
        let reference = credit.reference.as_deref().map(|reference| keys.credited(reference));
        let step = AccountStep::Credit { units: credit.units, expiry: credit.expiry, reference };
        Some(self.0.adjust(keys.tag(key), step))
    }

    fn keeps_credits(&self) -> bool {
        true
    }

    fn charge(&self, ask: &Ask<'_>, reference: Option<&str>) -> PendingAdjustment {
        let keys = &self.0.keys;
        let reference = reference.map(|reference| keys.charged(reference));
        let step = AccountStep::Take { units: ask.cost(), shortfall: Shortfall::Owed, reference };
        self.0.adjust(keys.tag(ask.key()), step)
    }
}

impl<S: Accounts> Limiter for SharedBalance<S> {
    fn decide(&self, ask: &Ask<'_>) -> Answer {
        let accounts = &self.0;
        let tag = accounts.keys.tag(ask.key());
        match ask.mode() {
            Mode::Charge | Mode::Shadow => accounts.charge(tag, ask.cost()),
            Mode::UpTo => accounts.charge_up_to(tag, ask.cost()),
            Mode::Reset => accounts.reset(tag),
            mode => LimiterError::unsupported(mode).into(),
        }
    }

    /// Gives units back, in the background. If it fails, or if there is no Tokio runtime, they stay charged.
    fn refund(&self, charged: &Ask<'_>, receipt: Receipt, units: u64) {
        let paid = receipt.read::<Paid>().filter(|_| units > 0);
        if let (Some(paid), Ok(runtime)) = (paid, Handle::try_current()) {
            let tag = self.0.keys.tag(charged.key());
            runtime.spawn(Arc::clone(&self.0).give_back(tag, units, paid));
        }
    }

    fn describe(&self) -> Description {
        let description =
            [Mode::Shadow, Mode::UpTo, Mode::Reset].into_iter().fold(Description::new(), Description::answering);
        let Inner { store, keys } = &*self.0;
        let records = store.shared_records();
        sharing_reports(description, records, keys.limiter()).adjusting(Adjuster(Arc::clone(&self.0)))
    }

    /// See [live change](Self#live-change).
    fn inherit(&self, predecessor: &dyn Limiter) -> Option<Inheritance<Arc<dyn Limiter>>> {
        let theirs = &predecessor.downcast_ref::<Self>()?.0;
        let is_same = self.0.store.is_same_as(&theirs.store) && self.0.keys.limiter() == theirs.keys.limiter();
        is_same.then(Inheritance::in_place)
    }

    /// Reports the servers' health.
    fn stats(&self) -> Stats {
        Stats { nodes: self.0.store.health(), ..Stats::default() }
    }
}

impl<S: Accounts> IntoLimiter for SharedBalance<S> {
    fn into_limiter(self) -> Arc<dyn Limiter> {
        Arc::new(self)
    }
}

impl<S> fmt::Debug for SharedBalance<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBalance").field("name", &self.0.keys.limiter()).finish_non_exhaustive()
    }
}
