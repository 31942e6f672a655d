//! [`Balance`], the limiter.

use std::fmt;
use std::future::ready;
use std::sync::{Arc, OnceLock};

use super::accounts::Accounts;
use crate::limiter::{IntoLimiter, Limiter};
use crate::store::Stats;
use crate::values::time::{Clock, Monotonic};
use crate::values::{
    Adjusting, Answer, Ask, Credit, Description, Inheritance, LimiterError, Mode, Paid, PartitionKey,
    PendingAdjustment, Receipt, Shortfall,
};

/// Admits a key's requests while it has units that were [credited](crate::limiter::Credit) to it: units that a customer
/// has bought, beyond the included quota. Nothing is restored by time.
///
/// Balances are kept in this process; a [`SharedBalance`](crate::SharedBalance) keeps balances on a server. Bought
/// units are money, so keep them there: a balance in memory is gone when its process ends, and is in no
/// [snapshot](crate::snapshot).
///
#[cfg_attr(feature = "http", doc = "```")]
#[cfg_attr(not(feature = "http"), doc = "```ignore")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use tower_sluice::key::User;
/// use tower_sluice::limiter::Credit;
/// use tower_sluice::{Balance, Policy, RateLimitLayer};
///
/// let limits = RateLimitLayer::new(Policy::new("bought", Balance::new()).key(User::key())).handle();
///
/// let year = Duration::from_secs(365 * 86_400);
/// let bought = Credit::units(500).expires_in(year).reference("invoice-17");
/// let status = limits.credit("bought", "alice", bought.clone()).await?;
/// assert_eq!(status.decision().remaining(), 500);
/// // The payment is reported again.
/// let status = limits.credit("bought", "alice", bought).await?;
/// assert!(status.is_repeated() && status.decision().remaining() == 500);
/// # Ok(())
/// # }
/// ```
///
/// # Lots
///
/// A key has lots of units, each with the millisecond at which it expires, or without one: at most 64. Those that
/// expire first are used first. Credits that expire at the same millisecond become one lot.
///
/// A charge [by hand](crate::LimitsHandle::charge) takes units that the key does not have, too: then the key owes them,
/// and its requests are rejected until a credit has paid them. [Resetting](Mode::Reset) a key forgives what it owes;
/// its lots stay.
///
/// # Decisions
///
/// A request is admitted if the key has its whole cost. A rejection has no time to retry after: none helps. The
/// [limit](crate::Decision::limit) of a decision is the number of units that the key had before it, and its
/// [reset](crate::Decision::reset_after) is the time until so many of these have expired that they would not pay for
/// the request any more; zero if they do not expire. So if another policy rejects a request for longer than that, no
/// wait is advertised. A balance differs by key, so response fields do not advertise it.
///
/// # Accuracy
///
/// Exact, with any number of threads: no unit is used twice, and none is lost. A refund (of a request that another
/// policy rejects, or that cost less in the end) gives units back to the lots that have paid them: to the lot that was
/// charged last, up to what it has paid, and the others to the lot that was charged first. So if a request was charged
/// to three lots or more, units of those between may expire earlier after a refund, and never later. Units of a lot
/// that has expired meanwhile are gone.
///
/// # Memory and cost
///
/// Some 220 bytes for each key with a balance. A decision takes one of 64 locks. A key is never forgotten for another
/// one: if [`max_keys`](Self::max_keys) keys have a balance, crediting another key is an error. Accounts that are used
/// up or have expired make room.
///
/// # Live change
///
/// The heir has the balances, and the [`max_keys`](Self::max_keys) of the first limiter.
#[must_use]
#[doc(alias("prepaid", "credits", "top-up", "wallet"))]
pub struct Balance(Parts);

/// The parts that a limiter shares with its [description](Limiter::describe).
#[derive(Clone)]
struct Parts {
    max_keys: usize,
    clock: Arc<dyn Clock>,
    /// Made on first use. A limiter that inherits shares its predecessor's accounts instead.
    accounts: Arc<OnceLock<Arc<Accounts>>>,
}

impl Parts {
    fn accounts(&self) -> &Arc<Accounts> {
        self.accounts.get_or_init(|| Arc::new(Accounts::new(self.max_keys, Arc::clone(&self.clock))))
    }
}

const DEFAULT_MAX_KEYS: usize = 1_048_576;

impl Balance {
    /// Creates balances in memory. No key has any units, until it is credited: by
    /// [`LimitsHandle::credit`](crate::LimitsHandle::credit), or without a layer by
    /// [`LimiterExt::credit`](crate::LimiterExt::credit).
    pub fn new() -> Self {
        Self(Parts { max_keys: DEFAULT_MAX_KEYS, clock: Arc::new(Monotonic), accounts: Arc::default() })
    }

    /// Sets how many keys may have a balance at a time; 1,048,576 unless set. Memory is taken as it is needed.
    ///
    /// # Panics
    ///
    /// If `keys` is zero.
    #[track_caller]
    pub fn max_keys(self, keys: usize) -> Self {
        assert!(keys > 0, "a balance for zero keys would reject every request");
        Self(Parts { max_keys: keys, ..self.0 })
    }

    /// Reads the time from `clock`. Its timestamps count from the Unix epoch, if a credit [expires at an
    /// instant](Credit::expires_at).
    pub fn with_clock(self, clock: impl Clock) -> Self {
        Self(Parts { clock: Arc::new(clock), ..self.0 })
    }
}

impl Default for Balance {
    fn default() -> Self {
        Self::new()
    }
}

/// Credits and charges accounts in memory, at once.
impl Adjusting for Parts {
    fn credit(&self, key: &PartitionKey, credit: &Credit) -> Option<PendingAdjustment> {
        Some(Box::pin(ready(self.accounts().credit(key, credit))))
    }

    fn keeps_credits(&self) -> bool {
        true
    }

    fn charge(&self, ask: &Ask<'_>, reference: Option<&str>) -> PendingAdjustment {
        Box::pin(ready(self.accounts().debit(ask.key(), ask.cost(), reference)))
    }
}

impl Limiter for Balance {
    fn decide(&self, ask: &Ask<'_>) -> Answer {
        let accounts = self.0.accounts();
        match ask.mode() {
            Mode::Peek => accounts.peek(ask.key(), ask.cost()).into(),
            Mode::Charge | Mode::Shadow => accounts.charge(ask.key(), ask.cost(), Shortfall::Rejected).into(),
            Mode::UpTo => accounts.charge(ask.key(), ask.cost(), Shortfall::Forgiven).into(),
            Mode::Reset => accounts.reset(ask.key()).into(),
            mode @ Mode::Fallback => LimiterError::unsupported(mode).into(),
        }
    }

    /// Gives units back to the lots that have paid them, see [accuracy](Self#accuracy).
    fn refund(&self, charged: &Ask<'_>, receipt: Receipt, units: u64) {
        if let Some(paid) = receipt.read::<Paid>().filter(|_| units > 0) {
            self.0.accounts().give_back(charged.key(), units, paid);
        }
    }

    fn describe(&self) -> Description {
        [Mode::Peek, Mode::Shadow, Mode::UpTo, Mode::Reset]
            .into_iter()
            .fold(Description::new(), Description::answering)
            .deciding_by(Arc::clone(&self.0.clock))
            .adjusting(self.0.clone())
    }

    /// See [live change](Self#live-change).
    fn inherit(&self, predecessor: &dyn Limiter) -> Option<Inheritance<Arc<dyn Limiter>>> {
        let theirs = Arc::clone(predecessor.downcast_ref::<Self>()?.0.accounts());
        // A limiter that was used has its own accounts, unless they are the predecessor's because this limiter was in
        // force before.
        if !Arc::ptr_eq(self.0.accounts.get_or_init(|| Arc::clone(&theirs)), &theirs) {
            return None;
        }
        Some(Inheritance::in_place().keeping_capacity(theirs.max_keys() != self.0.max_keys))
    }

    /// Counts the keys with a balance, or a debt. This includes keys whose units have expired, and that sent no request
    /// since.
    fn stats(&self) -> Stats {
        Stats { table: Some(self.0.accounts().stats()), ..Stats::default() }
    }
}

impl IntoLimiter for Balance {
    fn into_limiter(self) -> Arc<dyn Limiter> {
        Arc::new(self)
    }
}

impl fmt::Debug for Balance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Balance").field("max_keys", &self.0.max_keys).finish_non_exhaustive()
    }
}
