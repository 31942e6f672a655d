//! Fields and bodies in responses.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_sluice::algorithm::{CalendarWindow, FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::headers::{Advertise, EXPOSED_HEADERS, RateLimitFields, ResetForm, WaitFields};
use tower_sluice::key::{HeaderKey, PathKey};
use tower_sluice::layer::RateLimitLayerBuilder;
use tower_sluice::rejection::{Reason, RejectionBody, RejectionFormat};
use tower_sluice::store::MemoryStore;
use tower_sluice::time::{ManualClock, Timestamp};
use tower_sluice::{Exemptions, LeakyQueue, MissingKey, Policy, Quota, RateLimitLayer, RateLimiter};

type Answered = Response<Full<Bytes>>;

/// A service that responds with `answer`.
fn answering(
    answer: impl Fn(&Request<()>) -> Answered + Clone + Send,
) -> impl Service<Request<()>, Response = Answered, Error = Infallible, Future: Send> + Clone + Send {
    service_fn(move |request: Request<()>| std::future::ready(Ok(answer(&request))))
}

fn hello(_: &Request<()>) -> Answered {
    Response::new("hello".into())
}

fn get(path: &str) -> Request<()> {
    Request::get(path).body(()).unwrap()
}

/// A policy keyed by path, on a clock that stands still.
fn per_minute(name: &'static str, limit: u64) -> Policy {
    let store = MemoryStore::with_capacity(16).with_clock(ManualClock::new());
    let limiter = RateLimiter::new(TokenBucket::new(Quota::per_minute(limit)), store);
    Policy::new(name, limiter).key(PathKey::raw()).status(StatusCode::TOO_MANY_REQUESTS)
}

/// The response fields that this crate writes, sorted.
fn fields<B>(response: &Response<B>) -> Vec<String> {
    let ours = |name: &str| name.contains("limit") || name.contains("retry") || name == "cache-control";
    let mut fields: Vec<_> = response.headers().iter().filter(|(name, _)| ours(name.as_str())).collect();
    fields.sort_by_key(|(name, _)| name.as_str());
    fields.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect()
}

fn field<'a, B>(response: &'a Response<B>, name: &str) -> Option<&'a str> {
    response.headers().get(name).map(|value| value.to_str().unwrap())
}

async fn ask(layer: &RateLimitLayer, request: Request<()>) -> Response<String> {
    answered(layer.layer(answering(hello)), request).await
}

async fn answered<S, B>(service: S, request: Request<()>) -> Response<String>
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible>,
    B: http_body::Body<Data = Bytes, Error: std::fmt::Debug>,
{
    let (parts, body) = service.oneshot(request).await.unwrap().into_parts();
    let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    Response::from_parts(parts, body)
}

#[tokio::test]
async fn every_response_reports_the_remaining_quota() {
    let layer = RateLimitLayer::new(per_minute("p", 1));
    let policy = "ratelimit-policy: \"p\";q=1;w=60";
    assert_eq!(fields(&ask(&layer, get("/")).await), ["ratelimit: \"p\";r=0;t=60", policy]);
    let rejected = ask(&layer, get("/")).await;
    let state = "ratelimit: \"p\";r=0;t=60";
    let expected = ["cache-control: no-store", state, policy, "retry-after: 60", "x-rate-limited-for: 60.000000"];
    assert_eq!(fields(&rejected), expected);
}

/// `vectors/gcra_sequences.json`: whole conversations, computed independently.
#[tokio::test]
async fn the_published_sequences_are_reproduced() {
    let sequences: serde_json::Value = serde_json::from_str(include_str!("../vectors/gcra_sequences.json")).unwrap();
    let nanos = |text: &str| {
        let (whole, part) = text.split_once('.').unwrap_or((text, ""));
        whole.parse::<u64>().unwrap() * 1_000_000_000 + format!("{part:0<9}").parse::<u64>().unwrap()
    };
    let mut steps = 0;
    for sequence in sequences.as_array().unwrap() {
        let number = |value: &serde_json::Value| value.as_u64().unwrap();
        let period = Duration::from_secs(number(&sequence["rate"][1]));
        let quota = Quota::per(number(&sequence["rate"][0]), period).burst(number(&sequence["burst"]));
        let clock = ManualClock::new();
        let layer = || {
            let store = MemoryStore::with_capacity(16).with_clock(clock.clone());
            let limiter = RateLimiter::new(TokenBucket::new(quota), store);
            RateLimitLayer::builder(Policy::new("default", limiter).status(StatusCode::TOO_MANY_REQUESTS))
        };
        let (http, grpc) = (layer().build(), layer().build());
        let legacy = layer().fields(RateLimitFields::none().x_ratelimit(ResetForm::DeltaSeconds)).build();
        for step in sequence["steps"].as_array().unwrap() {
            let context = format!("{} at {}", sequence["name"], step["at"]);
            clock.set(Timestamp::from_nanos(nanos(step["at"].as_str().unwrap())));
            let answer = ask(&http, get("/")).await;
            assert_eq!(u64::from(answer.status().as_u16()), step["status"].as_u64().unwrap(), "{context}");
            assert_eq!(field(&answer, "retry-after"), step["retry_after"].as_str(), "{context}");
            let exact = step["x_rate_limited_for_exact"].as_str().map(|exact| {
                let (top, bottom) = exact.split_once('/').unwrap_or((exact, "1"));
                let (top, bottom) = (top.parse::<u64>().unwrap(), bottom.parse::<u64>().unwrap());
                let micros = (top * 1_000_000).div_ceil(bottom);
                format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000)
            });
            assert_eq!(field(&answer, "x-rate-limited-for"), exact.as_deref(), "{context}");
            assert_eq!(field(&answer, "ratelimit-policy"), sequence["ratelimit_policy"].as_str(), "{context}");
            assert_eq!(field(&answer, "ratelimit"), step["ratelimit"].as_str(), "{context}");

            let reset = ask(&legacy, get("/")).await;
            let full = step["reset_to_full"].as_u64().unwrap().to_string();
            assert_eq!(field(&reset, "x-ratelimit-reset"), Some(&*full), "{context}");
            assert_eq!(field(&reset, "ratelimit"), None);

            let call = Request::post("/").version(Version::HTTP_2).header("content-type", "application/grpc");
            let called = ask(&grpc, call.body(()).unwrap()).await;
            let pushback = step["grpc_retry_pushback_ms"].as_str();
            assert_eq!(field(&called, "grpc-retry-pushback-ms"), pushback, "{context}");
            assert_eq!(field(&called, "ratelimit"), step["ratelimit"].as_str(), "{context}");
            steps += 1;
        }
    }
    assert_eq!(steps, 40);
}

/// Shadows are left out of the line.
#[tokio::test]
async fn several_policies_share_one_line() {
    let layer = RateLimitLayer::new([
        per_minute("first", 5),
        per_minute("watched", 1).shadow(),
        per_minute("elsewhere", 7).when(|request| request.uri().path() == "/elsewhere"),
        per_minute("second", 1),
    ]);
    let policy = "ratelimit-policy: \"first\";q=5;w=60, \"second\";q=1;w=60";
    assert_eq!(fields(&ask(&layer, get("/")).await), ["ratelimit: \"first\";r=4;t=48, \"second\";r=0;t=60", policy]);
    // The rejection did not charge the first policy.
    let rejected = ask(&layer, get("/")).await;
    assert_eq!(fields(&rejected)[1..3], ["ratelimit: \"first\";r=4;t=48, \"second\";r=0;t=60", policy]);
    assert!(rejected.body().contains(r#""violated-policies":["second"]"#), "{}", rejected.body());
    let elsewhere = ask(&layer, get("/elsewhere")).await;
    let all = "\"first\";q=5;w=60, \"elsewhere\";q=7;w=60, \"second\";q=1;w=60";
    assert_eq!(field(&elsewhere, "ratelimit-policy"), Some(all));
}

#[tokio::test]
async fn inapplicable_policies_are_not_advertised() {
    let header = HeaderKey::from_static("x-api-key");
    let internal = Exemptions::new().path("/internal").unwrap();
    let layer = RateLimitLayer::new([
        per_minute("all", 5),
        per_minute("writes", 9).when(|request| request.method() == Method::POST),
        per_minute("customers", 9).key(header).on_missing_key(MissingKey::Skip),
        per_minute("outside", 9).exempt(internal),
    ]);
    let listed = |response: &Response<String>| field(response, "ratelimit-policy").map(str::to_owned);
    let all = "\"all\";q=5;w=60";
    let of =
        |names: &[&str]| Some(names.iter().fold(all.to_owned(), |list, name| format!("{list}, \"{name}\";q=9;w=60")));
    assert_eq!(listed(&ask(&layer, get("/internal")).await), of(&[]));
    assert_eq!(listed(&ask(&layer, get("/")).await), of(&["outside"]));
    let mut request = get("/");
    *request.method_mut() = Method::POST;
    request.headers_mut().insert("x-api-key", HeaderValue::from_static("k"));
    assert_eq!(listed(&ask(&layer, request).await), of(&["writes", "customers", "outside"]));
}

#[tokio::test]
async fn layers_append_to_inner_fields() {
    let (outer, inner) = (RateLimitLayer::new(per_minute("outer", 9)), RateLimitLayer::new(per_minute("inner", 1)));
    let service = ServiceBuilder::new().layer(outer).layer(inner).service(answering(hello));
    let policy = "ratelimit-policy: \"inner\";q=1;w=60, \"outer\";q=9;w=60";
    let first = answered(service.clone(), get("/")).await;
    assert_eq!(fields(&first), ["ratelimit: \"inner\";r=0;t=60, \"outer\";r=8;t=54", policy]);
    let rejected = answered(service, get("/")).await;
    assert_eq!(fields(&rejected)[1], "ratelimit: \"inner\";r=0;t=60, \"outer\";r=7;t=47");
    assert_eq!(fields(&rejected)[2..4], [policy, "retry-after: 60"]);
    for name in ["ratelimit", "ratelimit-policy", "retry-after"] {
        assert_eq!(rejected.headers().get_all(name).iter().count(), 1, "{name}");
    }
}

/// Their common member has the tighter policy's values.
#[tokio::test]
async fn stacked_policies_share_one_name() {
    let policy = |limit| RateLimitLayer::new(per_minute("p", limit));
    for (outer, inner) in [(9, 2), (2, 9)] {
        let service = ServiceBuilder::new().layer(policy(outer)).layer(policy(inner)).service(answering(hello));
        let answer = answered(service, get("/")).await;
        assert_eq!(fields(&answer), ["ratelimit: \"p\";r=1;t=30", "ratelimit-policy: \"p\";q=2;w=60"]);
    }
    // One budget, charged twice.
    let same = policy(5);
    let service = ServiceBuilder::new().layer(same.clone()).layer(same).service(answering(hello));
    assert_eq!(fields(&answered(service, get("/")).await)[0], "ratelimit: \"p\";r=3;t=36");
}

/// If a handler writes another syntax, we leave the fields alone.
#[tokio::test]
async fn handler_fields_are_not_mixed_with_ours() {
    let answer_to = |remaining: &'static str| async move {
        let service = RateLimitLayer::new(per_minute("p", 9)).layer(answering(move |_: &Request<()>| {
            let answer = Response::builder().header("ratelimit-policy", "100;w=60");
            answer.header("ratelimit", remaining).body("".into()).unwrap()
        }));
        answered(service, get("/")).await
    };
    let stricter = answer_to("limit=100, remaining=8, reset=5").await;
    assert_eq!(fields(&stricter), ["ratelimit: limit=100, remaining=8, reset=5", "ratelimit-policy: 100;w=60"]);
    let wider = answer_to("limit=100, remaining=9, reset=5").await;
    assert_eq!(fields(&wider), ["ratelimit: \"p\";r=8;t=54", "ratelimit-policy: \"p\";q=9;w=60"]);
}

/// A redirect does not get a `Retry-After`.
#[tokio::test]
async fn a_service_keeps_its_own_fields() {
    let layer = RateLimitLayer::new(per_minute("p", 2));
    let service = layer.layer(answering(|_: &Request<()>| {
        Response::builder()
            .status(302)
            .header("location", "/there")
            .header("ratelimit", "\"upstream\";r=0;t=9")
            .header("ratelimit", "\"other\";r=5")
            .header("retry-after", "1")
            .header("cache-control", "max-age=60")
            .body("".into())
            .unwrap()
    }));
    let expected = |ours: &str| {
        vec![
            "cache-control: max-age=60".to_owned(),
            format!("ratelimit: \"upstream\";r=0;t=9{ours}"),
            "ratelimit-policy: \"p\";q=2;w=60".to_owned(),
            "retry-after: 1".to_owned(),
        ]
    };
    let with_one_left = answered(service.clone(), get("/")).await;
    assert_eq!(fields(&with_one_left), expected(", \"other\";r=5, \"p\";r=1;t=30"));
    // With nothing left, our field is omitted, and the handler's stays as it is.
    let with_none = answered(service, get("/")).await;
    let mut untouched = expected("");
    untouched.insert(2, "ratelimit: \"other\";r=5".into());
    assert_eq!(fields(&with_none), untouched);
}

#[tokio::test]
async fn fields_are_sent_as_configured() {
    let counts = |choice: RateLimitFields| async move {
        let layer = RateLimitLayer::builder(per_minute("p", 2)).fields(choice).build();
        let mut counts = Vec::new();
        for _ in 0..3 {
            let answer = ask(&layer, get("/")).await;
            counts.push(
                fields(&answer).iter().filter(|field| field.contains("limit") && !field.contains("limited")).count(),
            );
        }
        counts
    };
    assert_eq!(counts(RateLimitFields::default()).await, [2, 2, 2]);
    assert_eq!(counts(RateLimitFields::draft11().advertise(Advertise::Rejected)).await, [0, 0, 2]);
    assert_eq!(counts(RateLimitFields::draft11().advertise(Advertise::Below { percent: 40 })).await, [0, 2, 2]);
    assert_eq!(counts(RateLimitFields::draft11().advertise(Advertise::Never)).await, [0, 0, 0]);
    assert_eq!(counts(RateLimitFields::none()).await, [0, 0, 0]);
    assert_eq!(counts(RateLimitFields::draft07()).await, [2, 2, 2]);
    assert_eq!(counts(RateLimitFields::draft11().x_ratelimit(ResetForm::EpochSeconds)).await, [5, 5, 5]);

    let layer = RateLimitLayer::builder(per_minute("p", 1))
        .wait_fields(WaitFields::new().without_exact_wait().retry_after_ms())
        .build();
    let _admitted = ask(&layer, get("/")).await;
    let rejected = fields(&ask(&layer, get("/")).await);
    assert!(!rejected.iter().any(|field| field.starts_with("x-rate-limited-for")), "{rejected:?}");
    assert!(rejected.contains(&"retry-after-ms: 60000".into()), "{rejected:?}");
}

/// Cacheable responses never carry it.
#[tokio::test]
async fn the_key_is_reported_as_keyed_hash() {
    let layer = RateLimitLayer::builder(
        Policy::new("p", TokenBucket::new(Quota::per_minute(9))).key(HeaderKey::from_static("x-api-key")),
    )
    .fields(RateLimitFields::draft11().partition_key_by([7; 16]))
    .build();
    let cached =
        layer.layer(answering(|_: &Request<()>| Response::builder().header("etag", "\"1\"").body("".into()).unwrap()));
    let by = |key: &str| Request::get("/").header("x-api-key", key).body(()).unwrap();
    let mark = |response: &Response<String>| {
        let text = response.headers()["ratelimit"].to_str().unwrap().to_owned();
        text.split_once(";pk=").map(|(_, mark)| mark.to_owned())
    };
    let alice = mark(&ask(&layer, by("alice")).await).unwrap();
    assert!(alice.starts_with(':') && alice.ends_with("=:") && !alice.contains("alice"), "{alice}");
    assert_eq!(mark(&ask(&layer, by("alice")).await).unwrap(), alice);
    assert_ne!(mark(&ask(&layer, by("bob")).await).unwrap(), alice);
    assert_eq!(mark(&answered(cached, by("alice")).await), None);
}

/// With nothing left, a sliding window reports when the next request fits. A client that waits for that time is
/// admitted.
#[tokio::test]
async fn an_exhausted_quota_reports_a_sufficient_time() {
    let clock = ManualClock::starting_at(Timestamp::from_nanos(1_000_000_000_000_000_000));
    let quota = Quota::per(5, Duration::from_secs(10));
    let sliding = RateLimiter::new(SlidingWindow::new(quota), MemoryStore::with_capacity(8).with_clock(clock.clone()));
    let fixed = RateLimiter::new(FixedWindow::new(quota), MemoryStore::with_capacity(8).with_clock(clock.clone()));
    for policy in [Policy::new("p", sliding), Policy::new("p", fixed)] {
        let layer = RateLimitLayer::new(policy);
        let mut waits = Vec::new();
        for _ in 0..40 {
            let answer = ask(&layer, get("/")).await;
            assert_eq!(answer.status(), 200);
            let state = answer.headers()["ratelimit"].to_str().unwrap();
            if let Some(wait) = state.strip_prefix("\"p\";r=0;t=") {
                let wait: u64 = wait.parse().unwrap();
                waits.push(wait);
                clock.advance(Duration::from_secs(wait));
            } else {
                clock.advance(Duration::from_millis(100));
            }
        }
        assert!(waits.len() > 3 && waits.iter().all(|wait| (1..=20).contains(wait)), "{waits:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_queue_reports_its_capacity_at_departure() {
    let queue = LeakyQueue::new(Quota::per_second(1)).max_queue(2);
    let layer = RateLimitLayer::new(Policy::new("q", queue).key(PathKey::raw()).status(StatusCode::TOO_MANY_REQUESTS));
    let requests = (0..4).map(|_| ask(&layer, get("/")));
    let answers = futures_util::future::join_all(requests).await;
    let statuses: Vec<_> = answers.iter().map(|answer| answer.status().as_u16()).collect();
    assert_eq!(statuses, [200, 200, 200, 429]);
    for answer in &answers {
        assert!(answer.headers().contains_key("ratelimit-policy"), "{:?}", fields(answer));
        assert_eq!(answer.headers().contains_key("retry-after"), answer.status() == 429);
    }
    assert!(
        answers[3].headers()["ratelimit"].to_str().unwrap().starts_with("\"q\";r=0;t="),
        "{:?}",
        fields(&answers[3])
    );
}

#[tokio::test(start_paused = true)]
async fn queue_time_is_reported_if_enabled() {
    let queue = || LeakyQueue::new(Quota::per_second(2)).max_queue(1);
    let times = |layer: RateLimitLayer| async move {
        let answers = futures_util::future::join_all((0..3).map(|_| ask(&layer, get("/")))).await;
        answers.iter().map(|answer| field(answer, "server-timing").map(str::to_owned)).collect::<Vec<_>>()
    };
    assert_eq!(times(RateLimitLayer::new(Policy::new("q", queue()))).await, [None, None, None]);
    let waits = times(RateLimitLayer::builder(Policy::new("q", queue())).server_timing().build()).await;
    // The first request did not wait, and the third was rejected.
    let [None, Some(second), None] = &waits[..] else { panic!("{waits:?}") };
    assert!(second.starts_with("ratelimit;dur=50"), "{second}");
}

#[tokio::test]
async fn policies_that_did_not_apply_are_omitted() {
    let skips = Policy::new("p", TokenBucket::new(Quota::per_minute(1)))
        .key(HeaderKey::from_static("x-api-key"))
        .on_missing_key(MissingKey::Skip);
    assert_eq!(fields(&ask(&RateLimitLayer::new(skips), get("/")).await), [""; 0]);
    let rejects = Policy::new("p", TokenBucket::new(Quota::per_minute(1))).key(HeaderKey::from_static("x-api-key"));
    let rejected = ask(&RateLimitLayer::new(rejects), get("/")).await;
    assert_eq!(
        (rejected.status(), fields(&rejected)),
        (StatusCode::BAD_REQUEST, vec!["cache-control: no-store".into()])
    );
}

#[tokio::test]
async fn rejection_bodies_have_the_configured_format() {
    let rejected = |shape: fn(RateLimitLayerBuilder) -> RateLimitLayerBuilder| async move {
        let layer = shape(RateLimitLayer::builder(per_minute("p", 1))).build();
        let _admitted = ask(&layer, get("/")).await;
        let rejected = ask(&layer, get("/")).await;
        assert_eq!(
            (rejected.status(), &rejected.headers()["retry-after"]),
            (StatusCode::TOO_MANY_REQUESTS, &"60".parse().unwrap())
        );
        let content_type = rejected.headers().get("content-type").map(|value| value.to_str().unwrap().to_owned());
        (content_type.unwrap_or_default(), rejected.into_body())
    };
    let detail = r#""status":429,"detail":"The limit is used up; retry in 60 seconds.","violated-policies":["p"]}"#;
    let problem = |kind: &str, title: &str| {
        ("application/problem+json".to_owned(), format!(r#"{{"type":"{kind}","title":"{title}",{detail}"#))
    };
    let draft = "https://iana.org/assignments/http-problem-types#quota-exceeded";
    assert_eq!(rejected(|layer| layer).await, problem(draft, "Quota Exceeded"));
    assert_eq!(
        rejected(|layer| layer.rejection_format(&RejectionFormat::ProblemWithTypes("https://a.example/p".into())))
            .await,
        problem("https://a.example/p#quota-exceeded", "Quota Exceeded")
    );
    assert_eq!(
        rejected(|layer| layer.rejection_format(&RejectionFormat::ProblemWithoutType)).await,
        problem("about:blank", "Too Many Requests")
    );
    assert_eq!(
        rejected(|layer| layer.rejection_format(&RejectionFormat::Text)).await,
        ("text/plain; charset=utf-8".into(), "The limit is used up; retry in 60 seconds.\n".into())
    );
    assert_eq!(rejected(|layer| layer.rejection_format(&RejectionFormat::Empty)).await, (String::new(), String::new()));

    // Any body type.
    fn with<B: Into<RejectionBody> + 'static>(layer: RateLimitLayerBuilder, body: fn() -> B) -> RateLimitLayerBuilder {
        layer.rejection_response(move |rejection, _| {
            Response::builder().status(rejection.status()).body(body()).unwrap()
        })
    }
    assert_eq!(rejected(|layer| with(layer, || "text")).await.1, "text");
    assert_eq!(rejected(|layer| with(layer, || vec![b'v'])).await.1, "v");
    assert_eq!(rejected(|layer| with(layer, || ())).await.1, "");
    assert_eq!(rejected(|layer| with(layer, || axum::body::Body::from("axum"))).await.1, "axum");
    assert_eq!(rejected(|layer| with(layer, || RejectionBody::new(Empty::<Bytes>::new()))).await.1, "");
    fn streamed() -> RejectionBody {
        let frames = ["in ", "two"].map(|piece| Ok::<_, std::io::Error>(http_body::Frame::data(Bytes::from(piece))));
        RejectionBody::new(StreamBody::new(futures_util::stream::iter(frames)))
    }
    assert_eq!(rejected(|layer| with(layer, streamed)).await.1, "in two");
    fn failing() -> RejectionBody {
        let frames = [Ok(http_body::Frame::data(Bytes::from("half"))), Err(std::io::Error::other("broken"))];
        RejectionBody::new(StreamBody::new(futures_util::stream::iter(frames)))
    }
    assert_eq!(rejected(|layer| with(layer, failing)).await.1, "half");
}

/// A custom response keeps its own fields, too.
#[tokio::test]
async fn custom_responses_get_the_required_fields() {
    let layer = RateLimitLayer::builder(per_minute("p", 1))
        .rejection_response(|rejection, head| {
            assert_eq!(rejection.reason(), Reason::LimitExceeded);
            assert!(!rejection.verdict().is_allowed());
            Response::builder()
                .status(418)
                .header("retry-after", "soon")
                .header("cache-control", "public, max-age=60")
                .header("x-brewing", head.uri().path())
                .body(format!("{} has to wait", rejection.verdict().violated().next().unwrap().name()))
                .unwrap()
        })
        .build();
    let _first = ask(&layer, get("/")).await;
    let rejected = ask(&layer, get("/")).await;
    assert_eq!(rejected.status(), 418);
    let values = ["retry-after", "x-rate-limited-for", "cache-control", "x-brewing"].map(|name| field(&rejected, name));
    assert_eq!(values, [Some("60"), Some("60.000000"), Some("no-store"), Some("/")]);
    assert_eq!(rejected.body(), "p has to wait");
}

#[tokio::test]
async fn impossible_costs_have_no_retry_after() {
    let layer = RateLimitLayer::new(Policy::new("p", TokenBucket::new(Quota::per_second(5))).cost_fn(|_| 6));
    let rejected = ask(&layer, get("/")).await;
    assert_eq!(rejected.status(), 503);
    assert!(!rejected.headers().contains_key("retry-after") && !rejected.headers().contains_key("x-rate-limited-for"));
    assert!(rejected.body().contains("do not retry"), "{}", rejected.body());
}

/// Scripts may read only fields that CORS exposes (Fetch: except CORS-safelisted names).
#[test]
fn all_rejection_fields_are_listed_for_cors() {
    for name in
        ["retry-after", "x-rate-limited-for", "ratelimit", "ratelimit-policy", "x-ratelimit-reset", "grpc-status"]
    {
        assert!(EXPOSED_HEADERS.iter().any(|exposed| exposed.as_str() == name), "{name}");
    }
}

/// `w` is left out, since months differ in length. `t` is the true time to the next month, even before the key was
/// used.
#[tokio::test]
async fn calendar_windows_have_a_true_end_only() {
    // Half an hour before 29 March 2026 in Berlin, a day with 23 hours.
    let clock = ManualClock::starting_at(Timestamp::from_nanos(1_774_737_000_000_000_000));
    let policy = |window: CalendarWindow, cost| {
        let window = window.zone("Europe/Berlin").unwrap();
        let limiter = RateLimiter::new(window, MemoryStore::with_capacity(16).with_clock(clock.clone()));
        Policy::new("p", limiter).key(PathKey::raw()).cost_fn(move |_| cost)
    };
    for (window, second) in [
        (CalendarWindow::daily(1), 1_800),
        (CalendarWindow::weekly(1), 1_800 + 82_800),
        (CalendarWindow::monthly(1), 1_800 + 82_800 + 2 * 86_400),
    ] {
        let layer = RateLimitLayer::new(policy(window.clone(), 1));
        let charged = format!("ratelimit: \"p\";r=0;t={second}");
        assert_eq!(fields(&ask(&layer, get("/")).await), [&charged, "ratelimit-policy: \"p\";q=1"]);
        let rejected = ask(&layer, get("/")).await;
        assert_eq!(field(&rejected, "retry-after"), Some(&*second.to_string()));
        assert_eq!(field(&rejected, "ratelimit"), Some(&*format!("\"p\";r=0;t={second}")));
        let unused = RateLimitLayer::new(policy(window.clone(), 0));
        assert_eq!(field(&ask(&unused, get("/")).await, "ratelimit"), Some(&*format!("\"p\";r=1;t={second}")));
        // A charge that was refunded because of the response does not move the end.
        let refunded = RateLimitLayer::new(policy(window.clone(), 1).charge_when(|_| false));
        assert_eq!(field(&ask(&refunded, get("/")).await, "ratelimit"), Some(&*format!("\"p\";r=1;t={second}")));
        // Draft-07 cannot express a policy without a length.
        let draft07 = RateLimitLayer::builder([policy(window, 1)]).fields(RateLimitFields::draft07()).build();
        let expected = [&*format!("ratelimit: limit=1, remaining=0, reset={second}")];
        assert_eq!(fields(&ask(&draft07, get("/")).await), expected);
    }
}
