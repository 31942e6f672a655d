//! Checks the errors of invalid configurations, and the layers that valid ones build.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response, Version};
use http_body_util::{BodyExt, Full};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::config::Config;

/// Returns a route with one policy, in which `line` replaces the line of the same field, or is added.
fn with(line: &str) -> String {
    let field = line.split(['=', ' ']).next().unwrap();
    let policy = ["name = \"p\"", "algorithm = \"token-bucket\"", "limit = 10", "per = \"1s\"", "key = \"global\""];
    let mut lines: Vec<_> = policy.iter().map(|old| if old.starts_with(field) { line } else { old }).collect();
    if !policy.iter().any(|old| old.starts_with(field)) {
        lines.push(line);
    }
    format!("[[route]]\npath = \"/a\"\n[[route.policy]]\n{}\n", lines.join("\n"))
}

fn error(text: &str) -> String {
    Config::parse("f.toml", text).expect_err(text).to_string()
}

#[test]
fn every_mistake_in_a_policy_is_reported_with_its_line() {
    for (line, expected) in [
        ("limt = 10", "f.toml:9: unknown field `limt`, expected one of `name`, `algorithm`, `limit`, `per`"),
        ("limit = 0", "f.toml:6: limit = 0 is out of range; write a number from 1 to 4294967295"),
        ("limit = -3", "f.toml:6: limit = -3 is out of range"),
        ("limit = 5000000000", "f.toml:6: limit = 5000000000 is out of range"),
        ("limit = \"ten\"", "f.toml:6: limit = \"ten\": write a whole number, such as 10"),
        ("limit = 1.5", "f.toml:6: limit = 1.5: write a whole number, such as 10"),
        ("limit = 99999999999999999999", "f.toml:6: limit = 99999999999999999999: write a whole number"),
        ("shadow = \"yes\"", "f.toml:9: shadow = \"yes\": write true or false"),
        ("name = 3", "f.toml:4: name = 3: write a text in quotation marks"),
        ("store = true", "f.toml:9: store = true: write a word in quotation marks, such as \"memory\""),
        ("status = \"429\"", "f.toml:9: status = \"429\": write a whole number, such as 429"),
        ("charge-on = 401", "f.toml:9: charge-on = 401: write a list in brackets, such as [401, 403]"),
        ("penalty = 3", "f.toml:9: penalty needs a table; write { refusals = 30, per = \"1m\", ban = \"10m\" }"),
        (
            "penalty = { refusals = \"a\", per = \"1m\", ban = \"1m\" }",
            "f.toml:9: refusals = \"a\": write a whole number, such as 30",
        ),
        ("per = \"soon\"", "f.toml:7: per = \"soon\" is not a time; write 250ms, 1s, 1m, 1h or 1day"),
        ("per = 1", "f.toml:7: per = 1: write a time in quotation marks, such as \"1s\""),
        ("per = \"0s\"", "f.toml:7: per = \"0s\": the period is 0; write a time such as 1s"),
        ("per = \"500years\"", "f.toml:7: per = \"500years\": the period of"),
        ("burst = 0", "f.toml:9: burst = 0 is out of range; write a number from 1"),
        (
            "cost = 11",
            "f.toml:9: policy `p`: a cost of 11 never fits in a burst of 10; lower the cost or raise the burst",
        ),
        ("cost = -1", "f.toml:9: cost = -1 is out of range; write a number from 1"),
        ("capacity = 3", "f.toml:9: capacity is for leaky-queue; remove it or choose that algorithm"),
        ("max-wait = \"3s\"", "f.toml:9: max-wait is for leaky-queue; remove it or choose that algorithm"),
        ("order = \"newest-first\"", "f.toml:9: unknown field `order`"),
        (
            "stagger = true",
            "f.toml:9: stagger is for fixed-window and sliding-window; remove it or choose that algorithm",
        ),
        ("max-keys = 9", "f.toml:9: max-keys is for leaky-queue in memory; remove it or choose that algorithm"),
        (
            "when-full = \"reject\"",
            "f.toml:9: when-full is for leaky-queue in memory; remove it or choose that algorithm",
        ),
        ("algorithm = \"tocken-bucket\"", "f.toml:5: algorithm = \"tocken-bucket\": write \"token-bucket\", "),
        ("name = \"two words\"", "f.toml:4: `two words` cannot be a policy's name; begin with a letter and write"),
        ("key = \"ip\"", "f.toml:8: unknown key `ip`; write global, client-ip, header:NAME"),
        ("key = \"header:\"", "f.toml:8: unknown key `header:`"),
        ("key = []", "f.toml:8: the key is empty; write global"),
        ("key = 3", "f.toml:8: key = 3: write a text in quotation marks or a list of such, such as \"client-ip\""),
        ("status = 200", "f.toml:9: status = 200 is out of range; write a number from 400 to 599"),
        ("status = 700", "f.toml:9: status = 700 is out of range; write a number from 400 to 599"),
        ("charge-on = []", "f.toml:9: charge-on = []: no request would count; write the statuses that count"),
        ("charge-on = [401, 99]", "f.toml:9: charge-on = [99]: no response has that status; write 200 to 599"),
        (
            "penalty = { refusals = 0, per = \"1m\", ban = \"1m\" }",
            "f.toml:9: refusals = 0 is out of range; write a number from 1",
        ),
        (
            "penalty = { refusals = 1, per = \"1m\", ban = \"ever\" }",
            "f.toml:9: ban = \"ever\" is not a time; write 250ms",
        ),
        ("penalty = { refusals = 1, per = \"1m\" }", "f.toml:9: missing field `ban`; add ban = \"10m\""),
        (
            "store = \"redis\"",
            "f.toml:9: store = \"redis\" needs a server; write [redis] with url = \"redis://HOST:PORT\" at the top of the file",
        ),
        ("store = \"disk\"", "f.toml:9: store = \"disk\": write \"memory\" or \"redis\""),
        (
            "on-missing-key = \"ignore\"",
            "f.toml:9: on-missing-key = \"ignore\": write \"reject\", \"skip\" or \"share\"",
        ),
        (
            "on-store-error = \"panic\"",
            "f.toml:9: on-store-error = \"panic\": write \"local-guard\", \"allow\" or \"deny\"",
        ),
    ] {
        let message = error(&with(line));
        assert!(message.starts_with(expected), "{line}\n  reported: {message}\n  expected: {expected}");
    }
}

#[test]
fn every_mistake_around_policies_is_reported_with_its_line() {
    let policy = "[[route.policy]]\nname = \"p\"\nalgorithm = \"fixed-window\"\nlimit = 1\nper = \"1s\"\n";
    for (text, expected) in [
        (
            format!("[[route]]\npath = \"/a\"\n{policy}{policy}"),
            "f.toml:9: two policies are named `p`; give each a name of its own",
        ),
        (
            format!("[[route]]\npath = \"/a\"\n{policy}burst = 3"),
            "f.toml:8: burst is for token-bucket, leaky-bucket and leaky-queue",
        ),
        (format!("[[route]]\n{policy}"), "f.toml:1: missing field `path`"),
        ("[[route]]\npath = \"a\"".into(), "f.toml:2: path `a` must begin with a slash; write \"/a\""),
        ("[[route]]\npath = []".into(), "f.toml:2: the route has no path"),
        ("[[route]]\npath = \"/a/:id\"".into(), "f.toml:2: segment `:id` of path `/a/:id` cannot be matched"),
        ("[[route]]\npath = \"/a/{b\"".into(), "f.toml:2: segment `{b` of path `/a/{b` cannot be matched"),
        (
            "[[route]]\npath = \"/a\"\n\n[[route]]\npath = [\"/b\", \"/a\"]".into(),
            "f.toml:5: path `/a` is already served by the route on line 2",
        ),
        (
            "[[route]]\npath = \"/a/{x}\"\n[[route]]\npath = \"/a/{y}\"".into(),
            "f.toml:4: path `/a/{y}` is already served",
        ),
        (
            "[[rout]]\npath = \"/a\"".into(),
            "f.toml:1: unknown field `rout`, expected one of `client-ip`, `redis`, `answer`, `route`",
        ),
        ("[[route]\n".into(), "f.toml:1: "),
        (
            "[client-ip]\nsource = \"x-forwarded-for\"".into(),
            "f.toml:2: any client can forge a header; write which proxies to trust",
        ),
        ("[client-ip]\nsource = \"peer\"\nhops = 1".into(), "f.toml:2: the socket's peer needs no trusted proxies"),
        (
            "[client-ip]\nsource = \"not a header\"\nhops = 1".into(),
            "f.toml:2: source `not a header` is not a header's name",
        ),
        ("[client-ip]\nsource = \"forwarded\"\ntrusted = [\"10.0.0.0/33\"]".into(), "f.toml:3: "),
        (
            "[client-ip]\nipv6-prefix = 16".into(),
            "f.toml:2: ipv6-prefix = 16 is out of range; write a number from 32 to 128",
        ),
        ("\n[client-ip]\nhops = 1".into(), "f.toml:3: the socket's peer needs no trusted proxies"),
        ("[client-ip]\nsource = \"forwarded\"\nhops = 0".into(), "f.toml:3: hops = 0 trusts no proxy"),
        ("[[route]]\npath = \"/a\\\"b\"".into(), "f.toml:2: segment `a\"b`"),
        (
            format!("[[route]]\npath = \"/a\"\nexempt-preflights = 3\n{policy}"),
            "f.toml:3: exempt-preflights needs a table; write { limit = 50, per = \"1s\" }",
        ),
        (
            format!("[[route]]\npath = \"/a\"\nexempt-preflights = {{ limit = 0, per = \"1s\" }}\n{policy}"),
            "f.toml:3: limit = 0 is out of range; write a number from 1",
        ),
        (
            "[[route]]\npath = \"/a\"\nexempt-preflights = { limit = 5, per = \"1s\" }".into(),
            "f.toml:3: the route has no policy, so that all requests pass uncounted; remove exempt-preflights",
        ),
        ("[client-ip]\nhop = 1".into(), "f.toml:2: unknown field `hop`, expected one of `source`, `trusted`, `hops`"),
    ] {
        let message = error(&text);
        assert!(message.starts_with(expected), "{text}\n  reported: {message}\n  expected: {expected}");
    }
}

#[test]
fn every_mistake_in_an_answer_is_reported_with_its_line() {
    for (line, expected) in [
        ("field = \"none\"", "unknown field `field`, expected one of `fields`, `x-ratelimit`, `tell`, `rejection`"),
        ("fields = \"draft-12\"", "fields = \"draft-12\": write \"draft-11\", \"draft-07\" or \"none\""),
        (
            "fields = [\"draft-11\", \"draft-07\"]",
            "fields = [\"draft-11\", \"draft-07\"]: write a word in quotation marks, such as \"draft-11\"",
        ),
        ("fields = 11", "fields = 11: write a word in quotation marks, such as \"draft-11\""),
        ("x-ratelimit = \"date\"", "x-ratelimit = \"date\": write \"epoch\", \"delta\" or \"none\""),
        ("rejection = \"html\"", "rejection = \"html\": write \"problem\", \"text\" or \"empty\""),
        ("grpc-status = \"ok\"", "grpc-status = \"ok\": write \"resource-exhausted\" or \"unavailable\""),
        ("tell = true", "tell = true: write a text in quotation marks"),
        ("tell = \"sometimes\"", "tell = \"sometimes\" is not known; write always, refused, never, or below-20%"),
        ("tell = \"below-101%\"", "tell = \"below-101%\" is not known"),
        ("tell = \"below-300%\"", "tell = \"below-300%\" is not known"),
        ("tell = \"below-+5%\"", "tell = \"below-+5%\" is not known"),
        ("tell = \"below-%\"", "tell = \"below-%\" is not known"),
        ("tell = \"below-20\"", "tell = \"below-20\" is not known"),
        ("retry-jitter = \"some\"", "retry-jitter = \"some\" is not a time; write 250ms, 1s, 1m, 1h or 1day"),
    ] {
        let route = format!("{}[route.answer]\n{line}\n", with("burst = 20"));
        for (text, at) in [(format!("\n[answer]\n{line}\n"), 3), (route, 11)] {
            let message = error(&text);
            let expected = format!("f.toml:{at}: {expected}");
            assert!(message.starts_with(&expected), "{line}\n  reported: {message}\n  expected: {expected}");
        }
    }
    let twice = error("[answer]\n[answer]\n");
    assert!(twice.starts_with("f.toml:2: duplicate key"), "{twice}");
    for text in [
        "[[route]]\npath = \"/a\"\nanswer = { tell = \"never\" }",
        "[[route]]\npath = \"/a\"\n[route.answer]\ntell = \"never\"",
    ] {
        let message = error(text);
        assert!(message.starts_with("f.toml:3: the route has no policy"), "{message}");
    }
}

#[test]
fn valid_configurations_are_accepted() {
    for line in [
        "burst = 20",
        "cost = 1",
        "shadow = true",
        "status = 418",
        "store = \"memory\"",
        "on-missing-key = \"share\"",
        "on-store-error = \"allow\"",
        "charge-on = [401, 403]",
        "key = \"header:x-api-key\"\npenalty = { refusals = 30, per = \"1m\", ban = \"10m\" }",
        "key = [\"client-ip\", \"header:X-Api-Key\", \"user\", \"path\", \"global\"]",
        "per = \"1day\"",
        "per = \"250ms\"",
    ] {
        Config::parse("f.toml", &with(line)).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
    let queue = with("algorithm = \"leaky-queue\"");
    for line in ["burst = 9\ncapacity = 4", "max-wait = \"3s\""] {
        Config::parse("f.toml", &format!("{queue}\n{line}")).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
    for when_full in ["reject", "overflow", "forget-least"] {
        let text = format!("{queue}\nmax-keys = 1\nwhen-full = \"{when_full}\"");
        Config::parse("f.toml", &text).unwrap_or_else(|error| panic!("{when_full}: {error}"));
    }
    let error = Config::parse("f.toml", &format!("{queue}\nmax-keys = 0")).unwrap_err().to_string();
    assert!(error.contains("max-keys = 0 is out of range; write a number from 1"), "{error}");
    assert!(Config::parse("f.toml", "").unwrap().routes().is_empty());
    let unlimited = Config::parse("f.toml", "[[route]]\npath = [\"/a\", \"/b/{c}\"]").unwrap();
    assert_eq!(unlimited.routes()[0].paths(), ["/a", "/b/{c}"]);
    assert!(unlimited.routes()[0].layer().is_none());
}

#[tokio::test]
async fn a_layer_reports_the_waiters_of_each_policy() {
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
fn the_embedded_default_of_the_example_server_is_accepted() {
    Config::parse("server.toml", include_str!("../../examples/server.toml")).unwrap();
}

#[test]
fn the_documented_format_is_accepted() {
    let docs = include_str!("../../src/config/mod.rs").lines().filter_map(|line| line.strip_prefix("//!"));
    let format = docs.skip_while(|line| *line != " ```toml").skip(1).take_while(|line| *line != " ```");
    let format: Vec<_> = format.collect();
    assert!(format.len() > 20);
    for text in [format.join("\n"), format.join("\n").replace("# answer =", "answer =")] {
        Config::parse("format.toml", &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    }
}

#[tokio::test]
async fn charge_on_and_penalty_apply() {
    let used_up = with("limit = 1").replace("1s", "1h");
    // The service answers 200.
    for (line, statuses) in [("charge-on = [401]", [200, 200, 200, 200]), ("charge-on = [200]", [200, 503, 503, 503])] {
        let answers = answers(&format!("{used_up}{line}\n"), 0, "text/plain").await;
        assert_eq!(answers.each_ref().map(|answer| answer.status().as_u16()), statuses, "{line}");
    }
    // The first rejection advertises the wait, one early retry is free, and the next begins the ban.
    let banned = used_up.replace(
        "key = \"global\"",
        "key = \"header:content-type\"\npenalty = { refusals = 1, per = \"1m\", ban = \"2h\" }",
    );
    let answers: [_; 4] = answers(&banned, 0, "text/plain").await;
    assert_eq!(answers.each_ref().map(|answer| answer.status().as_u16()), [200, 429, 429, 429]);
    assert_eq!(answers[3].headers()["retry-after"], "7200");
}

/// Jitter up to the configured maximum is added to waits, in the route or for all.
#[tokio::test]
async fn retry_jitter_applies() {
    let used_up = with("limit = 1").replace("1s", "1h");
    for text in [
        format!("{used_up}[route.answer]\nretry-jitter = \"1day\"\n"),
        format!("[answer]\nretry-jitter = \"1day\"\n{used_up}"),
    ] {
        let answers: [_; 21] = answers(&text, 0, "text/plain").await;
        let waits = answers[1..].iter().map(|answer| answer.headers()["retry-after"].to_str().unwrap());
        let waits: Vec<u64> = waits.map(|wait| wait.parse().unwrap()).collect();
        assert!(waits.iter().all(|wait| (3_599..=90_001).contains(wait)), "{waits:?}");
        // Not one of twenty above an hour and a half: once in 10^24.
        assert!(waits.iter().any(|wait| *wait > 5_400), "{waits:?}");
    }
}

#[cfg(feature = "redis")]
#[test]
fn staggered_windows_are_for_memory() {
    let redis = "[redis]\nurl = \"redis://127.0.0.1:1\"\n";
    let window = with("stagger = true").replace("token-bucket", "fixed-window");
    let message = error(&format!("{redis}{window}"));
    assert!(message.starts_with("f.toml:11: a staggered window is kept in memory only"), "{message}");
    let message = error(&format!("{redis}{}", window.replace("fixed-window", "sliding-window")));
    assert!(message.starts_with("f.toml:11: a staggered window is kept in memory only"), "{message}");
    Config::parse("f.toml", &format!("{redis}{window}store = \"memory\"\n")).unwrap();
    Config::parse("f.toml", &window).unwrap();
}

/// Returns the responses to `N` POSTs of this media type to a route of this configuration.
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

/// Returns the names of the `RateLimit` fields in a response, sorted.
fn limits(answer: &Response<Bytes>) -> String {
    let mut names: Vec<_> = answer.headers().keys().map(|name| name.as_str()).collect();
    names.retain(|name| name.contains("ratelimit"));
    names.sort_unstable();
    names.join(" ")
}

#[tokio::test]
async fn the_fields_and_when_they_are_sent_are_configurable() {
    const DRAFT_11: &str = "ratelimit ratelimit-policy";
    const LEGACY: &str = "x-ratelimit-limit x-ratelimit-remaining x-ratelimit-reset";
    for (answer, fresh, used_up, rejected) in [
        ("", DRAFT_11, DRAFT_11, DRAFT_11),
        ("fields = \"draft-11\"", DRAFT_11, DRAFT_11, DRAFT_11),
        ("fields = \"draft-07\"", DRAFT_11, DRAFT_11, DRAFT_11),
        ("fields = \"none\"", "", "", ""),
        ("fields = \"none\"\nx-ratelimit = \"none\"", "", "", ""),
        ("fields = \"none\"\nx-ratelimit = \"epoch\"", LEGACY, LEGACY, LEGACY),
        ("tell = \"always\"", DRAFT_11, DRAFT_11, DRAFT_11),
        ("tell = \"below-50%\"", "", DRAFT_11, DRAFT_11),
        ("tell = \"below-0%\"", "", "", DRAFT_11),
        ("tell = \"refused\"", "", "", DRAFT_11),
        ("tell = \"never\"", "", "", ""),
    ] {
        // Two of half the burst, so that one half is left after the first, and nothing after the second.
        let policy = with("cost = 5").replace("1s", "1h");
        for config in [format!("[answer]\n{answer}\n{policy}"), format!("{policy}[route.answer]\n{answer}\n")] {
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
        let config = format!("[answer]\n{answer}\n{}", with("cost = 10").replace("1s", "1h"));
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
    assert_eq!(reset("x-ratelimit = \"delta\"").await, 3_600);
    assert!(reset("x-ratelimit = \"epoch\"").await > 1_700_000_000);

    for (answer, media_type) in [
        ("", Some("application/problem+json")),
        ("rejection = \"problem\"", Some("application/problem+json")),
        ("rejection = \"text\"", Some("text/plain; charset=utf-8")),
        ("rejection = \"empty\"", None),
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
async fn an_answer_of_a_route_overrides_only_what_it_sets() {
    let policy = with("cost = 10").replace("1s", "1h");
    let other = policy.replace("/a", "/b");
    let general = "[answer]\nx-ratelimit = \"delta\"\nrejection = \"text\"\ntell = \"refused\"\n";
    let config = format!("{general}{policy}[route.answer]\nrejection = \"empty\"\nx-ratelimit = \"none\"\n{other}");
    let [admitted, rejected] = answers(&config, 0, "text/plain").await;
    assert_eq!([limits(&admitted).as_str(), limits(&rejected).as_str()], ["", "ratelimit ratelimit-policy"]);
    assert!(rejected.body().is_empty());
    let [admitted, rejected] = answers(&config, 1, "text/plain").await;
    assert_eq!(limits(&admitted), "");
    assert!(limits(&rejected).ends_with("x-ratelimit-limit x-ratelimit-remaining x-ratelimit-reset"));
    assert_eq!(rejected.headers()["content-type"], "text/plain; charset=utf-8");
}

#[test]
fn mistakes_about_redis_are_reported_with_their_lines() {
    let policy = |lines: &str| {
        format!(
            "[redis]\nurl = \"redis://127.0.0.1:1\"\n[[route]]\npath = \"/\"\n[[route.policy]]\nname = \"p\"\nlimit = 1\n{lines}"
        )
    };
    for (text, expected) in [
        ("[redis]\nurl = \"127.0.0.1\"".to_owned(), "f.toml:2: "),
        ("[redis]\nurl = []".to_owned(), "f.toml:2: "),
        ("[redis]\ntimeout = \"1s\"".to_owned(), "f.toml:1: missing field `url`"),
        ("[redis]\nurl = \"redis://h\"\ntimeout = \"soon\"".to_owned(), "f.toml:3: timeout = \"soon\" is not a time"),
        (
            "[redis]\nurl = \"redis://h\"\nprefix = \"{x}\"".to_owned(),
            "f.toml:3: prefix = \"{x}\": a cluster takes braces for the part to hash; leave them out",
        ),
        (policy("algorithm = \"fixed-window\"\nper = \"1500ns\""), "f.toml:9: "),
    ] {
        let message = error(&text);
        assert!(message.starts_with(expected), "{text}\n  reported: {message}\n  expected: {expected}");
    }
    for fine in [
        policy("algorithm = \"fixed-window\"\nper = \"1500ns\"\nstore = \"memory\""),
        policy("algorithm = \"leaky-queue\"\nper = \"1s\"\nstore = \"redis\"\ncapacity = 3\nmax-wait = \"9s\""),
        "[redis]\nurl = [\"redis://a:1\", \"redis://b:2\"]\ntimeout = \"20ms\"\nprefix = \"shop\"".to_owned(),
        "[redis]\nurl = [\"redis://a:1\", \"redis://b:2\"]\nmaster = \"main\"".to_owned(),
    ] {
        Config::parse("f.toml", &fine).unwrap_or_else(|error| panic!("{fine}: {error}"));
    }
}
