//! `PathKey`: keys from the matched route or the raw path.

use super::{KeyError, KeyExtractor, identity_of};
use crate::engine::key::text::{self, KeyTextError};
#[cfg(feature = "axum")]
use crate::engine::key::{Length, Streak};
use crate::http::head::RequestHead;
#[cfg(feature = "axum")]
use crate::http::key::log;
use crate::values::PartitionKey;

/// Keys by the path of the request.
///
/// Clients share the budget of a path. So a policy with this key alone rejects with status 503 instead of 429, and
/// takes no [penalty](crate::Policy::penalty): a client that uses up the budget would get the others banned. Combine it
/// with the key of a client to limit each by itself:
///
/// ```
/// use tower_sluice::algorithm::TokenBucket;
/// use tower_sluice::key::{PathKey, PeerIp};
/// use tower_sluice::{Policy, Quota};
///
/// let per_path = Policy::new("path", TokenBucket::new(Quota::per_second(1_000))).key(PathKey::raw());
/// let both = Policy::new("client", TokenBucket::new(Quota::per_second(10))).key((PeerIp::new(), PathKey::raw()));
/// # drop((per_path, both));
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct PathKey {
    source: PathSource,
}

#[derive(Clone, Copy, Debug)]
enum PathSource {
    #[cfg(feature = "axum")]
    Matched,
    Raw,
}

impl PathKey {
    /// Keys by the route that axum matched, such as `/users/{id}`: one budget per route, however its path
    /// is spelled. Requests that match no route share one budget.
    ///
    /// For layers inside the router (`Router::layer`, `Router::route_layer`). **Around a router
    /// no route is matched yet, and all requests share one budget.** That is logged once, if the first thousand
    /// requests of the process are all unmatched.
    #[cfg(feature = "axum")]
    pub const fn matched() -> Self {
        Self { source: PathSource::Matched }
    }

    /// ```compile_fail,E0277
    /// let _ = tower_sluice::key::PathKey::matched();
    /// ```
    #[cfg(not(feature = "axum"))]
    #[doc(hidden)]
    pub fn matched<'a>() -> Self
    where
        &'a crate::util::feature::Off: crate::util::feature::Axum,
    {
        unreachable!("no feature is off and on")
    }

    /// Keys by the path as the client spelled it.
    ///
    /// A client that can reach one resource by many paths (`/users/1`, `//users/1`, `/users/%31`) has a budget for
    /// each. A second policy in the same layer, with a key by client, limits all of them together.
    pub const fn raw() -> Self {
        Self { source: PathSource::Raw }
    }
}

/// Whether the first requests of the process are all unmatched. One streak for all keys, since a `PathKey` is `Copy`
/// and has no state of its own: one layer inside the router silences the warning for another around it.
#[cfg(feature = "axum")]
static UNMATCHED: Streak<100> = Streak::new();

impl KeyExtractor for PathKey {
    fn extract(&self, head: &RequestHead<'_>) -> Result<PartitionKey, KeyError> {
        Ok(match self.source {
            #[cfg(feature = "axum")]
            PathSource::Matched => matched_route(head),
            PathSource::Raw => head.uri().path().into(),
        })
    }

    /// By a path, and not by a client.
    fn is_shared(&self) -> bool {
        true
    }

    fn identity(&self) -> Option<String> {
        identity_of(self)
    }

    fn read_text(&self, text: &str) -> Result<PartitionKey, KeyTextError> {
        match text::unquoted(text) {
            _ if text.trim() == text::SHARED => Ok(PartitionKey::SHARED),
            Some(path) if path.starts_with(b"/") => Ok((&*path).into()),
            _ => Err(KeyTextError::new("a path, such as /users/{id}")),
        }
    }

    fn write_text(&self, key: &PartitionKey) -> Option<String> {
        if *key == PartitionKey::SHARED { Some(text::SHARED.to_owned()) } else { text::write_name(key) }
    }
}

#[cfg(feature = "axum")]
fn matched_route(head: &RequestHead<'_>) -> PartitionKey {
    let route = head.extensions().get::<axum::extract::MatchedPath>();
    if !UNMATCHED.is_decided() {
        match route {
            Some(_) => UNMATCHED.interrupt(),
            None => match UNMATCHED.extend() {
                Some(Length::First) => log::first_unmatched(),
                Some(Length::Long) => log::no_route_matched(),
                None => {}
            },
        }
    }
    route.map_or(PartitionKey::SHARED, |route| route.as_str().into())
}
