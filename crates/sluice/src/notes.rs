//! Notes in `sluice check` on routes that are valid but may surprise behind a proxy. Each note begins with its line.

use std::collections::{HashMap, HashSet};

use crate::path::PathIgnores;
use crate::routes::pattern;
use crate::words::RouteWords;

/// Finds routes that common routers do not tell apart: Express, Fiber, Rails, ASP.NET and servlet containers.
pub(crate) fn of_paths(routes: &[RouteWords]) -> Vec<String> {
    let all = PathIgnores { case: true, trailing_slash: true, parameters: true };
    let mut known: HashMap<String, (usize, &str)> = HashMap::new();
    let mut notes = Vec::new();
    for route in routes {
        let line = route.line;
        for path in &route.paths {
            let (first, other) = *known.entry(without_names(&pattern(path, all))).or_insert((line, path));
            if first != line {
                notes.push(format!(
                    "{line}: path `{path}` is `{other}` of line {first} for an app that ignores case, a slash at the end \
                     or parameters; if yours does, put both into one route with path-ignores"
                ));
            }
        }
    }
    notes
}

/// Finds routes that match a folder's contents but not the folder itself: `/files/{*rest}` does not match `/files/`, as
/// in axum.
pub(crate) fn of_folders(routes: &[RouteWords]) -> Vec<String> {
    let all = routes.iter().flat_map(|route| route.paths.iter().map(|path| pattern(path, route.ignored)));
    let known: HashSet<String> = all.collect();
    let mut notes = Vec::new();
    for RouteWords { paths, line, ignored, .. } in routes {
        for path in paths {
            let Some((folder, _)) = path.split_once("{*") else { continue };
            if !known.contains(&pattern(folder, *ignored)) {
                notes.push(format!(
                    "{line}: path `{path}` does not match `{folder}`; if your app serves that, add it to the route"
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

/// The longest response head that every proxy accepts with the files in `examples/proxies`.
const LONGEST_HEAD: usize = 12_000;

/// Finds routes whose answers may be too long for a proxy, which then lets the request pass.
pub(crate) fn of_heads(routes: &[RouteWords]) -> Vec<String> {
    let mut notes = Vec::new();
    for route in routes {
        // Each policy is in two fields, with its name and some parameters with up to 20 digits.
        let bytes: usize = route.policies.iter().map(|policy| 2 * (policy.name.len() + 40)).sum();
        if bytes > LONGEST_HEAD {
            notes.push(format!(
                "{}: the fields of an answer take about {bytes} bytes for {} policies; proxies may refuse it and let \
                 all requests pass; shorten the names, or write advertise = \"never\" into [response]",
                route.line,
                route.policies.len()
            ));
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::FileWords;

    fn notes(paths: &[&str], name: &str, policies: usize) -> [Vec<String>; 2] {
        let policy = |number| {
            format!(
                "[[route.policy]]\nname = \"{name}{number}\"\nalgorithm = \"fixed-window\"\nlimit = 1\nper = \"1s\"\n"
            )
        };
        let policies: String = (0..policies).map(policy).collect();
        let text: String = paths.iter().map(|path| format!("[[route]]\npath = \"{path}\"\n{policies}")).collect();
        let routes = FileWords::parse("f.toml", &text).routes();
        [of_paths(&routes), of_heads(&routes)]
    }

    #[test]
    fn routes_that_are_alike_are_noted() {
        for (first, second) in
            [("/export", "/Export"), ("/export", "/export/"), ("/a/{id}", "/A/{name}/"), ("/a;x", "/a")]
        {
            let [notes, _] = notes(&[first, second], "all", 0);
            assert_eq!(notes.len(), 1, "{first} {second}");
            assert!(notes[0].starts_with(&format!("4: path `{second}` is `{first}` of line 2")), "{notes:?}");
        }
        assert!(notes(&["/a", "/b", "/{*rest}", "/{name}"], "all", 0)[0].is_empty());
    }

    #[test]
    fn folders_that_no_route_has_are_noted() {
        let notes =
            |paths: &str| of_folders(&FileWords::parse("f.toml", &format!("[[route]]\npath = {paths}\n")).routes());
        for paths in ["\"/files\"", "[\"/\", \"/{*rest}\"]", "[\"/files/{*rest}\", \"/files/\"]"] {
            assert!(notes(paths).is_empty(), "{paths}");
        }
        let expected =
            "2: path `/files/{*rest}` does not match `/files/`; if your app serves that, add it to the route";
        assert_eq!(notes("[\"/files/{*rest}\", \"/files\"]"), [expected]);
        assert!(notes("[\"/files/{*rest}\", \"/files\"]\npath-ignores = [\"trailing-slash\"]").is_empty());
    }

    #[test]
    fn heads_that_no_proxy_takes_are_noted() {
        assert!(notes(&["/a"], "short", 30)[1].is_empty());
        let [_, notes] = notes(&["/a", "/b"], &"x".repeat(60), 70);
        assert_eq!(notes.len(), 2);
        assert!(notes[0].starts_with("2: the fields of an answer take about 14"), "{notes:?}");
    }
}
