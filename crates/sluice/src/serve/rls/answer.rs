//! The response to Envoy, made of the response of a layer.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use tonic::Status;
use tower_sluice::policy::PolicyStatus;
use tower_sluice::rejection::PolicyVerdict;
use tower_sluice::{Quota, Verdict};

use super::asked::{Asked, Match, Selection};
use super::domain::{Selections, Selector};
use super::proto::{Code, CurrentLimit, DescriptorStatus, HeaderValue, RateLimitResponse};
use crate::rules::Unit;

/// The limits of a domain's policies, as responses report them.
#[derive(Debug, Default)]
pub(crate) struct CurrentLimits(HashMap<String, CurrentLimit>);

impl CurrentLimits {
    /// A limit has the name that the file gives to it, or else that of its policy.
    pub(crate) fn new(policies: &[PolicyStatus], selector: Option<&Selector>) -> Self {
        let labels = selector.map(Selector::labels).unwrap_or_default();
        let limits = policies.iter().filter_map(|policy| {
            let quota = policy.terms()?.quota()?;
            let name = labels.get(policy.name()).copied().unwrap_or(policy.name());
            let mut limit = current_limit(name, quota);
            if let Some(period) = selector.and_then(|selector| selector.period_of_zero(policy.name())) {
                // A quota cannot be zero, so that of the policy is another one.
                (limit.requests_per_unit, limit.unit) = (0, unit_of(period));
            }
            Some((policy.name().to_owned(), limit))
        });
        Self(limits.collect())
    }
}

fn current_limit(name: &str, quota: Quota) -> CurrentLimit {
    let (requests_per_unit, unit) = (saturated(quota.limit()), unit_of(quota.period()));
    CurrentLimit { requests_per_unit, unit, name: name.to_owned() }
}

/// The number of a unit; 0 of a period that is none.
fn unit_of(period: Duration) -> i32 {
    Unit::from_period(period).map_or(0, Unit::number)
}

/// Makes the response to a request whose descriptors were decided on together.
///
/// # Errors
///
/// If the request is rejected for another reason than its limits: a store fails, say.
pub(super) async fn answer(
    asked: &Asked,
    selections: &Selections,
    limits: &CurrentLimits,
    response: http::Response<Body>,
) -> Result<RateLimitResponse, Status> {
    let (head, body) = response.into_parts();
    let verdict = head.extensions.get::<Verdict>();
    check_decided(verdict, head.status)?;
    let is_rejected = verdict.is_some_and(|verdict| !verdict.is_allowed());
    let matched = asked.take_matched();
    let statuses: Vec<_> = (0..asked.descriptors.len())
        .map(|descriptor| {
            if selections.unlimited.contains(&descriptor) {
                return unlimited();
            }
            status_of(asked, matched.iter().filter(|it| it.descriptor == descriptor), verdict, limits)
        })
        .collect();
    let is_over = is_rejected || selections.reject(&statuses);
    let body = if is_rejected { to_bytes(body, LONGEST_BODY).await.unwrap_or_default() } else { Default::default() };
    let violated = verdict.into_iter().flat_map(Verdict::violated).map(PolicyVerdict::name);
    Ok(RateLimitResponse {
        overall_code: if is_over { Code::OverLimit } else { Code::Ok }.into(),
        statuses,
        response_headers_to_add: fields(&head.headers, is_rejected),
        request_headers_to_add: Vec::new(),
        raw_body: body.into(),
        dynamic_metadata: is_over.then(|| metadata(violated)),
    })
}

/// Longer than any body of a rejection.
pub(super) const LONGEST_BODY: usize = 1 << 16;

/// # Errors
///
/// If a request is rejected, and not by a limit.
pub(super) fn check_decided(verdict: Option<&Verdict>, status: StatusCode) -> Result<(), Status> {
    match verdict {
        Some(verdict) if !verdict.is_allowed() && verdict.violated().next().is_none() => {
            Err(Status::unavailable(format!("the limits cannot decide: {status}")))
        }
        _ => Ok(()),
    }
}

/// Whether a limit rejects the request.
pub(super) fn is_rejected(response: &http::Response<Body>) -> bool {
    response.extensions().get::<Verdict>().is_some_and(|verdict| !verdict.is_allowed())
}

/// Whether the only limit of a request has no room for it. A shadow then lets it pass.
pub(super) fn is_full(response: &http::Response<Body>) -> bool {
    let verdict = response.extensions().get::<Verdict>();
    let mut decided = verdict.into_iter().flat_map(Verdict::policies).filter(|policy| !policy.is_passed_over());
    decided.any(|policy| !policy.decision().is_allowed())
}

/// The status of a descriptor that is counted, but has no limit.
pub(super) fn unlimited() -> DescriptorStatus {
    DescriptorStatus { code: Code::Ok.into(), limit_remaining: u32::MAX, ..DescriptorStatus::default() }
}

/// The status of a descriptor for which there is no rule.
pub(super) fn without_rule() -> DescriptorStatus {
    DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() }
}

/// The status of a descriptor: of its policies, the one that rejects it for longest, or leaves the least.
pub(super) fn status_of<'a>(
    asked: &Asked,
    matched: impl IntoIterator<Item = &'a Match>,
    verdict: Option<&Verdict>,
    limits: &CurrentLimits,
) -> DescriptorStatus {
    struct Decided<'a> {
        matched: &'a Match,
        selection: Option<&'a Selection>,
        policy: Option<&'a PolicyVerdict>,
        is_over: bool,
    }
    let decided = matched.into_iter().map(|matched| {
        let selection = asked.selection_of(matched);
        let policy = verdict.and_then(|verdict| decision_on(matched, verdict));
        // A quota is charged as a shadow, since it alone rejects nothing.
        let is_quota = selection.is_some_and(|selection| selection.is_quota);
        let is_over = policy.is_some_and(|policy| {
            // While a server is down, its local fallback lets every look pass, and says what is left.
            let looked_for = asked.looked_for(matched.descriptor).filter(|_| is_quota || !policy.is_shadow());
            is_over(policy, is_quota) || looked_for.is_some_and(|units| policy.decision().remaining() < units)
        });
        Decided { matched, selection, policy, is_over }
    });
    // A policy that was not asked, since another rejected the request before, says the least.
    let decisive = decided.min_by_key(|it| match it.policy.map(PolicyVerdict::decision) {
        Some(decision) if it.is_over => (0, Reverse(decision.retry_after().unwrap_or(Duration::MAX)), 0),
        Some(decision) => (1, Reverse(Duration::ZERO), decision.remaining()),
        None => (2, Reverse(Duration::ZERO), 0),
    });
    let Some(Decided { matched, selection, policy, is_over }) = decisive else { return without_rule() };
    let decision = policy.map(PolicyVerdict::decision);
    let until = decision.and_then(|it| if it.is_allowed() { Some(it.reset_after()) } else { it.retry_after() });
    let brought = selection.and_then(|selection| selection.brought);
    DescriptorStatus {
        code: if is_over { Code::OverLimit } else { Code::Ok }.into(),
        current_limit: match brought {
            Some(brought) => Some(brought.current_limit()),
            None => limits.0.get(&*matched.policy).cloned(),
        },
        // A policy without a decision admits the request: by hand, or since its limiter fails.
        limit_remaining: decision.map_or(u32::MAX, |decision| saturated(decision.remaining())),
        duration_until_reset: until.and_then(|wait| prost_types::Duration::try_from(wait).ok()),
    }
}

fn decision_on<'a>(matched: &Match, verdict: &'a Verdict) -> Option<&'a PolicyVerdict> {
    verdict.policies().iter().find(|policy| policy.name() == &*matched.policy && policy.key() == Some(&matched.key))
}

fn is_over(policy: &PolicyVerdict, is_quota: bool) -> bool {
    (is_quota || !policy.is_shadow()) && !policy.is_passed_over() && !policy.decision().is_allowed()
}

fn saturated(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The fields for the client. The type of the body goes with the body only.
pub(super) fn fields(headers: &HeaderMap, has_body: bool) -> Vec<HeaderValue> {
    let is_sent = |name| name != CONTENT_LENGTH && (has_body || name != CONTENT_TYPE);
    let fields = headers.iter().filter(|(name, _)| is_sent(*name));
    let fields = fields.filter_map(|(name, value)| {
        Some(HeaderValue { key: name.as_str().to_owned(), value: value.to_str().ok()?.to_owned() })
    });
    fields.collect()
}

/// For access logs: which policies reject the request.
pub(super) fn metadata<'a>(violated: impl Iterator<Item = &'a str>) -> Struct {
    let text = |name: &str| Value { kind: Some(Kind::StringValue(name.to_owned())) };
    let violated = Value { kind: Some(Kind::ListValue(ListValue { values: violated.map(text).collect() })) };
    Struct { fields: [("violated_policies".to_owned(), violated)].into() }
}
