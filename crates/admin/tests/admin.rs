//! The admin service: each call, and the requests that it refuses.

#[path = "../../../tests/support/cases.rs"]
mod cases;
#[path = "../../../tests/support/effort.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with other tests")]
mod effort;

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cases::cases;
use effort::rounds;
use futures_util::FutureExt;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use proptest::prelude::*;
use serde_json::{Value, json};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::direct::Limits;
use tower_sluice::key::{HeaderKey, PeerIp, User};
use tower_sluice::policy::{Operate, ShowKey};
use tower_sluice::store::MemoryStore;
use tower_sluice::time::{ManualClock, Timestamp};
use tower_sluice::{
    Balance, Concurrency, FixedWindow, LeakyQueue, MissingKey, Overload, Policy, Quota, RateLimitLayer, RateLimiter,
    SlidingWindow, TokenBucket,
};
use tower_sluice_admin::{Admin, AdminBody};

fn clock() -> ManualClock {
    ManualClock::starting_at(Timestamp::from_nanos(1_000_000_000_000_000_000))
}

/// Two layers: one has several kinds of policies, and both have a policy `logins`.
fn layers(clock: &ManualClock) -> [(&'static str, RateLimitLayer); 2] {
    let store = || MemoryStore::default().with_clock(clock.clone());
    let bucket = RateLimiter::new(TokenBucket::new(Quota::per_second(10).burst(20)), store());
    let logins = || RateLimiter::new(FixedWindow::new(Quota::per_hour(5)), store());
    let pair = Policy::new("logins", logins()).key((User::key(), PeerIp::new()));
    let shadow = RateLimiter::new(SlidingWindow::new(Quota::per_minute(7)), store());
    let api = RateLimitLayer::new([
        Policy::new("per-address", bucket).key(PeerIp::new()),
        pair,
        Policy::new("trial", shadow).key(User::key()).on_missing_key(MissingKey::Share).shadow(),
        // Requests in these tests must not wait.
        Policy::new("line", LeakyQueue::new(Quota::per_second(10))).key(User::key()).when(|_| false),
        Policy::new("open", Concurrency::new(3)).key(User::key()).when(|_| false),
    ]);
    let staff = RateLimitLayer::new(Policy::new("logins", logins()).key(User::key()));
    [("api", api), ("staff", staff)]
}

fn service(layers: &[(&'static str, RateLimitLayer)]) -> Admin {
    Admin::new(layers.iter().map(|(name, layer)| (*name, layer.handle())))
}

fn send(admin: &Admin, request: Request<Full<Bytes>>) -> Response<AdminBody> {
    admin.clone().oneshot(request).now_or_never().expect("memory answers at once").unwrap()
}

fn json_of(response: Response<AdminBody>) -> (StatusCode, Value) {
    let status = response.status();
    let body = response.into_body().collect().now_or_never().unwrap().unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap_or_else(|error| panic!("{error}: {body:?}")))
}

#[track_caller]
fn get(admin: &Admin, path: &str) -> Value {
    let (status, answer) = json_of(send(admin, Request::get(path).body(Full::default()).unwrap()));
    assert_eq!(status, 200, "{path}: {answer}");
    answer
}

fn post(admin: &Admin, call: &str, body: impl Into<Bytes>) -> (StatusCode, Value) {
    let request = Request::post(format!("/api/{call}")).header("content-type", "application/json");
    json_of(send(admin, request.body(Full::new(body.into())).unwrap()))
}

#[track_caller]
fn done(admin: &Admin, call: &str, body: &Value) -> Value {
    let (status, answer) = post(admin, call, body.to_string());
    assert_eq!(status, 200, "{call} {body}: {answer}");
    answer
}

/// Each policy's report on a key, by layer and policy.
fn about(admin: &Admin, key: &str) -> Vec<(String, String)> {
    let answer = done(admin, "key", &json!({ "key": key }));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let policies = answer["policies"].as_array().unwrap().iter();
    policies
        .map(|policy| (format!("{} {}", text(&policy["layer"]), text(&policy["policy"])), text(&policy["state"])))
        .collect()
}

fn use_up(layer: &RateLimitLayer, user: &str, address: [u8; 4], requests: usize) -> Vec<u16> {
    let service = layer
        .layer(service_fn(|_: Request<()>| async { Ok::<_, std::convert::Infallible>(Response::new(String::new())) }));
    let one = || {
        let mut request = Request::new(());
        request.extensions_mut().insert(User::new(user));
        request.extensions_mut().insert(std::net::SocketAddr::from((address, 1)));
        service.clone().oneshot(request).now_or_never().expect("memory answers at once").unwrap().status().as_u16()
    };
    (0..requests).map(|_| one()).collect()
}

#[test]
fn policies_are_listed_with_limits_and_keys() {
    let layers = layers(&clock());
    let answer = get(&service(&layers), "/api/policies");
    let policies = answer["policies"].as_array().unwrap();
    let summary: Vec<_> = policies
        .iter()
        .map(|it| (it["layer"].as_str().unwrap(), it["policy"].as_str().unwrap(), it["kind"].as_str().unwrap()))
        .collect();
    // In the order in which they are charged: policies that delay or hold come last.
    for expected in [
        ("api", "per-address", "bucket"),
        ("api", "logins", "fixed-window"),
        ("api", "trial", "sliding-window"),
        ("api", "line", "queue"),
        ("api", "open", "in-flight"),
        ("staff", "logins", "fixed-window"),
    ] {
        assert!(summary.contains(&expected), "{expected:?} in {summary:?}");
    }
    let of = |layer: &str, name: &str| {
        policies.iter().find(|policy| policy["layer"] == layer && policy["policy"] == name).unwrap().clone()
    };
    let address = of("api", "per-address");
    assert_eq!(
        (&address["limit"], &address["burst"], &address["period_ms"]),
        (&json!(10), &json!(20), &json!(1_000)),
        "{address}"
    );
    assert_eq!(address["table"]["capacity"], 65_536);
    let keys = |layer, name| of(layer, name)["keys"].as_str().unwrap().to_owned();
    assert!(keys("api", "per-address").contains("203.0.113.7"));
    assert!(keys("api", "logins").contains(" + "));
    assert!(keys("api", "trial").contains("(shared)"));
    assert_eq!((&of("api", "trial")["shadow"], &of("api", "line")["waiting"]), (&json!(true), &json!(0)));
    assert_eq!((&of("api", "open")["in_flight"], &of("api", "open")["period_ms"]), (&json!(0), &Value::Null));
    assert_eq!(get(&service(&layers), "/api/stores"), json!({ "stores": [] }), "all are in memory");
}

#[test]
fn overloads_show_the_limit_they_found() {
    let policy = Policy::new("overload", Overload::new().limits(4..=100).starting_at(9)).key(User::key());
    let layers = [("api", RateLimitLayer::new(policy))];
    let admin = Admin::new(layers.iter().map(|(name, layer)| (*name, layer.handle())));
    let policies = get(&admin, "/api/policies");
    let overload = &policies["policies"][0];
    assert_eq!((&overload["kind"], &overload["limit"]), (&json!("overload"), &Value::Null));
    assert_eq!(overload["overload"], json!({ "limit": 9, "overloaded": false, "shed": 0 }));
    assert_eq!((&overload["in_flight"], &overload["waiting"]), (&json!(0), &json!(0)));
    assert_eq!(use_up(&layers[0].1, "ada", [192, 0, 2, 1], 2), [200, 200]);
    let of_key = done(&admin, "key", &json!({ "key": "ada", "layer": "api", "policy": "overload" }));
    let answer = &of_key["policies"][0];
    assert_eq!(
        (&answer["kind"], &answer["state"], &answer["limit"]),
        (&json!("overload"), &json!("passes"), &json!(9)),
        "{of_key}"
    );
}

#[test]
fn each_policy_reports_on_a_key() {
    let clock = clock();
    let layers = layers(&clock);
    let admin = service(&layers);
    let api = &layers[0].1;
    assert_eq!(use_up(api, "ada", [192, 0, 2, 1], 6), [200, 200, 200, 200, 200, 429]);
    let says = |key: &str, policy: &str| {
        let answer = done(&admin, "key", &json!({ "key": key, "layer": "api", "policy": policy }));
        assert_eq!((&answer["key"], answer["policies"].as_array().unwrap().len()), (&json!(key), 1));
        answer["policies"][0].clone()
    };
    let limited = says("ada + 192.0.2.1", "logins");
    assert_eq!((&limited["state"], &limited["left"], &limited["limit"]), (&json!("limited"), &json!(0), &json!(5)));
    let wait = limited["passes_in_ms"].as_u64().unwrap();
    assert!(wait > 0 && wait <= 3_600_000 && wait == limited["full_in_ms"].as_u64().unwrap(), "{limited}");
    let passes = says("192.0.2.1", "per-address");
    assert_eq!((&passes["state"], &passes["left"], &passes["full_in_ms"]), (&json!("passes"), &json!(15), &json!(500)));
    assert_eq!(passes["limit"], 20, "the burst of a bucket");
    let not_mine = says("ada", "per-address");
    assert_eq!((&not_mine["state"], &not_mine["left"]), (&json!("no-key"), &Value::Null));
    assert!(not_mine["keys"].as_str().unwrap().contains("203.0.113.7"));
    // All at once, in the order of the layers.
    let all = about(&admin, "ada");
    assert_eq!(all.len(), 6);
    assert!(all.contains(&("staff logins".to_owned(), "passes".to_owned())), "{all:?}");
    assert!(all.contains(&("api logins".to_owned(), "no-key".to_owned())), "{all:?}");
}

/// A used-up bucket reports when it has a unit again, and the report is true.
#[test]
fn used_up_keys_pass_when_promised() {
    let clock = clock();
    let layers = layers(&clock);
    let (admin, api) = (service(&layers), &layers[0].1);
    // One address, and a user for every four requests, so that no other policy is used up.
    for user in ["a", "b", "c", "d", "e"] {
        assert_eq!(use_up(api, user, [192, 0, 2, 1], 4), [200; 4]);
    }
    assert_eq!(use_up(api, "f", [192, 0, 2, 1], 1), [429]);
    let key = json!({ "key": "192.0.2.1", "policy": "per-address" });
    let state = || done(&admin, "key", &key)["policies"][0].clone();
    assert_eq!((&state()["state"], &state()["passes_in_ms"]), (&json!("limited"), &json!(100)));
    clock.advance(Duration::from_millis(99));
    assert_eq!(use_up(api, "f", [192, 0, 2, 1], 1), [429]);
    clock.advance(Duration::from_millis(1));
    assert_eq!((&state()["state"], &state()["passes_in_ms"]), (&json!("passes"), &json!(0)));
    assert_eq!(use_up(api, "f", [192, 0, 2, 1], 1), [200]);
}

#[test]
fn keys_are_reset_banned_and_allowed() {
    let clock = clock();
    let layers = layers(&clock);
    let (admin, api) = (service(&layers), &layers[0].1);
    let ask = || use_up(api, "ada", [192, 0, 2, 1], 1)[0];
    let body = |more: Value| {
        let mut body = json!({ "layer": "api", "policy": "logins", "key": "ada + 192.0.2.1" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let state = |answer: &Value| answer["state"].as_str().unwrap().to_owned();
    assert_eq!(use_up(api, "ada", [192, 0, 2, 1], 6).last(), Some(&429));
    let reset = done(&admin, "reset", &body(json!({})));
    assert_eq!((state(&reset).as_str(), &reset["left"]), ("passes", &json!(5)));
    assert_eq!(ask(), 200);

    let terms = json!({ "for": "1h", "reason": "tries stolen passwords" });
    let ban = done(&admin, "ban", &body(terms.clone()));
    assert_eq!(state(&ban), "banned");
    let expected = json!({ "by_hand": true, "left_ms": 3_600_000, "reason": "tries stolen passwords", "since_ms": 0 });
    assert_eq!(ban["ban"], expected);
    assert_eq!(ask(), 429);
    clock.advance(Duration::from_secs(60));
    let later = &done(&admin, "key", &json!({ "key": "ada + 192.0.2.1", "layer": "api" }))["policies"];
    let later = later.as_array().unwrap().iter().find(|policy| policy["policy"] == "logins").unwrap();
    assert_eq!((&later["ban"]["since_ms"], &later["ban"]["left_ms"]), (&json!(60_000), &json!(3_540_000)));
    let exceptions = get(&admin, "/api/exceptions");
    let expected = json!([{
        "layer": "api", "policy": "logins", "key": "ada + 192.0.2.1", "kind": "ban", "by_hand": true,
        "left_ms": 3_540_000, "reason": "tries stolen passwords", "since_ms": null,
    }]);
    assert_eq!(exceptions["exceptions"], expected);

    let allowed = done(&admin, "allow", &body(json!({ "for": 90, "reason": "support call" })));
    assert_eq!((state(&allowed).as_str(), &allowed["allowance"]["left_ms"]), ("allowed", &json!(90_000)));
    assert_eq!(use_up(api, "ada", [192, 0, 2, 1], 10), [200; 10]);
    assert_eq!(get(&admin, "/api/exceptions")["exceptions"][0]["kind"], "allowance");
    let unbanned = done(&admin, "unban", &body(json!({})));
    assert_eq!((state(&unbanned).as_str(), &unbanned["left"]), ("passes", &json!(4)), "its budget is as it was");
    assert_eq!(get(&admin, "/api/exceptions"), json!({ "exceptions": [] }));

    // The layer may be left out if only one has the policy.
    let address = json!({ "policy": "per-address", "key": "2001:db8::7", "for": "2days", "reason": "scrapes" });
    assert_eq!(state(&done(&admin, "ban", &address)), "banned");
    assert_eq!(about(&admin, "2001:db8::/64")[0], ("api per-address".to_owned(), "banned".to_owned()));
}

/// A credit or charge that is repeated with its reference does not count again.
#[test]
fn units_count_once_per_reference() {
    let bought = Policy::new("bought", Balance::new()).key(User::key());
    let api = Policy::new("api", FixedWindow::new(Quota::per_day(10))).key(User::key());
    let admin = Admin::new([("app", RateLimitLayer::new([api, bought]).handle())]);
    let payment =
        json!({ "policy": "bought", "key": "alice", "units": 500, "expires_in": "1h", "reference": "invoice-17" });
    for is_repeated in [false, true] {
        let state = done(&admin, "credit", &payment);
        assert_eq!(
            (&state["kind"], &state["left"], &state["repeated"]),
            (&json!("balance"), &json!(500), &json!(is_repeated))
        );
    }
    let job = json!({ "policy": "api", "key": "alice", "units": 12, "reference": "job-1" });
    for is_repeated in [false, true] {
        let state = done(&admin, "charge", &job);
        assert_eq!((&state["state"], &state["repeated"]), (&json!("limited"), &json!(is_repeated)));
    }
    for (call, body, problem) in [
        ("credit", json!({ "policy": "api", "key": "alice", "units": 1, "reference": "x" }), "keeps no credits"),
        ("credit", json!({ "policy": "bought", "key": "alice", "units": 1 }), "`reference` is missing"),
        ("credit", json!({ "policy": "bought", "key": "alice", "units": 0, "reference": "x" }), "`units` is 0"),
        ("charge", json!({ "policy": "api", "key": "alice", "reference": "x" }), "`units` is missing"),
        (
            "charge",
            json!({ "policy": "api", "key": "alice", "units": 1, "reference": "x", "expires_in": "1h" }),
            "`expires_in`",
        ),
    ] {
        let (status, answer) = post(&admin, call, body.to_string());
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
        assert!(answer["detail"].as_str().unwrap().contains(problem), "{answer}");
    }
}

/// Each mistake has a status and a cure, and changes nothing.
#[test]
fn mistakes_in_calls_are_explained() {
    let layers = layers(&clock());
    let admin = service(&layers);
    let logins = r#""layer": "api", "policy": "logins", "key": "ada + 192.0.2.1""#;
    let long = format!("{{{logins}, \"for\": \"1h\", \"reason\": \"{}\"}}", "a".repeat(201));
    for (call, body, status, cure) in [
        ("ban", "", 400, "no JSON"),
        ("ban", "{", 400, "no JSON"),
        ("ban", "policy=logins&key=ada", 400, "no JSON"),
        ("ban", &"[".repeat(10_000), 400, "no JSON"),
        ("ban", "[]", 422, "no object"),
        ("ban", "\"ada\"", 422, "no object"),
        ("ban", "{}", 422, "`key` is missing"),
        ("ban", r#"{"key": 7, "policy": "logins"}"#, 422, "`key` is 7; write a text"),
        ("ban", r#"{"key": "ada"}"#, 422, "`policy` is missing"),
        ("ban", &format!("{{{logins}}}"), 422, "`for` is missing"),
        ("ban", &format!("{{{logins}, \"for\": \"1h\"}}"), 422, "`reason` is missing"),
        ("ban", &format!("{{{logins}, \"for\": \"1h\", \"reason\": \" \"}}"), 422, "write a few words"),
        ("ban", &format!("{{{logins}, \"for\": \"1h\", \"reason\": \"a\\nb\"}}"), 422, "one line"),
        ("ban", &long, 422, "200 bytes"),
        (
            "ban",
            &format!("{{{logins}, \"for\": \"for ever\", \"reason\": \"x\"}}"),
            422,
            "write 30s, 15min, 3h or 2days",
        ),
        ("ban", &format!("{{{logins}, \"for\": \"3\", \"reason\": \"x\"}}"), 422, "write 30s, 15min, 3h or 2days"),
        ("allow", &format!("{{{logins}, \"for\": \"900\", \"reason\": \"x\"}}"), 422, "write 30s, 15min, 3h or 2days"),
        (
            "ban",
            &format!("{{{logins}, \"for\": -1, \"reason\": \"x\"}}"),
            422,
            "write 30s, 15min, 3h or 2days, or a number",
        ),
        (
            "ban",
            &format!("{{{logins}, \"for\": 1e300, \"reason\": \"x\"}}"),
            422,
            "write 30s, 15min, 3h or 2days, or a number",
        ),
        (
            "ban",
            &format!("{{{logins}, \"for\": null, \"reason\": \"x\"}}"),
            422,
            "write 30s, 15min, 3h or 2days, or a number",
        ),
        ("ban", &format!("{{{logins}, \"for\": 0, \"reason\": \"x\"}}"), 422, "zero"),
        ("ban", &format!("{{{logins}, \"for\": 18446744073709551615, \"reason\": \"x\"}}"), 422, "a hundred years"),
        ("ban", &format!("{{{logins}, \"for\": \"1h\", \"resaon\": \"x\", \"reason\": \"x\"}}"), 422, "`resaon`"),
        ("unban", &format!("{{{logins}, \"for\": \"1h\"}}"), 422, "`for` is no member"),
        ("reset", r#"{"policy": "logins", "key": "ada"}"#, 422, "write the `layer`"),
        ("reset", r#"{"policy": "login", "key": "ada"}"#, 404, "there are: "),
        ("reset", r#"{"layer": "ap", "policy": "logins", "key": "ada"}"#, 404, "there are: api, staff"),
        ("key", r#"{"key": "ada", "policy": "login"}"#, 404, "per-address"),
        ("reset", r#"{"layer": "api", "policy": "logins", "key": "ada"}"#, 422, "203.0.113.7"),
        ("reset", r#"{"policy": "line", "key": "ada"}"#, 422, "cannot reset a key; unban it, or allow it"),
        ("ban", r#"{"policy": "trial", "key": "ada", "for": "1h", "reason": "x"}"#, 422, "is a shadow"),
    ] {
        let (found, problem) = post(&admin, call, body.to_owned());
        assert_eq!(found.as_u16(), status, "{call} {body:.80}: {problem}");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(cure), "{call} {body:.80}: {detail}");
        assert_eq!((&problem["status"], &problem["type"]), (&json!(status), &json!("about:blank")));
    }
    let (status, problem) = post(&admin, "key", vec![b' '; 16 * 1_024 + 1]);
    assert_eq!((status.as_u16(), problem["detail"].as_str()), (413, Some("the body is longer than 16 KiB")));
    assert_eq!(get(&admin, "/api/exceptions"), json!({ "exceptions": [] }));
}

/// A request with these fields. Its body is a ban that would be carried out.
fn with_fields(method: &Method, path: &str, fields: &[(&str, &str)]) -> Request<Full<Bytes>> {
    let ban = r#"{"policy": "line", "key": "eve", "for": "1h", "reason": "x"}"#;
    let request = Request::builder().method(method).uri(path);
    fields.iter().fold(request, |request, (name, value)| request.header(*name, *value)).body(Full::from(ban)).unwrap()
}

#[test]
fn other_sites_cannot_make_calls() {
    let layers = layers(&clock());
    let admin = service(&layers).host("limits.example");
    const JSON: (&str, &str) = ("content-type", "application/json");
    let own = ("host", "127.0.0.1:3001");
    let refused: &[(u16, &[(&str, &str)])] = &[
        // Forms, and fetches without a preflight.
        (415, &[own]),
        (415, &[own, ("content-type", "text/plain")]),
        (415, &[own, ("content-type", "text/plain; application/json")]),
        (415, &[own, ("content-type", "application/x-www-form-urlencoded")]),
        (415, &[own, ("content-type", "application/jsonp")]),
        // Browsers say where a request comes from.
        (403, &[own, JSON, ("sec-fetch-site", "cross-site")]),
        (403, &[own, JSON, ("sec-fetch-site", "same-site")]),
        (403, &[own, JSON, ("origin", "https://evil.example")]),
        (403, &[own, JSON, ("origin", "http://127.0.0.1:3000")]),
        (403, &[own, JSON, ("origin", "null")]),
        (403, &[own, JSON, ("origin", "")]),
        (403, &[own, JSON, ("origin", "http://127.0.0.1:3001"), ("sec-fetch-site", "cross-site")]),
        // Another site's names that resolve to this server.
        (421, &[("host", "evil.example:3001"), JSON]),
        (421, &[("host", "evil.example:3001"), JSON, ("origin", "http://evil.example:3001")]),
        (421, &[("host", "127.0.0.1.evil.example"), JSON]),
        (421, &[("host", "localhost.evil.example"), JSON]),
        (421, &[("host", ""), JSON]),
        (421, &[("host", "a b"), JSON]),
        (421, &[("host", "limits.example.evil"), JSON]),
    ];
    for (status, fields) in refused {
        let (found, problem) = json_of(send(&admin, with_fields(&Method::POST, "/api/ban", fields)));
        assert_eq!(found.as_u16(), *status, "{fields:?}: {problem}");
    }
    assert_eq!(get(&admin, "/api/exceptions"), json!({ "exceptions": [] }));
    let passed: &[&[(&str, &str)]] = &[
        &[own, JSON],
        &[("host", "[::1]:3001"), ("content-type", "Application/JSON ; charset=utf-8")],
        &[("host", "LOCALHOST"), JSON, ("origin", "http://localhost"), ("sec-fetch-site", "same-origin")],
        &[("host", "limits.example:443"), JSON, ("origin", "https://limits.example:443")],
        &[own, JSON, ("sec-fetch-site", "none")],
    ];
    for fields in passed {
        assert_eq!(send(&admin, with_fields(&Method::POST, "/api/ban", fields)).status(), 200, "{fields:?}");
    }
    // Reads are refused, too, and so is the page under a foreign name.
    let read = |fields: &[(&str, &str)], path| send(&admin, with_fields(&Method::GET, path, fields)).status().as_u16();
    assert_eq!(read(&[own, ("sec-fetch-site", "cross-site")], "/api/exceptions"), 403);
    assert_eq!(read(&[("host", "evil.example")], "/"), 421);
    // A link on another site leads to the page.
    assert_eq!(read(&[own, ("sec-fetch-site", "cross-site")], "/"), 200);
}

/// A method that a path does not support is answered with the methods that it supports.
#[test]
fn unknown_paths_and_methods_are_rejected() {
    let layers = layers(&clock());
    let admin = service(&layers);
    let ask = |method: Method, path: &str| {
        let response = send(&admin, with_fields(&method, path, &[]));
        let allow = response.headers().get("allow").map(|allow| allow.to_str().unwrap().to_owned());
        (response.status().as_u16(), allow)
    };
    for call in ["policies", "stores", "exceptions", "offenders"] {
        let path = format!("/api/{call}");
        assert_eq!(ask(Method::POST, &path), (405, Some("GET".to_owned())), "{call}");
        assert_eq!((ask(Method::GET, &path).0, ask(Method::HEAD, &path).0), (200, 200), "{call}");
    }
    for call in ["key", "reset", "ban", "allow", "unban"] {
        for method in [Method::GET, Method::HEAD, Method::PUT, Method::DELETE, Method::OPTIONS] {
            assert_eq!(ask(method, &format!("/api/{call}")), (405, Some("POST".to_owned())), "{call}");
        }
    }
    for path in ["/api/", "/api/kill", "/api/policies/", "/admin", "/../etc/passwd", "//api/policies"] {
        assert_eq!(ask(Method::GET, path), (404, None), "{path}");
    }
    assert_eq!(ask(Method::POST, "/"), (405, Some("GET".to_owned())));
}

/// Answers are not stored, and files allow nothing from elsewhere.
#[test]
fn answers_and_files_have_safe_headers() {
    let layers = layers(&clock());
    let admin = service(&layers);
    for (method, path) in [(Method::GET, "/api/policies"), (Method::POST, "/api/key"), (Method::GET, "/api/none")] {
        let response = send(&admin, with_fields(&method, path, &[]));
        assert_eq!(response.headers()["cache-control"], "no-store", "{path}");
        assert_eq!(response.headers()["x-content-type-options"], "nosniff", "{path}");
    }
    let mut size = 0;
    for (path, media_type) in [
        ("/", "text/html"),
        ("/admin.css", "text/css"),
        ("/admin.js", "text/javascript"),
        ("/card.js", "text/javascript"),
        ("/words.js", "text/javascript"),
    ] {
        let response = send(&admin, with_fields(&Method::GET, path, &[]));
        assert_eq!(response.status(), 200, "{path}");
        assert!(response.headers()["content-type"].to_str().unwrap().starts_with(media_type), "{path}");
        let policy = response.headers()["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"), "{path}: {policy}");
        let text = response.into_body().collect().now_or_never().unwrap().unwrap().to_bytes();
        let text = std::str::from_utf8(&text).unwrap().replace("http://www.w3.org/2000/svg", "");
        assert!(!text.contains("://") && !text.contains("\"//"), "{path} names another origin");
        assert!(!text.contains("innerHTML") && !text.contains(" style="), "{path}");
        // Paths are relative, so the page works wherever it is mounted.
        assert!(!text.contains("\"/") && !text.contains("`/"), "{path} has an absolute path");
        size += text.len();
    }
    assert!(size < 40_000, "{size} bytes");
}

#[test]
#[should_panic(expected = "two layers have the name `api`")]
fn layer_names_must_be_unique() {
    let layer = RateLimitLayer::per_client(Quota::per_second(1));
    let _ = Admin::new([("api", layer.handle()), ("api", layer.handle())]);
}

#[test]
fn offenders_are_listed_with_their_times() {
    let bucket = |name: &'static str| Policy::new(name, FixedWindow::new(Quota::per_day(1))).key(User::key());
    let api = RateLimitLayer::new(bucket("whole").track_offenders(ShowKey::whole()));
    let hashed = RateLimitLayer::new(bucket("hashed").track_offenders(ShowKey::hash()));
    let silent = RateLimitLayer::new(bucket("silent"));
    let admin = Admin::new([("api", api.handle()), ("hashed", hashed.handle()), ("silent", silent.handle())]);
    let lists = || get(&admin, "/api/offenders")["offenders"].as_array().unwrap().clone();
    assert_eq!(lists().iter().map(|list| &list["policy"]).collect::<Vec<_>>(), ["whole", "hashed"]);
    for (user, rejections) in [("ada", 3), ("bea", 1)] {
        for layer in [&api, &hashed, &silent] {
            assert_eq!(use_up(layer, user, [192, 0, 2, 1], 1 + rejections).pop(), Some(429));
        }
    }
    let [whole, hashed] = &lists()[..] else { panic!("two policies") };
    let listed = |list: &Value| {
        let entries = list["list"].as_array().unwrap().iter();
        entries.map(|entry| (entry["key"].as_str().unwrap().to_owned(), entry["count"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(listed(whole), [("ada".to_owned(), json!(3)), ("bea".to_owned(), json!(1))]);
    let is_whole = |list: &Value| list["list"][0]["whole"].clone();
    assert_eq!((&whole["total"], is_whole(whole), is_whole(hashed)), (&json!(4), json!(true), json!(false)));
    assert!(listed(hashed)[0].0.len() == 16 && !hashed.to_string().contains("ada"), "{hashed}");
    // However the list shows keys, an operator who knows a key learns about it.
    let about = done(&admin, "key", &json!({ "key": "ada" }))["policies"].clone();
    for policy in [&about[0], &about[1]] {
        let rejections = &policy["rejections"];
        assert_eq!(rejections["count"], 3, "{policy}");
        let [first, last] = ["first_ms", "last_ms"].map(|at| rejections[at].as_u64().unwrap());
        assert!(first <= last && first > 1_600_000_000_000, "{rejections}");
    }
    assert_eq!(about[2].get("rejections"), None);
    assert_eq!(done(&admin, "key", &json!({ "key": "zoe" }))["policies"][0]["rejections"], Value::Null);
}

/// A key that cannot be typed was shown as another key's text, and that key was banned in its place.
#[test]
fn bans_hit_the_listed_key() {
    let policy = Policy::new("api", FixedWindow::new(Quota::per_hour(1)))
        .key(HeaderKey::from_static("x-api-key"))
        .track_offenders(ShowKey::whole());
    let layer = RateLimitLayer::new(policy);
    let admin = Admin::new([("api", layer.handle())]);
    let long = "k".repeat(300);
    let values = [&b"\xff\xfe"[..], b"a\tb", "a\u{85}".as_bytes(), b"a  b", long.as_bytes(), b"0xfffe", b"(0xfffe)"];
    let ask = |value: &[u8]| {
        let service = layer.layer(service_fn(|_: Request<()>| ready(Ok::<_, Infallible>(Response::new(())))));
        let request = Request::builder().header("x-api-key", value).body(()).unwrap();
        service.oneshot(request).now_or_never().expect("memory answers at once").unwrap().status().as_u16()
    };
    for value in values {
        assert_eq!([ask(value), ask(value)], [200, 429], "{value:?}");
    }
    let listed = get(&admin, "/api/offenders")["offenders"][0]["list"].clone();
    let listed: Vec<_> = listed.as_array().unwrap().iter().map(|entry| entry["key"].as_str().unwrap()).collect();
    assert_eq!(listed.len(), values.len());
    for key in &listed {
        let allow = json!({ "policy": "api", "key": key, "for": "1h", "reason": "x" });
        assert_eq!(done(&admin, "allow", &allow)["state"], "allowed");
    }
    for value in values {
        assert_eq!(ask(value), 200, "{value:?}");
    }
    let shown = get(&admin, "/api/exceptions")["exceptions"].clone();
    let mut shown: Vec<_> = shown.as_array().unwrap().iter().map(|entry| entry["key"].as_str().unwrap()).collect();
    let mut listed = listed;
    shown.sort_unstable();
    listed.sort_unstable();
    assert_eq!(shown, listed);
}

proptest! {
    #![proptest_config(cases(rounds(200, 20_000)))]

    /// Any body gets a JSON answer, and never a panic.
    #[test]
    fn any_body_is_answered(
        call in prop::sample::select(vec!["key", "reset", "ban", "allow", "unban"]),
        key in ".*",
        policy in prop_oneof![Just("logins".to_owned()), Just("per-address".to_owned()), Just("line".to_owned()), ".*"],
        span in prop_oneof![Just(json!("1h")), any::<u64>().prop_map(|n| json!(n)), ".*".prop_map(|text| json!(text))],
        reason in ".*",
        cut in any::<prop::sample::Index>(),
        flip in any::<u8>(),
    ) {
        let layers = layers(&clock());
        let admin = service(&layers);
        let body = match call {
            "key" => json!({ "key": key }),
            "reset" | "unban" => json!({ "key": key, "policy": policy, "layer": "api" }),
            _ => json!({ "key": key, "policy": policy, "layer": "api", "for": span, "reason": reason }),
        };
        let body = body.to_string().into_bytes();
        let (status, _) = post(&admin, call, body.clone());
        prop_assert!([200, 404, 422].contains(&status.as_u16()), "{status}");
        let mut broken = body;
        let at = cut.index(broken.len());
        broken[at] ^= flip;
        let (status, _) = post(&admin, call, broken.clone());
        prop_assert!([200, 400, 404, 422].contains(&status.as_u16()), "{status}");
        broken.truncate(at);
        prop_assert_eq!(post(&admin, call, broken).0.as_u16(), 400);
    }
}

/// The limits on jobs, which are in no layer, beside a layer's limits.
#[test]
fn limits_on_values_work_beside_layers() {
    let jobs = Policy::on("jobs", FixedWindow::new(Quota::per_hour(9))).key_by(|customer: &u64| *customer);
    let jobs = Limits::new(jobs.track_offenders(ShowKey::whole()));
    jobs.decide(&17).now_or_never().unwrap().unwrap().finish();
    let layer = RateLimitLayer::new(Policy::new("api", Quota::per_hour(5)).key(User::key()));
    let all: [(_, Arc<dyn Operate>); 2] = [("requests", layer.handle().into()), ("jobs", jobs.clone().into())];
    let admin = Admin::new(all);
    let listed = get(&admin, "/api/policies");
    let names: Vec<_> = listed["policies"].as_array().unwrap().iter().map(|policy| &policy["layer"]).collect();
    assert_eq!(names, ["requests", "jobs"]);
    let key = done(&admin, "key", &json!({ "key": "17", "policy": "jobs" }));
    assert_eq!(key["policies"][0]["left"], 8, "{key}");
    let charge = json!({ "policy": "jobs", "key": "17", "units": 3, "reference": "by hand" });
    assert_eq!(done(&admin, "charge", &charge)["left"], 5);
    let ban = json!({ "policy": "jobs", "key": "17", "for": "1h", "reason": "a loop" });
    assert_eq!(done(&admin, "ban", &ban)["state"], "banned");
    assert!(jobs.decide(&17).now_or_never().unwrap().is_err());
    let offenders = get(&admin, "/api/offenders");
    assert_eq!(offenders["offenders"][0]["list"][0]["key"], "17", "{offenders}");
    assert_eq!(get(&admin, "/api/exceptions")["exceptions"][0]["reason"], "a loop");
    let reset = json!({ "policy": "jobs", "key": "17" });
    assert_eq!(done(&admin, "reset", &reset)["left"], 9);
    assert!(jobs.decide(&17).now_or_never().unwrap().is_ok());
}
