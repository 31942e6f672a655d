//! [`KeyValueBackend`]: any algorithm over a key-value store that can compare and swap.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::backend::{Applied, Backend, CallLimits, GaveUp, Target, Transition};
use super::calls::Calls;
use crate::algorithm::Portable;
use crate::values::LimiterError;
use crate::values::time::{Clock, Timestamp, Wall};

/// A key-value store on a server, such as etcd, Consul, FoundationDB, a table of a database, or a service of your own.
pub trait KeyValue: Send + Sync + 'static {
    /// Why a call failed.
    type Error: Error + Send + Sync + 'static;

    /// Reads a key; `None` if it holds nothing. Must return the last value that was written.
    fn get(&self, key: &str) -> impl Future<Output = Result<Option<Vec<u8>>, Self::Error>> + Send;

    /// Writes `new` (`None`: deletes the key) if the key still holds `old` (`None`: nothing), in one atomic step.
    /// Returns whether it did. The key may be forgotten after `lifetime`.
    fn compare_and_swap(
        &self,
        key: &str,
        old: Option<&[u8]>,
        new: Option<&[u8]>,
        lifetime: Duration,
    ) -> impl Future<Output = Result<bool, Self::Error>> + Send;
}

/// Keeps the keys of one limiter in a [`KeyValue`] store, for any [portable](Portable) algorithm.
///
/// A complete program is in `examples/own_key_value_store.rs`.
///
/// # Cost
///
/// Two calls per decision: it reads, and swaps. A rejection only reads. When another process has changed the key in
/// between, it reads and swaps again, until the deadline; each time, one of the processes has made progress. Requests of
/// one process for one key share these calls, and [leases](super::RemoteStore::leasing) save most of them.
///
/// # Time
///
/// Processes decide by their own clocks, unless [`clock`](Self::clock) sets another. If all clocks are within ε of the
/// true time, then in an interval of length *t* up to burst + rate × (*t* + 2ε) is admitted: what the differences grant
/// they grant once, and not per request. Keep the clocks synchronised (NTP), and ε far below the burst's time.
///
/// # What a key holds
///
/// The [bytes](Portable) of a state, of at most 34 bytes, in `NAME:TAG`. If another quota has written it, it is
/// converted, and what was used stays used. If it holds something else, that is an error, and nothing is overwritten;
/// [reset](crate::Mode::Reset) deletes it.
pub struct KeyValueBackend<K, C = Wall> {
    store: Arc<K>,
    name: Box<str>,
    calls: Calls,
    clock: C,
}

/// A call has so long unless set otherwise.
const TIMEOUT: Duration = Duration::from_millis(100);

/// So many calls may be in flight unless set otherwise.
const MAX_IN_FLIGHT: usize = 1_024;

impl<K: KeyValue> KeyValueBackend<K> {
    /// Keeps the keys of the one limiter that is called `name` in `store`.
    #[must_use]
    pub fn new(store: Arc<K>, name: &str) -> Self {
        let calls = Calls::new(name, TIMEOUT, MAX_IN_FLIGHT);
        Self { store, name: name.into(), calls, clock: Wall }
    }
}

impl<K: KeyValue, C: Clock> KeyValueBackend<K, C> {
    /// Sets how long a decision may take (100 ms unless set), and how many calls may be in flight (1,024).
    ///
    /// # Panics
    ///
    /// If one of them is zero.
    #[must_use]
    #[track_caller]
    pub fn bounded(self, timeout: Duration, max_in_flight: usize) -> Self {
        let calls = Calls::new(&self.name, timeout, max_in_flight);
        Self { calls, ..self }
    }

    /// Decides by another clock, such as one that follows the server's, or a manual one in tests.
    #[must_use]
    pub fn clock<D: Clock>(self, clock: D) -> KeyValueBackend<K, D> {
        let Self { store, name, calls, .. } = self;
        KeyValueBackend { store, name, calls, clock }
    }

    /// Makes one call, which goes on if this is dropped.
    async fn call<T: Send + 'static>(
        &self,
        limits: CallLimits,
        call: impl Future<Output = Result<T, K::Error>> + Send + 'static,
    ) -> Result<T, LimiterError> {
        let gave_up = |reason: GaveUp| LimiterError::new(reason.to_string()).with_source(reason);
        let answer = self.calls.run(limits, call, |_| true).await.map_err(gave_up)?;
        answer.map_err(|error| LimiterError::new(format!("the key-value store failed: {error}")).with_source(error))
    }

    async fn get(&self, key: &str, limits: CallLimits) -> Result<Option<Vec<u8>>, LimiterError> {
        let (store, key) = (Arc::clone(&self.store), key.to_owned());
        self.call(limits, async move { store.get(&key).await }).await
    }

    async fn swap(
        &self,
        key: &str,
        old: Option<Vec<u8>>,
        new: Option<Vec<u8>>,
        lifetime: Duration,
        limits: CallLimits,
    ) -> Result<bool, LimiterError> {
        let (store, key) = (Arc::clone(&self.store), key.to_owned());
        let swap = async move { store.compare_and_swap(&key, old.as_deref(), new.as_deref(), lifetime).await };
        self.call(limits, swap).await
    }
}

impl<A: Portable, K: KeyValue, C: Clock> Backend<A> for KeyValueBackend<K, C> {
    async fn apply(
        &self,
        target: &Target<'_, A>,
        transition: Transition,
        limits: CallLimits,
    ) -> Result<Applied<A::State>, LimiterError> {
        let algorithm = target.algorithm();
        let key = format!("{}:{}", self.name, target.name());
        loop {
            let stored = self.get(&key, limits).await?;
            let now = self.clock.now();
            if transition == Transition::Reset {
                if stored.is_none() || self.swap(&key, stored, None, Duration::ZERO, limits).await? {
                    return Ok(Applied { now, old: None, kept: None, charged: 0 });
                }
                continue;
            }
            let read = |bytes: &Vec<u8>| algorithm.from_bytes(bytes, now);
            let old = stored.as_ref().map(read).transpose();
            let old = old.map_err(|unknown| LimiterError::new(unknown.to_string()).with_source(unknown))?;
            let (charged, new) = step(algorithm, old, now, transition);
            let applied = Applied { now, old, kept: None, charged };
            // A state that another quota has written is kept as converted, even if nothing is charged: else it would be
            // paid off at the old rate, and no advertised wait be true.
            let is_converted = |state: &A::State| stored.as_ref().is_some_and(|old| *old != algorithm.to_bytes(state));
            let converted = || old.filter(|state| transition != Transition::Read && is_converted(state));
            let Some(new) = new.or_else(converted) else { return Ok(applied) };
            let lifetime = algorithm.expires_at(&new).saturating_since(now);
            if self.swap(&key, stored, Some(algorithm.to_bytes(&new)), lifetime, limits).await? {
                return Ok(applied);
            }
        }
    }

    fn timeout(&self) -> Duration {
        self.calls.timeout()
    }

    fn shares_keys_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.store, &other.store) && self.name == other.name
    }

    fn check_fit(&self, algorithm: &A) -> Result<(), Box<dyn Error + Send + Sync>> {
        if algorithm.phase(u64::MAX).is_zero() {
            return Ok(());
        }
        Err("a staggered window is kept in memory only; leave the staggering out, or use a bucket, which readmits each \
             client at a time of its own"
            .into())
    }

    fn is_failing(&self, _: &Target<'_, A>) -> bool {
        self.calls.is_failing()
    }
}

/// Returns how many requests a transition charges, and the state to write, if it changes.
fn step<A: Portable>(
    algorithm: &A,
    old: Option<A::State>,
    now: Timestamp,
    transition: Transition,
) -> (u32, Option<A::State>) {
    match transition {
        Transition::Charge { cost, count } => {
            let (mut state, mut charged) = (old, 0);
            while charged < count {
                let (_, Some(next)) = algorithm.decide(state, now, cost) else { break };
                (state, charged) = (Some(next), charged + 1);
            }
            (charged, state.filter(|_| charged > 0))
        }
        Transition::Refund { cost, receipt } => (0, old.map(|state| algorithm.refund(state, now, cost, receipt))),
        Transition::Read | Transition::Reset => (0, None),
    }
}

impl<K, C> fmt::Debug for KeyValueBackend<K, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyValueBackend").field("name", &self.name).field("calls", &self.calls).finish_non_exhaustive()
    }
}
