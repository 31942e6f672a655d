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
use super::records::{Record, Records};
use super::server::Server;
use super::standing::Standing;
use crate::algorithm::{Algorithm, Portable, written_under};
use crate::store::{NodeHealth, SharingStats, quota_change};
use crate::values::time::{Clock, Timestamp, Wall};
use crate::values::{LimiterError, OverrideReason, Shape};

/// A key-value store on a server, such as etcd, Consul, FoundationDB, a database table, or your own service.
pub trait KeyValue: Send + Sync + 'static {
    /// Why a call failed.
    type Error: Error + Send + Sync + 'static;

    /// Reads a key. `None` if the key does not exist. Must return the value that was written last.
    fn get(&self, key: &str) -> impl Future<Output = Result<Option<Vec<u8>>, Self::Error>> + Send;

    /// Writes `new` if the key still holds `old`, in one atomic step, and returns whether it did. `None` stands for a
    /// key without a value, so as `new`, it deletes the key. The key may be forgotten after `lifetime`.
    fn compare_and_swap(
        &self,
        key: &str,
        old: Option<&[u8]>,
        new: Option<&[u8]>,
        lifetime: Duration,
    ) -> impl Future<Output = Result<bool, Self::Error>> + Send;
}

/// Keeps one limiter's keys in a [`KeyValue`] store, for any [portable](Portable) algorithm.
///
/// A complete program is in `examples/own_key_value_store.rs`.
///
/// # Cost
///
/// A decision takes two calls: it reads, and swaps. A rejection only reads. When another process has changed the key in
/// between, it reads and swaps again [after a short pause](super::Attempts); each time, one process has made progress.
/// If its swaps keep losing until the timeout, the decision fails with [`GaveUp::Contention`]. One process's requests
/// for one key share these calls, and [leases](super::RemoteStore::leasing) save most calls.
///
/// A [ban](crate::Penalty#on-several-machines), a [debt](crate::Policy::owe_shortfalls) and an
/// [override](crate::limiter::Override) take two calls each, in the background. A decision on a key that is banned,
/// allowed or owes something reads it, as for any rejection.
///
/// # A hot key
///
/// At most one of a key's swaps is applied in the time that a call takes. So processes that charge one key all the time
/// need [leases](super::RemoteStore::leasing): from two processes on if calls take 4 ms, from four on if they take 2
/// ms. The table shows the share of decisions that fail with a timeout of 100 ms if calls take 4 ms
/// (`src/store/remote/contention.rs`):
///
/// | processes | 2 | 4 | 8 | 16 | 32 |
/// |---|---|---|---|---|---|
/// | without leases | 1 % | 4 % | 15 % | 34 % | 57 % |
/// | with leases, in the first five seconds | 0 | 0 | 0.1 % | 0.4 % | 1 % |
///
/// # Time
///
/// Processes decide by their own clocks, unless [`with_clock`](Self::with_clock) sets another. If all clocks are within
/// ε of the true time, then in an interval of length *t* up to burst + rate × (*t* + 2ε) is admitted: the differences
/// grant their surplus once, and not per request. Keep the clocks synchronised (NTP), and ε far below the burst's time.
///
/// If the writer's clock was more than a minute ahead of the reader's, the units that were used then count as used now,
/// so no such clock locks a key for longer than its quota does. But two clocks that differ by more than a minute
/// forgive each other's charges, so keys that both processes serve are not limited.
///
/// # Stored values
///
/// The value at `NAME:TAG` is a byte 2, the writer's clock in nanoseconds (8 bytes, big-endian), and a state's
/// [bytes](Portable): at most 43 bytes, or 59 if its units do not fit into 32 bits. If the key is banned or owes more
/// than it had left, or if an operator has banned or allowed it, the value is a byte 3, the clock, the times at which
/// ban, debt and allowance end, a byte with the length of the operator's reason, the reason, and a state's bytes, if
/// there is one: at most 68 bytes and the reason, or 84.
///
/// All quotas fit, and values in both widths are read under each quota. If another quota has written a value, it is
/// converted, and used units stay used. If a key holds something else, that is an error, and nothing is overwritten;
/// [reset](crate::limiter::Mode::Reset) deletes it.
#[must_use]
pub struct KeyValueBackend<K, C = Wall> {
    keys: KeyValueRecords<K, C>,
    conversions: AtomicU64,
    lost_swaps: AtomicU64,
}

/// A [`KeyValue`] store's keys as [`Records`], for limiters whose state does not belong to an algorithm.
///
/// # Time
///
/// The time works as for a [`KeyValueBackend`](KeyValueBackend#time): processes decide by their own clocks, which must
/// be synchronised.
///
/// # Cost
///
/// A read and a swap are one call each.
#[must_use]
pub struct KeyValueRecords<K, C = Wall> {
    store: Arc<K>,
    name: Arc<str>,
    calls: Calls,
    clock: C,
}

/// A decision's timeout, unless set otherwise.
const TIMEOUT: Duration = Duration::from_millis(100);

/// The limit for calls in flight, unless set otherwise.
const MAX_IN_FLIGHT: usize = 1_024;

impl<K: KeyValue> KeyValueBackend<K> {
    /// Keeps the keys of the one limiter that is called `name` in `store`.
    pub fn new(store: Arc<K>, name: &str) -> Self {
        Self { keys: KeyValueRecords::new(store, name), conversions: AtomicU64::new(0), lost_swaps: AtomicU64::new(0) }
    }
}

impl<K: KeyValue, C: Clock> KeyValueBackend<K, C> {
    /// Sets how long a decision may take (100 ms unless set), and how many calls may be in flight (1,024).
    ///
    /// # Panics
    ///
    /// If one argument is zero.
    #[track_caller]
    pub fn bounded(self, timeout: Duration, max_in_flight: usize) -> Self {
        Self { keys: self.keys.bounded(timeout, max_in_flight), ..self }
    }

    /// Decides by another clock, such as a clock that follows the server's, or a manual clock in tests.
    pub fn with_clock<D: Clock>(self, clock: D) -> KeyValueBackend<K, D> {
        let Self { keys, conversions, lost_swaps } = self;
        KeyValueBackend { keys: keys.with_clock(clock), conversions, lost_swaps }
    }
}

impl<K: KeyValue> KeyValueRecords<K> {
    /// Keeps records in `store`, which is called `name` in log lines and metrics.
    pub fn new(store: Arc<K>, name: &str) -> Self {
        Self { store, name: name.into(), calls: calls(name, TIMEOUT, MAX_IN_FLIGHT), clock: Wall }
    }
}

impl<K: KeyValue, C: Clock> KeyValueRecords<K, C> {
    /// Sets how long a decision may take (100 ms unless set), and how many calls may be in flight (1,024).
    ///
    /// # Panics
    ///
    /// If one argument is zero.
    #[track_caller]
    pub fn bounded(self, timeout: Duration, max_in_flight: usize) -> Self {
        Self { calls: calls(&self.name, timeout, max_in_flight), ..self }
    }

    /// Decides by another clock, such as a clock that follows the server's, or a manual clock in tests.
    pub fn with_clock<D: Clock>(self, clock: D) -> KeyValueRecords<K, D> {
        let Self { store, name, calls, clock: _ } = self;
        KeyValueRecords { store, name, calls, clock }
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
        let store = Arc::clone(&self.store);
        let key = key.to_owned();
        self.call(limits, async move { store.get(&key).await }).await
    }

    async fn compare_and_swap(
        &self,
        key: &str,
        old: Option<Vec<u8>>,
        new: Option<Vec<u8>>,
        lifetime: Duration,
        limits: CallLimits,
    ) -> Result<bool, LimiterError> {
        let store = Arc::clone(&self.store);
        let key = key.to_owned();
        let swap = async move { store.compare_and_swap(&key, old.as_deref(), new.as_deref(), lifetime).await };
        self.call(limits, swap).await
    }
}

#[track_caller]
fn calls(name: &str, timeout: Duration, max_in_flight: usize) -> Calls {
    Calls::new(&format!("key-value store of {name}"), timeout, max_in_flight)
}

/// A value's first byte. Behind it are the writer's clock, in nanoseconds, and a state's bytes, which begin with their
/// own version.
const STAMPED: u8 = 2;

/// A clock that is ahead of the reader's by more is wrong.
const MOST_AHEAD: Duration = Duration::from_secs(60);

/// The first byte if the [standing](Standing) is between the clock and the state.
const WITH_STANDING: u8 = 3;

/// Splits off the next time, in nanoseconds.
fn split_time(bytes: &[u8]) -> Option<(Timestamp, &[u8])> {
    let (nanos, rest) = bytes.split_first_chunk()?;
    Some((Timestamp::from_nanos(u64::from_be_bytes(*nanos)), rest))
}

/// Splits a value into the time when it was written, if that is known, the standing, and the state's bytes.
fn split(bytes: &[u8]) -> (Timestamp, Standing, &[u8]) {
    split_stamped(bytes).unwrap_or((Timestamp::ZERO, Standing::default(), bytes))
}

/// Splits a value that begins with a byte for this version. `None` for any other value.
fn split_stamped(bytes: &[u8]) -> Option<(Timestamp, Standing, &[u8])> {
    let (first, rest) = bytes.split_first()?;
    let (written, rest) = split_time(rest)?;
    match *first {
        STAMPED => Some((written, Standing::default(), rest)),
        WITH_STANDING => {
            let (banned_until, rest) = split_time(rest)?;
            let (owing_until, rest) = split_time(rest)?;
            let (allowed_until, rest) = split_time(rest)?;
            let (len, rest) = rest.split_first()?;
            let (reason, rest) = rest.split_at_checked(usize::from(*len))?;
            let reason = OverrideReason::stored(std::str::from_utf8(reason).ok()?).ok()?;
            Some((written, Standing { banned_until, owing_until, allowed_until, reason }, rest))
        }
        _ => None,
    }
}

/// Reverses [`split`].
fn join(written: Timestamp, standing: Standing, state: &[u8]) -> Vec<u8> {
    let times = [written, standing.banned_until, standing.owing_until, standing.allowed_until];
    let times = times.map(|time| time.as_nanos().to_be_bytes());
    let reason = standing.reason.as_str().as_bytes();
    // A reason has 200 bytes at most.
    let len = u8::try_from(reason.len()).unwrap_or(u8::MAX);
    if standing.is_in_force(written) {
        [&[WITH_STANDING][..], times.as_flattened(), &[len], reason, state].concat()
    } else {
        [&[STAMPED][..], &times[0], state].concat()
    }
}

/// A key's value.
struct KeyContent<A: Portable> {
    /// The standing, if it is in force. Otherwise [`Standing::NONE`].
    standing: Standing,
    /// `None` if the key owes nothing. While it owes more than it had left, this is the state at the end of the debt.
    state: Option<A::State>,
    /// If another quota has written the value: the algorithm under that quota.
    under: Option<A>,
    /// The state as it is written, if it counts in another window than its own: in another calendar's present window.
    unmoved: Option<A::State>,
    /// Whether a charge writes the value even if it charges nothing.
    is_corrected: bool,
}

impl<A: Portable> KeyContent<A> {
    /// The content for a key without a value.
    const NOTHING: Self =
        Self { standing: Standing::NONE, state: None, under: None, unmoved: None, is_corrected: false };

    fn read(algorithm: &A, stored: Option<&[u8]>, now: Timestamp) -> Result<Self, LimiterError> {
        let Some(bytes) = stored else { return Ok(Self::NOTHING) };
        let (written, before, bytes) = split(bytes);
        let another = written_under(bytes).filter(|quota| *quota != algorithm.quota().without_calendar());
        let under = another.and_then(|quota| algorithm.under(quota));
        let is_ahead = written > now.saturating_add(MOST_AHEAD);
        let writer = under.as_ref().unwrap_or(algorithm);
        // Times are read by the writer's clock if that is ahead.
        let then = if is_ahead { written } else { now };
        let standing = if before.is_in_force(then) { before.seen_at(then, now) } else { Standing::NONE };
        let end = now.max(standing.owing_until);
        let end_then = then.max(before.owing_until);
        let state = match bytes {
            [] if before.is_some() => None,
            bytes => {
                let state = writer.from_bytes(bytes, end_then);
                let state = state.map_err(|unknown| LimiterError::new(unknown.to_string()).with_source(unknown))?;
                if is_ahead { used_now(writer, state, end_then, end) } else { Some(state) }
            }
        };
        // Otherwise a converted state would be paid off at the old rate, and a state from the future never. No
        // advertised wait would be true. A state from another calendar would count in the window after next, too.
        let unmoved = match (algorithm.terms().shape(), &state) {
            (Some(Shape::CalendarWindow), Some(state)) if !is_ahead && writer.to_bytes(state) != bytes => {
                writer.from_bytes(bytes, Timestamp::MAX).ok()
            }
            _ => None,
        };
        let is_corrected = is_ahead || unmoved.is_some() || under.is_some();
        Ok(Self { standing, state, under, unmoved, is_corrected })
    }

    /// Returns the outcome for a transition that charges nothing.
    fn in_force(&self, algorithm: &A, now: Timestamp) -> Applied<A::State> {
        Applied { now, old: self.converted(algorithm, now), standing: self.standing, kept: None, charged: 0 }
    }

    /// Returns the state as it counts under the question's quota.
    fn converted(&self, algorithm: &A, now: Timestamp) -> Option<A::State> {
        match &self.under {
            Some(under) => {
                // Not at the end of a ban, because an operator may lift it.
                quota_change::converted(algorithm, self.state?, &under.quota(), now.max(self.standing.owing_until))
            }
            None => self.state,
        }
    }
}

/// Moves a state's used units from `written`, by a clock that was ahead, to `now`. Otherwise the key would be locked
/// for the time by which that clock was ahead.
fn used_now<A: Algorithm>(algorithm: &A, state: A::State, written: Timestamp, now: Timestamp) -> Option<A::State> {
    let left = algorithm.decide(Some(state), written, 0).0.remaining();
    let used = algorithm.max_cost().saturating_sub(left);
    if used == 0 { None } else { algorithm.decide(None, now, used).1 }
}

fn gave_up(reason: GaveUp) -> LimiterError {
    LimiterError::new(reason.to_string()).with_source(reason)
}

/// A key's new value: a standing, a state, and the algorithm under whose quota the state is written.
type Written<'a, A> = (Standing, Option<<A as Algorithm>::State>, &'a A);

impl<A: Portable> KeyContent<A> {
    /// Applies a transition to a key's value. Returns the outcome, and the new value if it changes.
    fn step<'a>(
        &'a self,
        algorithm: &'a A,
        transition: Transition,
        now: Timestamp,
    ) -> (Applied<A::State>, Option<Written<'a, A>>) {
        let applied = self.in_force(algorithm, now);
        let change = |(standing, old)| (Applied { old, standing, ..applied }, Some((standing, old, algorithm)));
        match transition {
            Transition::Read if self.standing.is_some() => (applied, None),
            Transition::Read => (Applied { old: self.state, kept: self.under.as_ref().map(A::quota), ..applied }, None),
            Transition::Charge { cost, count } => {
                let mut state = applied.old;
                let mut charged = 0;
                while charged < count && !self.standing.is_some() {
                    let (_, Some(next)) = algorithm.decide(state, now, cost) else { break };
                    (state, charged) = (Some(next), charged + 1);
                }
                let is_written = charged > 0 || self.is_corrected;
                (Applied { charged, ..applied }, is_written.then_some((self.standing, state, algorithm)))
            }
            // The charge was made under this quota. If the key has another quota with other units by now, the charge
            // stays, as in memory.
            Transition::Refund { cost, receipt } => {
                let under = self.under.as_ref().unwrap_or(algorithm);
                let is_owed = self.unmoved.is_none()
                    && !self.standing.is_some()
                    && quota_change::has_units_of(algorithm, &under.quota());
                let refunded = self.state.filter(|_| is_owed).map(|state| under.refund(state, now, cost, receipt));
                (Applied { old: None, ..applied }, refunded.map(|state| (Standing::NONE, Some(state), under)))
            }
            Transition::Reset => change((Standing::NONE, None)),
            Transition::Ban { span, .. } => change((self.standing.ban(now, span), applied.old)),
            // The key stays in its window, which may end later than the limiter's.
            Transition::Override(by_hand) => {
                change((self.standing.overridden(now, by_hand), self.unmoved.or(applied.old)))
            }
            Transition::Owe { units } => change(self.standing.charge(algorithm, applied.old, now, units)),
        }
    }
}

impl<A: Portable, K: KeyValue, C: Clock> Backend<A> for KeyValueBackend<K, C> {
    /// Reads, and swaps if something changes, until no other process has changed the key in between.
    async fn apply(
        &self,
        target: &Target<'_, A>,
        transition: Transition,
        limits: CallLimits,
    ) -> Result<Applied<A::State>, LimiterError> {
        let algorithm = target.algorithm();
        let key = format!("{}:{}", self.keys.name, target.name());
        let mut attempts = Attempts::new(limits.deadline);
        loop {
            let stored = self.keys.get(&key, limits).await?;
            let now = self.keys.clock.now();
            let kept = match transition {
                // A reset works even if the value cannot be read as a state.
                Transition::Reset => KeyContent::NOTHING,
                _ => KeyContent::read(algorithm, stored.as_deref(), now)?,
            };
            let (applied, written) = kept.step(algorithm, transition, now);
            let Some((standing, state, under)) = written else { return Ok(applied) };
            let expires = state.map_or(Timestamp::ZERO, |state| under.expires_at(&state)).max(standing.expires());
            let bytes = state.map(|state| under.to_bytes(&state)).unwrap_or_default();
            let holds_something = state.is_some() || standing.is_in_force(now);
            let new = holds_something.then(|| join(now, standing, &bytes));
            let changes = stored.is_some() || new.is_some();
            if !changes || self.keys.compare_and_swap(&key, stored, new, expires.saturating_since(now), limits).await? {
                let is_conversion = matches!(transition, Transition::Charge { .. }) && kept.under.is_some();
                self.conversions.fetch_add(is_conversion.into(), Ordering::Relaxed);
                return Ok(applied);
            }
            self.lost_swaps.fetch_add(1, Ordering::Relaxed);
            attempts.lost().await.map_err(|reason| {
                LimiterError::new("the key is busy; take leases if many processes share it").with_source(reason)
            })?;
        }
    }

    fn keeps_standing(&self, _: &A) -> bool {
        true
    }

    fn timeout(&self) -> Duration {
        self.keys.timeout()
    }

    fn shares_keys_with(&self, other: &Self) -> bool {
        self.keys.is_same_as(&other.keys) && self.keys.name == other.keys.name
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
        self.keys.calls.is_failing()
    }

    fn stats(&self) -> SharingStats {
        let [conversions, lost_swaps] =
            [&self.conversions, &self.lost_swaps].map(|count| count.load(Ordering::Relaxed));
        SharingStats { conversions, lost_swaps, number: None }
    }

    fn health(&self) -> Vec<NodeHealth> {
        self.keys.health()
    }
}

impl<K: KeyValue, C: Clock> Records for KeyValueRecords<K, C> {
    async fn read(&self, name: &str, limits: CallLimits) -> Result<Record, LimiterError> {
        let value = self.get(name, limits).await?;
        Ok(Record { value, now: self.clock.now() })
    }

    async fn swap(
        &self,
        name: &str,
        old: Option<&[u8]>,
        new: Option<&[u8]>,
        lifetime: Duration,
        limits: CallLimits,
    ) -> Result<bool, LimiterError> {
        self.compare_and_swap(name, old.map(Vec::from), new.map(Vec::from), lifetime, limits).await
    }
}

impl<K: KeyValue, C: Clock> Server for KeyValueRecords<K, C> {
    fn timeout(&self) -> Duration {
        self.calls.timeout()
    }

    fn is_same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.store, &other.store)
    }

    fn health(&self) -> Vec<NodeHealth> {
        vec![self.calls.health()]
    }
}

/// Clones share the store, its circuit breaker and the bound on calls in flight.
impl<K, C: Clone> Clone for KeyValueRecords<K, C> {
    fn clone(&self) -> Self {
        Self {
            store: Arc::clone(&self.store),
            name: Arc::clone(&self.name),
            calls: self.calls.clone(),
            clock: self.clock.clone(),
        }
    }
}

impl<K, C> fmt::Debug for KeyValueRecords<K, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyValueRecords").field("name", &self.name).field("calls", &self.calls).finish_non_exhaustive()
    }
}

impl<K, C> fmt::Debug for KeyValueBackend<K, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyValueBackend").field("keys", &self.keys).finish_non_exhaustive()
    }
}
