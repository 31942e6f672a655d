//! The log lines about a policy and its keys, one function each.

#![cfg_attr(not(feature = "tracing"), allow(unused_imports, unused_variables))]

use std::fmt::Display;
use std::time::Duration;

use crate::util::log::{KeyHash, event, page};
use crate::values::{Decision, Exception, LimiterError, PartitionKey};

pub(crate) fn misconfigured(policy: &str, problem: &str) {
    event!(error: see = page!("requests-have-no-key"), policy, problem, "rate limiter misconfigured: requests have no key");
}

pub(crate) fn networks_unknown(policy: &str, problem: &dyn Display) {
    event!(error: see = page!("no-request-is-exempt-by-its-network"), policy, %problem, "rate limiter misconfigured: no request is exempt by its network");
}

pub(crate) fn limiter_failed(policy: &str, error: &LimiterError, requests: &str) {
    event!(warn: policy, error = %format_args!("{error:#}"), requests, "limiter failed");
}

pub(crate) fn limiter_recovered(policy: &str) {
    event!(warn: policy, "limiter recovered");
}

pub(crate) fn not_inherited(policy: &str) {
    event!(warn: policy, "policies replaced: this one could not inherit from its predecessor, and all of its keys start with a full budget");
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

pub(crate) fn one_key_for_all(policy: &str) {
    event!(warn: see = page!("all-requests-had-the-same-key"), policy, "the first 1,000 requests all had the same key: unless there is only one client, the policy's key does not distinguish clients");
}

pub(crate) fn quota_alternates(policy: &str) {
    event!(warn: see = page!("the-quota-of-a-key-goes-back-and-forth"), policy, "the quota of a key goes back and forth, so that the generous one forgives what was used under the strict one: have quota_fn return the quota of the key, whatever the request, and write a policy for each kind of request");
}

/// A request without a key, before any request had one.
#[derive(Clone, Copy)]
pub(crate) struct WithoutKey<'a> {
    pub(crate) policy: &'a str,
    /// Names the key, and does not contain anything from the request.
    pub(crate) problem: &'a dyn Display,
    /// The type of the extension that the key is read from, if it is read from one.
    pub(crate) extension: Option<&'a str>,
    /// The request's fate: completes "it was …".
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
