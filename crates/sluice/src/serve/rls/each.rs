//! Decides on each descriptor by itself, as envoyproxy/ratelimit does.
//!
//! Gateways look before a request, with zero hits, and charge its cost after the response, with the same descriptor. By
//! then, the cost is spent. So a cost that does not fit uses up the rest, and is charged even if another descriptor has
//! no room.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use futures_util::future::join_all;
use http::Response;
use tonic::Status;

use super::answer::{self, LONGEST_BODY};
use super::proto::{Code, DescriptorStatus, HeaderValue, RateLimitResponse};
use super::{NotCharged, Questions};
use crate::descriptors::{Asked, Kind, Selection};
use crate::serve::domains::{Domain, Ruling, Selector};

/// Decides on all descriptors in a request.
///
/// # Errors
///
/// If a limit cannot decide. The others are charged nevertheless.
pub(super) async fn decide(
    domain: &Domain,
    selector: &Selector,
    questions: Questions,
) -> Result<RateLimitResponse, Status> {
    let selections = selector.select(&questions.descriptors, &questions.brought);
    let mut statuses = vec![answer::without_rule(); questions.descriptors.len()];
    for descriptor in &selections.unlimited {
        statuses[*descriptor] = answer::unlimited();
    }
    for descriptor in selections.without_rule(statuses.len()) {
        NotCharged::NoRule.count(&selector.domain, questions.hits[descriptor]);
    }
    let parts = selections.all.iter().map(|selection| {
        let (hits, is_report) = (questions.hits[selection.descriptor], questions.is_report[selection.descriptor]);
        let part = Part { domain, selector, selection, hits };
        async move { if is_report { part.report().await } else { part.question().await } }
    });
    // Limiters in memory decide when they are first polled, which is in the descriptors' order, and two descriptors may
    // have the same key. A server is asked about all at once.
    let mut rejections = Vec::new();
    for (selection, decided) in selections.all.iter().zip(join_all(parts).await) {
        let (status, rejection) = decided?;
        statuses[selection.descriptor] = status;
        rejections.extend(rejection);
    }
    let is_over = answer::reject(&selections, &statuses);
    let over = selections.all.iter().filter(|selection| statuses[selection.descriptor].code() == Code::OverLimit);
    let violated = over.map(|selection| &*selection.policy);
    let dynamic_metadata = is_over.then(|| answer::metadata(violated));
    // The client has to wait for the last rejection. A quota alone rejects nothing.
    let last = rejections.into_iter().filter(|_| is_over).max_by_key(|rejection| rejection.wait);
    let (fields, body) = last.map(|rejection| (rejection.fields, rejection.body)).unwrap_or_default();
    Ok(RateLimitResponse {
        overall_code: if is_over { Code::OverLimit } else { Code::Ok }.into(),
        statuses,
        response_headers_to_add: fields,
        request_headers_to_add: Vec::new(),
        raw_body: body,
        dynamic_metadata,
    })
}

/// The layer's answer to a client that it rejects.
struct Rejection {
    /// `Duration::MAX` if no wait helps.
    wait: Duration,
    fields: Vec<HeaderValue>,
    body: Vec<u8>,
}

type Decided = Result<(DescriptorStatus, Option<Rejection>), Status>;

/// A descriptor with its rule.
struct Part<'a> {
    domain: &'a Domain,
    selector: &'a Selector,
    selection: &'a Selection,
    hits: u64,
}

impl Part<'_> {
    /// Charges hits that were spent already. Rejects nothing.
    async fn report(&self) -> Decided {
        let (status, _) = self.ask(Kind::Report).await?;
        Ok((status, None))
    }

    /// Charges the hits if they fit. Otherwise, uses up the rest.
    async fn question(&self) -> Decided {
        let (mut status, mut ruling) = self.ask(Kind::Question).await?;
        if self.hits > 0 && ruling.is_full() {
            if status.limit_remaining > 0 {
                self.ask(Kind::Report).await?;
                // A window's end does not depend on charges. A bucket now has less than before, so its wait is longer.
                if !self.selection.is_fixed_window {
                    let looked = self.ask(Kind::Look).await?;
                    // While a server is down, its fallback lets every look pass.
                    if looked.1.is_full() {
                        (status, ruling) = looked;
                    }
                }
            }
            status.limit_remaining = 0;
        }
        let rejection = if ruling.is_rejected() { Some(rejection(&status, ruling.response).await) } else { None };
        Ok((status, rejection))
    }

    /// Asks the rule.
    async fn ask(&self, kind: Kind) -> Result<(DescriptorStatus, Ruling), Status> {
        let selected = vec![Selection { descriptor: 0, ..self.selection.clone() }];
        let asked = Arc::new(Asked::new(kind, Vec::new(), vec![self.hits], selected));
        let ruling = match self.selection.brought {
            None => self.domain.decide(&asked).await,
            Some(_) => self.selector.brought.decide(&asked).await.map_err(Status::internal)?,
        };
        answer::check_decided(&ruling)?;
        let Ruling { verdict, matches, reported, .. } = &ruling;
        Ok((answer::status_of(&asked, matches, verdict.as_ref(), reported), ruling))
    }
}

async fn rejection(status: &DescriptorStatus, response: Response<Body>) -> Rejection {
    let wait = status.duration_until_reset.and_then(|wait| Duration::try_from(wait).ok());
    let (head, body) = response.into_parts();
    Rejection {
        wait: wait.unwrap_or(Duration::MAX),
        fields: answer::fields(&head.headers, true),
        body: to_bytes(body, LONGEST_BODY).await.unwrap_or_default().into(),
    }
}
