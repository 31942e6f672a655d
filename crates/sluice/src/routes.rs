//! Finds the route for a path.

use axum::Router;
use axum::body::Body;
use axum::extract::MatchedPath;
use axum::routing::any;
use futures_util::FutureExt;
use http::{Request, Response};
use tower::ServiceExt;
use tower_sluice_config::{Config, ConfigError};

use crate::path::{PathIgnores, Target, folded, normalized};
use crate::words::RouteWords;

/// A file's paths. If several match, the most specific is found, as in axum's router.
pub(crate) struct Routes(Vec<Matcher>);

/// The paths of all routes that ignore the same differences.
struct Matcher<T = Found> {
    ignored: PathIgnores,
    /// The router that axum uses.
    matcher: matchit::Router<T>,
}

struct Found {
    route: usize,
    path: MatchedPath,
    specificity: Vec<Specificity>,
}

/// How a segment in a path matches. The greater value is more specific.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Specificity {
    Rest,
    Parameter,
    Literal,
}

impl Routes {
    /// `words` describes the routes in `config`.
    ///
    /// # Errors
    ///
    /// If a router does not accept two paths together.
    pub(crate) fn new(file: &str, words: &[RouteWords], config: &Config) -> Result<Self, ConfigError> {
        let mut matchers: Vec<Matcher> = Vec::new();
        for (index, (route, RouteWords { ignored, .. })) in config.routes().iter().zip(words).enumerate() {
            for path in route.paths() {
                let matched =
                    matched_path(path).ok_or_else(|| refused(file, route.line(), path, "no router matches it"))?;
                let found = Found { route: index, path: matched, specificity: specificity(path) };
                let inserted = matcher_of(&mut matchers, *ignored).insert(pattern(path, *ignored), found);
                inserted.map_err(|error| refused(file, route.line(), path, &error.to_string()))?;
            }
        }
        Ok(Self(matchers))
    }

    /// Checks that a router accepts a file's paths together.
    ///
    /// # Errors
    ///
    /// If it does not.
    pub(crate) fn check(file: &str, words: &[RouteWords]) -> Result<(), ConfigError> {
        let mut matchers: Vec<Matcher<()>> = Vec::new();
        for RouteWords { paths, line, ignored, .. } in words {
            for path in paths {
                let inserted = matcher_of(&mut matchers, *ignored).insert(pattern(path, *ignored), ());
                inserted.map_err(|error| refused(file, *line, path, &error.to_string()))?;
            }
        }
        Ok(())
    }

    /// Returns the most specific route that matches under any reading of the target that apps have. So a client cannot
    /// escape a route's limits with a spelling that only its app resolves to that route.
    pub(crate) fn find(&self, target: &Target<'_>) -> Option<(usize, &MatchedPath)> {
        let mut best: Option<&Found> = None;
        for Matcher { ignored, matcher } in &self.0 {
            let path = target.path_without(*ignored);
            let others = target.other_readings(*ignored);
            for path in std::iter::once(&*path).chain(others.iter().map(String::as_str)) {
                let Ok(matched) = matcher.at(path) else { continue };
                // Ties: the first in the file.
                if best.is_none_or(|best| matched.value.specificity > best.specificity) {
                    best = Some(matched.value);
                }
            }
        }
        best.map(|found| (found.route, &found.path))
    }
}

/// The matcher for all routes that ignore the same differences.
fn matcher_of<T>(matchers: &mut Vec<Matcher<T>>, ignored: PathIgnores) -> &mut matchit::Router<T> {
    let known = matchers.iter().position(|matcher| matcher.ignored == ignored).unwrap_or_else(|| {
        matchers.push(Matcher { ignored, matcher: matchit::Router::new() });
        matchers.len() - 1
    });
    &mut matchers[known].matcher
}

/// Spells a route's path as request paths are spelled.
pub(crate) fn pattern(path: &str, ignored: PathIgnores) -> String {
    let mut segments: Vec<String> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            segment if segment.starts_with('{') => segments.push(segment.to_owned()),
            segment => {
                let normalized = normalized(format!("/{segment}").as_bytes(), ignored.parameters).into_owned();
                segments.push(folded(&normalized[1..], PathIgnores { trailing_slash: false, ..ignored }));
            }
        }
    }
    let is_folder = path.ends_with(['/']) || path.ends_with("/.") || path.ends_with("/..");
    let pattern = segments.iter().fold(String::new(), |path, segment| path + "/" + segment);
    match pattern.is_empty() || is_folder && !ignored.trailing_slash {
        true => pattern + "/",
        false => pattern,
    }
}

fn specificity(path: &str) -> Vec<Specificity> {
    let segments = path.split('/').skip(1).map(|segment| match segment {
        segment if segment.starts_with("{*") => Specificity::Rest,
        segment if segment.starts_with('{') => Specificity::Parameter,
        _ => Specificity::Literal,
    });
    segments.collect()
}

fn refused(file: &str, line: usize, path: &str, problem: &str) -> ConfigError {
    ConfigError::new(file, line, format!("path `{path}`: {problem}; change one of the paths"))
}

/// Lets a router match a path, because only axum's router can create a [`MatchedPath`].
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::FileWords;

    /// In axum, `/files/{*rest}` does not match `/files/`.
    #[test]
    fn a_rest_matches_as_in_axum() {
        let text = "[[route]]\npath = \"/files/{*rest}\"";
        let config = Config::reader().parse("f.toml", text).unwrap();
        let routes = Routes::new("f.toml", &FileWords::parse("f.toml", text).routes(), &config).unwrap();
        let router: Router = Router::new().route("/files/{*rest}", any(|| async {}));
        for path in ["/files", "/files/", "/files/a", "/files/a/", "/files/a/b", "/other"] {
            let request = Request::get(path).body(Body::empty()).unwrap();
            let response = router.clone().oneshot(request).now_or_never().unwrap().unwrap();
            let found = routes.find(&Target::read(path.as_bytes()).unwrap());
            assert_eq!(found.is_some(), response.status() == 200, "{path}");
        }
    }
}
