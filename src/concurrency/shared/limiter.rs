//! [`SharedConcurrency`], the limiter.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::super::rejected;
use super::process::{Process, RemoteWanted};
use crate::limiter::{IntoLimiter, Limiter, WaitBounds};
use crate::store::Stats;
use crate::store::remote::InFlight;
use crate::store::remote::shared_reports::sharing_reports;
use crate::store::remote::tag::KeyTag;
use crate::values::time::{Clock, Monotonic};
use crate::values::{
    Answer, Ask, Backlog, Decision, Description, Inheritance, LimiterError, Mode, Quota, Receipt, Terms,
};

/// A [`Concurrency`](crate::Concurrency) that many processes share, on a server: it limits how many requests per key
/// are in flight at once, over all processes.
///
/// The server is Redis or Valkey (`Redis` of `tower-sluice-redis`), PostgreSQL (`Postgres::records` of
/// `tower-sluice-postgres`), DynamoDB (`Dynamo::records` of `tower-sluice-dynamodb`), any key-value store that can
/// compare and swap ([`KeyValueRecords`](crate::store::remote::KeyValueRecords)), or [one of your own](InFlight).
///
/// `Concurrency`'s documentation applies here, too: when a request is over, which fields a response carries, and how a
/// policy charges and releases. The differences:
///
/// | | `Concurrency` | `SharedConcurrency` |
/// |---|---|---|
/// | the limit holds for | a process | all processes with this name on this server |
/// | a request that does not fit | is rejected, or waits | the same; it [waits](Self#waiting) in its process |
/// | waiters are served | first come, first served | first come, first served in a process; between processes, by chance |
/// | a request takes | one compare-and-swap | [one round trip, or two](Self#memory-and-cost); its release is not waited for |
/// | a process that dies | | its units are free at most one [lease](Self::lease) later |
/// | the greatest limit | 2,147,483,647 | 999,999,999,999,999 |
/// | [peek](Mode::Peek) | yes | no |
///
#[cfg_attr(feature = "http", doc = "```")]
#[cfg_attr(not(feature = "http"), doc = "```ignore")]
/// use tower_sluice::key::HeaderKey;
/// use tower_sluice::store::remote::InFlight;
/// use tower_sluice::{Policy, SharedConcurrency};
///
/// /// Four at once for each customer, on all machines together.
/// fn in_flight(store: impl InFlight) -> Policy {
///     let limiter = SharedConcurrency::new(store, "in-flight", 4);
///     Policy::new("in-flight", limiter).key(HeaderKey::from_static("x-api-key"))
/// }
/// ```
///
/// # Waiting
///
/// With [`max_queue`](Self::max_queue), a request that was rejected waits in its process until others are over, first
/// come, first served. A request that arrives while others of its key wait lines up behind them without a call, so no
/// request overtakes another. The first waiter of a line asks the server at once when a request in this process has
/// released units of the key. Otherwise it asks at intervals that grow from 10 to 250 milliseconds, half of each
/// random, for units that other processes release. So a line asks, in each process
///
/// - up to 12 times in its first second and up to 8 times in each further one, for any number of requests that wait in
///   it, while other processes hold units that it needs; the intervals start again when a waiter was served;
/// - once more for each release by this process;
/// - not at all while this process alone holds too many units.
///
/// **Between processes, chance decides**, and it favours the process that releases: that process asks right after its
/// release, and the others at the end of their intervals. So that the others get their share under a lasting overload,
/// too, a line leaves one release in five seconds to them, for 250 milliseconds. In that time, each of their lines
/// finds the free units, if they are enough for its first waiter. If no other process waits, the units are idle for
/// that time.
///
/// A waiter that gives up (`max_wait`, the [patience](Ask::within) of its request, a client that disconnects) leaves at
/// once, and the next one is the first. If it is asking the server at that moment, the units that it gets are released.
/// A waiter whose call fails ends with that error, and the policy's [failure mode](crate::FailureMode) decides on it.
/// The fallback itself lets nothing wait. If the first waiter in a line is not polled for more than a second, because
/// its runtime is blocked, another waiter asks in its place.
///
/// # Leases
///
/// The server keeps, for each process, how many units per key it has in flight, and until when that counts: the lease,
/// by the server's clock. While a process has requests in flight, its task renews the lease after half of that time, on
/// each runtime on which requests are admitted. A process that dies (`kill -9`, a machine that is switched off) renews
/// nothing, and its units are free when its lease ends: no earlier, since they may be in use, and no later.
///
/// A renewal does not add to the server's count. It replaces the count by the units that the process holds at that
/// moment. So it also repairs earlier errors: a release that was lost with its connection; a call that took units and
/// whose answer never came; all counts after the server was restarted without its data. That takes half a lease at
/// most, if the server answers.
///
/// # Accuracy
///
/// Exact on every store, if leases are renewed and the server keeps its data: with any number of processes and
/// requests, at most `limit` units per key are in flight. A request is rejected only while it would exceed the limit,
/// or while a release is on its way. More units may be in flight
///
/// - after a process stood still for longer than its lease (`SIGSTOP`, a suspended machine, all its runtimes blocked)
///   or could not reach the server for that long: its requests are in flight in truth, and others may have their units
///   by then. It overruns by its own units at most, and reports them with its next renewal.
/// - after the server has lost data (a restart, an eviction, a replica that took over before it had all data): until
///   all processes have renewed, half a lease later.
/// - when the server's clock is set forward by more than half a lease: its leases end. When it is set back, the leases
///   of processes that died before last longer, by a lease at most. A key-value store has no clock: its processes count
///   by [theirs](crate::store::remote::KeyValueRecords#time), which must agree to within half a lease.
///
/// If requests were admitted but are not in flight any more, their units are counted for a short time only. A request
/// that is cancelled while the server is asked releases its units as soon as the answer comes. If no answer comes, they
/// are released by the next renewal, or when the lease ends.
///
/// # When the server is out of reach
///
/// A request fails within the server's timeout, or within a quarter of the lease if that is less, and at once while the
/// circuit breaker is open. The policy [decides](crate::FailureMode) on the request then. The [local
/// fallback](crate::FailureMode::LocalFallback) admits up to `limit` units per key in this process alone. It also
/// counts the units that the server has admitted before, so that an outage does not give a process a second limit. So
/// *n* processes have up to *n* × `limit` units per key in flight during an outage. The first renewal after the outage
/// reports to the server the units that they admitted.
///
/// # Memory and cost
///
/// | | Redis | records: PostgreSQL, a key-value store |
/// |---|---|---|
/// | to take units | one round trip, one script | two: it reads and swaps; again if another process was faster |
/// | a rejection | one round trip | one: it reads |
/// | a release, a renewal | one, in the background | two, in the background |
/// | a hot key | as fast as the server runs scripts | one change per two round trips and process; its requests take turns |
/// | on the server | some 100 bytes, and 55 for each process | 9 bytes and the name, and 40 for each process |
///
/// On Redis, the script's time grows with the processes that have requests of this key in flight, and not with the
/// requests: 8 µs on the server with one, 15 with eight, 35 with thirty-two. On records, requests on a hot key that
/// find no turn in half the timeout fail, as if the server were out of reach; renewals wait for no turn. Where a key
/// has more requests per second than fit, take Redis. There, up to 4,096 fields share a key. Each process has one, and
/// two while it renews.
///
/// A key with requests that last takes one more renewal per process and half a lease. If this process alone holds all
/// the key's units, further requests are rejected without a call; while other processes hold them, each takes one,
/// unless it joins [a line](Self#waiting). Where clients may send many, put a [bucket](crate::algorithm::TokenBucket)
/// per client before it.
///
/// In this process, a key with requests in flight takes some 150 bytes; the memory for the largest number of keys at a
/// time is kept. A request that waits takes less than 1,200 bytes, in addition to its connection.
///
/// # Live change
///
/// A changed limit holds from the next request on. Units in flight stay counted, here and on the server. The heir must
/// have the same name on the same server. Requests that wait ask again under the new limit, and share their lines with
/// later requests. Processes with different limits may share a name, for example while a change is rolled out: each
/// judges by its own limit. So may processes whose [`limit_fn`](crate::Policy::limit_fn) has two limits for a key,
/// while a plan change is on its way to them. A request that waits keeps the key limit that it came with. The
/// [lease](Self::lease) of the first limiter stays in force, because a renewer already counts on it.
///
/// # Errors
///
/// A [`LimiterError`] whose source is the server's error, if it gives no answer, or if a request is decided outside of
/// a tokio runtime. A [`LimiterError`] without a source, if the key holds something else on the server, or if a request
/// would have to wait and the limiter was [closed](Limiter::close).
#[doc(alias("distributed semaphore", "concurrency limit"))]
pub struct SharedConcurrency<S> {
    store: Arc<S>,
    name: Box<str>,
    limit: u64,
    lease: Duration,
    queue: Option<WaitBounds>,
    /// Made on first use: a limiter that inherits shares its predecessor's instead.
    process: OnceLock<Arc<Process<S>>>,
}

const DEFAULT_LEASE: Duration = Duration::from_secs(10);

const SHORTEST_LEASE: Duration = Duration::from_secs(1);

const LONGEST_LEASE: Duration = Duration::from_secs(3_600);

impl<S: InFlight> SharedConcurrency<S> {
    /// Admits up to `limit` units per key at once, over all processes that use this `name`; other limiters on `store`
    /// need other names. More are rejected, or wait in a [`max_queue`](Self::max_queue).
    ///
    /// # Panics
    ///
    /// If `limit` is zero: nothing would ever pass. If it is above [`Quota::MAX_UNITS`], 999,999,999,999,999.
    #[must_use]
    #[track_caller]
    pub fn new(store: S, name: &str, limit: u64) -> Self {
        assert!(limit > 0, "a limit of zero would admit nothing");
        assert!(
            limit <= Quota::MAX_UNITS,
            "the units in flight of a key are at most 999999999999999; count in greater units, such as KiB in place of bytes"
        );
        Self {
            store: Arc::new(store),
            name: name.into(),
            limit,
            lease: DEFAULT_LEASE,
            queue: None,
            process: OnceLock::new(),
        }
    }

    /// Lets up to `waiters` requests per key wait in this process for others to be over: for up to 30 seconds each, and
    /// 65,536 over all keys. See [waiting](Self#waiting).
    ///
    /// Every waiting request holds its connection, its headers and the readiness of the inner service. A waiter that is
    /// dropped leaves at once.
    #[must_use]
    pub fn max_queue(self, waiters: usize) -> Self {
        self.waiting(|queue| queue.max_queue = waiters)
    }

    /// Sets a request's longest wait, after which it is rejected; 30 seconds unless set. A request that is asking the
    /// server at that moment awaits the answer, for at most one server timeout. Has no effect without
    /// [`max_queue`](Self::max_queue).
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        self.waiting(|queue| queue.max_wait = max_wait)
    }

    /// Sets how many requests wait in this process, over all keys together; 65,536 unless set. Has no effect without
    /// [`max_queue`](Self::max_queue).
    #[must_use]
    pub fn max_waiters(self, max_waiters: usize) -> Self {
        self.waiting(|queue| queue.max_waiters = max_waiters)
    }

    /// Sets for how long a process's units count without a renewal; 10 seconds unless set. It bounds how long a dead
    /// process's units are lost, and how long a process may stand still without an overrun.
    ///
    /// Must be much longer than the server's timeout, because a call takes no longer than a quarter of it. The
    /// processes need not agree.
    ///
    /// # Panics
    ///
    /// If it is shorter than a second, or longer than an hour.
    #[must_use]
    #[track_caller]
    pub fn lease(self, lease: Duration) -> Self {
        assert!(
            (SHORTEST_LEASE..=LONGEST_LEASE).contains(&lease),
            "a lease must be from one second to one hour long, not {lease:?}"
        );
        Self { lease, ..self }
    }

    fn waiting(mut self, set: impl FnOnce(&mut WaitBounds)) -> Self {
        set(self.queue.get_or_insert(WaitBounds::new(0)));
        self
    }

    pub(super) fn process(&self) -> &Arc<Process<S>> {
        self.process.get_or_init(|| Arc::new(Process::new(Arc::clone(&self.store), &self.name, self.lease)))
    }

    /// Takes units, or waits for them.
    fn charge(&self, ask: &Ask<'_>) -> Answer {
        let wanted = self.wanted(ask);
        let Some(bounds) = self.queue else { return self.take_at_once(wanted) };
        let process = Arc::clone(self.process());
        let bounds = WaitBounds { max_wait: bounds.longest_wait(ask.patience()), ..bounds };
        let is_own_limit = ask.limit().is_some();
        Answer::Pending(Box::pin(async move {
            let decision = process.take_or_wait(wanted, is_own_limit, bounds).await?;
            Ok(receipted(decision, wanted.tag, wanted.cost))
        }))
    }

    /// Takes units that are free, and for which no other request in this process waits.
    fn take_at_once(&self, wanted: RemoteWanted) -> Answer {
        let process = Arc::clone(self.process());
        let RemoteWanted { tag, cost, limit } = wanted;
        if let Some(rejection) = process.rejection(wanted) {
            return rejection.into();
        }
        if cost > 0 && cost <= limit && process.lines.has(tag) {
            return rejected(limit, 0).into();
        }
        Answer::Pending(Box::pin(async move { Ok(receipted(process.take(wanted).await?, tag, cost)) }))
    }

    /// Asks under the key's limit, or the limiter's.
    fn wanted(&self, ask: &Ask<'_>) -> RemoteWanted {
        let tag = self.process().tag(ask.key());
        RemoteWanted { tag, cost: ask.cost(), limit: ask.limit().unwrap_or(self.limit) }
    }

    /// Decides in this process alone.
    fn fall_back(&self, RemoteWanted { tag, cost, limit }: RemoteWanted) -> Decision {
        let process = self.process();
        match process.counts.take_here(tag, cost, limit, Monotonic.now()) {
            Ok(before) => {
                if cost > 0 {
                    process.start_renewing();
                }
                receipted(Decision::allow(limit, limit.saturating_sub(before.saturating_add(cost))), tag, cost)
            }
            Err(before) if cost > limit => Decision::reject(limit, limit.saturating_sub(before), None),
            Err(before) => rejected(limit, limit.saturating_sub(before)),
        }
    }
}

/// The decision with a receipt, if something was taken: the tag of its key, which releases the units without hashing
/// the key again.
fn receipted(decision: Decision, tag: KeyTag, cost: u64) -> Decision {
    if cost > 0 && decision.is_allowed() { decision.with_receipt(Receipt::new(tag.to_bits())) } else { decision }
}

impl<S: InFlight> Limiter for SharedConcurrency<S> {
    /// A request's [patience](Ask::within) bounds its wait as [`max_wait`](Self::max_wait) does.
    ///
    /// A [shadow](Mode::Shadow) takes units that are free, and never waits. The [fallback](Mode::Fallback) decides in
    /// this process alone, and at once.
    fn decide(&self, ask: &Ask<'_>) -> Answer {
        match ask.mode() {
            Mode::Charge | Mode::Shadow | Mode::Fallback if ask.is_suspended() => Decision::suspended().into(),
            Mode::Fallback => self.fall_back(self.wanted(ask)).into(),
            Mode::Shadow => self.take_at_once(self.wanted(ask)),
            Mode::Charge => self.charge(ask),
            mode => LimiterError::unsupported(mode).into(),
        }
    }

    /// Releases units of a request that is over: on the server in the background, by one call. If that fails, or if
    /// there is no tokio runtime, the next renewal does it, or the lease ends.
    fn refund(&self, _: &Ask<'_>, receipt: Receipt, units: u64) {
        if let Some(tag) = receipt.value() {
            self.process().release(KeyTag::from_bits(tag), units);
        }
    }

    fn describe(&self) -> Description {
        let description = Description::new()
            .advertising(Terms::concurrency(self.limit))
            .admitting_at_most(self.limit)
            .holding()
            .taking_quotas()
            .answering(Mode::Shadow)
            .answering(Mode::Fallback);
        let description = sharing_reports(description, self.store.shared_records(), &self.name);
        if self.queue.is_some() { description.delaying() } else { description }
    }

    /// See [live change](Self#live-change).
    fn inherit(&self, predecessor: &dyn Limiter) -> Option<Inheritance<Arc<dyn Limiter>>> {
        let theirs = Arc::clone(predecessor.downcast_ref::<Self>()?.process());
        if theirs.name() != &*self.name || !theirs.store().is_same_as(&self.store) {
            return None;
        }
        // A limiter that was used has its own counts, unless they are the predecessor's: it was in force before.
        if !Arc::ptr_eq(self.process.get_or_init(|| Arc::clone(&theirs)), &theirs) {
            return None;
        }
        let limit = self.limit;
        Some(Inheritance::in_place().then(move || theirs.lines.change_limit(limit)))
    }

    /// Counts the units that are in flight in this process and the requests that wait in it, and reports the servers'
    /// health.
    fn stats(&self) -> Stats {
        let process = self.process();
        Stats {
            backlog: self.queue.map(|_| Backlog::new(process.lines.waiting(), None)),
            in_flight: Some(process.counts.total()),
            nodes: self.store.health(),
            ..Stats::default()
        }
    }

    /// Ends all waits with a [`LimiterError`], and lets no request wait any more. Requests that need not wait still
    /// pass.
    fn close(&self) {
        self.process().lines.close();
    }
}

impl<S: InFlight> IntoLimiter for SharedConcurrency<S> {
    fn into_limiter(self) -> Arc<dyn Limiter> {
        Arc::new(self)
    }
}

impl<S> fmt::Debug for SharedConcurrency<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { store: _, name, limit, lease, queue, process: _ } = self;
        f.debug_struct("SharedConcurrency")
            .field("name", name)
            .field("limit", limit)
            .field("lease", lease)
            .field("queue", queue)
            .finish_non_exhaustive()
    }
}
