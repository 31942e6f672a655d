//! `PreparedFields`: the fields of a rejection in plain HTTP, put together once per layer.

use std::time::Duration;

use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue};

use super::response_fields::{ResponseFields, ratelimit};
use super::wait::{RETRY_AFTER_MS, WaitFields, millis, retry_after};
use super::{RATELIMIT, RATELIMIT_POLICY};

/// All fields of a rejection that advertises a wait and draft-11's fields, with the values that all of them share. A copy of
/// the map takes a third of the instructions of six insertions, each of which hashes a name.
#[derive(Debug)]
pub(crate) struct PreparedFields {
    fields: HeaderMap,
    /// In the order of the map, which its copies have as well.
    values: Vec<Value>,
}

#[derive(Debug)]
enum Value {
    Constant,
    RetryAfter,
    ExactWait,
    WaitInMillis,
    RateLimitPolicy,
    RateLimit,
}

const BLANK: HeaderValue = HeaderValue::from_static("");

impl PreparedFields {
    /// Prepares the fields, in the order in which they are set otherwise. `None` if two have the same name: the operator
    /// chooses that of the exact wait.
    pub(crate) fn new(content_type: Option<HeaderValue>, wait: &WaitFields, cache_control: HeaderValue) -> Option<Self> {
        let all = [
            content_type.map(|content_type| (CONTENT_TYPE, Value::Constant, content_type)),
            Some((RETRY_AFTER, Value::RetryAfter, BLANK)),
            wait.exact.clone().map(|name| (name, Value::ExactWait, BLANK)),
            wait.millis.then_some((RETRY_AFTER_MS, Value::WaitInMillis, BLANK)),
            Some((CACHE_CONTROL, Value::Constant, cache_control)),
            Some((RATELIMIT_POLICY, Value::RateLimitPolicy, BLANK)),
            Some((RATELIMIT, Value::RateLimit, BLANK)),
        ];
        let mut prepared = Self { fields: HeaderMap::new(), values: Vec::new() };
        for (name, value, constant) in all.into_iter().flatten() {
            if prepared.fields.insert(name, constant).is_some() {
                return None;
            }
            prepared.values.push(value);
        }
        Some(prepared)
    }

    /// Returns the fields of a rejection; `None` if it has other fields of the quota than draft-11's.
    pub(crate) fn filled(&self, form: &WaitFields, wait: Duration, quota: &ResponseFields) -> Option<HeaderMap> {
        quota.with_levels(|levels| {
            let mut fields = self.fields.clone();
            for (value, field) in self.values.iter().zip(fields.values_mut()) {
                *field = match value {
                    Value::Constant => continue,
                    Value::RetryAfter => retry_after(wait),
                    Value::ExactWait => form.exact_value(wait),
                    Value::WaitInMillis => millis(wait),
                    Value::RateLimitPolicy => levels[0].0.policies.clone(),
                    Value::RateLimit => ratelimit(levels),
                };
            }
            fields
        })
    }
}
