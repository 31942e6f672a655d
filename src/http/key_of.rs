//! Requests as the keys that policies make from them: see [`KeyOf`].

use http::Request;
use http::request::Parts;

use crate::engine::domain::Http;
use crate::engine::policy::Policy;
use crate::engine::reload::sealed::Find;
use crate::engine::reload::{KeyOf, Target};
use crate::http::head::RequestHead;
use crate::values::LimiterError;

impl KeyOf<Http> for RequestHead<'_> {}

impl Find<Http> for RequestHead<'_> {
    fn find(self, policy: &Policy) -> Result<Target, LimiterError> {
        Target::of_subject(policy, &self)
    }
}

impl KeyOf<Http> for &Parts {}

impl Find<Http> for &Parts {
    fn find(self, policy: &Policy) -> Result<Target, LimiterError> {
        Target::of_subject(policy, &RequestHead::from(self))
    }
}

impl<B> KeyOf<Http> for &Request<B> {}

impl<B> Find<Http> for &Request<B> {
    fn find(self, policy: &Policy) -> Result<Target, LimiterError> {
        Target::of_subject(policy, &RequestHead::from(self))
    }
}
