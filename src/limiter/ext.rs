//! [`LimiterExt`]: a limiter that is asked without a layer.

use std::future::Future;
use std::sync::Arc;

use super::{Acquire, Limiter};
use crate::values::{Ask, Credit, Decision, LimiterError, PartitionKey};

/// Limits work that is not an HTTP request: a job, a message, a call to a partner.
pub trait LimiterExt: Limiter {
    /// Charges `cost` units to `key` if they are admitted, and waits for the decision: for a turn in a
    /// [`LeakyQueue`](crate::LeakyQueue), or for the server of a `RedisStore`. A limiter in memory decides at once: in
    /// the call itself, even if the future is never polled.
    ///
    /// ```
    /// use tower_sluice::{LeakyQueue, LimiterExt, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let partner = LeakyQueue::new(Quota::per_second(5));
    /// for invoice in ["2041", "2042"] {
    ///     let permit = partner.acquire(&"partner".into(), 1).await?;
    ///     assert!(permit.is_allowed(), "send {invoice} now");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Units in flight
    ///
    /// If the limiter [holds](crate::limiter::Description::holds) units, as [`Concurrency`](crate::Concurrency) does,
    /// the [permit](super::Permit) holds them until it is dropped: keep it until the work is over.
    ///
    /// # Errors
    ///
    /// If the limiter cannot decide. A rejection is not an error: check the [outcome](Decision::outcome).
    ///
    /// # Cancel safety
    ///
    /// A future that is dropped while it waits for its turn leaves the queue, and a future that waits for units takes
    /// nothing. A server may have charged it.
    #[doc(alias("wait", "until_ready"))]
    fn acquire<'a>(&'a self, key: &PartitionKey, cost: u64) -> Acquire<&'a Self> {
        Acquire::new(self, key, cost)
    }

    /// Does the same as [`acquire`](Self::acquire) for a limiter in an `Arc`, which the permit keeps: it can be moved
    /// into another task.
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Self::acquire).
    fn acquire_owned(self: &Arc<Self>, key: &PartitionKey, cost: u64) -> Acquire<Arc<Self>> {
        Acquire::new(Arc::clone(self), key, cost)
    }

    /// Returns the answer that [`acquire`](Self::acquire) would get now, and charges nothing.
    ///
    /// # Errors
    ///
    /// If the limiter cannot decide, or [cannot be peeked at](crate::limiter::Description::answers):
    /// [`LimiterError::unsupported`].
    fn peek(&self, key: &PartitionKey, cost: u64) -> impl Future<Output = Result<Decision, LimiterError>> + Send {
        decide_if_supported(self, &Ask::peek(key, cost))
    }

    /// Clears a key's debt. Returns the decision on a request with cost 0 after that.
    ///
    /// # Errors
    ///
    /// If the limiter cannot decide, or [cannot be reset](crate::limiter::Description::answers):
    /// [`LimiterError::unsupported`].
    fn reset(&self, key: &PartitionKey) -> impl Future<Output = Result<Decision, LimiterError>> + Send {
        decide_if_supported(self, &Ask::reset(key))
    }

    /// Adds units to a key in a [`Balance`](crate::Balance), unless the credit's [reference](Credit::reference) was
    /// used before. Returns the decision on a request with cost 0 after that, which has the units that are left.
    ///
    /// ```
    /// use tower_sluice::limiter::Credit;
    /// use tower_sluice::{Balance, LimiterExt};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let bought = Balance::new();
    /// let alice = "alice".into();
    /// assert!(!bought.acquire(&alice, 1).await?.is_allowed());
    /// assert_eq!(bought.credit(&alice, Credit::units(20)).await?.remaining(), 20);
    /// assert!(bought.acquire(&alice, 20).await?.is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// If the limiter is not a balance ([`LimiterError::is_unsupported`]), if it has no room for the units, if they are
    /// zero or have expired already, if the reference is invalid, or if the limiter fails: then repeat the credit, with
    /// its reference.
    fn credit(
        &self,
        key: &PartitionKey,
        credit: Credit,
    ) -> impl Future<Output = Result<Decision, LimiterError>> + Send {
        let pending = self.describe().adjusts().and_then(|adjusting| adjusting.credit(key, &credit));
        async move {
            match pending {
                Some(pending) => Ok(pending.await?.decision),
                None => Err(LimiterError::no_balance("the limiter")),
            }
        }
    }
}

/// Asks in a mode that the limiter describes. Any other is not asked: your own limiter may not look at it.
fn decide_if_supported<L: Limiter + ?Sized>(
    limiter: &L,
    ask: &Ask<'_>,
) -> impl Future<Output = Result<Decision, LimiterError>> + Send + use<L> {
    let is_supported = limiter.describe().answers(ask.mode());
    let check = if is_supported { limiter.decide(ask) } else { LimiterError::unsupported(ask.mode()).into() };
    check.decided()
}

impl<L: Limiter + ?Sized> LimiterExt for L {}
