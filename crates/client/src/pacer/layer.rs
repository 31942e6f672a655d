//! `PacerLayer`: its settings.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::uri::{Authority, Scheme};
use http::{Request, Uri, header};
use tower_layer::Layer;
use tower_sluice::{PartitionKey, Quota};
#[cfg(feature = "redis")]
use tower_sluice_redis::{Redis, shared_state::SharedStates};

use super::pace::{Rules, micros};
use super::partners::{PartnerKey, Partners, SharedByLines};
use super::service::Pacer;
use super::statuses::WaitStatuses;
use super::throttle::AdaptiveThrottle;

/// Paces outgoing HTTP calls by the limits that each partner's responses report, so that a partner with a limit rejects
/// hardly any of them.
///
/// Calls to one partner wait in line, first in, first out. The layer reads the fields of every response, spreads the
/// calls that are left over the time until there are more, and pauses when no call is left, or when the partner asks
/// for it. A call that is rejected anyway keeps its place: it is sent again, before all that came later.
///
/// ```
/// use bytes::Bytes;
/// use http::{Request, Response};
/// use http_body_util::Full;
/// use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
/// use tower_sluice_client::PacerLayer;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// // Stands for the client of hyper-util. For reqwest, see `PacerLayer::reqwest` (feature `reqwest`).
/// // The partner allows ten calls in ten seconds.
/// let client = service_fn(|_: Request<Full<Bytes>>| async {
///     let response = Response::builder().header("ratelimit", r#""default";r=9;t=10"#);
///     Ok::<_, std::io::Error>(response.body(Full::<Bytes>::default()).unwrap())
/// });
/// let mut client = ServiceBuilder::new().layer(PacerLayer::new()).service(client);
///
/// let request = Request::get("https://api.example/orders").body(Full::default()).unwrap();
/// let response = client.ready().await.unwrap().call(request).await.unwrap();
/// assert_eq!(response.status(), 200);
/// # }
/// ```
///
/// A rejection is a 429, or a 503 or 403 with `Retry-After`: the partner has not carried the call out. The whole table
/// is at [`WaitStatuses`]. If your partner may have carried it out, set [`attempts(1)`](Self::attempts). In gRPC, a
/// rejection is a response without messages that has the status RESOURCE_EXHAUSTED, or UNAVAILABLE with a pushback, in
/// its head, unless the pushback forbids the client to repeat the call. Trailers are not read, so a status after the
/// first message, or from a server that sends its head before it decides, pauses nothing.
///
/// # What is read
///
/// | field | meaning |
/// |---|---|
/// | `Retry-After`, on rejections | seconds, also with decimals or as a list, or a date: a pause of the whole line |
/// | `retry-after-ms`, `x-ms-retry-after-ms` | the same wait in milliseconds, which is more exact |
/// | `RateLimit` in the syntax of draft-11 | what is left (`r`), and for how long (`t`), of one or several policies |
/// | `RateLimit` in the syntax of draft-07 | the same: `remaining`, `reset` |
/// | `RateLimit-Remaining`, `-Reset`, `-Limit` of drafts 00 to 06; `X-RateLimit-…`, `X-Rate-Limit-…`; `…-Requests` and `Anthropic-RateLimit-Requests-…` | the same, with one number per quota. A reset below 10^9 is seconds from now, from there on seconds since 1970, and from 10^11 on milliseconds; `6m0s`, RFC 3339 and dates are read, too |
/// | `RateLimit-Policy` | the quota per window, which is more exact than the whole seconds of `t` |
/// | `grpc-status`, `grpc-retry-pushback-ms`, in the head | a rejection in gRPC, and how long it pauses the line |
///
/// If there are several policies, the tightest governs: the used-up budget that lasts longest, or, if every budget has
/// units left, the budget with the lowest rate. Policies that count something other than requests are ignored, and so
/// are fields in a response from a cache (`Age` above 0). `tests/vectors/partners.json` has answers from more than
/// forty public APIs.
///
/// # How calls are spread
///
/// With *n* calls left until a reset, the next departs an *n*+1th of that time after the last one. When nothing is
/// known, at first, after each reset and after each pause, one call goes alone, and the others wait for its response,
/// or for a second.
///
/// A partner that reports nothing is not limited, except by [`quota`](Self::quota), until it rejects a call. It is
/// unknown how many calls it accepts, so they start slowly: after the first, two at a time, then four, and so on with
/// each round trip, or each second if answers take longer. From 1,024 at a time on, there is no bound.
///
/// # A partner that rejects
///
/// From each rejection, the layer learns a pace, as TCP does: the time between calls grows by half, or to the rate at
/// which the partner has really accepted calls, but four times at most. It shrinks by a 128th with each call that the
/// partner accepts. Only a reported budget that is used up does not teach a pace, since it says itself when it ends.
///
/// The line pauses until the time that the rejection states, or for a second, and one call goes first. If the partner
/// rejects it, the pace stays as it is, and the pause doubles, up to 32 seconds (a stated one only from the second time
/// on). So the line never leaves together, and several clients that don't know of each other share a quota:
/// `crates/client/src/pacer/tests/contest.rs` compares the layer with retries and backoff.
///
/// A rejected call goes again if the pause ends within [`max_wait`](Self::max_wait). Otherwise, its caller gets the
/// rejection.
///
/// Calls that are under way are counted as if the partner had not seen them when it wrote the response. So it never
/// gets more calls than it offered, unless other clients use up the quota, too.
///
/// # Accuracy
///
/// Fields count whole seconds, rounded up. The layer narrows a window's end down from one response to the next. In a
/// window of ten seconds or more, it uses all but a few calls (`crates/client/src/pacer/tests.rs`,
/// `scripts/ci/partner`). A bucket is kept full and used at its rate, so a burst that it has saved is not spent. What
/// remains:
///
/// - Only after a whole second is it known that a window of one second is over, or that an empty bucket has refilled if
///   it holds less than a second's worth.
/// - A sliding window of ten seconds or more is used to nine tenths at least, and one of a second to six tenths. Each
///   time that it is used up, it rejects at most one call, which goes again, because the end of the remaining units and
///   the next unit are not at one instant.
///
/// # Hostile partners
///
/// A value from a partner cannot cause a panic, or stop the line for longer than [`max_pause`](Self::max_pause). Fields
/// that are longer than 2 KiB, or malformed, are ignored as a whole.
///
/// # Cancel safety
///
/// A call that is dropped while it waits leaves the line. If it is dropped after it was sent, it counts as sent; for a
/// [`throttle`](Self::throttle), as failed.
///
/// # Futures that are not polled
///
/// A call departs when its future is polled after its turn has come. If its future is not polled for 20 ms, it is
/// passed over, keeps its place, and departs once it is polled and the pace allows it. So calls that a busy program
/// polls late leave at the pace, too, and a call whose inner service is not ready again after a rejection does not hold
/// up others.
///
/// # Errors
///
/// [`PacerError`](crate::PacerError): too many calls wait for a partner, the wait would be too long, the partner keeps
/// failing (with a [`throttle`](Self::throttle) only), or the inner service failed. A partner's response is never an
/// error, even if it is a rejection that is not sent again.
///
/// # Cost
///
/// One lock and, for each call that waits, some 200 bytes and a channel; a task per partner while calls wait for it.
/// Each future is boxed, and each request is cloned, unless [`attempts`](Self::attempts) is 1. Up to 4,096 partners are
/// remembered while they are idle. If there are more, partners that are not paused are forgotten first, and then those
/// whose pause ends next. With [Redis](Self::shared), see there.
///
/// # Panics
///
/// In a tokio runtime without a timer, when a call has to wait.
#[must_use]
#[doc(alias("backoff", "retry", "429", "client"))]
pub struct PacerLayer<B> {
    pub(super) gate: Arc<PacerGate<B>>,
}

/// The part that all services from one layer share.
pub(super) struct PacerGate<B> {
    pub(super) key: PartnerFn<B>,
    pub(super) clone: CloneFn<B>,
    pub(super) partners: Partners,
    /// How many services the layer has made.
    services: AtomicU64,
    body: PhantomData<fn(B)>,
}

impl<B> PacerGate<B> {
    /// Returns the line for a request to that service.
    pub(super) fn partner(&self, request: &Request<B>, service: u64) -> PartnerKey {
        (self.key)(request).map_or(PartnerKey::Service(service), PartnerKey::Named)
    }
}

/// Returns `None` for a request that does not name its host.
type PartnerFn<B> = Box<dyn Fn(&Request<B>) -> Option<PartitionKey> + Send + Sync>;
type CloneFn<B> = Box<dyn Fn(&Request<B>) -> Option<Request<B>> + Send + Sync>;

/// The default for [`PacerLayer::max_wait`], so that a call can wait for a minute's window.
const MAX_WAIT: Duration = Duration::from_secs(60);
const MAX_WAITERS: usize = 1_000;
const MAX_PAUSE: Duration = Duration::from_secs(3_600);
const ATTEMPTS: u32 = u32::MAX;

impl<B: Clone + 'static> PacerLayer<B> {
    /// Creates a layer that clones requests, so that it can send a rejected one again. For bodies that are not `Clone`,
    /// see [`with_clone`](Self::with_clone).
    pub fn new() -> Self {
        Self::with_clone(|request| Some(request.clone()))
    }
}

impl<B: Clone + 'static> Default for PacerLayer<B> {
    fn default() -> Self {
        Self::new()
    }
}

impl<B: 'static> PacerLayer<B> {
    /// Creates a layer that clones requests with this function. It returns `None` for a request that cannot be cloned.
    /// If such a request is rejected, the caller gets the response, and the line is paused nevertheless.
    pub fn with_clone(clone: impl Fn(&Request<B>) -> Option<Request<B>> + Send + Sync + 'static) -> Self {
        let rules = Rules { longest: micros(MAX_PAUSE), ..Rules::default() };
        let partners = Partners::new(SharedByLines::new(rules, MAX_WAIT, MAX_WAITERS, ATTEMPTS));
        let (key, clone) = (Box::new(authority), Box::new(clone));
        let gate = PacerGate { key, clone, partners, services: AtomicU64::new(0), body: PhantomData };
        Self { gate: Arc::new(gate) }
    }

    /// Sets which partner a request is for: all requests with one key are in one line. Unless set, it is the host and
    /// the port in the URI, otherwise in the field `Host`. A port that the scheme implies makes no difference:
    /// `https://a` and `https://a:443` are one partner.
    ///
    /// Choose the identity by which the partner counts. If it has a quota per account, make the account a part of the
    /// key. If it limits one path and not another, make the path a part of the key, because a rejected call stays first
    /// in line until it is accepted.
    ///
    /// Requests that don't name a host, such as those from tonic's clients, are in one line per service: each call of
    /// [`layer`](tower_layer::Layer::layer) makes a new line, which clones of the service share, so two channels are
    /// two partners. So make the service once, and clone it. If two services call one partner, set a key. Without a
    /// key, such a line is not [shared](Self::shared) with other processes.
    ///
    /// # Panics
    ///
    /// If a clone of the layer, or a service that it made, is alive. This holds for all methods below, too.
    #[track_caller]
    pub fn key<K: Into<PartitionKey>>(self, key: impl Fn(&Request<B>) -> K + Send + Sync + 'static) -> Self {
        let own_key = move |request: &Request<B>| Some(key(request).into());
        self.with(|gate| gate.key = Box::new(own_key)).with_common(|common| common.has_own_key = true)
    }

    /// Rejects a part of the calls to a partner that keeps failing, here and at once ([`PacerError::Throttled`]),
    /// instead of sending them. Off unless set, because your program must expect that error, and have something to do
    /// instead.
    ///
    /// It is for failures that no pace cures: timeouts, refused connections, 5xx. See [`AdaptiveThrottle`] for which
    /// results are failures, when calls are rejected, and how the layer notices that the partner is back. A call is
    /// judged before it joins the line, and again before a further [attempt](Self::attempts). If that is rejected, the
    /// caller gets the partner's response. Each process judges by its own calls, even if the pace is
    /// [shared](Self::shared), so a process whose own network fails stops, and the others go on.
    ///
    /// ```
    /// use tower_sluice_client::{AdaptiveThrottle, PacerLayer};
    ///
    /// # type Body = http_body_util::Full<bytes::Bytes>;
    /// let layer = PacerLayer::<Body>::new().throttle(AdaptiveThrottle::new());
    /// ```
    ///
    /// [`PacerError::Throttled`]: crate::PacerError::Throttled
    #[track_caller]
    pub fn throttle(self, throttle: AdaptiveThrottle) -> Self {
        self.with_common(|common| common.throttle = Some(throttle))
    }

    /// Names the layer in [metrics](https://docs.rs/tower-sluice/latest/tower_sluice/guide/monitoring/#metrics), as the
    /// label `pacer`, and in log lines. Without a name, it has no metrics. Give each layer a different name.
    #[track_caller]
    pub fn name(self, name: &str) -> Self {
        self.with_common(|common| common.meter.set_name(name))
    }

    /// Keeps to your own quota as well, per partner, whether the partner reports more or less: calls depart evenly
    /// spaced, or with the quota's [burst](Quota::burst) if one was set. For partners that report nothing.
    ///
    /// # Panics
    ///
    /// If the quota is [suspended](Quota::suspended).
    #[track_caller]
    pub fn quota(self, quota: Quota) -> Self {
        assert!(!quota.is_suspended(), "a suspended quota lets no call go: write another one");
        let nanos = quota.period().as_nanos();
        // Rounded up, so that no call departs too early.
        let interval = nanos.div_ceil(u128::from(quota.limit()) * 1_000);
        let interval = u64::try_from(interval).expect("a hundred years in microseconds");
        let ahead = interval.saturating_mul(quota.explicit_burst_or(1) - 1);
        self.with_common(|common| {
            (common.rules.interval, common.rules.ahead) = (interval, ahead.min(micros(Duration::MAX)));
        })
    }

    /// Sets how long a call waits in line at most, over all attempts; a minute unless set. A call that would wait for
    /// longer is not sent, or not again.
    #[track_caller]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        self.with_common(|common| common.max_wait = max_wait.min(LONGEST))
    }

    /// Sets how many calls may wait in this process for one partner; 1,000 unless set. Calls that were rejected and
    /// wait again are counted, and are not refused.
    #[track_caller]
    pub fn max_waiters(self, waiters: usize) -> Self {
        self.with_common(|common| common.max_waiters = waiters)
    }

    /// Sets the longest pause that a partner can cause by any report; an hour unless set. After that, one call is sent,
    /// and its response says more.
    #[track_caller]
    pub fn max_pause(self, max_pause: Duration) -> Self {
        self.with_common(|common| common.rules.longest = micros(max_pause))
    }

    /// Sets how many attempts a call has, if the partner rejects it; no bound unless set, so that a call goes again
    /// until [`max_wait`](Self::max_wait) is over. After the last attempt, the caller gets the rejection. With 1, no
    /// call is sent again.
    ///
    /// If several calls leave together and the partner rejects them, only the first rejection uses up an attempt: had
    /// the line known, it would not have sent the others.
    ///
    /// # Panics
    ///
    /// If it is 0.
    #[track_caller]
    pub fn attempts(self, attempts: u32) -> Self {
        assert!(attempts > 0, "a call is sent once at least: write 1 to send none again");
        self.with_common(|common| common.attempts = attempts)
    }

    /// Sets which statuses mean that the partner has rejected a call because of a limit; the table of
    /// [`WaitStatuses::new`] unless set.
    #[track_caller]
    pub fn wait_statuses(self, statuses: WaitStatuses) -> Self {
        self.with_common(|common| common.statuses = statuses)
    }

    /// Shares the lines' pace with all processes that use this `name` on `redis`: a partner's remaining quota and its
    /// pauses are in one key there, on the server's clock. Other limiters on `redis` need other names, and all
    /// processes should have the same [`quota`](Self::quota) and [`max_pause`](Self::max_pause).
    ///
    /// Calls keep their order within a process. Processes take turns as their first calls in line arrive at Redis.
    ///
    /// # Cost
    ///
    /// One round trip before a call, two if it has to wait for its time, and one after its response, in the background.
    /// While the pace is unknown or starts slowly, or a quota is used up, each process with waiters makes one more per
    /// 20 ms or per second. On the server, some 250 bytes per partner, until a minute after they are needed.
    ///
    /// # When Redis is out of reach
    ///
    /// Each process paces by the responses that it sees. Together, they may then send too much, and are rejected. A
    /// rejection pauses only the process that receives it.
    #[cfg(feature = "redis")]
    #[track_caller]
    pub fn shared(self, redis: &Redis, name: &str) -> Self {
        self.with_common(|common| common.shared = Some(SharedStates::new(redis, name)))
    }

    #[track_caller]
    fn with_common(self, change: impl FnOnce(&mut SharedByLines)) -> Self {
        self.with(|gate| change(Arc::get_mut(&mut gate.partners.common).expect("no line was made yet")))
    }

    #[track_caller]
    fn with(mut self, change: impl FnOnce(&mut PacerGate<B>)) -> Self {
        change(Arc::get_mut(&mut self.gate).expect("a layer is set up before it is used"));
        self
    }
}

/// Some seventy years: any deadline can be computed.
const LONGEST: Duration = Duration::from_secs(1 << 31);

/// Returns the host and the port of the request.
fn authority<B>(request: &Request<B>) -> Option<PartitionKey> {
    if let Some(key) = host_of(request.uri()) {
        return Some(key);
    }
    let host = request.headers().get(header::HOST)?;
    Some(match Authority::try_from(host.as_bytes()) {
        Ok(authority) => key_of(&authority, None),
        Err(_) => PartitionKey::from(host.as_bytes().to_ascii_lowercase()),
    })
}

/// Returns the host and the port of a URI.
pub(super) fn host_of(uri: &Uri) -> Option<PartitionKey> {
    Some(key_of(uri.authority()?, uri.scheme()))
}

/// Writes the host in lower case, because hosts are compared so, without a user's name and password, and without the
/// port that the scheme implies. Without a scheme, it may be either port, and one line is the safe choice.
fn key_of(authority: &Authority, scheme: Option<&Scheme>) -> PartitionKey {
    let host = authority.host().to_ascii_lowercase();
    let is_implied = |port: u16| match port {
        80 => scheme.is_none_or(|scheme| *scheme == Scheme::HTTP),
        443 => scheme.is_none_or(|scheme| *scheme == Scheme::HTTPS),
        _ => false,
    };
    match authority.port_u16().filter(|port| !is_implied(*port)) {
        Some(port) => PartitionKey::from(format!("{host}:{port}")),
        None => PartitionKey::from(host),
    }
}

impl<B, S> Layer<S> for PacerLayer<B> {
    type Service = Pacer<S, B>;

    fn layer(&self, inner: S) -> Pacer<S, B> {
        // Relaxed: each service only needs a unique number.
        Pacer::new(inner, Arc::clone(&self.gate), self.gate.services.fetch_add(1, Ordering::Relaxed))
    }
}

impl<B> Clone for PacerLayer<B> {
    fn clone(&self) -> Self {
        Self { gate: Arc::clone(&self.gate) }
    }
}

impl<B> fmt::Debug for PacerLayer<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacerLayer").field("waiting", &self.gate.partners.common.waiting()).finish_non_exhaustive()
    }
}
