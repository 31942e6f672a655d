//! Checks that a file's limits are around its paths' handlers.

use axum::Router;
use axum::body::Body;
use axum::routing::{get, post};
use http::Request;
use tower::ServiceExt;
use tower_sluice_config::Config;

const FILE: &str = "
[[route]]
path = [\"/a\", \"/users/{id}\"]
[[route.policy]]
name = \"p\"
algorithm = \"token-bucket\"
limit = 2
per = \"1h\"

[[route]]
path = \"/unlimited\"
";

async fn statuses(app: &Router, requests: &[(&str, &str)]) -> Vec<u16> {
    let mut statuses = Vec::new();
    for (method, path) in requests {
        let request = Request::builder().method(*method).uri(*path).body(Body::empty()).unwrap();
        statuses.push(app.clone().oneshot(request).await.unwrap().status().as_u16());
    }
    statuses
}

#[tokio::test]
async fn handlers_get_the_limits_of_their_paths() {
    let mut config = Config::parse("f.toml", FILE).unwrap();
    let ok = || async { "ok" };
    let app = config
        .router([("/users/{name}", get(ok).post(ok)), ("/a", post(ok)), ("/unlimited", get(ok)), ("/healthz", get(ok))])
        .unwrap();
    // Both paths on a route share its budget.
    let limited = [("GET", "/users/1"), ("POST", "/a"), ("POST", "/users/2"), ("POST", "/a")];
    assert_eq!(statuses(&app, &limited).await, [200, 200, 503, 503]);
    assert_eq!(statuses(&app, &[("GET", "/unlimited"), ("GET", "/healthz"), ("GET", "/none")]).await, [200, 200, 404]);
    // A change applies to the running router.
    config.change("f.toml", &FILE.replace("limit = 2", "limit = 4")).unwrap();
    assert_eq!(statuses(&app, &limited).await, [200, 200, 503, 503]);
}

#[tokio::test]
async fn a_catch_all_route_limits_the_rest() {
    let policy = |limit: u64| {
        format!(
            "policy = [{{ name = \"it\", algorithm = \"fixed-window\", limit = {limit}, per = \"1h\", key = \"global\" }}]"
        )
    };
    let file = format!(
        "[[route]]\npath = [\"/\", \"/{{*rest}}\"]\n{}\n[[route]]\npath = \"/login\"\n{}\n",
        policy(3),
        policy(1)
    );
    let config = Config::parse("f.toml", &file).unwrap();
    let ok = || async { "ok" };
    let app = config.router([("/login", get(ok)), ("/{*path}", get(ok)), ("/", get(ok))]).unwrap();
    let paths = ["/", "/a", "/login", "/a/b/c/", "/login", "/login/", "/"].map(|path| ("GET", path));
    assert_eq!(statuses(&app, &paths).await, [200, 200, 200, 200, 503, 503, 503]);
}

/// Otherwise, a misspelled path in the file would leave its handler without a limit.
#[test]
fn paths_without_handlers_are_reported() {
    let config = Config::parse("f.toml", FILE).unwrap();
    let ok = || async { "ok" };
    let error = config.router::<()>([("/b", get(ok)), ("/users/{id}", get(ok))]).unwrap_err().to_string();
    assert_eq!(error, "f.toml:3: path `/a` has no handler; write one that has (/b, /users/{id}), or remove the path");
    let error = config.router::<()>([("/a", get(ok)), ("/users/{id}", get(ok))]).unwrap_err().to_string();
    assert!(error.starts_with("f.toml:11: path `/unlimited` has no handler"), "{error}");
    // These paths do not stand for a parameter with one segment: the first spans any number of segments, and the second
    // is a brace.
    for other in ["/users/{*rest}", "/users/{{id}}"] {
        let error = config.router::<()>([("/a", get(ok)), ("/unlimited", get(ok)), (other, get(ok))]).unwrap_err();
        assert!(error.to_string().contains("path `/users/{id}` has no handler"), "{other}: {error}");
    }
}
