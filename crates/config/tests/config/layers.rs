//! Checks that valid configurations are accepted, and the layers that they build.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response, Version};
use http_body_util::{BodyExt, Full};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice_config::Config;

use crate::{documented_format, with};

#[test]
fn valid_configurations_are_accepted() {
    for line in [
        "burst = 20",
        "cost = 1",
        "shadow = true",
        "status = 418",
        "store = \"memory\"",
        "on-missing-key = \"share\"",
        "on-failure = \"allow\"",
        "charge-when = [401, 403]",
        "warn-at = [0.8, 1]",
        "key = \"user\"\npenalty = { rejections = 3, per = \"1m\", ban = \"1m\", factor = 2, up-to = \"1day\", forgetting-after = \"7days\" }",
        "key = \"header:x-api-key\"\npenalty = { rejections = 30, per = \"1m\", ban = \"10m\" }",
        "key = [\"client-ip\", \"header:X-Api-Key\", \"user\", \"path\", \"global\"]",
        "per = \"1day\"",
        "per = \"250ms\"",
    ] {
        Config::parse("f.toml", &with(line)).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
    let queue = with("algorithm = \"leaky-queue\"");
    for line in ["burst = 9\nmax-queue = 4", "max-wait = \"3s\""] {
        Config::parse("f.toml", &format!("{queue}\n{line}")).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
    for when_full in ["reject", "overflow", "evict-least"] {
        let text = format!("{queue}\nmax-keys = 1\nwhen-full = \"{when_full}\"");
        Config::parse("f.toml", &text).unwrap_or_else(|error| panic!("{when_full}: {error}"));
    }
    let error = Config::parse("f.toml", &format!("{queue}\nmax-keys = 0")).unwrap_err().to_string();
    assert!(error.contains("max-keys = 0 is out of range; write a number from 1"), "{error}");
    let unlimited = Config::parse("f.toml", "[[route]]\npath = [\"/a\", \"/b/{c}\"]").unwrap();
    assert_eq!(unlimited.routes()[0].paths(), ["/a", "/b/{c}"]);
    assert!(unlimited.routes()[0].layer().is_none());
}

#[tokio::test]
async fn layers_report_each_policys_waiters() {
    let text = "[[route]]\npath = \"/q\"\n[[route.policy]]\nname = \"q\"\nalgorithm = \"leaky-queue\"\nlimit = 1\nper = \"1h\"\n\
                max-wait = \"2h\"\n[[route.policy]]\nname = \"b\"\nalgorithm = \"token-bucket\"\nlimit = 10\nper = \"1h\"\n";
    let config = Config::parse("f.toml", text).unwrap();
    let layer = config.routes()[0].layer().unwrap();
    let waiting = || layer.backlog("q").map(|backlog| backlog.waiting());
    assert_eq!((waiting(), layer.backlog("b"), layer.backlog("none")), (Some(0), None, None));
    let service = layer
        .layer(service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())) }));
    assert_eq!(service.clone().oneshot(Request::new(())).await.unwrap().status(), 200);
    let mut waits = tokio_test::task::spawn(service.oneshot(Request::new(())));
    assert!(waits.poll().is_pending());
    assert_eq!(waiting(), Some(1));
    let hour = std::time::Duration::from_secs(3_600);
    assert!(layer.backlog("q").unwrap().next_release().is_some_and(|wait| wait <= hour && wait > hour / 2));
    drop(waits);
    assert_eq!(waiting(), Some(0));
}

#[test]
fn the_example_servers_default_is_accepted() {
    Config::parse("server.toml", include_str!("../../../../examples/server/server.toml")).unwrap();
}

#[test]
fn the_documented_format_is_accepted() {
    let format = documented_format();
    assert!(format.lines().count() > 20);
    for text in [format.clone(), format.replace("#response =", "response =")] {
        crate::reader().parse("format.toml", &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    }
}

#[tokio::test]
async fn charge_on_and_penalty_apply() {
    let used_up = with("limit = 1").replace("1s", "1h");
    // The service answers 200.
    for (line, statuses) in
        [("charge-when = [401]", [200, 200, 200, 200]), ("charge-when = [200]", [200, 503, 503, 503])]
    {
        let answers = answers(&format!("{used_up}{line}\n"), 0, "text/plain").await;
        assert_eq!(answers.each_ref().map(|answer| answer.status().as_u16()), statuses, "{line}");
    }
    let suspended: [_; 2] = answers(&format!("{used_up}suspended = true\n"), 0, "text/plain").await;
    assert_eq!(suspended.each_ref().map(|answer| answer.status().as_u16()), [403, 403]);
    // The first rejection advertises the wait, one early retry is free, and the next begins the ban.
    let banned = used_up.replace(
        "key = \"global\"",
        "key = \"header:content-type\"\npenalty = { rejections = 1, per = \"1m\", ban = \"2h\" }",
    );
    let answers: [_; 4] = answers(&banned, 0, "text/plain").await;
    assert_eq!(answers.each_ref().map(|answer| answer.status().as_u16()), [200, 429, 429, 429]);
    assert_eq!(answers[3].headers()["retry-after"], "7200");
}

/// Queues do not have free retries.
#[tokio::test]
async fn retries_are_charged_once() {
    let once = "charge-once = { header = \"content-type\", within = \"1h\", free-retries = 2 }";
    let used_up = with("limit = 1").replace("1s", "1day");
    let answers: [_; 4] = answers(&format!("{used_up}{once}\n"), 0, "text/plain").await;
    assert_eq!(answers.each_ref().map(|answer| answer.status().as_u16()), [200, 200, 200, 503]);
    let queue = format!("{}{once}", with("algorithm = \"leaky-queue\""));
    let error = Config::parse("f.toml", &queue).unwrap_err().to_string();
    assert!(
        error.starts_with(
            "f.toml:9: policy `p`: `charge-once` cannot be combined with a limiter that delays requests: a free"
        ),
        "{error}"
    );
}

/// A route's exemptions hold for each of its policies, which may add some. A change applies to running layers.
#[tokio::test]
async fn exemptions_on_routes_and_policies_apply() {
    let policy = "[[route.policy]]\nname = \"NAME\"\nalgorithm = \"fixed-window\"\nlimit = 1\nper = \"1day\"\n";
    let (first, second) = (policy.replace("NAME", "p"), policy.replace("NAME", "q"));
    let text = format!(
        "[client-ip]\nsource = \"x-forwarded-for\"\ntrusted = [\"192.0.2.7\"]\n\
         [[route]]\npath = \"/a\"\nexempt = {{ networks = [\"10.0.0.0/8\"], paths = [\"/healthz\"] }}\n\
         {first}exempt = {{ headers = {{ x-internal = [\"swordfish\", \"trout\"] }} }}\n{second}"
    );
    let mut config = Config::parse("f.toml", &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let layer = config.routes()[0].layer().unwrap().clone();
    let status = async |path: &str, peer: [u8; 4], field: (&'static str, &str)| {
        let hello = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())) });
        let mut request = Request::get(path).header(field.0, field.1).body(()).unwrap();
        request.extensions_mut().insert(std::net::SocketAddr::from((peer, 4_711)));
        layer.layer(hello).oneshot(request).await.unwrap().status().as_u16()
    };
    let (proxy, inside, outside) = ([192, 0, 2, 7], [10, 0, 0, 1], [203, 0, 113, 9]);
    assert_eq!(status("/a", outside, ("x-internal", "swordfish")).await, 200, "charged by the second alone");
    assert_eq!(status("/a", outside, ("x-internal", "trout")).await, 503, "by the second");
    for (path, peer, field, expected) in [
        ("/a", inside, ("accept", "*/*"), 200),
        ("/a", proxy, ("x-forwarded-for", "203.0.113.9, 10.1.2.3"), 200),
        ("/a", proxy, ("x-forwarded-for", "10.1.2.3, 203.0.113.9"), 503),
        ("/a", inside, ("x-forwarded-for", "10.1.2.3"), 503),
        ("/healthz", outside, ("accept", "*/*"), 200),
        ("/healthz/", outside, ("accept", "*/*"), 503),
    ] {
        assert_eq!(status(path, peer, field).await, expected, "{path} {peer:?} {field:?}");
    }
    config.change("f.toml", &text.replace("networks = [\"10.0.0.0/8\"], ", "")).unwrap();
    assert_eq!(status("/a", inside, ("accept", "*/*")).await, 503);
    assert_eq!(status("/healthz", outside, ("accept", "*/*")).await, 200);
    let unlimited = "[[route]]\npath = \"/a\"\nexempt = { paths = [\"/a\"] }";
    let error = Config::parse("f.toml", unlimited).unwrap_err().to_string();
    assert!(error.starts_with("f.toml:3: the route has no policy, so that all requests pass uncounted"), "{error}");
}

/// Jitter up to the configured maximum is added to waits, in the route or for all.
#[tokio::test]
async fn retry_jitter_applies() {
    let used_up = with("limit = 1").replace("1s", "1h");
    for text in [
        format!("{used_up}[route.response]\nretry-jitter = \"1day\"\n"),
        format!("[response]\nretry-jitter = \"1day\"\n{used_up}"),
    ] {
        let answers: [_; 21] = answers(&text, 0, "text/plain").await;
        let waits = answers[1..].iter().map(|answer| answer.headers()["retry-after"].to_str().unwrap());
        let waits: Vec<u64> = waits.map(|wait| wait.parse().unwrap()).collect();
        assert!(waits.iter().all(|wait| (3_599..=90_001).contains(wait)), "{waits:?}");
        // The chance that all twenty stay below an hour and a half is 10^-24.
        assert!(waits.iter().any(|wait| *wait > 5_400), "{waits:?}");
    }
}

/// Returns the responses to `N` POSTs with this media type to a route in this configuration.
async fn answers<const N: usize>(config: &str, route: usize, media_type: &str) -> [Response<Bytes>; N] {
    let config = Config::parse("f.toml", config).unwrap_or_else(|error| panic!("{error}\n{config}"));
    let hello = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())) });
    let service = config.routes()[route].layer().unwrap().layer(hello);
    let mut answers = Vec::new();
    for _ in 0..N {
        let request = Request::post("/").version(Version::HTTP_2).header("content-type", media_type).body(()).unwrap();
        let (parts, body) = service.clone().oneshot(request).await.unwrap().into_parts();
        answers.push(Response::from_parts(parts, body.collect().await.unwrap().to_bytes()));
    }
    answers.try_into().unwrap()
}

/// Returns the names of a response's `RateLimit` fields, sorted.
fn limits(answer: &Response<Bytes>) -> String {
    let mut names: Vec<_> = answer.headers().keys().map(|name| name.as_str()).collect();
    names.retain(|name| name.contains("ratelimit"));
    names.sort_unstable();
    names.join(" ")
}

/// A file sets which fields are sent, and when.
#[tokio::test]
async fn response_fields_are_configurable() {
    const DRAFT_11: &str = "ratelimit ratelimit-policy";
    const LEGACY: &str = "x-ratelimit-limit x-ratelimit-remaining x-ratelimit-reset";
    for (answer, fresh, used_up, rejected) in [
        ("", DRAFT_11, DRAFT_11, DRAFT_11),
        ("fields = \"draft-11\"", DRAFT_11, DRAFT_11, DRAFT_11),
        ("fields = \"draft-07\"", DRAFT_11, DRAFT_11, DRAFT_11),
        ("fields = \"none\"", "", "", ""),
        ("fields = \"none\"\nx-ratelimit = \"none\"", "", "", ""),
        ("fields = \"none\"\nx-ratelimit = \"epoch-seconds\"", LEGACY, LEGACY, LEGACY),
        ("advertise = \"always\"", DRAFT_11, DRAFT_11, DRAFT_11),
        ("advertise = \"below-50%\"", "", DRAFT_11, DRAFT_11),
        ("advertise = \"below-0%\"", "", "", DRAFT_11),
        ("advertise = \"rejected\"", "", "", DRAFT_11),
        ("advertise = \"never\"", "", "", ""),
    ] {
        // Two requests take half the burst each, so that one half is left after the first, and nothing after the
        // second.
        let policy = with("cost = 5").replace("1s", "1h");
        for config in [format!("[response]\n{answer}\n{policy}"), format!("{policy}[route.response]\n{answer}\n")] {
            let answers: [_; 3] = answers(&config, 0, "text/plain").await;
            assert_eq!(answers.each_ref().map(limits), [fresh, used_up, rejected], "{config}");
            assert!(answers[2].headers().contains_key("retry-after"), "{config}");
            assert!(answers[2].headers().contains_key("x-rate-limited-for"), "{config}");
        }
    }
}

#[tokio::test]
async fn the_form_of_a_rejection_is_configurable() {
    let rejected = async |answer: &str, media_type: &str| {
        let config = format!("[response]\n{answer}\n{}", with("cost = 10").replace("1s", "1h"));
        let [_, rejected] = answers(&config, 0, media_type).await;
        rejected
    };
    let syntax = async |answer: &str| {
        let rejected = rejected(answer, "text/plain").await;
        rejected.headers()["ratelimit"].to_str().unwrap().split_once('=').unwrap().0.to_owned()
    };
    assert_eq!(syntax("").await, "\"p\";r");
    assert_eq!(syntax("fields = \"draft-11\"").await, "\"p\";r");
    assert_eq!(syntax("fields = \"draft-07\"").await, "limit");

    let reset = async |answer: &str| {
        let rejected = rejected(answer, "text/plain").await;
        rejected.headers()["x-ratelimit-reset"].to_str().unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(reset("x-ratelimit = \"delta-seconds\"").await, 3_600);
    assert!(reset("x-ratelimit = \"epoch-seconds\"").await > 1_700_000_000);

    for (answer, media_type) in [
        ("", Some("application/problem+json")),
        ("rejection-format = \"problem\"", Some("application/problem+json")),
        ("rejection-format = \"text\"", Some("text/plain; charset=utf-8")),
        ("rejection-format = \"empty\"", None),
    ] {
        let rejected = rejected(answer, "text/plain").await;
        assert_eq!(rejected.headers().get("content-type").map(|value| value.to_str().unwrap()), media_type, "{answer}");
        assert_eq!(rejected.body().is_empty(), media_type.is_none(), "{answer}");
    }
    for (answer, status) in
        [("", "8"), ("grpc-status = \"resource-exhausted\"", "8"), ("grpc-status = \"unavailable\"", "14")]
    {
        assert_eq!(rejected(answer, "application/grpc").await.headers()["grpc-status"], status, "{answer}");
    }
}

#[tokio::test]
async fn preflights_count_unless_the_route_exempts_them() {
    let policy = with("cost = 10").replace("1s", "1day");
    let exempting = policy
        .replace("/a", "/b")
        .replace("[[route.policy]]", "exempt-preflights = { limit = 1, per = \"1day\", burst = 2 }\n[[route.policy]]");
    let mut config = Config::parse("f.toml", &(policy.clone() + &exempting)).unwrap();
    let hello = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())) });
    for (route, statuses) in [(0, [200, 503, 503, 503]), (1, [200, 200, 200, 503])] {
        let service = config.routes()[route].layer().unwrap().layer(hello);
        for status in statuses {
            let preflight = Request::builder().method("OPTIONS").header("origin", "https://page.example");
            let preflight = preflight.header("access-control-request-method", "PUT").body(()).unwrap();
            assert_eq!(service.clone().oneshot(preflight).await.unwrap().status(), status, "route {route}");
        }
    }
    let error = config.change("f.toml", &(policy.clone() + &policy.replace("/a", "/b"))).unwrap_err().to_string();
    assert!(error.contains("exempt-preflights of this route differs from the one at the start"), "{error}");
}

#[tokio::test]
async fn route_responses_override_only_their_settings() {
    let policy = with("cost = 10").replace("1s", "1h");
    let other = policy.replace("/a", "/b");
    let general =
        "[response]\nx-ratelimit = \"delta-seconds\"\nrejection-format = \"text\"\nadvertise = \"rejected\"\n";
    let config =
        format!("{general}{policy}[route.response]\nrejection-format = \"empty\"\nx-ratelimit = \"none\"\n{other}");
    let [admitted, rejected] = answers(&config, 0, "text/plain").await;
    assert_eq!([limits(&admitted).as_str(), limits(&rejected).as_str()], ["", "ratelimit ratelimit-policy"]);
    assert!(rejected.body().is_empty());
    let [admitted, rejected] = answers(&config, 1, "text/plain").await;
    assert_eq!(limits(&admitted), "");
    assert!(limits(&rejected).ends_with("x-ratelimit-limit x-ratelimit-remaining x-ratelimit-reset"));
    assert_eq!(rejected.headers()["content-type"], "text/plain; charset=utf-8");
}

/// If the queue is full, the last request in the lowest class gives way. Changing the file keeps the requests in
/// flight.
#[tokio::test(start_paused = true)]
async fn configured_classes_decide_the_shedding() {
    let file = |most: u64| {
        format!(
            "[[route]]\npath = \"/a\"\n[[route.policy]]\nname = \"overload\"\nalgorithm = \"overload\"\n\
             limits = [1, {most}]\nstarting-at = 1\nmax-queue = 1\n\
             priority = {{ by = \"header:x-plan\", classes = {{ gold = \"high\" }}, default = \"low\" }}\n"
        )
    };
    let mut config = Config::parse("f.toml", &file(1)).unwrap();
    let layer = config.routes()[0].layer().unwrap().clone();
    let in_flight = || layer.handle().policies()[0].stats().in_flight.unwrap();
    let hello = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("hello"))));
    let service = layer.layer(hello);
    let send = |plan: &str| {
        let request = Request::get("/a").header("x-plan", plan).body(()).unwrap();
        tokio_test::task::spawn(service.clone().oneshot(request))
    };
    let first = send("free").await.unwrap();
    let mut free = send("free");
    assert!(free.poll().is_pending());
    let mut gold = send("gold");
    assert!(gold.poll().is_pending());
    assert!(free.is_woken());
    let shed = free.await.unwrap();
    assert_eq!((shed.status().as_u16(), shed.headers().get("retry-after"), in_flight()), (503, None, 1));
    assert_eq!(send("free").await.unwrap().status(), 503, "the queue is full of a higher class");
    let overload = layer.handle().policies()[0].stats().overload.unwrap();
    assert_eq!(
        (overload.waiting, overload.shed.iter().chain(&overload.shed_over_share).sum::<u64>()),
        ([0, 0, 1, 0], 2)
    );

    config.change("f.toml", &file(2)).unwrap();
    assert_eq!(in_flight(), 1);
    drop(first);
    assert!(gold.is_woken());
    let gold = gold.await.unwrap();
    assert_eq!((gold.status().as_u16(), in_flight()), (200, 1));
    drop(gold);
    assert_eq!(in_flight(), 0);
}

/// Other policies have to admit in any case.
#[tokio::test]
async fn alternatives_are_tried_in_order() {
    let policy = |name: &str, limit: u64| {
        format!("[[route.policy]]\nname = \"{name}\"\nalgorithm = \"fixed-window\"\nlimit = {limit}\nper = \"1day\"\n")
    };
    let policies: String =
        [("rate", 5), ("share", 1), ("included", 2), ("pool", 9)].map(|(name, limit)| policy(name, limit)).concat();
    let text = |alternatives: &str| format!("[[route]]\npath = \"/a\"\nalternatives = {alternatives}\n{policies}");
    let mut config = Config::parse("f.toml", &text("[\"included\", [\"pool\", \"share\"]]")).unwrap();
    let layer = config.routes()[0].layer().unwrap().clone();
    let service = layer.layer(service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(String::new())) }));
    let charged = || async {
        let response = service.clone().oneshot(Request::new(())).await.unwrap();
        let field = response.headers()["ratelimit"].to_str().unwrap().to_owned();
        let names = field.split(", ").map(|policy| policy.split('"').nth(1).unwrap().to_owned());
        (response.status().as_u16(), names.collect::<Vec<_>>().join(" "))
    };
    assert_eq!(charged().await, (200, "rate included".to_owned()));
    assert_eq!(charged().await, (200, "rate included".to_owned()));
    assert_eq!(charged().await, (200, "rate pool share".to_owned()));
    assert_eq!(charged().await.0, 503);
    // A change may alter the alternatives.
    config.change("f.toml", &text("[\"included\", \"pool\", \"share\"]")).unwrap();
    assert_eq!(charged().await, (200, "rate pool".to_owned()));
}
