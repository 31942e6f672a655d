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
pub(crate) use self::asked::{Asked, Hits};
use self::domain::Selections;
pub(crate) use self::domain::{Selector, Store, layer, policies};
pub(crate) use self::key::read as read_key;
use self::proto::{Code, DescriptorStatus, RateLimitDescriptor, RateLimitRequest, RateLimitResponse};
use super::limits::{Domain, Limits};
use crate::rules::Descriptor;

pub(crate) const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

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
    let Some(domain) = limits.domain(&request.domain) else { return Ok(unlimited(count)) };
    let hits_of_request = u64::from(request.hits_addend.max(1));
    let hits = request.descriptors.iter().map(|descriptor| hits_of(descriptor, hits_of_request)).collect();
    let brought: Vec<_> = request.descriptors.iter().map(brought_quota).collect();
    let descriptors: Vec<_> = request.descriptors.into_iter().map(Descriptor::from).collect();
    let Some(selector) = &domain.selector else {
        return ask(&domain, Asked::new(descriptors, hits, Vec::new()), &Selections::default()).await;
    };
    let selections = selector.select(&descriptors, &brought);
    let asked = Asked::new(descriptors, hits, selections.all.clone());
    if !selections.quotas.is_empty() {
        // Whether all of these limits are used up is known only after all have decided. So they are looked at first.
        let looked = ask(&domain, asked.to_look(), &selections).await?;
        if looked.overall_code() == Code::OverLimit {
            return Ok(looked);
        }
    }
    ask(&domain, asked, &selections).await
}

/// Asks the layer of a domain.
async fn ask(domain: &Domain, asked: Asked, selections: &Selections) -> Result<RateLimitResponse, Status> {
    let asked = Arc::new(asked);
    let response = domain.decide(Arc::clone(&asked)).await;
    answer::answer(&asked, selections, &domain.current_limits(), response).await
}

/// The key of an entry that says that the hits of its descriptor were spent already, such as the tokens of a stream that
/// has ended. Apart from it, the descriptor is that of the requests that ask.
const REPORT: &str = "sluice-report";

fn hits_of(descriptor: &RateLimitDescriptor, hits_of_request: u64) -> Hits {
    Hits {
        count: descriptor.hits_addend.unwrap_or(hits_of_request),
        is_report: descriptor.entries.iter().any(|entry| entry.key == REPORT),
    }
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
        Self {
            entries: (descriptor.entries.into_iter())
                .filter(|entry| entry.key != REPORT)
                .map(|entry| (entry.key, entry.value))
                .collect(),
            has_own_limit: descriptor.limit.is_some(),
        }
    }
}

/// Makes the request that goes through the layer of a domain.
pub(crate) fn request_of(asked: Arc<Asked>) -> http::Request<Body> {
    let mut request = http::Request::new(Body::empty());
    request.extensions_mut().insert(asked);
    request
}
