//! A domain's limits, from a route in TOML or from another service's file.

mod brought;
mod reported;
mod selector;
mod store;

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::body::Body;
use axum::response::IntoResponse;
use http::{Request, Response};
use tower_sluice::direct::{self, Admission, On, Rejected};
use tower_sluice::layer::Answering;
use tower_sluice::policy::{Operate, PolicyError};
use tower_sluice::{LimitsHandle, Policy, Rejection, RequestHead, Verdict};

pub(crate) use self::reported::{ReportedLimit, ReportedLimits};
pub(crate) use self::selector::{Selections, Selector};
pub(crate) use self::store::Store;
use crate::descriptors::{Asked, Match, Patterns};

/// Puts the rules' policies in force, under the name of their domain.
///
/// # Errors
///
/// If they cannot be in force together.
pub(crate) fn enforce(name: &str, policies: Vec<Policy<On<Asked>>>) -> Result<direct::Limits<Asked>, PolicyError> {
    direct::Limits::builder(policies).route(name).marks(|asked: &Asked| &asked.marks).try_build()
}

/// A domain's limits.
pub(crate) struct Domain {
    limits: DomainLimits,
    reported: ArcSwap<ReportedLimits>,
}

enum DomainLimits {
    /// The limits on a route in TOML. Its policies also decide on HTTP requests.
    Route { layer: LimitsHandle, patterns: ArcSwap<Patterns> },
    /// The limits in another service's file.
    Rules { limits: direct::Limits<Asked>, selector: Selector },
}

impl Domain {
    /// Makes a domain from a route. The layer adds verdicts.
    pub(crate) fn of_route(layer: LimitsHandle, patterns: Patterns) -> Self {
        Self::new(DomainLimits::Route { layer, patterns: ArcSwap::from_pointee(patterns) })
    }

    /// Makes a domain from the policies that the selector selects.
    pub(crate) fn of_rules(limits: direct::Limits<Asked>, selector: Selector) -> Self {
        Self::new(DomainLimits::Rules { limits, selector })
    }

    fn new(limits: DomainLimits) -> Self {
        let domain = Self { limits, reported: ArcSwap::default() };
        domain.report_again();
        domain
    }

    /// Selects the rules for descriptors, if another service's file has them.
    pub(crate) const fn selector(&self) -> Option<&Selector> {
        match &self.limits {
            DomainLimits::Route { .. } => None,
            DomainLimits::Rules { selector, .. } => Some(selector),
        }
    }

    /// The limits on descriptors, if another service's file has them.
    pub(crate) const fn rules(&self) -> Option<&direct::Limits<Asked>> {
        match &self.limits {
            DomainLimits::Route { .. } => None,
            DomainLimits::Rules { limits, .. } => Some(limits),
        }
    }

    /// The route's layer.
    pub(crate) const fn layer(&self) -> Option<&LimitsHandle> {
        match &self.limits {
            DomainLimits::Route { layer, .. } => Some(layer),
            DomainLimits::Rules { .. } => None,
        }
    }

    /// For operators.
    pub(crate) fn operated(&self) -> Arc<dyn Operate> {
        match &self.limits {
            DomainLimits::Route { layer, .. } => layer.clone().into(),
            DomainLimits::Rules { limits, .. } => limits.clone().into(),
        }
    }

    /// Decides on a request's descriptors.
    pub(crate) async fn decide(&self, asked: &Arc<Asked>) -> Ruling {
        let reported = self.reported.load_full();
        match &self.limits {
            DomainLimits::Rules { limits, .. } => {
                Ruling::of(limits.decide(asked).await, asked.selected_matches(), reported)
            }
            DomainLimits::Route { layer, patterns } => {
                // The route's policies read request heads. This head has the descriptors, and nothing else.
                let (mut head, ()) = Request::new(()).into_parts();
                head.extensions.insert(asked.marks.clone());
                head.extensions.insert(Arc::clone(asked));
                let head = RequestHead::from(&head);
                // The policies in force at this call decide. At any instant, `patterns` has at least the patterns for
                // the policies in force, so the patterns before and after the call together include those for the
                // policies that decide.
                let before = patterns.load_full();
                let answering = layer.answer(&head);
                let after = patterns.load_full();
                let matches = match Arc::ptr_eq(&before, &after) {
                    true => before.matching(asked),
                    false => before.and(&after).matching(asked),
                };
                let response = answered(answering).await;
                Ruling { verdict: response.extensions().get().cloned(), response, matches, reported }
            }
        }
    }

    /// Notes that a route's policies will be changed. Until that is done, the patterns for both versions are there.
    pub(crate) fn begin_change(&self, after: &Patterns) {
        if let DomainLimits::Route { patterns, .. } = &self.limits {
            let both = patterns.load().and(after);
            patterns.store(Arc::new(both));
        }
    }

    /// Notes a route's policies in force after a change, whether or not it has failed.
    pub(crate) fn end_change(&self, after: Patterns) {
        if let DomainLimits::Route { patterns, .. } = &self.limits {
            patterns.store(Arc::new(after));
        }
        self.report_again();
    }

    /// A route's patterns in force.
    pub(crate) fn patterns(&self) -> Patterns {
        match &self.limits {
            DomainLimits::Route { patterns, .. } => Patterns::clone(&patterns.load()),
            DomainLimits::Rules { .. } => Patterns::default(),
        }
    }

    fn report_again(&self) {
        let (policies, selector) = match &self.limits {
            DomainLimits::Route { layer, .. } => (layer.policies(), None),
            DomainLimits::Rules { limits, selector } => (limits.policies(), Some(selector)),
        };
        self.reported.store(Arc::new(ReportedLimits::new(&policies, selector)));
    }
}

/// Answers a request as an app with empty responses would behind the layer.
pub(crate) async fn answer(layer: &LimitsHandle, head: &RequestHead<'_>) -> Response<Body> {
    answered(layer.answer(head)).await
}

async fn answered(answering: Answering<'_>) -> Response<Body> {
    match answering.await {
        Ok(admission) => admission.respond(Response::new(Body::empty())).map(Body::new),
        Err(response) => response.map(Body::new),
    }
}

/// The limits' decision, with the response for the client.
pub(crate) struct Ruling {
    pub(crate) verdict: Option<Verdict>,
    /// The response to a rejected client; for an admitted one, its fields alone.
    pub(crate) response: Response<Body>,
    /// The policies that each descriptor is charged to.
    pub(crate) matches: Vec<Match>,
    /// The policies' limits, as responses report them.
    pub(crate) reported: Arc<ReportedLimits>,
}

impl Ruling {
    /// Returns the ruling for rules in a file. The caller does not say when a request is over.
    fn of(
        decided: Result<Admission<On<Asked>>, Box<Rejected>>,
        matches: Vec<Match>,
        reported: Arc<ReportedLimits>,
    ) -> Self {
        let (verdict, response) = match decided {
            Ok(admission) => (admission.into_verdict(), Response::default()),
            Err(rejected) => {
                let verdict = Some(rejected.verdict().clone());
                (verdict, Rejection::from(*rejected).into_response())
            }
        };
        Self { verdict, response, matches, reported }
    }

    /// Whether a limit rejects the request.
    pub(crate) fn is_rejected(&self) -> bool {
        self.verdict.as_ref().is_some_and(|verdict| !verdict.is_allowed())
    }

    /// Whether the request's only limit has no room for it. If that is a shadow, the request passes nevertheless.
    pub(crate) fn is_full(&self) -> bool {
        let mut decided = self.verdict.iter().flat_map(Verdict::policies).filter(|policy| !policy.is_passed_over());
        decided.any(|policy| !policy.decision().is_allowed())
    }
}
