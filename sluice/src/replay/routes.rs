//! Finds the route of a path, as the router of the file's program does.

use axum::Router;
use axum::body::Body;
use axum::extract::MatchedPath;
use axum::routing::any;
use futures_util::FutureExt;
use http::{Request, Response};
use tower::ServiceExt;
use tower_sluice::config::{Config, ConfigError};

/// The matcher that axum has.
pub(crate) struct Routes(matchit::Router<(usize, MatchedPath)>);

impl Routes {
    /// # Errors
    ///
    /// If a router cannot have two of the paths together.
    pub(crate) fn new(file: &str, config: &Config) -> Result<Self, ConfigError> {
        let mut matcher = matchit::Router::new();
        for (index, route) in config.routes().iter().enumerate() {
            for path in route.paths() {
                let refused = |problem: &str| refused(file, route.line(), path, problem);
                let matched = matched_path(path).ok_or_else(|| refused("no router matches it"))?;
                matcher.insert(path, (index, matched)).map_err(|error| refused(&error.to_string()))?;
            }
        }
        Ok(Self(matcher))
    }

    /// Checks that a router can have these paths together. Each has the line of its route.
    pub(crate) fn check<'a>(
        file: &str,
        paths: impl IntoIterator<Item = (&'a str, usize)>,
    ) -> Result<(), ConfigError> {
        let mut matcher = matchit::Router::new();
        for (path, line) in paths {
            matcher.insert(path, ()).map_err(|error| refused(file, line, path, &error.to_string()))?;
        }
        Ok(())
    }

    pub(crate) fn find(&self, path: &str) -> Option<(usize, &MatchedPath)> {
        let (index, matched) = self.0.at(path).ok()?.value;
        Some((*index, matched))
    }
}

fn refused(file: &str, line: usize, path: &str, problem: &str) -> ConfigError {
    ConfigError::new(file, line, format!("path `{path}`: {problem}; change one of the paths"))
}

/// Lets a router match a path, since it alone makes a [`MatchedPath`].
fn matched_path(path: &str) -> Option<MatchedPath> {
    let handler = any(|matched: MatchedPath| async {
        let mut response = Response::new(Body::empty());
        response.extensions_mut().insert(matched);
        response
    });
    let segments = path.split('/').map(|segment| if segment.starts_with('{') { "x" } else { segment });
    let request = Request::builder().uri(segments.collect::<Vec<_>>().join("/")).body(Body::empty()).ok()?;
    let router: Router = Router::new().route(path, handler);
    let response = router.oneshot(request).now_or_never()?.ok()?;
    response.extensions().get().cloned()
}
