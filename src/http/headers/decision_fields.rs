//! `DecisionFields`: fields for a handler that asks a limiter itself.

use std::sync::Arc;

use http::{HeaderMap, StatusCode};

use super::draft11::QuotaUnit;
use super::fields::RateLimitFields;
use super::writer::{Described, PolicyReading, Writer};
use crate::limiter::Limiter;
use crate::values::{Decision, Quota};

/// Makes the fields that report the remaining units, as a layer writes them, for a handler that asks a limiter itself.
/// See [`Rejection`](crate::Rejection) for a complete handler.
///
/// Make it once per limiter. A clone costs one reference count.
///
/// ```
/// use tower_sluice::algorithm::TokenBucket;
/// use tower_sluice::headers::{DecisionFields, RateLimitFields};
/// use tower_sluice::{Quota, RateLimiter};
///
/// let mails = RateLimiter::in_memory(TokenBucket::new(Quota::per_minute(5)));
/// let fields = DecisionFields::new(RateLimitFields::draft11(), "mails", &mails);
///
/// let headers = fields.of(&mails.check(&"alice".into()));
/// assert_eq!(headers["ratelimit-policy"], "\"mails\";q=5;w=60");
/// assert_eq!(headers["ratelimit"], "\"mails\";r=4;t=48");
/// ```
#[derive(Clone, Debug)]
pub struct DecisionFields(Option<Arc<Writer>>);

impl DecisionFields {
    /// Selects the fields for decisions by `limiter`, which clients know as `name`. A `pk` is left out, because no key
    /// is given.
    ///
    /// # Panics
    ///
    /// If the name is not printable ASCII.
    #[must_use]
    #[track_caller]
    pub fn new(fields: RateLimitFields, name: &str, limiter: &dyn Limiter) -> Self {
        let terms = limiter.describe().terms();
        let described = Described { name, terms, unit: QuotaUnit::Requests, is_conditional: false };
        Self(Writer::new(&fields, [described]).map(Arc::new))
    }

    /// Returns the fields after a decision by the limiter. There are no fields if the limiter does not advertise a
    /// quota (such as a custom limiter), or if [`advertise`](RateLimitFields::advertise) excludes them. Costs one
    /// allocation per field, and one for the map.
    #[must_use]
    pub fn of(&self, decision: &Decision) -> HeaderMap {
        self.of_under(None, decision)
    }

    /// Returns [the fields](Self::of) after a decision [under the key's own quota](crate::limiter::Ask::under).
    ///
    /// ```
    /// use tower_sluice::headers::{DecisionFields, RateLimitFields};
    /// use tower_sluice::limiter::{Answer, Ask};
    /// use tower_sluice::{Limiter, Quota, RateLimiter, TokenBucket};
    ///
    /// let mails = RateLimiter::in_memory(TokenBucket::new(Quota::per_hour(10)));
    /// let fields = DecisionFields::new(RateLimitFields::draft11(), "mails", &mails);
    /// let (key, own) = ("alice".into(), Some(Quota::per_hour(5_000)));
    ///
    /// let Answer::Ready(Ok(decision)) = mails.decide(&Ask::charge(&key, 1).under(own)) else { unreachable!() };
    /// assert_eq!(fields.of_under(own, &decision)["ratelimit-policy"], "\"mails\";q=5000;w=3600");
    /// ```
    #[must_use]
    pub fn of_under(&self, quota: Option<Quota>, decision: &Decision) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let write =
            |writer: &Arc<Writer>| writer.fields_of_one(PolicyReading { policy: 0, decision, quota, mark: None });
        if let Some(fields) = self.0.as_ref().and_then(write) {
            fields.write(StatusCode::OK, &mut headers);
        }
        headers
    }
}
