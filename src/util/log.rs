//! What is logged: mistakes in the set-up, once each, and transitions. Never a key, and above `debug` nothing per
//! request: an attacker would write the log.

#![cfg_attr(not(feature = "axum"), allow(dead_code))]

#[cfg(feature = "tracing")]
mod with_tracing {
    use std::fmt::{self, Display};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Once, OnceLock};

    use crate::util::keyed_hash::Secret;
    use crate::values::{Decision, LimiterError, PartitionKey};

    const TARGET: &str = "tower_sluice";

    pub(crate) fn misconfigured(policy: &str, problem: &str) {
        tracing::error!(target: TARGET, policy, problem, "rate limiter misconfigured: it cannot tell whom to count");
    }

    pub(crate) fn limiter_failed(policy: &str, error: &LimiterError, requests: &str) {
        tracing::warn!(target: TARGET, policy, %error, requests, "limiter failed");
    }

    pub(crate) fn not_inherited(policy: &str) {
        tracing::warn!(target: TARGET, policy, "policies replaced: this one cannot go on from what its keys have used, and they start anew");
    }

    /// By a reload of a configuration: a file that was cut off may still make sense.
    #[cfg(feature = "config")]
    pub(crate) fn policy_removed(route: &str, policy: &str) {
        tracing::warn!(target: TARGET, route, policy, "the configuration was changed, and a policy removed: it is not enforced any more");
    }

    #[cfg(feature = "config")]
    pub(crate) fn fields_removed(route: &str, policy: &str, fields: &str) {
        tracing::warn!(target: TARGET, route, policy, fields, "the configuration was changed, and fields of a policy removed: their defaults hold");
    }

    pub(crate) fn limiter_recovered(policy: &str) {
        tracing::warn!(target: TARGET, policy, "limiter recovered");
    }

    /// Names as in OpenTelemetry where it has one. Its `client.address` is none of them: a key may be an address, but
    /// shows only as a hash, whose secret ends with the process.
    #[inline]
    pub(crate) fn judged(
        route: Option<&str>,
        policy: &str,
        result: &str,
        key: Option<&PartitionKey>,
        decision: Option<&Decision>,
    ) {
        tracing::debug!(
            target: TARGET,
            policy,
            http.route = route,
            result,
            key.hash = key.map(|key| tracing::field::display(KeyHash::of(key))),
            limit = decision.map(Decision::limit),
            remaining = decision.map(Decision::remaining),
            delay = decision.map(|decision| tracing::field::debug(decision.delay())),
            retry_after = decision.and_then(Decision::retry_after).map(tracing::field::debug),
            "judged"
        );
    }

    struct KeyHash(u64);

    impl KeyHash {
        fn of(key: &PartitionKey) -> Self {
            static SECRET: OnceLock<Secret> = OnceLock::new();
            Self(SECRET.get_or_init(Secret::random).mark(key.as_bytes()))
        }
    }

    impl Display for KeyHash {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{:016x}", self.0)
        }
    }

    /// Looks at the first responses of the process only.
    pub(crate) fn note_response(has_cors_fields: impl FnOnce() -> bool) {
        static LEFT: AtomicU32 = AtomicU32::new(1_000);
        if LEFT.load(Ordering::Relaxed) == 0 {
            return;
        }
        if has_cors_fields() {
            // Only one of them all finds some left.
            if LEFT.swap(0, Ordering::Relaxed) > 0 {
                tracing::warn!(
                    target: TARGET,
                    "the CORS layer is inside of the rate limit, so that refusals lack its fields and are network errors \
                     to scripts: put it outside"
                );
            }
        } else {
            let _ = LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        }
    }

    pub(crate) fn rejection_body_failed(error: &dyn Display) {
        tracing::warn!(target: TARGET, %error, "the body of a custom rejection failed, and ends early");
    }

    #[cfg(feature = "queue")]
    pub(crate) fn queue_full() {
        tracing::warn!(target: TARGET, "a queue remembers as many keys as it may, and rejects, shares out or forgets the others: raise its max_keys, or put a policy with a wider key before it");
    }

    pub(crate) fn table_filling_up() {
        tracing::warn!("a memory store is filling up and may lose keys: raise its capacity");
    }

    /// Once for the process, since clients that get past the proxies can bring it about at will.
    pub(crate) fn short_forwarding_list(header: &dyn Display, count: usize) {
        static WARNED: Once = Once::new();
        WARNED.call_once(|| {
            tracing::warn!(target: TARGET, %header, count, "fewer elements than proxies: too large a count, or a direct connection");
        });
    }

    // These are told once by their callers. `network` is the class of the peer's address, such as "private".

    pub(crate) fn proxy_is_the_client(network: &str, header: &dyn Display) {
        tracing::warn!(target: TARGET, network, %header, "a proxy is connected, and everybody behind it shares one budget: use ClientIp with TrustedProxies instead of the peer's address");
    }

    pub(crate) fn untrusted_forwarding(network: &str, header: &dyn Display) {
        tracing::warn!(target: TARGET, network, %header, "a forwarding header was seen but not trusted: if your proxy sent it, add the proxy's network to TrustedProxies; if not, it is a forgery and was rightly ignored");
    }

    pub(crate) fn another_forwarding_header(configured: &dyn Display, seen: &dyn Display) {
        tracing::warn!(target: TARGET, %configured, %seen, "a trusted proxy does not send the configured header, but another one: name the header that your proxy sets in IpSource");
    }

    pub(crate) fn one_key_for_all(policy: &str) {
        tracing::warn!(target: TARGET, policy, "the first 1,000 requests all had the same key: unless there is only one client, this policy does not tell clients apart; look at its key");
    }

    pub(crate) fn no_route_matched() {
        tracing::warn!(target: TARGET, "PathKey::matched: none of the first 1,000 requests had a matched route, so that all share one budget: put the layer inside of the router (Router::layer, Router::route_layer)");
    }

    pub(crate) fn mounted_twice(policy: &str) {
        tracing::warn!(target: TARGET, policy, "a rate limit layer is mounted around itself, so that it charges each request twice: mount it once, around the router or around its routes");
    }

    #[cfg(feature = "redis")]
    pub(crate) fn redis_node_given_up(address: &str, reason: &dyn Display) {
        tracing::warn!(target: TARGET, address, %reason, "redis: a node keeps failing, and is not asked for a while");
    }

    #[cfg(feature = "redis")]
    pub(crate) fn redis_node_back(address: &str) {
        tracing::warn!(target: TARGET, address, "redis: a node is back");
    }

    #[cfg(feature = "redis")]
    pub(crate) fn redis_topology_changed(topology: &str) {
        tracing::info!(target: TARGET, topology, "redis: other nodes are responsible now");
    }

    #[cfg(feature = "redis")]
    pub(crate) fn redis_may_evict(policy: &str) {
        tracing::warn!(target: TARGET, policy, "redis: when its memory is full, the server may evict budgets that are in use, which resets them: set maxmemory-policy to noeviction, or give the limiter a server of its own");
    }
}

#[cfg(not(feature = "tracing"))]
mod without_tracing {
    use std::fmt::Display;

    use crate::values::{Decision, LimiterError, PartitionKey};

    pub(crate) fn judged(
        _route: Option<&str>,
        _policy: &str,
        _result: &str,
        _key: Option<&PartitionKey>,
        _decision: Option<&Decision>,
    ) {
    }
    pub(crate) fn misconfigured(_policy: &str, _problem: &str) {}
    pub(crate) fn limiter_failed(_policy: &str, _error: &LimiterError, _requests: &str) {}
    pub(crate) fn not_inherited(_policy: &str) {}
    #[cfg(feature = "config")]
    pub(crate) fn policy_removed(_route: &str, _policy: &str) {}
    #[cfg(feature = "config")]
    pub(crate) fn fields_removed(_route: &str, _policy: &str, _fields: &str) {}
    pub(crate) fn limiter_recovered(_policy: &str) {}
    pub(crate) fn note_response(_has_cors_fields: impl FnOnce() -> bool) {}
    pub(crate) fn rejection_body_failed(_error: &dyn Display) {}
    #[cfg(feature = "queue")]
    pub(crate) fn queue_full() {}
    pub(crate) fn table_filling_up() {}
    pub(crate) fn short_forwarding_list(_header: &dyn Display, _count: usize) {}
    pub(crate) fn proxy_is_the_client(_network: &str, _header: &dyn Display) {}
    pub(crate) fn untrusted_forwarding(_network: &str, _header: &dyn Display) {}
    pub(crate) fn another_forwarding_header(_configured: &dyn Display, _seen: &dyn Display) {}
    pub(crate) fn one_key_for_all(_policy: &str) {}
    pub(crate) fn no_route_matched() {}
    pub(crate) fn mounted_twice(_policy: &str) {}
    #[cfg(feature = "redis")]
    pub(crate) fn redis_node_given_up(_address: &str, _reason: &dyn Display) {}
    #[cfg(feature = "redis")]
    pub(crate) fn redis_node_back(_address: &str) {}
    #[cfg(feature = "redis")]
    pub(crate) fn redis_topology_changed(_topology: &str) {}
    #[cfg(feature = "redis")]
    pub(crate) fn redis_may_evict(_policy: &str) {}
}

#[cfg(feature = "tracing")]
pub(crate) use self::with_tracing::*;
#[cfg(not(feature = "tracing"))]
pub(crate) use self::without_tracing::*;
