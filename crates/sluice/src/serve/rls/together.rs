//! Decides on all descriptors in a request together: either all are charged, or none.

use std::sync::Arc;

use tonic::Status;

use super::answer;
use super::proto::{Code, RateLimitResponse};
use super::{NotCharged, Questions};
use crate::descriptors::{Asked, Kind};
use crate::serve::domains::{Domain, Selections};

/// Decides on a request.
///
/// # Errors
///
/// If a limit cannot decide.
pub(super) async fn decide(name: &str, domain: &Domain, questions: Questions) -> Result<RateLimitResponse, Status> {
    let is_report = questions.is_report.clone();
    if !is_report.contains(&true) || !is_report.contains(&false) {
        return decide_alike(name, domain, questions).await;
    }
    // Hits that were spent already count, whether or not the others have room. So they are a separate request.
    let (reports, questions) = questions.partition();
    let reported = decide_alike(name, domain, reports).await?;
    let mut answer = decide_alike(name, domain, questions).await?;
    let mut statuses = [answer.statuses.into_iter(), reported.statuses.into_iter()];
    answer.statuses = is_report.iter().filter_map(|is_report| statuses[usize::from(*is_report)].next()).collect();
    Ok(answer)
}

/// Decides on reports alone, or on questions alone.
async fn decide_alike(name: &str, domain: &Domain, questions: Questions) -> Result<RateLimitResponse, Status> {
    let total = questions.total();
    let Questions { descriptors, hits, brought, is_report } = questions;
    let kind = if is_report.contains(&true) { Kind::Report } else { Kind::Question };
    let mut selections = Selections::default();
    if let Some(selector) = domain.selector() {
        selections = selector.select(&descriptors, &brought);
        for descriptor in selections.without_rule(descriptors.len()) {
            NotCharged::NoRule.count(name, hits[descriptor]);
        }
    }
    let asked = Asked::new(kind, descriptors, hits, std::mem::take(&mut selections.all));
    if !selections.quotas.is_empty() && kind == Kind::Question {
        // Whether all these limits are used up is known only after all have decided, so we look at them first.
        let looked = ask(domain, asked.to_look(), &selections).await?;
        if looked.overall_code() == Code::OverLimit {
            NotCharged::Rejected.count(name, total);
            return Ok(looked);
        }
    }
    let answer = ask(domain, asked, &selections).await?;
    if answer.overall_code() == Code::OverLimit {
        NotCharged::Rejected.count(name, total);
    }
    Ok(answer)
}

/// Asks a domain's limits.
async fn ask(domain: &Domain, asked: Asked, selections: &Selections) -> Result<RateLimitResponse, Status> {
    let asked = Arc::new(asked);
    let ruling = domain.decide(&asked).await;
    answer::answer(&asked, selections, ruling).await
}
