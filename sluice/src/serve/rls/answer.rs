//! The response to Envoy, made of the response of a layer.

use std::cmp::Reverse;
use std::collections::HashMap;

use axum::body::{Body, to_bytes};
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use tonic::Status;
use tower_sluice::policy::PolicyStatus;
use tower_sluice::rejection::PolicyVerdict;
use tower_sluice::{Quota, Verdict};

use super::asked::{Asked, Match};
use super::domain::{Selections, Selector};
use super::proto::{Code, CurrentLimit, DescriptorStatus, HeaderValue, RateLimitResponse};
use crate::rules::Unit;

/// The limits of a domain's policies, as responses report them.
#[derive(Debug, Default)]
pub(crate) struct CurrentLimits(HashMap<String, CurrentLimit>);

impl CurrentLimits {
    /// A limit has the name that the file gives to it, or else that of its policy.
    pub(crate) fn new(policies: &[PolicyStatus], selector: Option<&Selector>) -> Self {
        let limits = policies.iter().filter_map(|policy| {
            let quota = policy.terms()?.quota()?;
            let label = selector.and_then(|selector| selector.label(policy.name()));
            Some((policy.name().to_owned(), current_limit(label.unwrap_or(policy.name()), quota)))
        });
        Self(limits.collect())
    }
}

fn current_limit(name: &str, quota: Quota) -> CurrentLimit {
    let unit = Unit::from_period(quota.period()).map_or(0, Unit::number);
    CurrentLimit { requests_per_unit: saturated(quota.limit()), unit, name: name.to_owned() }
}

/// Makes the response to a request.
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
    let (mut head, body) = response.into_parts();
    let verdict = head.extensions.remove::<Verdict>().unwrap_or_default();
    let is_rejected = !verdict.is_allowed();
    if is_rejected && verdict.violated().next().is_none() {
        return Err(Status::unavailable(format!("the limits cannot decide: {}", head.status)));
    }
    let matched = asked.take_matched();
    let statuses: Vec<_> = (0..asked.descriptors.len())
        .map(|descriptor| {
            if selections.unlimited.contains(&descriptor) {
                return unlimited();
            }
            let matched = matched.iter().filter(|matched| matched.descriptor == descriptor);
            status_of(matched, selections.quotas.contains(&descriptor), &verdict, limits)
        })
        .collect();
    let quotas = &selections.quotas;
    let is_over =
        is_rejected || !quotas.is_empty() && quotas.iter().all(|quota| statuses[*quota].code() == Code::OverLimit);
    let body = if is_rejected { to_bytes(body, LONGEST_BODY).await.unwrap_or_default() } else { Default::default() };
    Ok(RateLimitResponse {
        overall_code: if is_over { Code::OverLimit } else { Code::Ok }.into(),
        statuses,
        response_headers_to_add: fields(&head.headers, is_rejected),
        request_headers_to_add: Vec::new(),
        raw_body: body.into(),
        dynamic_metadata: is_over.then(|| metadata(&verdict)),
    })
}

/// Longer than any body of a rejection.
const LONGEST_BODY: usize = 1 << 16;

/// The status of a descriptor that is counted, but has no limit.
fn unlimited() -> DescriptorStatus {
    DescriptorStatus { code: Code::Ok.into(), limit_remaining: u32::MAX, ..DescriptorStatus::default() }
}

/// The status of a descriptor: of its policies, the one that rejects it for longest, or leaves the least.
fn status_of<'a>(
    matched: impl Iterator<Item = &'a Match>,
    is_quota: bool,
    verdict: &Verdict,
    limits: &CurrentLimits,
) -> DescriptorStatus {
    let mut decided: Vec<(&Match, Option<&PolicyVerdict>)> =
        matched.map(|matched| (matched, decision_on(matched, verdict))).collect();
    // A policy that was not asked, since another rejected the request before, says the least.
    decided.sort_by_key(|(_, decided)| match decided {
        Some(policy) if is_over(policy, is_quota) => (0, Reverse(policy.decision().retry_after()), 0),
        Some(policy) => (1, Reverse(None), policy.decision().remaining()),
        None => (2, Reverse(None), 0),
    });
    let Some((matched, policy)) = decided.first() else {
        return DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() };
    };
    let decision = policy.map(PolicyVerdict::decision);
    let is_over = policy.is_some_and(|policy| is_over(policy, is_quota));
    let until = decision.and_then(|it| if is_over { it.retry_after() } else { Some(it.reset_after()) });
    DescriptorStatus {
        code: if is_over { Code::OverLimit } else { Code::Ok }.into(),
        current_limit: limits.0.get(&*matched.policy).cloned(),
        // A policy without a decision admits the request: by hand, or since its limiter fails.
        limit_remaining: decision.map_or(u32::MAX, |decision| saturated(decision.remaining())),
        duration_until_reset: until.and_then(|wait| prost_types::Duration::try_from(wait).ok()),
    }
}

fn decision_on<'a>(matched: &Match, verdict: &'a Verdict) -> Option<&'a PolicyVerdict> {
    verdict.policies().iter().find(|policy| policy.name() == &*matched.policy && policy.key() == Some(&matched.key))
}

/// A quota is charged as a shadow, since it alone rejects nothing.
fn is_over(policy: &PolicyVerdict, is_quota: bool) -> bool {
    (is_quota || !policy.is_shadow()) && !policy.is_passed_over() && !policy.decision().is_allowed()
}

fn saturated(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The fields for the client. The type of the body goes with the body only.
fn fields(headers: &HeaderMap, has_body: bool) -> Vec<HeaderValue> {
    let is_sent = |name| name != CONTENT_LENGTH && (has_body || name != CONTENT_TYPE);
    let fields = headers.iter().filter(|(name, _)| is_sent(*name));
    let fields = fields.filter_map(|(name, value)| {
        Some(HeaderValue { key: name.as_str().to_owned(), value: value.to_str().ok()?.to_owned() })
    });
    fields.collect()
}

/// For access logs: which policies reject the request.
fn metadata(verdict: &Verdict) -> Struct {
    let text = |name: &str| Value { kind: Some(Kind::StringValue(name.to_owned())) };
    let violated = verdict.violated().map(|policy| text(policy.name())).collect();
    let violated = Value { kind: Some(Kind::ListValue(ListValue { values: violated })) };
    Struct { fields: [("violated_policies".to_owned(), violated)].into() }
}
