//! [`Limiter`], the trait that policies consult.

use std::any::Any;
use std::sync::Arc;

use crate::store::Stats;
use crate::values::{Answer, Ask, Description, Inheritance, Receipt, RequestEnd};

/// Decides whether a key may have a number of units, now or later.
///
/// Object safe: policies hold an `Arc<dyn Limiter>`, so algorithms, stores and queues can be mixed
/// and chosen at run time.
///
/// | limiter | a request that does not fit |
/// |---|---|
/// | [`RateLimiter`](crate::RateLimiter) | is rejected, with the exact time to wait |
/// | [`LeakyQueue`](crate::LeakyQueue) | waits its turn, and is rejected only if the queue is too long |
/// | [`SlowDown`](crate::SlowDown) | waits longer the more its key sends, and is rejected beyond the quota |
/// | [`Concurrency`](crate::Concurrency) | is rejected, or waits until others are over |
/// | [`Balance`](crate::Balance) | is rejected, until the key is credited |
/// | a custom limiter | is decided by your code |
///
/// # Custom limiters
///
/// One method is required:
///
/// ```
/// use tower_sluice::limiter::{Answer, Ask, Description, Mode};
/// use tower_sluice::{Decision, Limiter, LimiterError, Policy, RateLimitLayer};
///
/// /// Rejects whatever costs more than ten.
/// struct NothingBig;
///
/// impl Limiter for NothingBig {
///     fn decide(&self, ask: &Ask<'_>) -> Answer {
///         if !matches!(ask.mode(), Mode::Charge | Mode::Peek) {
///             return LimiterError::unsupported(ask.mode()).into();
///         }
///         if ask.cost() <= 10 { Decision::allow(10, 10).into() } else { Decision::reject(10, 10, None).into() }
///     }
///
///     fn describe(&self) -> Description {
///         Description::new().answering(Mode::Peek)
///     }
/// }
///
/// let layer = RateLimitLayer::new(Policy::new("small", std::sync::Arc::new(NothingBig)));
/// ```
///
/// Every limiter answers [`Mode::Charge`](crate::limiter::Mode::Charge). [`describe`](Self::describe) declares the
/// further modes that it answers, and the terms that responses advertise; any other mode is an error, and changes
/// nothing. `testing::check_modes` (feature `test-util`) tests that.
pub trait Limiter: Downcast + Send + Sync + 'static {
    /// Decides on the request, and charges it as its [mode](Ask::mode) says.
    fn decide(&self, ask: &Ask<'_>) -> Answer;

    /// Refunds `units` of the charge by which the question `charged` was answered with `receipt`, as far as they are
    /// still owed. By default, charges stay.
    ///
    /// If the limiter's requests [hold](Description::holding) their units, this releases them.
    fn refund(&self, charged: &Ask<'_>, receipt: Receipt, units: u64) {
        let _ = (charged, receipt, units);
    }

    /// Releases `units` of a charge whose request is over, if requests [hold](Description::holding) their units. By
    /// default, this [refunds](Self::refund) them; a limiter that learns from the outcome looks at `end`.
    ///
    /// A charge that is rolled back, before its request reaches the inner service, is refunded instead.
    fn release(&self, charged: &Ask<'_>, receipt: Receipt, units: u64, end: RequestEnd) {
        let _ = end;
        self.refund(charged, receipt, units);
    }

    /// The properties that layers and clients need in advance.
    fn describe(&self) -> Description {
        Description::new()
    }

    /// Inherits the used units of `predecessor`'s keys, under this limiter's quota. Returns `None`, the default, if it
    /// cannot; then all keys start with a full budget.
    ///
    /// For a [live change](crate::LimitsHandle), which puts the heir in force and then finishes the [`Inheritance`].
    /// The heir is this limiter itself if it was not used yet. A limiter that holds its own debts (it was in force
    /// before, or is in force elsewhere) cannot take on another's as well. In a
    /// [`MemoryStore`](crate::store::MemoryStore), a new limiter with the same algorithm, capacity and clock is then
    /// the heir; a `LeakyQueue` returns `None`, unless the two share a schedule already. The two limiters must be of
    /// one kind:
    ///
    /// | limiter | inherits from | what is kept |
    /// |---|---|---|
    /// | a bucket in a [`MemoryStore`](crate::store::MemoryStore) | any such bucket | the debt of every key in tokens, to a tick of the new rate |
    /// | a window in a `MemoryStore` | one of the same type. If one of the two is staggered, so must be the other, with the same period | what counts at the moment of the change |
    /// | a bucket or a window in a `MemoryStore` whose keys have [quotas of their own](Ask::under) | one of the same kind, whether its keys have such quotas or not | each state with its quota, until the key is asked about under another. The reverse as well: then all keys are converted at the change |
    /// | a [`LeakyQueue`](crate::LeakyQueue) without a schedule of its own | any other | all waiters in their order, and what was spent |
    /// | a [`SlowDown`](crate::SlowDown) without levels of its own | any other | all waiters with their turns, and what was spent |
    /// | a [`Concurrency`](crate::Concurrency) that was not used yet | any other | what is in flight, and all waiters |
    /// | a [`Balance`](crate::Balance) that was not used yet | any other | the lots of every key, and what it owes |
    /// | a [`SharedBalance`](crate::SharedBalance) | one of the same name on the same store | the lots on the server |
    /// | a custom algorithm in a `MemoryStore` | one of the same type, if the algorithm [can](crate::algorithm::Algorithm::can_inherit) | the states that it converts |
    /// | a `RedisStore` | one of the same name on the same `Redis`: a bucket from any bucket, a window from one of the same type | the state on the server; a bucket's debt in tokens, to a microsecond of the new rate |
    /// | a [`SharedQueue`](crate::SharedQueue) | one of the same name on the same server | the reservations on the server; requests that wait depart as scheduled |
    /// | a [`SharedConcurrency`](crate::SharedConcurrency) that was not used yet | one of the same name on the same server | what is in flight, and all waiters |
    ///
    /// Both must use the same clock. In a `MemoryStore`, each heir has its own copy of the units used at the instant of
    /// the change; the predecessor keeps its state for other layers that use it. Heirs of a queue share the queue.
    ///
    /// Your own limiter finds its predecessor by its type:
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tower_sluice::limiter::{Answer, Ask, Inheritance, Mode};
    /// use tower_sluice::{Decision, Limiter, LimiterError};
    /// # use std::sync::Mutex;
    ///
    /// /// Admits `limit` requests in all.
    /// struct Quota {
    ///     limit: u64,
    ///     used: Arc<Mutex<u64>>,
    /// }
    ///
    /// impl Limiter for Quota {
    ///     fn decide(&self, ask: &Ask<'_>) -> Answer {
    ///         if ask.mode() != Mode::Charge {
    ///             return LimiterError::unsupported(ask.mode()).into();
    ///         }
    ///         let mut used = self.used.lock().unwrap();
    ///         let left = self.limit.saturating_sub(*used);
    ///         if left < ask.cost() {
    ///             return Decision::reject(self.limit, left, None).into();
    ///         }
    ///         *used += ask.cost();
    ///         Decision::allow(self.limit, left - ask.cost()).into()
    ///     }
    ///
    ///     fn inherit(&self, predecessor: &dyn Limiter) -> Option<Inheritance<Arc<dyn Limiter>>> {
    ///         let theirs = predecessor.downcast_ref::<Self>()?;
    ///         Some(Inheritance::by(Arc::new(Self { limit: self.limit, used: Arc::clone(&theirs.used) })))
    ///     }
    /// }
    /// ```
    fn inherit(&self, predecessor: &dyn Limiter) -> Option<Inheritance<Arc<dyn Limiter>>> {
        let _ = predecessor;
        None
    }

    /// Reports how full the table is, the waiters, and the servers' health; by default nothing. For gauges: not on the
    /// path of requests.
    fn stats(&self) -> Stats {
        Stats::default()
    }

    /// Rejects all waiters, and all requests from now on, with [`LimiterError::closed`](crate::LimiterError::closed).
    /// For a server's shutdown, which would otherwise wait for its queue. It cannot be undone; a second call does
    /// nothing.
    ///
    /// Does nothing by default, which is right for limiters that decide at once.
    fn close(&self) {}
}

/// Lets an heir find its predecessor by its type. For all types; there is nothing to implement.
pub trait Downcast {
    #[doc(hidden)]
    fn as_any(&self) -> &dyn Any;
}

impl<T: 'static> Downcast for T {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl dyn Limiter {
    /// Returns the limiter, if it has this type.
    #[must_use]
    pub fn downcast_ref<L: Limiter>(&self) -> Option<&L> {
        self.as_any().downcast_ref()
    }
}
