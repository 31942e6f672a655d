//! The response to Envoy, derived from a layer's response.

use std::cmp::Reverse;
use std::time::Duration;

use axum::body::to_bytes;
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use tonic::Status;
use tower_sluice::Verdict;
use tower_sluice::rejection::PolicyVerdict;

use super::proto::{Code, CurrentLimit, DescriptorStatus, HeaderValue, RateLimitResponse};
use crate::descriptors::{Asked, Match, Selection};
use crate::serve::domains::{ReportedLimit, ReportedLimits, Ruling, Selections};

/// Makes the response to a request whose descriptors were decided on together.
///
/// # Errors
///
/// If the request is rejected for a reason other than its limits, such as a failing store.
pub(super) async fn answer(
    asked: &Asked,
    selections: &Selections,
    ruling: Ruling,
) -> Result<RateLimitResponse, Status> {
    check_decided(&ruling)?;
    let is_rejected = ruling.is_rejected();
    let Ruling { verdict, response, matches, reported } = ruling;
    let statuses: Vec<_> = (0..asked.descriptors.len())
        .map(|descriptor| {
            if selections.unlimited.contains(&descriptor) {
                return unlimited();
            }
            let matched = matches.iter().filter(|it| it.descriptor == descriptor);
            status_of(asked, matched, verdict.as_ref(), &reported)
        })
        .collect();
    let is_over = is_rejected || reject(selections, &statuses);
    let (head, body) = response.into_parts();
    let body = if is_rejected { to_bytes(body, LONGEST_BODY).await.unwrap_or_default() } else { Default::default() };
    let violated = verdict.iter().flat_map(Verdict::violated).map(PolicyVerdict::name);
    Ok(RateLimitResponse {
        overall_code: if is_over { Code::OverLimit } else { Code::Ok }.into(),
        statuses,
        response_headers_to_add: fields(&head.headers, is_rejected),
        request_headers_to_add: Vec::new(),
        raw_body: body.into(),
        dynamic_metadata: is_over.then(|| metadata(violated)),
    })
}

/// Whether a limit is over, or all quotas are.
pub(super) fn reject(selections: &Selections, statuses: &[DescriptorStatus]) -> bool {
    selections.reject(statuses.len(), |descriptor| statuses[descriptor].code() == Code::OverLimit)
}

/// Longer than the body of any rejection.
pub(super) const LONGEST_BODY: usize = 1 << 16;

/// # Errors
///
/// If a request is rejected, but not by a limit.
pub(super) fn check_decided(ruling: &Ruling) -> Result<(), Status> {
    match &ruling.verdict {
        Some(verdict) if !verdict.is_allowed() && verdict.violated().next().is_none() => {
            Err(Status::unavailable(format!("the limits cannot decide: {}", ruling.response.status())))
        }
        _ => Ok(()),
    }
}

/// The status for a descriptor that is counted, but has no limit.
pub(super) fn unlimited() -> DescriptorStatus {
    DescriptorStatus { code: Code::Ok.into(), limit_remaining: u32::MAX, ..DescriptorStatus::default() }
}

/// The status for a descriptor without a rule.
pub(super) fn without_rule() -> DescriptorStatus {
    DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() }
}

/// Returns a descriptor's status, from the policy that rejects it for longest or, if none rejects, leaves the least.
pub(super) fn status_of<'a>(
    asked: &Asked,
    matched: impl IntoIterator<Item = &'a Match>,
    verdict: Option<&Verdict>,
    reported: &ReportedLimits,
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
            // While a server is down, its local fallback lets every look pass, and reports the remaining units.
            let looked_for = asked.looked_for(matched.descriptor).filter(|_| is_quota || !policy.is_shadow());
            is_over(policy, is_quota) || looked_for.is_some_and(|units| policy.decision().remaining() < units)
        });
        Decided { matched, selection, policy, is_over }
    });
    // A policy that was not asked, because another one had rejected the request, comes last. Ties: an enforced policy
    // before a shadow.
    let decisive = decided.min_by_key(|it| {
        let is_shadow = it.policy.is_some_and(PolicyVerdict::is_shadow);
        match it.policy.map(PolicyVerdict::decision) {
            Some(decision) if it.is_over => (0, Reverse(decision.retry_after().unwrap_or(Duration::MAX)), 0, is_shadow),
            Some(decision) => (1, Reverse(Duration::ZERO), decision.remaining(), is_shadow),
            None => (2, Reverse(Duration::ZERO), 0, is_shadow),
        }
    });
    let Some(Decided { matched, selection, policy, is_over }) = decisive else { return without_rule() };
    let decision = policy.map(PolicyVerdict::decision);
    let until = decision.and_then(|it| if it.is_allowed() { Some(it.reset_after()) } else { it.retry_after() });
    let brought = selection.and_then(|selection| selection.brought);
    DescriptorStatus {
        code: if is_over { Code::OverLimit } else { Code::Ok }.into(),
        current_limit: match brought {
            Some(brought) => Some(ReportedLimit::from(brought).into()),
            None => reported.of(&matched.policy).cloned().map(CurrentLimit::from),
        },
        // A policy without a decision admits the request: because an operator allowed the key, or because its limiter
        // fails.
        limit_remaining: decision.map_or(u32::MAX, |decision| saturated(decision.remaining())),
        duration_until_reset: until.and_then(|wait| prost_types::Duration::try_from(wait).ok()),
    }
}

impl From<ReportedLimit> for CurrentLimit {
    fn from(ReportedLimit { requests, unit, name }: ReportedLimit) -> Self {
        Self { requests_per_unit: requests, unit, name }
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

/// Returns the fields for the client. The content type is sent only with a body.
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
