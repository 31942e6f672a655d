//! Limits that requests bring, in place of the file's.

use std::sync::{Arc, OnceLock};

use axum::body::Body;
use http::Response;
use tonic::Status;
use tower::{Layer, ServiceExt};
use tower_sluice::layer::RateLimit;
use tower_sluice::{FixedWindow, Limiter, Policy, Quota};

use super::asked::Asked;
use super::domain::{RuleKey, Store, layer};
use super::proto::{CurrentLimit, LimitOverride};
use super::request_of;
use crate::rules::{BROUGHT, Unit};
use crate::serve::pass::Pass;

/// The limit that a request brings for a descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Brought {
    limit: LimitOverride,
    pub(crate) quota: Quota,
}

impl Brought {
    /// Returns `None` if the unit is unknown.
    pub(super) fn read(limit: LimitOverride) -> Option<Self> {
        let unit = Unit::from_number(limit.unit)?;
        let quota = match limit.requests_per_unit {
            0 => Quota::suspended(),
            requests => Quota::try_per(requests.into(), unit.period()).ok()?,
        };
        Some(Self { limit, quota })
    }

    /// The limit as responses report it. It has no name.
    pub(super) const fn current_limit(self) -> CurrentLimit {
        let LimitOverride { requests_per_unit, unit } = self.limit;
        CurrentLimit { requests_per_unit, unit, name: String::new() }
    }
}

/// The limiter for these limits: a fixed window, as the rules of the file have.
///
/// # Errors
///
/// If the store cannot keep a limit.
pub(super) fn limiter(domain: &str, store: &Store) -> Result<Arc<dyn Limiter>, String> {
    store.limiter(FixedWindow::new(Quota::per_second(1)), &format!("{BROUGHT}@{domain}"))
}

/// The policy for these limits. Each key has the quota that its requests bring.
pub(super) fn policy(limiter: Arc<dyn Limiter>) -> Policy {
    Policy::new(BROUGHT, limiter).key(RuleKey(BROUGHT.into())).quota_fn(|_| None)
}

/// Decides by the limits that requests bring. Its table is made by the first such request: it has keys with quotas of
/// their own, takes 98 bytes for each of `--max-keys`, and most domains never use it.
pub(crate) struct BroughtLimits {
    domain: String,
    store: Store,
    service: OnceLock<RateLimit<Pass>>,
}

impl BroughtLimits {
    pub(super) const fn new(domain: String, store: Store) -> Self {
        Self { domain, store, service: OnceLock::new() }
    }

    /// Decides on a descriptor.
    ///
    /// # Errors
    ///
    /// If the store cannot keep such limits.
    pub(super) async fn decide(&self, asked: Arc<Asked>) -> Result<Response<Body>, Status> {
        let service = match self.service.get() {
            Some(service) => service,
            None => {
                let service = self.service().map_err(Status::internal)?;
                self.service.get_or_init(|| service)
            }
        };
        let Ok(response) = service.clone().oneshot(request_of(asked)).await;
        Ok(response.map(Body::new))
    }

    fn service(&self) -> Result<RateLimit<Pass>, String> {
        let policy = policy(limiter(&self.domain, &self.store)?);
        let layer = layer(&self.domain, vec![policy]).map_err(|error| error.to_string())?;
        Ok(layer.layer(Pass))
    }
}
