//! The answers in JSON: policies in force, stores, and a policy's report on a key.
//!
//! Times are milliseconds, rounded up. An absent value is null.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use tower_sluice::limiter::{Exception, Shape};
use tower_sluice::policy::{KeyStatus, PolicyStatus};
use tower_sluice::policy::{Offender, Offenders};
use tower_sluice::store::{BreakerState, NodeHealth, TableStats};
use tower_sluice::{LimiterError, Quota};

pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

pub(crate) fn policy(layer: &str, status: &PolicyStatus) -> Value {
    let terms = status.terms();
    let quota = quota(status);
    let stats = status.stats();
    let table = |table: TableStats| {
        json!({
            "live_keys": table.live_keys,
            "capacity": table.capacity,
            "evicted_live": table.evicted_live,
            "turned_away": table.turned_away,
        })
    };
    json!({
        "layer": layer,
        "policy": status.name(),
        "kind": kind(status),
        "limit": terms.map(|terms| terms.limit()),
        "period_ms": period_ms(status),
        "burst": quota.filter(|_| kind(status) == "bucket").map(|quota| quota.max_burst()),
        "shadow": status.is_shadow(),
        "keys": status.keys(),
        "failures": status.failures(),
        "shadow_rejected": status.is_shadow().then(|| status.shadow_rejected()),
        "table": stats.table.map(table),
        "waiting": stats.backlog.map(|backlog| backlog.waiting()),
        "in_flight": stats.in_flight,
        "overload": stats.overload.map(|overload| {
            json!({
                "limit": overload.limit,
                "overloaded": overload.is_overloaded,
                "shed": overload.shed.iter().chain(&overload.shed_over_share).sum::<u64>(),
            })
        }),
        "tracks_offenders": status.tracks_offenders(),
        "nodes": stats.nodes.iter().map(NodeHealth::name).collect::<Vec<_>>(),
    })
}

fn quota(status: &PolicyStatus) -> Option<Quota> {
    status.terms()?.quota()
}

fn period_ms(status: &PolicyStatus) -> Option<u64> {
    quota(status).map(|quota| millis(quota.period()))
}

/// How a policy counts. The algorithm itself is unknown, because a token bucket and a leaky bucket count alike.
fn kind(status: &PolicyStatus) -> &'static str {
    if status.stats().overload.is_some() {
        return "overload";
    }
    if status.keeps_credits() {
        return "balance";
    }
    let Some(terms) = status.terms() else { return "custom" };
    match terms.shape() {
        _ if status.delays() && terms.shape().is_some() => "queue",
        None => "in-flight",
        Some(Shape::Bucket) => "bucket",
        Some(Shape::FixedWindow) => "fixed-window",
        Some(Shape::CalendarWindow) => "calendar-window",
        Some(Shape::SlidingWindow) => "sliding-window",
        Some(_) => "custom",
    }
}

/// All stores' nodes, each once, with the policies whose budgets they hold.
pub(crate) fn stores<'a>(policies: impl Iterator<Item = (&'a str, &'a PolicyStatus)>) -> Value {
    let mut stores = BTreeMap::new();
    for (layer, status) in policies {
        for node in &status.stats().nodes {
            let (_, users) = stores.entry(node.name()).or_insert_with(|| (node, Vec::new()));
            users.push(json!({ "layer": layer, "policy": status.name() }));
        }
    }
    let store = |(node, policies): (&NodeHealth, Vec<Value>)| {
        let (breaker, probe_in) = match node.breaker() {
            BreakerState::Closed => ("closed", None),
            BreakerState::Open { probe_in } => ("open", probe_in),
            BreakerState::HalfOpen => ("half-open", None),
        };
        json!({
            "node": node.name(),
            "breaker": breaker,
            "probe_in_ms": probe_in.map(millis),
            "calls_in_flight": node.in_flight(),
            "connected": node.is_connected(),
            "policies": policies,
        })
    };
    json!({ "stores": stores.into_values().map(store).collect::<Vec<_>>() })
}

/// The keys that a policy has rejected most.
pub(crate) fn offenders(layer: &str, status: &PolicyStatus, offenders: &Offenders) -> Value {
    json!({
        "layer": layer,
        "policy": status.name(),
        "shadow": offenders.is_shadow(),
        "since_ms": unix_millis(offenders.since()),
        "total": offenders.total(),
        "max_error": offenders.max_error(),
        "processes": offenders.processes(),
        "missing": offenders.missing().map(|error| format!("{error:#}")),
        "list": offenders.list().iter().map(offender).collect::<Vec<_>>(),
    })
}

/// A key that was rejected. First and last are instants, in milliseconds since the Unix epoch.
pub(crate) fn offender(offender: &Offender) -> Value {
    json!({
        "key": offender.key(),
        "whole": offender.is_whole(),
        "count": offender.count(),
        "error": offender.error(),
        "first_ms": unix_millis(offender.first()),
        "last_ms": unix_millis(offender.last()),
        "banned_for_ms": offender.banned_for().map(millis),
    })
}

fn unix_millis(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).map_or(0, |age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX))
}

/// A policy's report on a key: its state, that the key does not belong to the policy, or why this is unknown.
pub(crate) fn key(layer: &str, status: &PolicyStatus, found: Result<KeyStatus, LimiterError>) -> Value {
    let mut answer = json!({
        "layer": layer,
        "policy": status.name(),
        "kind": kind(status),
        "shadow": status.is_shadow(),
        "can_reset": status.can_reset(),
        "keys": status.keys(),
    });
    match found {
        Ok(key) => {
            let decision = key.decision();
            answer["state"] = state(&key).into();
            answer["left"] = decision.remaining().into();
            answer["limit"] = decision.limit().into();
            answer["period_ms"] = period_ms(status).into();
            answer["passes_in_ms"] = key.passes_in().map(millis).into();
            answer["full_in_ms"] = millis(decision.reset_after()).into();
            let since = key.by_hand_since();
            answer["ban"] = key.ban().map(|ban| by_hand(&ban, since)).into();
            answer["allowance"] = key.allowance().map(|allowance| by_hand(&allowance, since)).into();
        }
        Err(error) if error.is_no_key() => answer["state"] = "no-key".into(),
        Err(error) => {
            answer["state"] = "unknown".into();
            answer["error"] = format!("{error:#}").into();
        }
    }
    answer
}

fn state(key: &KeyStatus) -> &'static str {
    if key.ban().is_some() {
        return "banned";
    }
    if key.allowance().is_some() {
        return "allowed";
    }
    // A ban that another limiter keeps, or a request with cost 0 that is rejected for a reason of its own.
    if !key.decision().is_allowed() || key.decision().remaining() == 0 { "limited" } else { "passes" }
}

/// A ban or an allowance. `since`: the time since it was made, if that is known.
pub(crate) fn by_hand(exception: &Exception, since: Option<Duration>) -> Value {
    json!({
        "left_ms": millis(exception.left()),
        "by_hand": exception.is_by_hand(),
        "reason": exception.is_by_hand().then(|| exception.reason().as_str()),
        "since_ms": since.map(millis),
    })
}
