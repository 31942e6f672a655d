//! Envoy's rate limit service, version 3, over gRPC.
//!
//! The descriptors of a request go through the layer of its domain in one request, so that either all of them are
//! charged or none. The layer's response becomes the statuses, and its fields and body go to Envoy's client as they
//! are.

mod answer;
mod asked;
mod domain;
mod key;
mod proto;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use tonic::Status;
use tonic_prost::ProstCodec;
use tower::service_fn;
use tower_sluice::Quota;

pub(crate) use self::answer::CurrentLimits;
pub(crate) use self::asked::Asked;
use self::asked::Kind;
use self::domain::Selections;
pub(crate) use self::domain::{Selector, Store, layer, policies};
pub(crate) use self::key::{DESCRIPTOR, read as read_key};
use self::proto::{Code, DescriptorStatus, RateLimitDescriptor, RateLimitRequest, RateLimitResponse};
use super::limits::{Domain, Limits};
use crate::rules::Descriptor;

pub(crate) const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The time for a request grows with the square of their number. Envoy sends a few.
const MOST_DESCRIPTORS: usize = 256;

/// The most entries of a descriptor.
const MOST_ENTRIES: usize = 64;

/// Handles a call.
pub(crate) async fn should_rate_limit(State(limits): State<Arc<Limits>>, call: Request) -> Response {
    let service = service_fn(|request: tonic::Request<RateLimitRequest>| {
        let limits = Arc::clone(&limits);
        async move { decide(&limits, request.into_inner()).await.map(tonic::Response::new) }
    });
    let mut server = tonic::server::Grpc::new(ProstCodec::<RateLimitResponse, RateLimitRequest>::default());
    server.unary(service, call).await.map(Body::new)
}

/// # Errors
///
/// If the limits cannot decide. Envoy then passes the request, unless its `failure_mode_deny` is set.
async fn decide(limits: &Limits, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
    if request.domain.is_empty() {
        return Err(Status::invalid_argument("the domain is empty; set `domain` of the rate limit filter"));
    }
    let count = request.descriptors.len();
    if count > MOST_DESCRIPTORS {
        let problem = format!("a request has {count} descriptors, and may have {MOST_DESCRIPTORS}; send fewer");
        return Err(Status::invalid_argument(problem));
    }
    if let Some(entries) = request.descriptors.iter().map(|it| it.entries.len()).find(|it| *it > MOST_ENTRIES) {
        let problem = format!("a descriptor has {entries} entries, and may have {MOST_ENTRIES}; send fewer");
        return Err(Status::invalid_argument(problem));
    }
    let Some(domain) = limits.domain(&request.domain) else { return Ok(unlimited(count)) };
    let is_report: Vec<bool> = request.descriptors.iter().map(is_report).collect();
    if !is_report.contains(&true) || !is_report.contains(&false) {
        return decide_alike(&domain, request).await;
    }
    // What was spent already counts, whether or not the others have room. So it is a request of its own.
    let mut parts = [request.clone(), request];
    for (part, is_reported) in parts.iter_mut().zip([true, false]) {
        let mut kept = is_report.iter().map(|is_report| *is_report == is_reported);
        part.descriptors.retain(|_| kept.next().unwrap_or(false));
    }
    let [reports, questions] = parts;
    let reported = decide_alike(&domain, reports).await?;
    let mut answer = decide_alike(&domain, questions).await?;
    let mut statuses = [answer.statuses.into_iter(), reported.statuses.into_iter()];
    answer.statuses = is_report.iter().filter_map(|is_report| statuses[usize::from(*is_report)].next()).collect();
    Ok(answer)
}

/// Decides on reports alone, or on questions alone.
async fn decide_alike(domain: &Domain, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
    let hits_of_request = u64::from(request.hits_addend.max(1));
    let hits = request.descriptors.iter().map(|descriptor| descriptor.hits_addend.unwrap_or(hits_of_request)).collect();
    let kind = if request.descriptors.iter().any(is_report) { Kind::Report } else { Kind::Question };
    let brought: Vec<_> = request.descriptors.iter().map(brought_quota).collect();
    let descriptors: Vec<_> = request.descriptors.into_iter().map(Descriptor::from).collect();
    let Some(selector) = &domain.selector else {
        return ask(domain, Asked::new(kind, descriptors, hits, Vec::new()), &Selections::default()).await;
    };
    let mut selections = selector.select(&descriptors, &brought);
    let asked = Asked::new(kind, descriptors, hits, std::mem::take(&mut selections.all));
    if !selections.quotas.is_empty() && kind == Kind::Question {
        // Whether all of these limits are used up is known only after all have decided. So they are looked at first.
        let looked = ask(domain, asked.to_look(), &selections).await?;
        if looked.overall_code() == Code::OverLimit {
            return Ok(looked);
        }
    }
    ask(domain, asked, &selections).await
}

/// Asks the layer of a domain.
async fn ask(domain: &Domain, asked: Asked, selections: &Selections) -> Result<RateLimitResponse, Status> {
    let asked = Arc::new(asked);
    let response = domain.decide(Arc::clone(&asked)).await;
    answer::answer(&asked, selections, &domain.current_limits(), response).await
}

/// The key of an entry that says that the hits of its descriptor were spent already, such as the tokens of a stream
/// that has ended. Apart from it, the descriptor is that of the requests that ask.
const REPORT: &str = "sluice-report";

fn is_report(descriptor: &RateLimitDescriptor) -> bool {
    descriptor.entries.iter().any(|entry| entry.key == REPORT)
}

/// The limit that a request brings for a descriptor.
fn brought_quota(descriptor: &RateLimitDescriptor) -> Option<Quota> {
    descriptor.limit.and_then(|limit| domain::brought_quota(limit.requests_per_unit, limit.unit))
}

/// The answer if there is no limit for the domain.
fn unlimited(descriptors: usize) -> RateLimitResponse {
    let status = DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() };
    RateLimitResponse {
        overall_code: Code::Ok.into(),
        statuses: vec![status; descriptors],
        ..RateLimitResponse::default()
    }
}

impl From<RateLimitDescriptor> for Descriptor {
    fn from(descriptor: RateLimitDescriptor) -> Self {
        let has_own_limit = brought_quota(&descriptor).is_some();
        let entries = descriptor.entries.into_iter().filter(|entry| entry.key != REPORT);
        Self { entries: entries.map(|entry| (entry.key, entry.value)).collect(), has_own_limit }
    }
}

/// Makes the request that goes through the layer of a domain.
pub(crate) fn request_of(asked: Arc<Asked>) -> http::Request<Body> {
    let mut request = http::Request::new(Body::empty());
    request.extensions_mut().insert(asked);
    request
}
