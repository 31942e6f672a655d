//! [`KeyOf`]: the ways in which an operator names a key of a policy.

use http::Request;
use http::request::Parts;

use crate::http::head::RequestHead;
use crate::http::policy::Policy;
use crate::values::{LimiterError, PartitionKey, Quota};

/// A key of a policy, as an operator names it to a [`LimitsHandle`](crate::LimitsHandle).
///
/// | | the key |
/// |---|---|
/// | `&PartitionKey` | this key, unchecked |
/// | [`RequestHead`], `&Parts`, `&Request` | the key that the policy makes of this request: an IPv6 address becomes its network, and the value of a header is trimmed |
/// | `&str`, `&String` | the key that [is written so](crate::key::KeyExtractor::read_text): `203.0.113.7`, `alice`, `alice + 203.0.113.7`, or `(shared)` for the key that all requests share |
///
/// Each key can be written, also one of other bytes than text: a name in quotation marks may have `\xff` for a byte;
/// `(0x00ff)` is the key of these bytes, and `(sha256:…)` the key of which only this SHA-256 [is
/// kept](PartitionKey#cost). These two are taken for any policy, unchecked, as a `PartitionKey` is.
///
/// Implemented for these types only.
pub trait KeyOf: sealed::Find {}

pub(super) mod sealed {
    use super::{LimiterError, Policy, Target};

    pub trait Find {
        fn find(self, policy: &Policy) -> Result<Target, LimiterError>;
    }
}

/// A key, and its quota if the policy has one for each request.
#[derive(Debug)]
pub struct Target {
    pub(crate) key: PartitionKey,
    pub(crate) quota: Option<Quota>,
}

impl Target {
    /// No request provides the key's quota: the limiter may know it from the last request.
    const fn without_quota(key: PartitionKey) -> Self {
        Self { key, quota: None }
    }
}

impl KeyOf for &PartitionKey {}

impl sealed::Find for &PartitionKey {
    fn find(self, _: &Policy) -> Result<Target, LimiterError> {
        Ok(Target::without_quota(self.clone()))
    }
}

impl KeyOf for &str {}

impl sealed::Find for &str {
    fn find(self, policy: &Policy) -> Result<Target, LimiterError> {
        let key = policy.selector.key_of_text(self);
        key.map(Target::without_quota).map_err(|error| LimiterError::no_key(policy.name(), &error))
    }
}

impl KeyOf for &String {}

impl sealed::Find for &String {
    fn find(self, policy: &Policy) -> Result<Target, LimiterError> {
        sealed::Find::find(self.as_str(), policy)
    }
}

impl KeyOf for RequestHead<'_> {}

impl sealed::Find for RequestHead<'_> {
    fn find(self, policy: &Policy) -> Result<Target, LimiterError> {
        let key = policy.selector.key.extract(&self).or_else(|error| {
            let no_key = || LimiterError::no_key(policy.name(), &format!("the request has no key: {error}"));
            policy.selector.key_without(&error).ok_or_else(no_key)
        })?;
        let quota = policy.quota_of(&self, &key);
        Ok(Target { key, quota })
    }
}

impl KeyOf for &Parts {}

impl sealed::Find for &Parts {
    fn find(self, policy: &Policy) -> Result<Target, LimiterError> {
        sealed::Find::find(RequestHead::from(self), policy)
    }
}

impl<B> KeyOf for &Request<B> {}

impl<B> sealed::Find for &Request<B> {
    fn find(self, policy: &Policy) -> Result<Target, LimiterError> {
        sealed::Find::find(RequestHead::from(self), policy)
    }
}
