//! Limits that requests bring, in place of the file's.

use std::sync::{Arc, OnceLock};

use tower_sluice::direct::{Limits, On};
use tower_sluice::{FixedWindow, Limiter, Policy, Quota};

use super::store::Store;
use super::{Ruling, enforce};
use crate::descriptors::{Asked, RuleKey};
use crate::rules::BROUGHT;

/// The limiter for these limits: a fixed window, like the rules in the file.
///
/// # Errors
///
/// If the store cannot keep a limit.
pub(super) fn limiter(domain: &str, store: &Store) -> Result<Arc<dyn Limiter>, String> {
    store.limiter(FixedWindow::new(Quota::per_second(1)), &format!("{BROUGHT}@{domain}"))
}

/// The policy for these limits. Each key has the quota that its requests bring.
pub(super) fn policy(limiter: Arc<dyn Limiter>) -> Policy<On<Asked>> {
    Policy::on(BROUGHT, limiter).key(RuleKey(BROUGHT.into())).quota_fn(|_| None)
}

/// Decides by the limits that requests bring. The first such request creates the table, because its keys have their own
/// quotas, it takes 98 bytes for each of `--max-keys`, and most domains never use it.
pub(crate) struct BroughtLimits {
    domain: String,
    store: Store,
    limits: OnceLock<Limits<Asked>>,
}

impl BroughtLimits {
    pub(super) const fn new(domain: String, store: Store) -> Self {
        Self { domain, store, limits: OnceLock::new() }
    }

    /// Decides on a descriptor.
    ///
    /// # Errors
    ///
    /// If the store cannot keep such limits.
    pub(crate) async fn decide(&self, asked: &Asked) -> Result<Ruling, String> {
        let limits = match self.limits.get() {
            Some(limits) => limits,
            None => {
                let limits = enforce(&self.domain, vec![policy(limiter(&self.domain, &self.store)?)]);
                let limits = limits.map_err(|error| error.to_string())?;
                self.limits.get_or_init(|| limits)
            }
        };
        // Each request brings the limit that is reported.
        Ok(Ruling::of(limits.decide(asked).await, asked.selected_matches(), Arc::default()))
    }
}
