//! [`KeyValueBackend`]: any algorithm over a key-value store that can compare and swap.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::backend::{Applied, Backend, CallLimits, GaveUp, Target, Transition};
use super::calls::Calls;
use crate::algorithm::{Algorithm, Portable, written_under};
use crate::store::quota_change;
use crate::values::time::{Clock, Timestamp, Wall};
use crate::values::{LimiterError, Receipt};

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

/// What a key holds.
struct Kept<A: Portable> {
    state: A::State,
    /// If another quota has written it: the algorithm under that quota.
    under: Option<A>,
}

impl<A: Portable> Kept<A> {
    fn read(algorithm: &A, bytes: &[u8], now: Timestamp) -> Result<Self, LimiterError> {
        let another = written_under(bytes).filter(|quota| *quota != algorithm.quota());
        let under = another.and_then(|quota| algorithm.under(quota));
        let state = under.as_ref().unwrap_or(algorithm).from_bytes(bytes, now);
        let state = state.map_err(|unknown| LimiterError::new(unknown.to_string()).with_source(unknown))?;
        Ok(Self { state, under })
    }

    /// Returns the state as it counts under the quota of the question.
    fn converted(&self, algorithm: &A, now: Timestamp) -> Option<A::State> {
        match &self.under {
            Some(under) => quota_change::converted(algorithm, self.state, &under.quota(), now),
            None => Some(self.state),
        }
    }
}

impl<K: KeyValue, C: Clock> KeyValueBackend<K, C> {
    async fn read<A: Portable>(
        &self,
        algorithm: &A,
        key: &str,
        limits: CallLimits,
    ) -> Result<Applied<A::State>, LimiterError> {
        let (stored, now) = (self.get(key, limits).await?, self.clock.now());
        let kept = stored.map(|bytes| Kept::read(algorithm, &bytes, now)).transpose()?;
        let quota = kept.as_ref().and_then(|kept| kept.under.as_ref()).map(Algorithm::quota);
        Ok(Applied { now, old: kept.map(|kept| kept.state), kept: quota, charged: 0 })
    }

    async fn charge<A: Portable>(
        &self,
        algorithm: &A,
        key: &str,
        [cost, count]: [u32; 2],
        limits: CallLimits,
    ) -> Result<Applied<A::State>, LimiterError> {
        loop {
            let (stored, now) = (self.get(key, limits).await?, self.clock.now());
            let kept = stored.as_deref().map(|bytes| Kept::read(algorithm, bytes, now)).transpose()?;
            let old = kept.as_ref().and_then(|kept| kept.converted(algorithm, now));
            let (mut state, mut charged) = (old, 0);
            while charged < count {
                let (_, Some(next)) = algorithm.decide(state, now, cost) else { break };
                (state, charged) = (Some(next), charged + 1);
            }
            let applied = Applied { now, old, kept: None, charged };
            // A converted state is kept even if nothing is charged: else it would be paid off at the old rate, and no
            // advertised wait be true.
            let is_converted = kept.is_some_and(|kept| kept.under.is_some());
            if (charged == 0 && !is_converted) || self.write(algorithm, key, stored, state, now, limits).await? {
                return Ok(applied);
            }
        }
    }

    /// Refunds a charge that was made under this quota. If the key has another one by now, whose units are others, the
    /// charge stays, as in memory.
    async fn refund<A: Portable>(
        &self,
        algorithm: &A,
        key: &str,
        (cost, receipt): (u32, Receipt),
        limits: CallLimits,
    ) -> Result<Applied<A::State>, LimiterError> {
        loop {
            let (stored, now) = (self.get(key, limits).await?, self.clock.now());
            let kept = stored.as_deref().map(|bytes| Kept::read(algorithm, bytes, now)).transpose()?;
            let applied = Applied { now, old: None, kept: None, charged: 0 };
            let Some(Kept { state, under }) = kept else { return Ok(applied) };
            let under = under.as_ref().unwrap_or(algorithm);
            if !quota_change::has_units_of(algorithm, &under.quota()) {
                return Ok(applied);
            }
            let refunded = under.refund(state, now, cost, receipt);
            if self.write(under, key, stored, Some(refunded), now, limits).await? {
                return Ok(applied);
            }
        }
    }

    async fn reset<S>(&self, key: &str, limits: CallLimits) -> Result<Applied<S>, LimiterError> {
        loop {
            let (stored, now) = (self.get(key, limits).await?, self.clock.now());
            if stored.is_none() || self.swap(key, stored, None, Duration::ZERO, limits).await? {
                return Ok(Applied { now, old: None, kept: None, charged: 0 });
            }
        }
    }

    /// Writes a state in place of what was read; `false` if another process was faster.
    async fn write<A: Portable>(
        &self,
        algorithm: &A,
        key: &str,
        stored: Option<Vec<u8>>,
        state: Option<A::State>,
        now: Timestamp,
        limits: CallLimits,
    ) -> Result<bool, LimiterError> {
        let lifetime = state.map_or(Duration::ZERO, |state| algorithm.expires_at(&state).saturating_since(now));
        self.swap(key, stored, state.map(|state| algorithm.to_bytes(&state)), lifetime, limits).await
    }
}

impl<A: Portable, K: KeyValue, C: Clock> Backend<A> for KeyValueBackend<K, C> {
    async fn apply(
        &self,
        target: &Target<'_, A>,
        transition: Transition,
        limits: CallLimits,
    ) -> Result<Applied<A::State>, LimiterError> {
        let (algorithm, key) = (target.algorithm(), format!("{}:{}", self.name, target.name()));
        match transition {
            Transition::Read => self.read(algorithm, &key, limits).await,
            Transition::Charge { cost, count } => self.charge(algorithm, &key, [cost, count], limits).await,
            Transition::Refund { cost, receipt } => self.refund(algorithm, &key, (cost, receipt), limits).await,
            Transition::Reset => self.reset(&key, limits).await,
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

impl<K, C> fmt::Debug for KeyValueBackend<K, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyValueBackend").field("name", &self.name).field("calls", &self.calls).finish_non_exhaustive()
    }
}
