//! Envoy's rate limit service, version 3, over gRPC.
//!
//! A domain decides on a request's descriptors one by one ([`each`]) or all together ([`together`]). Its limits make
//! the response to a rejected client, and its fields and body go to Envoy's client unchanged.

mod answer;
mod each;
mod proto;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
mod together;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use tonic::Status;
use tonic_prost::ProstCodec;
use tower::service_fn;

use self::proto::{Code, DescriptorStatus, LimitOverride, RateLimitDescriptor, RateLimitRequest, RateLimitResponse};
use super::limits::Limits;
use crate::descriptors::Brought;
use crate::rules::{Charging, Descriptor};

pub(crate) const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The most descriptors in a request, because its time grows with the square of their number. Envoy sends a few.
const MOST_DESCRIPTORS: usize = 256;

/// The most entries in a descriptor.
const MOST_ENTRIES: usize = 64;

/// Handles a call.
pub(crate) async fn answer(limits: &Arc<Limits>, call: Request) -> Response {
    let service = service_fn(|request: tonic::Request<RateLimitRequest>| {
        let limits = Arc::clone(limits);
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
    if count == 0 {
        NotCharged::NoDescriptor.count(limits.known_domain(&request.domain), request.hits_addend.max(1).into());
        let problem = "the request has no descriptor, so that nothing is counted; send the descriptors of the limits";
        return Err(Status::invalid_argument(problem));
    }
    if count > MOST_DESCRIPTORS {
        let problem = format!("a request has {count} descriptors, and may have {MOST_DESCRIPTORS}; send fewer");
        return Err(Status::invalid_argument(problem));
    }
    if let Some(entries) = request.descriptors.iter().map(|it| it.entries.len()).find(|it| *it > MOST_ENTRIES) {
        let problem = format!("a descriptor has {entries} entries, and may have {MOST_ENTRIES}; send fewer");
        return Err(Status::invalid_argument(problem));
    }
    let name = request.domain.clone();
    let questions = Questions::of(request);
    let Some(domain) = limits.domain(&name) else {
        NotCharged::NoDomain.count(NO_DOMAIN, questions.total());
        return Ok(unlimited(count));
    };
    match domain.selector() {
        Some(selector) if selector.charging == Charging::Each => each::decide(&domain, selector, questions).await,
        _ => together::decide(&name, &domain, questions).await,
    }
}

/// A request's descriptors. Each list has an element for each descriptor.
struct Questions {
    descriptors: Vec<Descriptor>,
    hits: Vec<u64>,
    /// The limits that the request brings.
    brought: Vec<Option<Brought>>,
    /// Whether the hits were spent already.
    is_report: Vec<bool>,
}

impl Questions {
    fn of(request: RateLimitRequest) -> Self {
        let hits_of_request = u64::from(request.hits_addend.max(1));
        let all = &request.descriptors;
        Self {
            hits: all.iter().map(|descriptor| descriptor.hits_addend.unwrap_or(hits_of_request)).collect(),
            brought: all.iter().map(|descriptor| descriptor.limit.and_then(brought)).collect(),
            is_report: all.iter().map(is_report).collect(),
            descriptors: request.descriptors.into_iter().map(Descriptor::from).collect(),
        }
    }

    fn total(&self) -> u64 {
        self.hits.iter().fold(0, |total, hits| total.saturating_add(*hits))
    }

    /// Splits them into reports and questions.
    fn partition(self) -> (Self, Self) {
        let mut parts = (Self::empty(), Self::empty());
        let all = self.descriptors.into_iter().zip(self.hits).zip(self.brought).zip(self.is_report);
        for (((descriptor, hits), brought), is_report) in all {
            let part = if is_report { &mut parts.0 } else { &mut parts.1 };
            part.descriptors.push(descriptor);
            part.hits.push(hits);
            part.brought.push(brought);
            part.is_report.push(is_report);
        }
        parts
    }

    const fn empty() -> Self {
        Self { descriptors: Vec::new(), hits: Vec::new(), brought: Vec::new(), is_report: Vec::new() }
    }
}

/// The entry key that marks a report: the descriptor's hits were spent already, such as the tokens in a stream that has
/// ended. Apart from this entry, the descriptor equals the one in the requests that ask.
const REPORT: &str = "sluice-report";

fn is_report(descriptor: &RateLimitDescriptor) -> bool {
    descriptor.entries.iter().any(|entry| entry.key == REPORT.as_bytes())
}

/// The reason why hits are not charged. It is a value for the label `reason`, so that operators notice a caller that
/// relies on a limit that does not exist.
#[derive(Clone, Copy, Debug)]
enum NotCharged {
    /// No rule has the descriptor's entries.
    NoRule,
    NoDomain,
    NoDescriptor,
    /// In a domain that charges all or none, this descriptor or another has no room.
    Rejected,
}

/// The label for requests to a domain that is in no file. Callers choose its name, so it cannot be a label.
const NO_DOMAIN: &str = "";

impl NotCharged {
    fn count(self, domain: &str, hits: u64) {
        let reason = match self {
            Self::NoRule => "no-rule",
            Self::NoDomain => "no-domain",
            Self::NoDescriptor => "no-descriptor",
            Self::Rejected => "rejected",
        };
        metrics::counter!("sluice.hits.not_charged", "domain" => domain.to_owned(), "reason" => reason).increment(hits);
    }
}

/// The answer if the domain has no limit.
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
        let has_own_limit = descriptor.limit.and_then(brought).is_some();
        let entries = descriptor.entries.into_iter().filter(|entry| entry.key != REPORT.as_bytes());
        // Bytes that are not UTF-8 become U+FFFD, so such values share a budget.
        let text = |bytes: Vec<u8>| {
            String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
        };
        Self { entries: entries.map(|entry| (text(entry.key), text(entry.value))).collect(), has_own_limit }
    }
}

/// `None` if the unit is unknown.
fn brought(limit: LimitOverride) -> Option<Brought> {
    Brought::new(limit.requests_per_unit, limit.unit)
}
