//! `PathKey`: keys from the matched route or the raw path.

#[cfg(feature = "axum")]
use super::streak::Streak;
use super::{KeyError, KeyExtractor};
use crate::http::head::RequestHead;
#[cfg(feature = "axum")]
use crate::util::log;
use crate::values::PartitionKey;

/// Keys by the path of the request.
#[derive(Clone, Copy, Debug)]
pub struct PathKey {
    source: Source,
}

#[derive(Clone, Copy, Debug)]
enum Source {
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
    #[must_use]
    pub const fn matched() -> Self {
        Self { source: Source::Matched }
    }

    /// Keys by the path as the client spelled it.
    ///
    /// A client that can reach one resource by many paths (`/users/1`, `//users/1`, `/users/%31`)
    /// has as many budgets. Beside a policy by client, that does no harm.
    #[must_use]
    pub const fn raw() -> Self {
        Self { source: Source::Raw }
    }
}

/// Whether the first requests of the process are all unmatched.
#[cfg(feature = "axum")]
static UNMATCHED: Streak = Streak::new();

impl KeyExtractor for PathKey {
    fn extract(&self, head: &RequestHead<'_>) -> Result<PartitionKey, KeyError> {
        Ok(match self.source {
            #[cfg(feature = "axum")]
            Source::Matched => match head.extensions().get::<axum::extract::MatchedPath>() {
                Some(path) => {
                    if !UNMATCHED.is_decided() {
                        UNMATCHED.interrupt();
                    }
                    path.as_str().into()
                }
                None => {
                    if !UNMATCHED.is_decided() && UNMATCHED.extend() {
                        log::no_route_matched();
                    }
                    PartitionKey::SHARED
                }
            },
            Source::Raw => head.uri().path().into(),
        })
    }

    fn is_shared(&self) -> bool {
        true
    }
}
