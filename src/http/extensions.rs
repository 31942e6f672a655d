//! Extensions that a layer attaches to requests and responses: the verdict, the settlement, the permits.

use std::sync::Arc;

use http::Extensions;

use crate::engine::permits::{Held, Permits};
use crate::engine::settlement::{Reports, Settlement};
use crate::engine::verdict::Verdict;

/// Attaches a verdict to an admitted request, behind an outer layer's verdict.
pub(crate) fn add_verdict(verdict: &Verdict, extensions: &mut Extensions) {
    match extensions.get_mut::<Verdict>() {
        Some(outer) => outer.append(verdict),
        None => drop(extensions.insert(verdict.clone())),
    }
}

/// Attaches a verdict to a response, in front of an inner layer's verdict.
pub(crate) fn put_verdict(mut verdict: Verdict, extensions: &mut Extensions) {
    if let Some(inner) = extensions.remove::<Verdict>() {
        verdict.append(&inner);
    }
    extensions.insert(verdict);
}

/// Attaches a layer's reports. An outer layer's settlement stays reachable through it.
pub(crate) fn add_settlement(reports: &Arc<Reports>, extensions: &mut Extensions) {
    let outer = extensions.remove::<Settlement>();
    extensions.insert(Settlement::new(Arc::clone(reports), outer));
}

/// Attaches the units that a request holds. An outer layer's units stay reachable through them.
pub(crate) fn add_permits(held: &Arc<Held>, extensions: &mut Extensions) {
    let outer = extensions.remove::<Permits>();
    extensions.insert(Permits::new(Arc::clone(held), outer));
}

/// Never rejects a request, because a request may pass uncharged (exempt, a shadow, an outage), so that nothing can be
/// settled.
#[cfg(feature = "axum")]
impl<S: Send + Sync> axum::extract::FromRequestParts<S> for Settlement {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut http::request::Parts, _: &S) -> Result<Self, Self::Rejection> {
        let settlement = parts.extensions.get::<Self>().cloned();
        Ok(settlement.unwrap_or_else(|| Self::new(Arc::new(Reports::for_policies(std::iter::empty())), None)))
    }
}

/// Never rejects a request, because a request may not hold units (exempt, a shadow, an outage).
#[cfg(feature = "axum")]
impl<S: Send + Sync> axum::extract::FromRequestParts<S> for Permits {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut http::request::Parts, _: &S) -> Result<Self, Self::Rejection> {
        let permits = parts.extensions.get::<Self>().cloned();
        Ok(permits.unwrap_or_else(|| Self::new(Arc::default(), None)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::verdict::PolicyVerdict;
    use crate::values::Decision;

    #[test]
    fn all_layers_have_to_admit() {
        let verdict = |is_rejected| if is_rejected { Verdict::default().rejected() } else { Verdict::default() };
        for (outer, inner) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut extensions = Extensions::new();
            put_verdict(verdict(inner), &mut extensions);
            put_verdict(verdict(outer), &mut extensions);
            assert_eq!(extensions.get::<Verdict>().unwrap().is_allowed(), !outer && !inner);
        }
    }

    #[test]
    fn inner_layers_policies_follow() {
        let verdict = |name: &str| Verdict::new([PolicyVerdict::named(name.into(), Decision::allow(1, 1))]);
        let mut request = Extensions::new();
        let mut response = Extensions::new();
        add_verdict(&verdict("outer"), &mut request);
        add_verdict(&verdict("inner"), &mut request);
        put_verdict(verdict("inner"), &mut response);
        put_verdict(verdict("outer"), &mut response);
        for extensions in [request, response] {
            let verdict = extensions.get::<Verdict>().unwrap();
            assert_eq!(verdict.policies().iter().map(PolicyVerdict::name).collect::<Vec<_>>(), ["outer", "inner"]);
        }
    }

    #[cfg(feature = "axum")]
    #[tokio::test]
    async fn permits_are_optional_for_handlers() {
        use axum::extract::FromRequestParts;

        let (mut parts, ()) = http::Request::new(()).into_parts();
        let permits = Permits::from_request_parts(&mut parts, &()).await.unwrap();
        assert!(permits.take().is_empty());
    }

    #[cfg(feature = "axum")]
    #[tokio::test]
    async fn settlements_are_optional_for_handlers() {
        use axum::extract::FromRequestParts;

        let (mut parts, ()) = http::Request::new(()).into_parts();
        let settlement = Settlement::from_request_parts(&mut parts, &()).await.unwrap();
        assert_eq!(
            settlement.settle("tokens", 5),
            Err(crate::policy::SettleError::UnknownPolicy { policy: "tokens".to_owned(), known: Vec::new() })
        );
    }
}
