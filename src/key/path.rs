use super::{KeyError, KeyExtractor};
use crate::head::RequestHead;
use crate::partition::PartitionKey;

/// The path of the request.
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
    /// The route that axum matched, such as `/users/{id}`: one budget per route, however its path
    /// is spelled. What matches no route shares one budget.
    ///
    /// For layers inside of the router (`Router::layer`, `Router::route_layer`). **Around a router
    /// nothing is matched yet, and all requests share one budget.**
    #[cfg(feature = "axum")]
    #[must_use]
    pub const fn matched() -> Self {
        Self { source: Source::Matched }
    }

    /// The path as the client spelled it.
    ///
    /// A client that can reach the same thing by many paths (`/users/1`, `//users/1`, `/users/%31`)
    /// has as many budgets. Beside a policy by client, that does no harm.
    #[must_use]
    pub const fn raw() -> Self {
        Self { source: Source::Raw }
    }
}

impl KeyExtractor for PathKey {
    fn extract(&self, head: &RequestHead<'_>) -> Result<PartitionKey, KeyError> {
        Ok(match self.source {
            #[cfg(feature = "axum")]
            Source::Matched => match head.extensions().get::<axum::extract::MatchedPath>() {
                Some(path) => path.as_str().into(),
                None => PartitionKey::SHARED,
            },
            Source::Raw => head.uri().path().into(),
        })
    }

    fn is_shared(&self) -> bool {
        true
    }
}
