//! What `sluice check` says of a valid configuration that may surprise behind a proxy. Each note begins with its line.

use std::collections::HashMap;

use tower_sluice::config::{Config, Route};

use crate::path::PathIgnores;
use crate::replay::pattern;

/// Finds routes that common routers take for one: those of Express, Fiber, Rails and ASP.NET, and servlet containers.
pub(crate) fn of_paths(config: &Config) -> Vec<String> {
    let all = PathIgnores { case: true, trailing_slash: true, parameters: true };
    let mut known: HashMap<String, (&Route, &str)> = HashMap::new();
    let mut notes = Vec::new();
    for route in config.routes() {
        for path in route.paths() {
            let (first, other) = *known.entry(without_names(&pattern(path, all))).or_insert((route, path));
            if !std::ptr::eq(first, route) {
                notes.push(format!(
                    "{}: note: path `{path}` is `{other}` of line {} for an app that ignores case, a slash at the end or \
                     parameters; if yours does, put both into one route with path-ignores",
                    route.line(),
                    first.line()
                ));
            }
        }
    }
    notes
}

/// `/{id}` and `/{name}` match alike.
fn without_names(path: &str) -> String {
    let segments = path.split('/').map(|segment| match segment {
        segment if segment.starts_with("{*") => "{*}",
        segment if segment.starts_with('{') => "{}",
        segment => segment,
    });
    segments.collect::<Vec<_>>().join("/")
}

/// The longest head of an answer that each proxy takes by the files of `examples/proxies`.
const LONGEST_HEAD: usize = 12_000;

/// Finds routes whose answers may be too long for a proxy, which then lets the request pass.
pub(crate) fn of_heads(config: &Config) -> Vec<String> {
    let mut notes = Vec::new();
    for route in config.routes() {
        let policies = route.layer().map(|layer| layer.handle().policies()).unwrap_or_default();
        // Each policy is in two fields, with its name and some parameters of up to 20 digits.
        let bytes: usize = policies.iter().map(|policy| 2 * (policy.name().len() + 40)).sum();
        if bytes > LONGEST_HEAD {
            notes.push(format!(
                "{}: note: the fields of an answer take about {bytes} bytes for {} policies; proxies may refuse it and let \
                 all requests pass; shorten the names, or write advertise = \"rejected\" into [response]",
                route.line(),
                policies.len()
            ));
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(paths: &[&str], name: &str, policies: usize) -> Config {
        let policy = |number| {
            format!("[[route.policy]]\nname = \"{name}{number}\"\nalgorithm = \"fixed-window\"\nlimit = 1\nper = \"1s\"\n")
        };
        let policies: String = (0..policies).map(policy).collect();
        let routes = paths.iter().map(|path| format!("[[route]]\npath = \"{path}\"\n{policies}"));
        Config::parse("limits.toml", &routes.collect::<String>()).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn routes_that_are_alike_are_noted() {
        for (first, second) in [("/export", "/Export"), ("/export", "/export/"), ("/a/{id}", "/A/{name}/"), ("/a;x", "/a")] {
            let notes = of_paths(&config(&[first, second], "all", 0));
            assert_eq!(notes.len(), 1, "{first} {second}");
            assert!(notes[0].starts_with(&format!("4: note: path `{second}` is `{first}` of line 2")), "{notes:?}");
        }
        assert!(of_paths(&config(&["/a", "/b", "/{*rest}", "/{name}"], "all", 0)).is_empty());
    }

    #[test]
    fn heads_that_no_proxy_takes_are_noted() {
        assert!(of_heads(&config(&["/a"], "short", 30)).is_empty());
        let notes = of_heads(&config(&["/a", "/b"], &"x".repeat(60), 70));
        assert_eq!(notes.len(), 2);
        assert!(notes[0].starts_with("2: note: the fields of an answer take about 14"), "{notes:?}");
    }
}
