//! `PreparedFields`: the fields for a plain HTTP rejection, built once per layer.

use std::time::Duration;

use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::response_fields::{PolicyLevel, ResponseFields, ratelimit};
use super::wait::{RETRY_AFTER_MS, WaitFields, millis, retry_after};
use super::{RATELIMIT, RATELIMIT_POLICY};

/// All fields for rejections that advertise a wait and draft-11's fields, with the values that they share. Copying the
/// map takes half the instructions of six insertions, because each insertion hashes a name.
#[derive(Debug)]
pub(crate) struct PreparedFields {
    fields: HeaderMap,
    /// The source of each value, if it is not constant, in the map's order, which its copies have as well.
    makers: Vec<Option<MakeValue>>,
}

type MakeValue = fn(&WaitFields, Duration, &[PolicyLevel]) -> HeaderValue;

impl PreparedFields {
    /// Prepares the fields, in the order in which they are set otherwise. `None` if two have the same name, because the
    /// operator chooses the exact wait's field name.
    pub(crate) fn new(
        content_type: Option<HeaderValue>,
        wait: &WaitFields,
        cache_control: HeaderValue,
    ) -> Option<Self> {
        let constant = |name: HeaderName, value| (name, value, None);
        let made = |name: HeaderName, maker: MakeValue| (name, HeaderValue::from_static(""), Some(maker));
        let all = [
            content_type.map(|content_type| constant(CONTENT_TYPE, content_type)),
            Some(made(RETRY_AFTER, |_, wait, _| retry_after(wait))),
            wait.exact.clone().map(|name| made(name, |form, wait, _| form.exact_value(wait))),
            wait.millis.then(|| made(RETRY_AFTER_MS, |_, wait, _| millis(wait))),
            Some(constant(CACHE_CONTROL, cache_control)),
            Some(made(RATELIMIT_POLICY, |_, _, levels| levels[0].0.policies.clone())),
            Some(made(RATELIMIT, |_, _, levels| ratelimit(levels))),
        ];
        let mut prepared = Self { fields: HeaderMap::new(), makers: Vec::new() };
        for (name, value, maker) in all.into_iter().flatten() {
            if prepared.fields.insert(name, value).is_some() {
                return None;
            }
            prepared.makers.push(maker);
        }
        Some(prepared)
    }

    /// Sets all fields for a rejection. Returns `false` if it has other quota fields than draft-11's.
    #[inline]
    pub(crate) fn fill(
        &self,
        fields: &mut HeaderMap,
        form: &WaitFields,
        wait: Duration,
        quota: &ResponseFields,
    ) -> bool {
        let fill = |levels: &[PolicyLevel]| {
            *fields = self.fields.clone();
            for (value, maker) in fields.values_mut().zip(&self.makers) {
                if let Some(make) = maker {
                    *value = make(form, wait, levels);
                }
            }
        };
        quota.with_levels(fill).is_some()
    }
}
