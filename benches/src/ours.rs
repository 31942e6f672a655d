//! The calls to our crate that all benchmarks share. `scripts/bench --against` builds this program once per checkout,
//! each time with that checkout's `ours.rs`, so differences between their interfaces belong here.

use tower_sluice::headers::RateLimitFields;
use tower_sluice::limiter::{Answer, Ask};
use tower_sluice::{Decision, Limiter, PartitionKey, Policy, RateLimitLayer};

/// Charges one request, without patience.
#[inline(always)]
pub fn check<L: Limiter + ?Sized>(limiter: &L, key: &PartitionKey) -> Answer {
    limiter.decide(&Ask::charge(key, 1))
}

/// Whether one request is admitted at once.
#[inline(always)]
pub fn admits<L: Limiter + ?Sized>(limiter: &L, key: &PartitionKey) -> bool {
    matches!(check(limiter, key), Answer::Ready(Ok(decision)) if decision.is_allowed())
}

/// The decision on one request, which the caller may have to wait for.
pub async fn decide<L: Limiter + ?Sized>(limiter: &L, key: &PartitionKey) -> Result<Decision, String> {
    check(limiter, key).decided().await.map_err(|error| error.to_string())
}

/// The additions that a layer makes to responses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Adds {
    Nothing,
    /// `RateLimit-Policy` and `RateLimit`, as in draft 11: the layer's default.
    Fields,
    /// These fields, and the verdict in the extensions.
    FieldsAndVerdict,
}

pub fn layer(policies: Vec<Policy>, adds: Adds) -> RateLimitLayer {
    match adds {
        Adds::Nothing => RateLimitLayer::builder(policies).fields(RateLimitFields::none()).build(),
        Adds::Fields => RateLimitLayer::new(policies),
        Adds::FieldsAndVerdict => RateLimitLayer::builder(policies).verdict().build(),
    }
}
