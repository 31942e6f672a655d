//! Replays a log: its lines drive a configuration's limits, and its times the clock.

mod answer;
mod clock;
mod request;
mod session;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::pin::Pin;

use tower_sluice::direct::{Admission, Http};
use tower_sluice::headers::RateLimitFields;
use tower_sluice::key::{CookieKey, KeyExtractor, QueryKey};
use tower_sluice::layer::RateLimitLayerBuilder;
use tower_sluice::rejection::PolicyVerdict;
use tower_sluice::{LimitsHandle, PartitionKey, Rejection, RequestHead, Verdict};
use tower_sluice_config::{Config, ConfigError};

use self::answer::Answer;
pub(crate) use self::clock::LogClock;
pub(crate) use self::request::{LineHead, Needs};
pub(crate) use self::session::Session;
use crate::counts::{PolicyCounts, WithoutKey};
use crate::log::{Entry, Place};
use crate::path::Target;
use crate::routes::Routes;
use crate::words::FileWords;
use crate::{descriptors, stores};

/// One configuration's limits, with the counts of their decisions.
pub(crate) struct Replay {
    pub(crate) file: String,
    routes: Routes,
    pub(crate) limited: Vec<RouteReplay>,
    /// Requests whose path is in no route.
    pub(crate) unmatched: u64,
    /// Requests to routes without a policy.
    pub(crate) unlimited: u64,
    /// Whether requests may wait.
    delays: bool,
    needs: Needs,
    /// Kept alive for its layers.
    _config: Config,
}

/// One route.
pub(crate) struct RouteReplay {
    pub(crate) paths: Vec<String>,
    limits: Option<LimitsHandle>,
    pub(crate) policies: Vec<PolicyCounts>,
}

/// A request in the log, and its target as all configurations read it.
struct Logged<'a, 'b> {
    entry: &'a Entry<'b>,
    target: Option<Target<'a>>,
}

/// When a request came.
#[derive(Clone, Copy)]
struct Arrival {
    nanos: u64,
    place: Place,
}

/// A request that waits for its answer.
struct Waiter {
    arrival: Arrival,
    /// The index of its route.
    route: usize,
    /// The key that each policy extracts, in the order of the counts.
    keys: Vec<Option<PartitionKey>>,
}

/// The answer to a request.
struct Answered {
    status: u16,
    verdict: Option<Verdict>,
}

impl Answered {
    /// Answers an admitted request as the log says, and a rejected one with its rejection.
    fn of(decided: Result<Admission<Http>, Box<Rejection>>, answer: Answer) -> Self {
        match decided {
            Ok(admission) => Self { status: answer.status, verdict: answer.end(admission) },
            Err(rejection) => Self { status: rejection.status().as_u16(), verdict: Some(rejection.verdict().clone()) },
        }
    }
}

impl Replay {
    /// Reads a configuration.
    ///
    /// # Errors
    ///
    /// If it has a mistake.
    pub(crate) fn new(file: &str, text: &str, clock: &LogClock) -> Result<Self, ConfigError> {
        let config =
            stores::reader().replay(clock.clone()).keys(descriptors::read_key).layers(set_up).parse(file, text)?;
        let words = FileWords::parse(file, text).routes();
        let routes = Routes::new(file, &words, &config)?;
        let mut delays = false;
        let mut limited = Vec::new();
        for (route, words) in config.routes().iter().zip(words) {
            let limits = route.layer().map(|layer| layer.handle());
            let statuses = limits.as_ref().map(LimitsHandle::policies).unwrap_or_default();
            delays |= statuses.iter().any(|status| status.delays());
            // In the file's order.
            let policies = words.policies.into_iter().map(|words| {
                let terms =
                    statuses.iter().find(|status| status.name() == words.name).and_then(|status| status.terms());
                PolicyCounts::new(words, terms)
            });
            limited.push(RouteReplay { paths: route.paths().to_vec(), limits, policies: policies.collect() });
        }
        Ok(Self {
            file: file.to_owned(),
            routes,
            limited,
            unmatched: 0,
            unlimited: 0,
            delays,
            needs: Needs::of_file(text),
            _config: config,
        })
    }

    /// Sends a request to its route's limits. Counts the answer, unless the request waits for it.
    fn send(&mut self, request: &mut LineHead, line: &Logged<'_, '_>, arrival: Arrival) -> Sent {
        let Logged { entry, target } = line;
        let Some((route, matched)) = target.as_ref().and_then(|target| self.routes.find(target)) else {
            self.unmatched += 1;
            return Sent::Unlimited;
        };
        let RouteReplay { limits, policies, .. } = &mut self.limited[route];
        let Some(limits) = limits else {
            self.unlimited += 1;
            return Sent::Unlimited;
        };
        request.set_matched(matched);
        let head = request.head();
        let answer = Answer { status: entry.status, length: entry.length };
        let key = |policy: &mut PolicyCounts| key_of(policy, limits, entry, head);
        let deciding = limits.decide(&head);
        if deciding.is_waiting() {
            let keys: Vec<_> = policies.iter_mut().map(key).collect();
            for (policy, key) in policies.iter_mut().zip(&keys) {
                key.iter().for_each(|key| policy.note_demand(key, arrival.nanos));
            }
            let waiter = Waiter { arrival, route, keys };
            return Sent::Waiting(Box::pin(async move { (waiter, Answered::of(deciding.await, answer)) }));
        }
        let answered = Answered::of(deciding.at_once().expect("it does not wait"), answer);
        if let Some(verdict) = &answered.verdict {
            for policy in policies {
                let key = key(policy);
                // A policy that did not decide on an admitted request does not apply to it.
                let applies = !verdict.is_allowed() || decided_by(policy, verdict).is_some();
                if let Some(key) = key.as_ref().filter(|_| applies) {
                    policy.note_demand(key, arrival.nanos);
                }
                note_answer(policy, key.as_ref(), limits, arrival, &answered, arrival.nanos);
            }
        }
        Sent::Answered(answered.status)
    }
}

/// The result of sending a request.
enum Sent {
    /// No policy limits it.
    Unlimited,
    /// Answered, with this status.
    Answered(u16),
    Waiting(Pin<Box<dyn Future<Output = (Waiter, Answered)>>>),
}

/// Returns the key that a policy extracts. Without one, notes the parts that the line lacks.
fn key_of(
    policy: &mut PolicyCounts,
    limits: &LimitsHandle,
    entry: &Entry<'_>,
    head: RequestHead<'_>,
) -> Option<PartitionKey> {
    let key = limits.key(policy.name(), head).ok();
    if key.is_none() {
        note_missing_parts(policy, entry, &head);
    }
    key
}

/// Notes the parts in a policy's key that a line lacks.
#[cold]
fn note_missing_parts(policy: &mut PolicyCounts, entry: &Entry<'_>, head: &RequestHead<'_>) {
    let has_header = |name: &str| entry.headers.iter().any(|(other, _)| other.eq_ignore_ascii_case(name));
    policy.note_missing_parts(|part| match part.split_once(':') {
        Some(("header", name)) => !has_header(name.trim()),
        Some(("cookie", name)) => CookieKey::new(name.trim().to_owned()).extract(head).is_err(),
        Some(("query", name)) => QueryKey::new(name.trim().to_owned()).extract(head).is_err(),
        None if part == "client-ip" => entry.client.is_none(),
        None if part == "user" => entry.user.is_none(),
        _ => !matches!(part, "global" | "path" | "method"),
    });
}

/// Sets up a layer for a replay, which reads verdicts but no response fields.
fn set_up(layer: RateLimitLayerBuilder) -> RateLimitLayerBuilder {
    layer.verdict().fields(RateLimitFields::none())
}

/// Returns a policy's decision, if it has decided.
fn decided_by<'a>(policy: &PolicyCounts, verdict: &'a Verdict) -> Option<&'a PolicyVerdict> {
    verdict.policies().iter().find(|decided| decided.name() == policy.name())
}

/// Counts an answer under one policy of the request's route, with the key that the policy extracts.
fn note_answer(
    policy: &mut PolicyCounts,
    key: Option<&PartitionKey>,
    limits: &LimitsHandle,
    Arrival { place, .. }: Arrival,
    answered: &Answered,
    now: u64,
) {
    let Some(verdict) = &answered.verdict else { return };
    let Some(key) = key else {
        let WithoutKey { rejected, not_limited, without_address } = &mut policy.without_key;
        let is_rejected = !verdict.is_allowed() && verdict.policies().is_empty();
        *match answered.status {
            400 if is_rejected => rejected,
            _ if is_rejected => without_address,
            _ => not_limited,
        } += 1;
        return;
    };
    let Some(decided) = decided_by(policy, verdict).filter(|decided| !decided.is_passed_over()) else { return };
    let decision = decided.decision();
    if decision.is_allowed() {
        // If another policy rejected the request, this one was not charged.
        if verdict.is_allowed() {
            policy.note_admitted(decision.delay(), now);
        }
    } else {
        policy.note_rejected(key, now, place, |policy| limits.key_text(policy, key).ok());
    }
}
