//! [`RedisBalance`], the limiter.

use std::fmt;
use std::sync::Arc;

use tokio::runtime::Handle;
use tower_sluice::internal::redis::Abilities as _;
use tower_sluice::internal::redis::{
    Adjusted, Adjusting, KeyTag, Paid, PendingAdjustment, Shortfall, admitted, judged, paid_by, parts_of_credit,
};
use tower_sluice::limiter::{Answer, Ask, Credit, Description, Inheritance, IntoLimiter, Mode, Receipt};
use tower_sluice::store::Stats;
use tower_sluice::{Decision, Limiter, LimiterError, PartitionKey};

use super::script::{self, BalanceReply, Done};
use crate::connection::{FaultKind, Redis};
use crate::script::{Key, KeyNames, ScriptCall};
use crate::store::{RedisReports, ScriptCaller, failed, in_background};
use tower_sluice::internal::redis::complete_or_undo;

/// A [`Balance`](tower_sluice::Balance) that many processes share, on Redis (6.2 or later) or Valkey.
///
/// The documentation of `Balance` applies here, too: lots and their expiry, charges by hand, decisions and refunds.
/// The differences:
///
/// | | `Balance` | `RedisBalance` |
/// |---|---|---|
/// | balances are kept | in the process, until it ends | on the server, as durably as it keeps its data |
/// | a request takes | a lock | one round trip: one script |
/// | lots expire by | the process's clock | the server's clock |
/// | the number of keys | [`max_keys`](tower_sluice::Balance::max_keys) | what the server has memory for |
/// | [peek](Mode::Peek) | yes | no |
///
/// ```no_run
/// use tower_sluice::key::User;
/// use tower_sluice::Policy;
/// use tower_sluice_redis::{Redis, RedisBalance};
///
/// let redis = Redis::open("redis://10.0.0.7:6379")?;
/// let policy = Policy::new("bought", RedisBalance::new(&redis, "bought")).key(User::key());
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # What is kept
///
/// A key is a hash with a field for each lot. It expires with its last lot, or never if a lot never does, or if the key
/// owes something. A reference of a credit or a charge by hand is a key of its own, beside it. The server must not
/// evict keys (`maxmemory-policy noeviction`), and should write its log at once (`appendfsync always`): what it loses
/// is lost.
///
/// # When Redis is out of reach
///
/// A call fails within the [timeout](crate::RedisBuilder::timeout), and at once while the circuit breaker
/// is open. The policy [decides](tower_sluice::FailureMode) on the request then. **There is no local fallback**, since no
/// process knows what others have used: with [`FailureMode::LocalFallback`](tower_sluice::FailureMode), the request is
/// answered 503.
///
/// # Accuracy
///
/// Exact, with any number of processes, if each call is answered. If a charge or a refund runs into the timeout, it is
/// not known whether the server has done it, and it is not repeated: the key may have been charged for a request that
/// was not served. A credit or a charge by hand that fails should be repeated with its reference, which is entered
/// once.
///
/// # Cancel safety
///
/// A request that is dropped while Redis is asked is given back what the call has taken, in the background.
///
/// # Memory and cost
///
/// One round trip for a decision, also if it is rejected. On the server, a key with one lot takes 120 bytes, and each
/// further lot 15; a reference takes 140. A script reads all lots of the key: 64 at most.
///
/// # Live change
///
/// The heir must have the same name on the same [`Redis`].
#[doc(alias("prepaid", "credits", "top-up", "wallet"))]
pub struct RedisBalance {
    name: Box<str>,
    accounts: Arc<RedisAccounts>,
}

/// The accounts of one name on the server.
struct RedisAccounts {
    redis: Redis,
    scripts: ScriptCaller,
    names: KeyNames,
}

impl RedisBalance {
    /// Keeps balances under this `name`, which all processes that share them use. Other limiters on `redis` need other
    /// names.
    #[must_use]
    pub fn new(redis: &Redis, name: &str) -> Self {
        let names = KeyNames::new(redis.prefix(), name, redis.secret());
        let accounts = RedisAccounts { redis: redis.clone(), scripts: ScriptCaller::new(redis), names };
        Self { name: name.into(), accounts: Arc::new(accounts) }
    }
}

impl RedisAccounts {
    fn key(&self, tag: KeyTag) -> Key {
        self.names.key(tag, 'l')
    }

    /// The key of a reference. `kind` separates credits from charges by hand.
    fn record(&self, tag: KeyTag, kind: &str, reference: Option<&str>) -> Option<Key> {
        let reference = PartitionKey::from_parts([kind, reference?]);
        Some(self.names.reference(tag, self.names.tag(&reference)))
    }

    async fn call(&self, call: ScriptCall) -> Result<BalanceReply, LimiterError> {
        let reply = self.scripts.call_one(call).await.map_err(failed)?;
        BalanceReply::read(&reply).map_err(failed)
    }

    async fn take(&self, tag: KeyTag, cost: u64, shortfall: Shortfall) -> Result<Decision, LimiterError> {
        let reply = self.call(script::take(self.key(tag), None, cost, shortfall)).await?;
        Ok(match reply.done {
            Done::Step if reply.taken > 0 => admitted(reply.taken, reply.left, reply.paid),
            _ => judged(cost, reply.left),
        })
    }

    async fn give_back(self: Arc<Self>, tag: KeyTag, units: u64, paid: Paid) {
        // If it fails, the units stay charged.
        let _ = self.call(script::give_back(self.key(tag), units, paid)).await;
    }

    /// Takes the cost of a request. If its future is dropped meanwhile, the units are given back.
    fn charge(self: &Arc<Self>, tag: KeyTag, cost: u64) -> Answer {
        let Ok(runtime) = Handle::try_current() else { return failed(FaultKind::NoRuntime).into() };
        let taking = {
            let accounts = Arc::clone(self);
            async move { accounts.take(tag, cost, Shortfall::Rejected).await }
        };
        let accounts = Arc::clone(self);
        Answer::Pending(Box::pin(complete_or_undo(runtime, taking, move |answer: Result<Decision, _>| async move {
            if let Some(paid) = answer.ok().and_then(|decision| paid_by(decision.receipt())) {
                accounts.give_back(tag, cost, paid).await;
            }
        })))
    }

    /// Takes the cost as far as units are left, even if the answer is dropped.
    fn charge_up_to(self: &Arc<Self>, tag: KeyTag, cost: u64) -> Answer {
        let accounts = Arc::clone(self);
        in_background(async move { accounts.take(tag, cost, Shortfall::Forgiven).await })
    }

    fn reset(self: &Arc<Self>, tag: KeyTag) -> Answer {
        let accounts = Arc::clone(self);
        Answer::Pending(Box::pin(async move {
            let reply = accounts.call(script::forgive(accounts.key(tag))).await?;
            Ok(judged(0, reply.left))
        }))
    }

    /// Makes the call of a credit or a charge by hand.
    fn adjust(self: &Arc<Self>, call: ScriptCall) -> PendingAdjustment {
        let accounts = Arc::clone(self);
        Box::pin(async move {
            let reply = accounts.call(call).await?;
            let is_repeated = reply.done == Done::Repeated;
            match reply.done {
                Done::Unfit(unfit) => Err(unfit.error()),
                Done::Nothing | Done::Step | Done::Repeated => {
                    Ok(Adjusted { decision: judged(0, reply.left), is_repeated })
                }
            }
        })
    }
}

/// Credits and charges accounts on the server, by one call each.
struct Adjuster(Arc<RedisAccounts>);

impl Adjusting for Adjuster {
    fn credit(&self, key: &PartitionKey, credit: &Credit) -> Option<PendingAdjustment> {
        let (units, expiry, reference) = match parts_of_credit(credit) {
            Ok(parts) => parts,
            Err(error) => return Some(Box::pin(std::future::ready(Err(error)))),
        };
        let accounts = &self.0;
        let tag = accounts.names.tag(key);
        let record = accounts.record(tag, "credit", reference);
        Some(accounts.adjust(script::credit(accounts.key(tag), record, units, expiry)))
    }

    fn keeps_credits(&self) -> bool {
        true
    }

    fn charge(&self, ask: &Ask<'_>, reference: Option<&str>) -> PendingAdjustment {
        let accounts = &self.0;
        let tag = accounts.names.tag(ask.key());
        let record = accounts.record(tag, "charge", reference);
        accounts.adjust(script::take(accounts.key(tag), record, ask.cost(), Shortfall::Owed))
    }
}

impl Limiter for RedisBalance {
    fn decide(&self, ask: &Ask<'_>) -> Answer {
        let accounts = &self.accounts;
        let tag = accounts.names.tag(ask.key());
        match ask.mode() {
            Mode::Charge | Mode::Shadow => accounts.charge(tag, ask.cost()),
            Mode::UpTo => accounts.charge_up_to(tag, ask.cost()),
            Mode::Reset => accounts.reset(tag),
            mode => LimiterError::unsupported(mode).into(),
        }
    }

    /// Gives units back, by one call in the background. If it fails, or if there is no tokio runtime, they stay
    /// charged.
    fn refund(&self, charged: &Ask<'_>, receipt: Receipt, units: u64) {
        let paid = paid_by(receipt).filter(|_| units > 0);
        if let (Some(paid), Ok(runtime)) = (paid, Handle::try_current()) {
            let tag = self.accounts.names.tag(charged.key());
            runtime.spawn(Arc::clone(&self.accounts).give_back(tag, units, paid));
        }
    }

    fn describe(&self) -> Description {
        [Mode::Shadow, Mode::UpTo, Mode::Reset]
            .into_iter()
            .fold(Description::new(), Description::answering)
            .sharing_reports(RedisReports::new(&self.accounts.redis, &self.accounts.names))
            .adjusting(Adjuster(Arc::clone(&self.accounts)))
    }

    /// See [live change](Self#live-change).
    fn inherit(&self, predecessor: &dyn Limiter) -> Option<Inheritance<Arc<dyn Limiter>>> {
        let theirs = predecessor.downcast_ref::<Self>()?;
        let is_same = self.accounts.redis.id() == theirs.accounts.redis.id() && self.name == theirs.name;
        is_same.then(Inheritance::in_place)
    }

    /// Reports the health of the servers.
    fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        stats.nodes = self.accounts.redis.health();
        stats
    }
}

impl IntoLimiter for RedisBalance {
    fn into_limiter(self) -> Arc<dyn Limiter> {
        Arc::new(self)
    }
}

impl fmt::Debug for RedisBalance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBalance")
            .field("redis", &self.accounts.redis)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
