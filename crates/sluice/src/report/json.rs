//! The report for programs.

use serde_json::{Value, json};

use super::hints::hints;
use super::text::{Options, TOP, longest, quantiles};
use super::units;
use crate::counts::LogCounts;
use crate::counts::PolicyCounts;
use crate::log::Misplaced;
use crate::replay::Replay;

/// Times are in UTC, waits in microseconds, and starts of bins in seconds since the epoch.
pub(crate) fn to_json(log: &LogCounts, replays: &[Replay], options: Options) -> Value {
    let first_unreadable = log.first_unreadable.as_ref().map(|first| {
        json!({ "file": log.file(first.place), "line": first.place.line, "problem": first.problem, "text": first.text })
    });
    json!({
        "log": {
            "files": log.files,
            "lines": log.lines,
            "requests": log.requests,
            "first_time": log.span.map(|(first, _)| units::instant(first)),
            "last_time": log.span.map(|(_, last)| units::instant(last)),
            "unreadable": log.unreadable,
            "first_unreadable": first_unreadable,
            "window_seconds": log.window / 1_000_000_000,
            "window_left_for_lack_of_memory_seconds": log.shortest_window.map(|nanos| nanos / 1_000_000_000),
            "out_of_order_and_sorted": misplaced(log.disorder.sorted),
            "late_beyond_window": misplaced(log.disorder.late),
            "ahead_beyond_window": misplaced(log.disorder.ahead),
            "warnings": log.warnings(),
            "hints": hints(log, replays),
        },
        "configurations": replays.iter().map(|replay| of_replay(log, replay, options)).collect::<Vec<_>>(),
    })
}

fn misplaced(misplaced: Misplaced) -> Value {
    json!({ "lines": misplaced.lines, "furthest_seconds": misplaced.furthest / 1_000_000_000 })
}

fn of_replay(log: &LogCounts, replay: &Replay, options: Options) -> Value {
    let mut policies = Vec::new();
    for route in &replay.limited {
        for policy in &route.policies {
            policies.push(of_policy(log, &route.paths, policy, options));
        }
    }
    json!({
        "file": replay.file,
        "requests_to_no_route": replay.unmatched,
        "requests_to_routes_without_policy": replay.unlimited,
        "policies": policies,
    })
}

fn of_policy(log: &LogCounts, paths: &[String], policy: &PolicyCounts, options: Options) -> Value {
    let (clients, affected) = policy.clients();
    let [p50, p95, p99] = quantiles(policy);
    let first = policy.first.as_ref();
    let offenders = policy.offenders.top(TOP);
    let suggestion = options.suggest.and_then(|per_100_000| policy.suggest(per_100_000));
    json!({
        "paths": paths,
        "policy": policy.name(),
        "algorithm": policy.words.algorithm,
        "shadow": policy.words.is_shadow,
        "requests": policy.requests(),
        "admitted": policy.admitted,
        "rejected": policy.rejected,
        "without_key": policy.without_key.total(),
        "without_key_rejected": policy.without_key.rejected,
        "delayed": policy.waits.len(),
        "wait_micros": { "p50": p50, "p95": p95, "p99": p99, "max": longest(policy) },
        "clients": clients,
        "clients_rejected": affected,
        "clients_are_exact": policy.keys.is_exact(),
        "first_rejection": first.map(|first| {
            let (file, line) = (log.file(first.place), first.place.line);
            json!({ "time": units::instant(first.nanos), "file": file, "line": line, "key": first.key })
        }),
        "worst_minutes": policy.minutes.worst().iter().map(|worst| {
            json!({ "minute": units::minute(worst.minute), "rejected": worst.rejected })
        }).collect::<Vec<_>>(),
        "keys_hit_most": offenders.into_iter().map(|offender| json!({
            "key": offender.text,
            "rejected": offender.rejected,
            "requests": policy.keys.get(offender.hash).map(|record| record.requests),
        })).collect::<Vec<_>>(),
        "rejections_missed_at_most_per_key": policy.offenders.missed(),
        "suggestion": suggestion.map(|suggestion| json!({ "limit": suggestion.limit, "burst": suggestion.burst })),
        "timeline": {
            "start": policy.timeline.start(),
            "seconds_per_bin": policy.timeline.width(),
            "admitted": policy.timeline.bins().iter().map(|bin| bin.admitted).collect::<Vec<_>>(),
            "rejected": policy.timeline.bins().iter().map(|bin| bin.rejected).collect::<Vec<_>>(),
        },
    })
}
