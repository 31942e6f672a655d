//! `/auth`, as proxies ask it over HTTP.

use reqwest::{Client, Method, Response};

use crate::service::Service;

const CONFIG: &str = r#"
    [client-ip]
    source = "x-forwarded-for"
    trusted = ["127.0.0.1"]

    [[route]]
    path = "/search"
      [[route.policy]]
      name = "per-client"
      algorithm = "token-bucket"
      limit = 2
      per = "1h"
      key = "client-ip"

    [[route]]
    path = "/users/{id}"
      [[route.policy]]
      name = "programs"
      algorithm = "fixed-window"
      limit = 1
      per = "1day"
      key = ["header:x-api-key", "path"]

    [[route]]
    path = "/shop"
      [[route.policy]]
      name = "per-user"
      algorithm = "token-bucket"
      limit = 1
      per = "1h"
      key = "descriptor:user"
"#;

async fn ask(service: &Service, path: &str, fields: &[(&str, &str)]) -> Response {
    let mut request = Client::new().get(service.url(path));
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    request.send().await.unwrap()
}

fn field<'a>(response: &'a Response, name: &str) -> &'a str {
    response.headers().get(name).unwrap_or_else(|| panic!("no {name} in {response:?}")).to_str().unwrap()
}

#[tokio::test]
async fn a_path_is_limited_by_its_route() {
    let service = Service::start(CONFIG);
    let ada = [("x-forwarded-uri", "/search?q=tea"), ("x-forwarded-for", "192.0.2.1")];
    for left in ["1", "0"] {
        let response = ask(&service, "/auth", &ada).await;
        assert_eq!(response.status(), 200);
        assert!(field(&response, "ratelimit").starts_with(&format!("\"per-client\";r={left};")));
    }
    let rejected = ask(&service, "/auth", &ada).await;
    assert_eq!(rejected.status(), 429);
    assert!((1_700..=1_800).contains(&field(&rejected, "retry-after").parse().unwrap()));
    assert!(rejected.headers().contains_key("x-rate-limited-for"));
    assert!(rejected.text().await.unwrap().contains("quota-exceeded"));

    let bob = [("x-forwarded-uri", "/search?q=tea"), ("x-forwarded-for", "192.0.2.2")];
    assert_eq!(ask(&service, "/auth", &bob).await.status(), 200);
    for spelling in ["/%73earch", "//search", "/a/../search", "/./search?q=1", "/search#/../about", "http://a/search"] {
        let fields = [("x-forwarded-uri", spelling), ("x-forwarded-for", "192.0.2.1")];
        assert_eq!(ask(&service, "/auth", &fields).await.status(), 429, "{spelling}");
    }
    let elsewhere = [("x-forwarded-uri", "/about"), ("x-forwarded-for", "192.0.2.1")];
    assert_eq!(ask(&service, "/auth", &elsewhere).await.status(), 200);
}

/// The client's fields are handed on.
#[tokio::test]
async fn paths_may_follow_the_calls_path() {
    let service = Service::start(CONFIG);
    // A client's field must not replace the path that the proxy asks about.
    let forged = [("x-api-key", "k1"), ("x-forwarded-uri", "/about")];
    assert_eq!(ask(&service, "/auth/users/7?x=1", &forged).await.status(), 200);
    assert_eq!(ask(&service, "/auth/users/8", &forged).await.status(), 429, "all users have the route's budget");
    assert_eq!(ask(&service, "/auth/users/7", &[("x-api-key", "k2")]).await.status(), 200);
    assert_eq!(ask(&service, "/auth/users/7", &[]).await.status(), 400, "the key is missing");
}

#[tokio::test]
async fn proxies_may_choose_a_rejections_status() {
    let service = Service::start(CONFIG);
    let fields = [("x-forwarded-uri", "/search"), ("x-forwarded-for", "192.0.2.1")];
    for expected in [200, 200] {
        assert_eq!(ask(&service, "/auth-403", &fields).await.status(), expected);
    }
    for (path, status) in [("/auth-403", 403), ("/auth-401", 401)] {
        let rejected = ask(&service, path, &fields).await;
        assert_eq!(rejected.status(), status);
        assert_eq!(status_in_the_body(rejected).await, u64::from(status));
        assert_eq!(ask(&service, path, &[]).await.status(), status, "a call that describes no request");
    }
    // Some proxies leave their client's query in the call.
    assert_eq!(ask(&service, "/auth?status=418", &fields).await.status(), 429);
}

/// Clients send bytes that no URI can have, and proxies hand them on.
#[tokio::test]
async fn every_spelling_is_accepted() {
    let service = Service::start(CONFIG);
    let long = format!("/about?q={}", "x".repeat(60_000));
    for uri in ["/about", "/caf\u{e9}", "/?q=\"<x>\"`", "/a|b\\c", "*", &long, "/about?a b", "/search;x"] {
        let response = ask(&service, "/auth", &[("x-forwarded-uri", uri)]).await;
        assert_eq!(response.status(), 200, "{}", &uri[..uri.len().min(20)]);
    }
    let names: Vec<String> = (0..300).map(|number| format!("x-{number}")).collect();
    let mut fields: Vec<_> = names.iter().map(|name| (name.as_str(), "1")).collect();
    fields.push(("x-forwarded-uri", "/about"));
    assert_eq!(ask(&service, "/auth", &fields).await.status(), 200);
}

#[tokio::test]
async fn a_route_says_what_its_app_ignores() {
    let policy = |limit: u32| {
        format!("policy = [{{ name = \"all\", algorithm = \"fixed-window\", limit = {limit}, per = \"1day\" }}]")
    };
    let ignores = "path-ignores = [\"case\", \"trailing-slash\", \"parameters\"]";
    let service = Service::start(&format!(
        "[[route]]\npath = \"/Export/\"\n{ignores}\n{}\n[[route]]\npath = \"/{{*rest}}\"\n{}\n\
         [[route]]\npath = \"/exact\"\n{}",
        policy(3),
        policy(100),
        policy(1),
    ));
    for (path, expected) in [
        ("/export", 200),
        ("/EXPORT/", 200),
        ("/a/..;x/export;y=1", 200),
        ("/export", 429),
        ("/exact", 200),
        ("/EXACT", 200),
        ("/exact/", 200),
        ("/exact", 429),
    ] {
        assert_eq!(ask(&service, "/auth", &[("x-forwarded-uri", path)]).await.status(), expected, "{path}");
    }
}

async fn status_in_the_body(response: Response) -> u64 {
    let problem: serde_json::Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
    problem["status"].as_u64().unwrap()
}

#[tokio::test]
async fn a_catch_all_route_limits_the_rest() {
    let policy = |limit: u32| {
        format!("policy = [{{ name = \"all\", algorithm = \"fixed-window\", limit = {limit}, per = \"1day\" }}]")
    };
    let of_all = format!("[[route]]\npath = [\"/\", \"/{{*rest}}\"]\n{}", policy(2));
    let service = Service::start(&format!("{of_all}\n[[route]]\npath = \"/login\"\n{}", policy(1)));
    for (path, expected) in [("/auth/login", 200), ("/auth/", 200), ("/auth/a/b/", 200), ("/auth/login", 429)] {
        assert_eq!(ask(&service, path, &[]).await.status(), expected, "{path}");
    }
    // Elsewhere, a limit that clients share is answered with 503.
    let rejected = ask(&service, "/auth/login/", &[]).await;
    assert_eq!(rejected.status(), 429);
    assert_eq!(status_in_the_body(rejected).await, 429);
}

#[tokio::test]
async fn incomplete_calls_get_the_cure() {
    let service = Service::start(CONFIG);
    for (fields, problem) in [
        (&[][..], "X-Forwarded-Uri is missing"),
        (&[("x-forwarded-uri", "/search"), ("x-forwarded-uri", "/about")], "was sent more than once"),
        (&[("x-forwarded-uri", "search")], "is no path"),
        (&[("x-forwarded-uri", "/search"), ("x-forwarded-method", "A B")], "no method"),
    ] {
        let response = ask(&service, "/auth", fields).await;
        assert_eq!(response.status(), 400);
        let text = response.text().await.unwrap();
        assert!(text.contains(problem), "{text}");
    }
    let response = ask(&service, "/auth/shop", &[]).await;
    assert_eq!(response.status(), 400);
    assert!(response.text().await.unwrap().contains("a descriptor of Envoy's rate limit service is missing"));
}

#[tokio::test]
async fn the_clients_method_counts() {
    let service = Service::start(
        r#"
        [[route]]
        path = "/search"
        exempt-preflights = { limit = 50, per = "1s" }
          [[route.policy]]
          name = "all"
          algorithm = "token-bucket"
          limit = 1
          per = "1h"
        "#,
    );
    let preflight = [
        ("x-forwarded-uri", "/search"),
        ("x-forwarded-method", "OPTIONS"),
        ("origin", "https://shop.example"),
        ("access-control-request-method", "GET"),
    ];
    for _ in 0..3 {
        assert_eq!(ask(&service, "/auth", &preflight).await.status(), 200);
    }
    let call = Client::new().request(Method::POST, service.url("/auth/search")).send().await.unwrap();
    assert_eq!(call.status(), 200);
    // A limit that all clients share is not taken for a failing limiter.
    assert_eq!(ask(&service, "/auth/search", &[]).await.status(), 429);
    // In a call with a path, the method and the fields are the client's.
    assert_eq!(ask(&service, "/auth/search", &preflight[1..]).await.status(), 429);
}

#[tokio::test]
async fn grpc_clients_are_rejected_like_others() {
    let service = Service::start(CONFIG);
    for content_type in ["application/grpc", "application/grpc-web", "application/grpc-web-text"] {
        let fields = [("x-forwarded-uri", "/search"), ("x-forwarded-for", "192.0.2.1"), ("content-type", content_type)];
        let mut statuses = Vec::new();
        for _ in 0..3 {
            let call = Client::new().post(service.url("/auth"));
            let call = fields.iter().fold(call, |call, (name, value)| call.header(*name, *value));
            statuses.push(call.send().await.unwrap().status().as_u16());
        }
        assert_eq!(statuses[2], 429, "{content_type}");
    }
}

#[tokio::test]
async fn cookies_queries_and_methods_are_keys() {
    let policy = |path: &str, key: &str| {
        format!(
            "[[route]]\npath = \"{path}\"\n[[route.policy]]\nname = \"all\"\nalgorithm = \"fixed-window\"\nlimit = 1\n\
             per = \"1day\"\nkey = \"{key}\"\n"
        )
    };
    let config = [policy("/c", "cookie:sid"), policy("/q", "query:api_key"), policy("/m", "method")].concat();
    let service = Service::start(&config);
    let status = async |uri: &str, fields: &[(&str, &str)]| {
        let fields = [&[("x-forwarded-uri", uri)], fields].concat();
        ask(&service, "/auth", &fields).await.status().as_u16()
    };
    let with = |cookie: &'static str| [("cookie", cookie)];
    assert_eq!(status("/c", &with("a=1; sid=ada")).await, 200);
    assert_eq!([status("/c", &with("sid=%61da")).await, status("/c", &with("sid=\"ada\"")).await], [429; 2]);
    assert_eq!(status("/c", &with("sid=bob")).await, 200);
    assert_eq!([status("/c", &[]).await, status("/c", &with("sid=a; sid=b")).await], [400; 2]);
    assert_eq!([status("/q?api_key=k1", &[]).await, status("/q?x&%61pi_key=k%31", &[]).await], [200, 429]);
    assert_eq!([status("/q?api_key=k2", &[]).await, status("/q?k=k2", &[]).await], [200, 400]);
    let method = |method: &'static str| [("x-forwarded-method", method)];
    assert_eq!([status("/m", &method("GET")).await, status("/m", &method("POST")).await], [200; 2]);
    // All unknown methods share one budget.
    assert_eq!([status("/m", &method("BREW")).await, status("/m", &method("WHEN")).await], [200, 429]);
}

/// A request's address cannot hold a long query, but its keys are read nevertheless.
#[tokio::test]
async fn long_queries_hide_no_key() {
    let service = Service::start(
        "[[route]]\npath = \"/q\"\n[[route.policy]]\nname = \"per-key\"\nalgorithm = \"fixed-window\"\nlimit = 2\n\
         per = \"365days\"\nkey = \"query:api_key\"\n",
    );
    let ask = async |query: String| {
        let target = format!("/q?{query}");
        ask(&service, "/auth", &[("x-forwarded-uri", &target)]).await.status().as_u16()
    };
    let long = "a".repeat(1 << 14);
    assert_eq!(ask("api_key=SECRET".to_owned()).await, 200);
    for cut in 1..6 {
        // Cutting the query would leave this many bytes of the key.
        let padding = &long[..long.len() - "x=&api_key=".len() - cut];
        assert_eq!(ask(format!("x={padding}&api_key=SECRET")).await, if cut == 1 { 200 } else { 429 }, "{cut}");
    }
    assert_eq!(ask(format!("api_key=other&x={long}&api_key=SECRET")).await, 400, "two values");
}
