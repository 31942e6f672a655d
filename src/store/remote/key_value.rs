//! [`KeyValueBackend`]: any algorithm over a key-value store that can compare and swap.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::attempts::Attempts;
use super::backend::{Applied, Backend, CallLimits, GaveUp, Target, Transition};
use super::calls::Calls;
use super::standing::Standing;
use crate::algorithm::{Algorithm, Portable, written_under};
use crate::store::{NodeHealth, SharingStats, quota_change};
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
/// between, it reads and swaps again [after a short pause](super::Attempts); each time, one of the processes has made
/// progress. If none of its swaps is applied in time, the decision fails with [`GaveUp::Contention`]. Requests of one
/// process for one key share these calls, and [leases](super::RemoteStore::leasing) save most of them.
///
/// A [ban](crate::Penalty#on-several-machines) and a [debt](crate::Policy::owe_shortfalls) take two calls, in the background. A
/// decision on a key that is banned or owes something reads it, as for any rejection.
///
/// # A hot key
///
/// No more than one swap of a key is applied in the time that a call takes. So processes that charge one key all the time
/// need [leases](super::RemoteStore::leasing): from two processes on with calls of 4 ms, from four on with calls of 2 ms.
/// Decisions that fail with a timeout of 100 ms and calls of 4 ms (`src/store/remote/contention.rs`):
///
/// | processes | 2 | 4 | 8 | 16 | 32 |
/// |---|---|---|---|---|---|
/// | without leases | 1 % | 4 % | 15 % | 34 % | 57 % |
/// | with leases, in the first five seconds | 0 | 0 | 0.1 % | 0.4 % | 1 % |
///
/// # Time
///
/// Processes decide by their own clocks, unless [`with_clock`](Self::with_clock) sets another. If all clocks are within
/// ε of the true time, then in an interval of length *t* up to burst + rate × (*t* + 2ε) is admitted: what the
/// differences grant they grant once, and not per request. Keep the clocks synchronised (NTP), and ε far below the
/// burst's time.
///
/// A state that was written by a clock more than a minute ahead of the reader's counts as if what it had used then were
/// used now, so that no such clock locks a key for longer than its quota does. But two clocks that differ by more than a
/// minute forgive each other's charges: keys that both processes serve are not limited.
///
/// # What a key holds
///
/// In `NAME:TAG`, a byte 2, the writer's clock in nanoseconds (8 bytes, big-endian), and the [bytes](Portable) of a state:
/// at most 43 bytes, or 59 if its units do not fit into 32 bits. Of a key that is banned or owes more than it had left,
/// a byte 3, the clock, when the ban ends, when the debt is paid, and the bytes of a state, if it has one: at most 59
/// bytes, or 75.
///
/// All quotas fit, and values of both widths are read under each of them. If another quota has written a value, it is
/// converted, and what was used stays used. If a key holds something else, that is an error, and nothing is overwritten;
/// [reset](crate::limiter::Mode::Reset) deletes it.
pub struct KeyValueBackend<K, C = Wall> {
    store: Arc<K>,
    name: Box<str>,
    calls: Calls,
    clock: C,
    conversions: AtomicU64,
    lost_swaps: AtomicU64,
}

/// A call has so long unless set otherwise.
const TIMEOUT: Duration = Duration::from_millis(100);

/// So many calls may be in flight unless set otherwise.
const MAX_IN_FLIGHT: usize = 1_024;

impl<K: KeyValue> KeyValueBackend<K> {
    /// Keeps the keys of the one limiter that is called `name` in `store`.
    #[must_use]
    pub fn new(store: Arc<K>, name: &str) -> Self {
        let calls = calls(name, TIMEOUT, MAX_IN_FLIGHT);
        let (conversions, lost_swaps) = Default::default();
        Self { store, name: name.into(), calls, clock: Wall, conversions, lost_swaps }
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
        let calls = calls(&self.name, timeout, max_in_flight);
        Self { calls, ..self }
    }

    /// Decides by another clock, such as one that follows the server's, or a manual one in tests.
    #[must_use]
    pub fn with_clock<D: Clock>(self, clock: D) -> KeyValueBackend<K, D> {
        let Self { store, name, calls, conversions, lost_swaps, .. } = self;
        KeyValueBackend { store, name, calls, clock, conversions, lost_swaps }
    }

    /// Makes one call, which goes on if this is dropped.
    async fn call<T: Send + 'static>(
        &self,
        limits: CallLimits,
        call: impl Future<Output = Result<T, K::Error>> + Send + 'static,
    ) -> Result<T, LimiterError> {
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

#[track_caller]
fn calls(name: &str, timeout: Duration, max_in_flight: usize) -> Calls {
    Calls::new(&format!("key-value store of {name}"), timeout, max_in_flight)
}

/// The first byte of what a key holds: behind it are the writer's clock, in nanoseconds, and the bytes of a state,
/// which begin with a version of their own.
const STAMPED: u8 = 2;

/// A clock that is ahead of the reader's by more is wrong.
const MOST_AHEAD: Duration = Duration::from_secs(60);

/// The first byte if the [standing](Standing) is between the clock and the state.
const WITH_STANDING: u8 = 3;

/// Splits off the next time, in nanoseconds.
fn time(bytes: &[u8]) -> Option<(Timestamp, &[u8])> {
    let (nanos, rest) = bytes.split_first_chunk()?;
    Some((Timestamp::from_nanos(u64::from_be_bytes(*nanos)), rest))
}

/// Returns when a state was written, if that is known, the standing, and the bytes of the state.
fn split(bytes: &[u8]) -> (Timestamp, Standing, &[u8]) {
    let parts = || {
        let (first, rest) = bytes.split_first()?;
        let (written, rest) = time(rest)?;
        match *first {
            STAMPED => Some((written, Standing::default(), rest)),
            WITH_STANDING => {
                let (banned_until, rest) = time(rest)?;
                let (owing_until, rest) = time(rest)?;
                Some((written, Standing { banned_until, owing_until }, rest))
            }
            _ => None,
        }
    };
    parts().unwrap_or((Timestamp::ZERO, Standing::default(), bytes))
}

/// The reverse of [`split`].
fn joined(written: Timestamp, standing: Standing, state: &[u8]) -> Vec<u8> {
    let times = [written, standing.banned_until, standing.owing_until].map(|time| time.as_nanos().to_be_bytes());
    if standing.is_in_force(written) {
        [&[WITH_STANDING][..], times.as_flattened(), state].concat()
    } else {
        [&[STAMPED][..], &times[0], state].concat()
    }
}

/// What a key holds.
struct Kept<A: Portable> {
    /// If it is in force; if not, that of a key that has none.
    standing: Standing,
    /// `None` if it owes nothing. While the standing is in force: that at its end.
    state: Option<A::State>,
    /// If another quota has written it: the algorithm under that quota.
    under: Option<A>,
    /// Whether it is to be written even if nothing is charged.
    is_corrected: bool,
}

impl<A: Portable> Kept<A> {
    /// What a key is that holds nothing.
    const NOTHING: Self = Self { standing: Standing::NONE, state: None, under: None, is_corrected: false };

    fn read(algorithm: &A, stored: Option<&[u8]>, now: Timestamp) -> Result<Self, LimiterError> {
        let Some(bytes) = stored else { return Ok(Self::NOTHING) };
        let (written, before, bytes) = split(bytes);
        let another = written_under(bytes).filter(|quota| *quota != algorithm.quota());
        let under = another.and_then(|quota| algorithm.under(quota));
        let is_ahead = written > now.saturating_add(MOST_AHEAD);
        let writer = under.as_ref().unwrap_or(algorithm);
        // By the clock that has written it, if that is ahead.
        let then = if is_ahead { written } else { now };
        let standing = if before.is_in_force(then) { before.seen_at(then, now) } else { Standing::NONE };
        let (end, end_then) = (now.max(standing.until()), then.max(before.until()));
        let state = match bytes {
            [] if before.is_some() => None,
            bytes => {
                let state = writer.from_bytes(bytes, end_then);
                let state = state.map_err(|unknown| LimiterError::new(unknown.to_string()).with_source(unknown))?;
                if is_ahead { used_now(writer, state, end_then, end) } else { Some(state) }
            }
        };
        // Otherwise a converted state would be paid off at the old rate, and one from the future never: no advertised
        // wait would be true.
        let is_corrected = is_ahead || under.is_some();
        Ok(Self { standing, state, under, is_corrected })
    }

    /// What a transition has read that charges nothing.
    fn in_force(&self, algorithm: &A, now: Timestamp) -> Applied<A::State> {
        Applied { now, old: self.converted(algorithm, now), standing: self.standing, kept: None, charged: 0 }
    }

    /// Returns the state as it counts under the quota of the question.
    fn converted(&self, algorithm: &A, now: Timestamp) -> Option<A::State> {
        match &self.under {
            Some(under) => {
                quota_change::converted(algorithm, self.state?, &under.quota(), now.max(self.standing.until()))
            }
            None => self.state,
        }
    }
}

/// Returns a state of a clock that was ahead, and showed `written`, as if what was used then were used now. Otherwise the
/// key would be locked for as long as the clock was ahead.
fn used_now<A: Algorithm>(algorithm: &A, state: A::State, written: Timestamp, now: Timestamp) -> Option<A::State> {
    let left = algorithm.decide(Some(state), written, 0).0.remaining();
    let used = algorithm.max_cost().saturating_sub(left);
    if used == 0 { None } else { algorithm.decide(None, now, used).1 }
}

fn gave_up(reason: GaveUp) -> LimiterError {
    LimiterError::new(reason.to_string()).with_source(reason)
}

impl<K: KeyValue, C: Clock> KeyValueBackend<K, C> {
    /// Reads a key: its bytes, which a swap replaces, the time of the answer, and their content.
    async fn kept<A: Portable>(
        &self,
        algorithm: &A,
        key: &str,
        limits: CallLimits,
    ) -> Result<(Option<Vec<u8>>, Timestamp, Kept<A>), LimiterError> {
        let (stored, now) = (self.get(key, limits).await?, self.clock.now());
        let kept = Kept::read(algorithm, stored.as_deref(), now)?;
        Ok((stored, now, kept))
    }

    async fn read<A: Portable>(
        &self,
        algorithm: &A,
        key: &str,
        limits: CallLimits,
    ) -> Result<Applied<A::State>, LimiterError> {
        let (_, now, kept) = self.kept(algorithm, key, limits).await?;
        if kept.standing.is_some() {
            return Ok(kept.in_force(algorithm, now));
        }
        let quota = kept.under.as_ref().map(Algorithm::quota);
        Ok(Applied { now, old: kept.state, standing: kept.standing, kept: quota, charged: 0 })
    }

    async fn charge<A: Portable>(
        &self,
        algorithm: &A,
        key: &str,
        (cost, count): (u64, u32),
        limits: CallLimits,
    ) -> Result<Applied<A::State>, LimiterError> {
        let mut attempts = Attempts::new(limits.deadline);
        loop {
            let (stored, now, kept) = self.kept(algorithm, key, limits).await?;
            let mut applied = kept.in_force(algorithm, now);
            let mut state = applied.old;
            while applied.charged < count && !kept.standing.is_some() {
                let (_, Some(next)) = algorithm.decide(state, now, cost) else { break };
                (state, applied.charged) = (Some(next), applied.charged + 1);
            }
            if applied.charged == 0 && !kept.is_corrected {
                return Ok(applied);
            }
            if self.write(algorithm, key, stored, (kept.standing, state), now, limits).await? {
                self.conversions.fetch_add(kept.under.is_some().into(), Ordering::Relaxed);
                return Ok(applied);
            }
            self.lost(&mut attempts).await?;
        }
    }

    /// Refunds a charge that was made under this quota. If the key has another one by now, whose units are others, the
    /// charge stays, as in memory.
    async fn refund<A: Portable>(
        &self,
        algorithm: &A,
        key: &str,
        (cost, receipt): (u64, Receipt),
        limits: CallLimits,
    ) -> Result<Applied<A::State>, LimiterError> {
        let mut attempts = Attempts::new(limits.deadline);
        loop {
            let (stored, now, kept) = self.kept(algorithm, key, limits).await?;
            let applied = Applied { old: None, ..kept.in_force(algorithm, now) };
            let Kept { standing: Standing::NONE, state: Some(state), under, .. } = kept else { return Ok(applied) };
            let under = under.as_ref().unwrap_or(algorithm);
            if !quota_change::has_units_of(algorithm, &under.quota()) {
                return Ok(applied);
            }
            let refunded = under.refund(state, now, cost, receipt);
            if self.write(under, key, stored, (Standing::NONE, Some(refunded)), now, limits).await? {
                return Ok(applied);
            }
            self.lost(&mut attempts).await?;
        }
    }

    async fn reset<S>(&self, key: &str, limits: CallLimits) -> Result<Applied<S>, LimiterError> {
        let mut attempts = Attempts::new(limits.deadline);
        loop {
            let (stored, now) = (self.get(key, limits).await?, self.clock.now());
            if stored.is_none() || self.swap(key, stored, None, Duration::ZERO, limits).await? {
                return Ok(Applied { now, old: None, standing: Standing::NONE, kept: None, charged: 0 });
            }
            self.lost(&mut attempts).await?;
        }
    }

    /// Changes the standing of a key at the time that it is called with, and its state with it.
    async fn change<A: Portable>(
        &self,
        algorithm: &A,
        key: &str,
        change: impl Fn(Standing, Option<A::State>, Timestamp) -> (Standing, Option<A::State>) + Send,
        limits: CallLimits,
    ) -> Result<Applied<A::State>, LimiterError> {
        let mut attempts = Attempts::new(limits.deadline);
        loop {
            let (stored, now, kept) = self.kept(algorithm, key, limits).await?;
            let (standing, old) = change(kept.standing, kept.converted(algorithm, now), now);
            if self.write(algorithm, key, stored, (standing, old), now, limits).await? {
                return Ok(Applied { now, old, standing, kept: None, charged: 0 });
            }
            self.lost(&mut attempts).await?;
        }
    }

    /// Writes a standing and a state in place of what was read; `false` if another process was faster.
    async fn write<A: Portable>(
        &self,
        algorithm: &A,
        key: &str,
        stored: Option<Vec<u8>>,
        (standing, state): (Standing, Option<A::State>),
        now: Timestamp,
        limits: CallLimits,
    ) -> Result<bool, LimiterError> {
        let expires = state.map_or(Timestamp::ZERO, |state| algorithm.expires_at(&state)).max(standing.until());
        let bytes = state.map(|state| algorithm.to_bytes(&state)).unwrap_or_default();
        let holds_something = state.is_some() || standing.is_in_force(now);
        let bytes = holds_something.then(|| joined(now, standing, &bytes));
        self.swap(key, stored, bytes, expires.saturating_since(now), limits).await
    }

    /// Waits for the next attempt: in this one, another process was faster.
    async fn lost(&self, attempts: &mut Attempts) -> Result<(), LimiterError> {
        self.lost_swaps.fetch_add(1, Ordering::Relaxed);
        attempts.lost().await.map_err(gave_up)
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
            Transition::Charge { cost, count } => self.charge(algorithm, &key, (cost, count), limits).await,
            Transition::Refund { cost, receipt } => self.refund(algorithm, &key, (cost, receipt), limits).await,
            Transition::Reset => self.reset(&key, limits).await,
            Transition::Ban { span } => {
                let ban = |standing: Standing, state, now| (standing.ban(now, span), state);
                self.change(algorithm, &key, ban, limits).await
            }
            Transition::Owe { units } => {
                let owe = |standing: Standing, state, now| standing.charge(algorithm, state, now, units);
                self.change(algorithm, &key, owe, limits).await
            }
        }
    }

    fn keeps_standing(&self, _: &A) -> bool {
        true
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

    fn stats(&self) -> SharingStats {
        let [conversions, lost_swaps] =
            [&self.conversions, &self.lost_swaps].map(|count| count.load(Ordering::Relaxed));
        SharingStats { conversions, lost_swaps, number: None }
    }

    fn health(&self) -> Vec<NodeHealth> {
        vec![self.calls.health()]
    }
}

impl<K, C> fmt::Debug for KeyValueBackend<K, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyValueBackend").field("name", &self.name).field("calls", &self.calls).finish_non_exhaustive()
    }
}
