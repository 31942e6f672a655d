//! Log lines, one function each: mistakes in the configuration, changes of state, and decisions at `debug`. No line
//! contains a key of a client. Above `debug`, nothing is logged per request, or clients could flood the log.
//!
//! The line of a mistake has the address of its section in the guide (`see`). `tests/repository/misconfigured.rs`
//! checks that it is there.

#![cfg_attr(not(feature = "tracing"), allow(unused_macros, unused_variables))]

use std::error::Error;
use std::fmt::{self, Display};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Once, OnceLock};
use std::time::Duration;

use crate::util::keyed_hash::Secret;
use crate::values::{Decision, Exception, LimiterError, PartitionKey};

/// Logs a line. Without the feature `tracing`, that is nothing, and no field is looked at.
macro_rules! event {
    ($level:ident: $($line:tt)+) => {
        #[cfg(feature = "tracing")]
        tracing::$level!(target: "tower_sluice", $($line)+);
    };
}

/// The address of a section of the guide's page on mistakes.
macro_rules! page {
    ($section:literal) => {
        concat!("https://docs.rs/tower-sluice/latest/tower_sluice/guide/misconfigured/#", $section)
    };
}

pub(crate) fn misconfigured(policy: &str, problem: &str) {
    event!(error: see = page!("requests-have-no-key"), policy, problem, "rate limiter misconfigured: requests have no key");
}

pub(crate) fn networks_unknown(policy: &str, problem: &dyn Display) {
    event!(error: see = page!("no-request-is-exempt-by-its-network"), policy, %problem, "rate limiter misconfigured: no request is exempt by its network");
}

pub(crate) fn limiter_failed(policy: &str, error: &LimiterError, requests: &str) {
    event!(warn: policy, error = %Chain(error), requests, "limiter failed");
}

/// An error and its sources.
#[derive(Debug)]
pub struct Chain<'a>(pub &'a LimiterError);

impl Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)?;
        let mut sources = std::iter::successors(self.0.source(), |&error| error.source());
        sources.try_for_each(|source| write!(f, ": {source}"))
    }
}

pub(crate) fn not_inherited(policy: &str) {
    event!(warn: policy, "policies replaced: this one could not inherit from its predecessor, and all of its keys start with a full budget");
}

pub(crate) fn limiter_recovered(policy: &str) {
    event!(warn: policy, "limiter recovered");
}

pub(crate) fn shedding(policy: &str, shadow: bool) {
    event!(warn: policy, shadow, "the server is overloaded: requests are shed");
}

pub(crate) fn shedding_ended(policy: &str, shadow: bool) {
    event!(warn: policy, shadow, "the server is overloaded no more");
}

/// Whether decisions are logged, perhaps.
#[inline]
pub(crate) fn has_decisions() -> bool {
    #[cfg(feature = "tracing")]
    return tracing::level_enabled!(tracing::Level::DEBUG);
    #[cfg(not(feature = "tracing"))]
    false
}

/// Fields have OpenTelemetry's names where it defines them. `client.address` is left out: a key may be an address, and
/// is logged only as a keyed hash, whose secret lasts until the process ends.
pub(crate) fn decided(
    route: Option<&str>,
    policy: &str,
    result: &str,
    key: Option<&PartitionKey>,
    decision: Option<&Decision>,
) {
    event!(
        debug: policy,
        http.route = route,
        result,
        key.hash = key.map(|key| tracing::field::display(KeyHash::new(key))),
        limit = decision.map(Decision::limit),
        remaining = decision.map(Decision::remaining),
        delay = decision.map(|decision| tracing::field::debug(decision.delay())),
        retry_after = decision.and_then(Decision::retry_after).map(tracing::field::debug),
        "decided"
    );
}

/// The beginning of a line about a key: the policy, and the route of its layer.
#[derive(Clone, Copy)]
pub(crate) struct KeyLine<'a> {
    pub(crate) policy: &'a str,
    pub(crate) route: Option<&'a str>,
    pub(crate) key: &'a PartitionKey,
    /// The number of lines that were left out before this one.
    pub(crate) left_out: u64,
}

pub(crate) fn key_limited(KeyLine { policy, route, key, left_out }: KeyLine<'_>, shadow: bool, wait: Option<Duration>) {
    event!(
        info: policy,
        http.route = route,
        key.hash = %KeyHash::new(key),
        shadow,
        retry_after = wait.map(tracing::field::debug),
        left_out,
        "a key is limited"
    );
}

pub(crate) fn share_crossed(KeyLine { policy, route, key, left_out }: KeyLine<'_>, shadow: bool, share: &dyn Display) {
    event!(info: policy, http.route = route, key.hash = %KeyHash::new(key), shadow, warn_at = %share, left_out, "a key has used a share of its limit");
}

pub(crate) fn key_banned(KeyLine { policy, route, key, left_out }: KeyLine<'_>, ban: &Exception) {
    let reason = if ban.is_by_hand() { ban.reason.as_str() } else { "early retries" };
    event!(warn: policy, http.route = route, key.hash = %KeyHash::new(key), span = ?ban.left, reason, left_out, "a key is banned");
}

pub(crate) fn key_allowed(KeyLine { policy, route, key, .. }: KeyLine<'_>, allowance: &Exception) {
    let reason = allowance.reason.as_str();
    event!(warn: policy, http.route = route, key.hash = %KeyHash::new(key), span = ?allowance.left, reason, "a key is allowed by hand");
}

pub(crate) fn key_let_in(KeyLine { policy, route, key, .. }: KeyLine<'_>) {
    event!(warn: policy, http.route = route, key.hash = %KeyHash::new(key), "a key is unbanned by hand: it has no ban and no allowance now");
}

pub(crate) fn key_reset(KeyLine { policy, route, key, .. }: KeyLine<'_>) {
    event!(warn: policy, http.route = route, key.hash = %KeyHash::new(key), "a key is reset by hand: it gets its whole budget");
}

/// Logs a credit by hand, or a charge.
pub(crate) fn key_adjusted(
    KeyLine { policy, route, key, .. }: KeyLine<'_>,
    is_credit: bool,
    units: u64,
    reference: Option<&str>,
) {
    let what = if is_credit { "units were credited to a key by hand" } else { "units were charged to a key by hand" };
    event!(warn: policy, http.route = route, key.hash = %KeyHash::new(key), units, reference, "{what}");
}

/// The hash of a key, by a secret that lasts until the process ends.
#[derive(Debug)]
pub struct KeyHash(u64);

impl KeyHash {
    /// Hashes a key.
    pub fn new(key: &PartitionKey) -> Self {
        static SECRET: OnceLock<Secret> = OnceLock::new();
        Self(SECRET.get_or_init(Secret::random).mark(key.as_bytes()))
    }
}

impl Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Warns if a response of the inner service has CORS fields. Checks the first 1,000 responses of the process only.
pub(crate) fn note_response(has_cors_fields: impl FnOnce() -> bool) {
    static LEFT: AtomicU32 = AtomicU32::new(1_000);
    if cfg!(not(feature = "tracing")) || LEFT.load(Ordering::Relaxed) == 0 {
        return;
    }
    if has_cors_fields() {
        // The swap lets one of several threads find a count above zero, so that there is one line.
        if LEFT.swap(0, Ordering::Relaxed) > 0 {
            event!(
                warn: see = page!("the-cors-layer-is-inside-of-the-rate-limit"),
                "the CORS layer is inside of the rate limit, so that rejections lack CORS fields and browsers report \
                 them as network errors: put it outside"
            );
        }
    } else {
        let _ = LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
    }
}

/// Logged once per process, since a client that is rejected at will could cause it at will.
pub(crate) fn rejection_body_failed(error: &dyn Display) {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        event!(warn: see = page!("the-body-of-a-custom-rejection-failed"), %error, "the body of a custom rejection failed and was cut off");
    });
}

pub(crate) fn queue_full() {
    event!(warn: see = page!("a-queue-is-full-of-keys"), "a queue is full of keys, and treats new ones as its when_full says: raise its max_keys, or put a policy with a coarser key before it");
}

pub(crate) fn counts_are_full(keys: usize) {
    event!(warn: see = page!("more-keys-have-requests-in-flight-than-there-is-room-for"), keys, "more keys have requests in flight than a limiter has room for, and requests of new ones are rejected: raise its max_keys");
}

pub(crate) fn table_filling_up() {
    event!(warn: see = page!("a-memory-store-is-filling-up"), "a memory store is filling up and may lose keys: raise its capacity");
}

/// Logged once per process, since a client that bypasses the proxies can cause it at will.
pub(crate) fn short_forwarding_list(header: &dyn Display, hops: usize) {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        event!(warn: see = page!("fewer-elements-than-proxies"), %header, hops, "fewer elements than proxies: too many hops, or a direct connection");
    });
}

// From here to `mounted_twice`, the callers log each mistake once. `network` is the class of the peer's address,
// such as "private".

pub(crate) fn proxy_is_the_client(network: &str, header: &dyn Display) {
    event!(warn: see = page!("the-peer-is-a-proxy"), network, %header, "the peer is a proxy, and every client behind it shares one budget: use ClientIp with TrustedProxies instead of PeerIp, or in a file the source and the trusted proxies of [client-ip]");
}

pub(crate) fn untrusted_forwarding(network: &str, header: &dyn Display) {
    event!(warn: see = page!("a-forwarding-header-was-not-trusted"), network, %header, "a forwarding header was not trusted and was ignored: if your proxy sent it, add the proxy's network to TrustedProxies; if not, it is a forgery");
}

pub(crate) fn another_forwarding_header(configured: &dyn Display, seen: &dyn Display) {
    event!(warn: see = page!("a-trusted-proxy-sends-another-forwarding-header"), %configured, %seen, "a trusted proxy sends another forwarding header than the configured one: set IpSource to the header that your proxy sends");
}

pub(crate) fn no_client_is_reported(configured: &dyn Display) {
    event!(warn: see = page!("trusted-proxies-report-no-client"), %configured, "trusted proxies have reported no client in the first 100 requests, so that all clients share one budget: let the proxy set this header");
}

pub(crate) fn one_key_for_all(policy: &str) {
    event!(warn: see = page!("all-requests-had-the-same-key"), policy, "the first 1,000 requests all had the same key: unless there is only one client, the policy's key does not distinguish clients");
}

pub(crate) fn quota_alternates(policy: &str) {
    event!(warn: see = page!("the-quota-of-a-key-goes-back-and-forth"), policy, "the quota of a key goes back and forth, so that the generous one forgives what was used under the strict one: have quota_fn return the quota of the key, whatever the request, and write a policy for each kind of request");
}

pub(crate) fn first_unmatched() {
    event!(info: see = page!("no-request-had-a-matched-route"), "PathKey::matched: the first request had no matched route, so it is charged to a budget that such requests share. Nothing is wrong if it was for a path without a route; if none of the first 100 has one, a warning follows");
}

pub(crate) fn no_route_matched() {
    event!(warn: see = page!("no-request-had-a-matched-route"), "PathKey::matched: none of the first 100 requests had a matched route, so they share one budget: put the layer inside of the router (Router::layer, Router::route_layer)");
}

/// A request without a key, before any request had one.
#[derive(Clone, Copy)]
pub(crate) struct WithoutKey<'a> {
    pub(crate) policy: &'a str,
    /// Names the key, and has nothing of the request.
    pub(crate) problem: &'a dyn Display,
    /// The type of the extension that the key is read from, if it is read from one.
    pub(crate) extension: Option<&'a str>,
    /// What became of the request: completes "it was …".
    pub(crate) fate: &'a str,
}

impl WithoutKey<'_> {
    const fn cure(&self) -> &'static str {
        if self.extension.is_some() {
            "put the layer that inserts it outside of the rate limit, or key by the type that it really inserts (`T` and `Arc<T>` are two types)"
        } else {
            "check how the key is spelled, whether a proxy removes it, and that the layer that sets it is outside of the rate limit"
        }
    }
}

pub(crate) fn first_without_key(line: WithoutKey<'_>) {
    let (cure, WithoutKey { policy, problem, extension, fate }) = (line.cure(), line);
    event!(info: see = page!("the-first-request-of-a-policy-had-no-key"), policy, %problem, extension, "the first request of a policy had no key, and was {fate}. Nothing is wrong if its client is anonymous; if none of the first 100 requests has a key, a warning follows: then {cure}");
}

pub(crate) fn no_request_had_a_key(line: WithoutKey<'_>) {
    let (cure, WithoutKey { policy, problem, extension, fate }) = (line.cure(), line);
    event!(warn: see = page!("no-request-had-a-key"), policy, %problem, extension, "none of the first 100 requests had the key of the policy, and all were {fate}: {cure}");
}

/// The caller logs it once per policy.
pub(crate) fn never_applies(policy: &str) {
    event!(info: see = page!("a-policy-has-applied-to-no-request"), policy, "a policy has applied to none of the first 1,000 requests, so that it has limited nothing yet: check its `when` and its exemptions, unless the requests that it is for are rare");
}

/// `policy` is the name that the handler wrote, if it wrote one. `known` are the names that would do.
pub(crate) fn reported_in_vain(policy: Option<&str>, known: &str, reports: u32) {
    event!(warn: see = page!("a-handler-reports-a-cost-that-no-policy-awaits"), policy, known, reports, "a handler reports a cost that no policy awaits, so that the estimates stay charged: write the name of a policy with settle_by_handler, or call settle_all, which needs no name");
}

/// The caller logs it once per name of a policy.
pub(crate) fn layers_are_short_lived(policy: &str, layers: u32) {
    event!(warn: see = page!("a-layer-is-built-for-each-request"), policy, layers, "layers of a policy are dropped after a few requests each, and each has counted from zero: build the layer once, outside of the handler or the closure, and clone it");
}

/// At `debug`, as requests without a user are usual. `extension` is the name of a type.
pub(crate) fn extension_missing(extension: &str) {
    event!(debug: see = page!("a-request-lacks-its-extension"), extension, "a request lacks the extension that its key is read from: if all do, put the layer that inserts it outside of the rate limit");
}

/// Logged once per process: each request to the handler finds the mistake again.
pub(crate) fn verdict_missing() {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        event!(error: see = page!("a-handler-takes-a-verdict-that-no-layer-adds"), "a handler takes a Verdict that no layer adds, and its requests are answered 500: build the layer with RateLimitLayerBuilder::verdict, and put it around the handler");
    });
}

pub(crate) fn mounted_twice(policy: &str) {
    event!(warn: see = page!("a-layer-is-mounted-around-itself"), policy, "a rate limit layer is mounted around itself and charges each request twice: mount it once, around the router or around its routes");
}

// Transitions of stores, logged each time. The eviction policy of Redis is checked once.

pub(crate) fn breaker_opened(node: &str, reason: &dyn Display) {
    event!(warn: node, %reason, "store: a node keeps failing: its circuit breaker is open, and it is not called for a while");
}

pub(crate) fn breaker_closed(node: &str) {
    event!(warn: node, "store: a node is back: its circuit breaker is closed");
}

pub(crate) fn redis_topology_changed(topology: &str) {
    event!(info: topology, "redis: topology changed");
}

pub(crate) fn redis_may_evict(maxmemory_policy: &str) {
    event!(warn: see = page!("redis-may-evict-budgets"), maxmemory_policy, "redis: when its memory is full, the server may evict budgets in use, which resets them: set maxmemory-policy to noeviction, or use a dedicated server");
}
