//! The response to Envoy, made of the response of a layer.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

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
use super::proto::{Code, CurrentLimit, DescriptorStatus, HeaderValue, RateLimitResponse, Unit};

/// The limits of a domain's policies, as responses report them.
#[derive(Debug, Default)]
pub(crate) struct CurrentLimits(HashMap<String, CurrentLimit>);

impl CurrentLimits {
    pub(crate) fn new(policies: &[PolicyStatus]) -> Self {
        let limits = policies.iter().filter_map(|policy| {
            let quota = policy.terms()?.quota()?;
            Some((policy.name().to_owned(), current_limit(policy.name(), quota)))
        });
        Self(limits.collect())
    }
}

fn current_limit(name: &str, quota: Quota) -> CurrentLimit {
    let unit = unit_of(quota.period());
    CurrentLimit { requests_per_unit: saturated(quota.limit()), unit: unit.into(), name: name.to_owned() }
}

/// The unit of a period; a month has 30 days and a year 365.
fn unit_of(period: Duration) -> Unit {
    const DAY: u64 = 86_400;
    match (period.as_secs(), period.subsec_nanos()) {
        (1, 0) => Unit::Second,
        (60, 0) => Unit::Minute,
        (3_600, 0) => Unit::Hour,
        (secs, 0) if secs == DAY => Unit::Day,
        (secs, 0) if secs == 7 * DAY => Unit::Week,
        (secs, 0) if secs == 30 * DAY => Unit::Month,
        (secs, 0) if secs == 365 * DAY => Unit::Year,
        _ => Unit::Unknown,
    }
}

/// Makes the response to a request with so many descriptors.
///
/// # Errors
///
/// If the request is rejected for another reason than its limits: a store fails, say.
pub(super) async fn answer(
    descriptors: usize,
    asked: &Asked,
    limits: &CurrentLimits,
    response: http::Response<Body>,
) -> Result<RateLimitResponse, Status> {
    let (head, body) = response.into_parts();
    let verdict = head.extensions.get::<Verdict>().cloned().unwrap_or_default();
    let is_over = !verdict.is_allowed();
    if is_over && verdict.violated().next().is_none() {
        return Err(Status::unavailable(format!("the limits cannot decide: {}", head.status)));
    }
    let matched = asked.matched();
    let of_descriptor = |descriptor| matched.iter().filter(move |matched| matched.descriptor == descriptor);
    let statuses = (0..descriptors).map(|descriptor| status_of(of_descriptor(descriptor), &verdict, limits)).collect();
    let body = if is_over { to_bytes(body, LONGEST_BODY).await.unwrap_or_default() } else { Default::default() };
    Ok(RateLimitResponse {
        overall_code: if is_over { Code::OverLimit } else { Code::Ok }.into(),
        statuses,
        response_headers_to_add: fields(&head.headers, is_over),
        request_headers_to_add: Vec::new(),
        raw_body: body.into(),
        dynamic_metadata: is_over.then(|| metadata(&verdict)),
    })
}

/// Longer than any body of a rejection.
const LONGEST_BODY: usize = 1 << 16;

/// The status of a descriptor: of its policies, the one that rejects it for longest, or leaves the least.
fn status_of<'a>(
    matched: impl Iterator<Item = &'a Match>,
    verdict: &Verdict,
    limits: &CurrentLimits,
) -> DescriptorStatus {
    let mut decided: Vec<(&Match, Option<&PolicyVerdict>)> =
        matched.map(|matched| (matched, decision_on(matched, verdict))).collect();
    // A policy that was not asked, since another rejected the request before, says the least.
    decided.sort_by_key(|(_, decided)| match decided {
        Some(policy) if is_over(policy) => (0, Reverse(policy.decision().retry_after()), 0),
        Some(policy) => (1, Reverse(None), policy.decision().remaining()),
        None => (2, Reverse(None), 0),
    });
    let Some((matched, policy)) = decided.first() else {
        return DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() };
    };
    let decision = policy.map(PolicyVerdict::decision);
    let is_over = policy.is_some_and(is_over);
    let until = decision.and_then(|it| if is_over { it.retry_after() } else { Some(it.reset_after()) });
    DescriptorStatus {
        code: if is_over { Code::OverLimit } else { Code::Ok }.into(),
        current_limit: limits.0.get(&*matched.policy).cloned(),
        limit_remaining: decision.map_or(0, |decision| saturated(decision.remaining())),
        duration_until_reset: until.and_then(|wait| prost_types::Duration::try_from(wait).ok()),
    }
}

fn decision_on<'a>(matched: &Match, verdict: &'a Verdict) -> Option<&'a PolicyVerdict> {
    verdict.policies().iter().find(|policy| policy.name() == &*matched.policy && policy.key() == Some(&matched.key))
}

fn is_over(policy: &PolicyVerdict) -> bool {
    !policy.is_shadow() && !policy.is_passed_over() && !policy.decision().is_allowed()
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
