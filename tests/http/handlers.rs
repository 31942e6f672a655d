//! Handlers and limits: they take their request's verdict, ask a limiter themselves, and answer as a layer does.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::routing::get;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_sluice::algorithm::{FixedWindow, TokenBucket};
use tower_sluice::headers::{DecisionFields, RateLimitFields};
use tower_sluice::limiter::{Answer, Ask};
use tower_sluice::rejection::Reason;
use tower_sluice::store::MemoryStore;
use tower_sluice::time::ManualClock;
use tower_sluice::{
    Limiter, LimiterError, LimiterExt, Policy, Quota, RateLimitLayer, RateLimiter, Rejection, RequestHead, Verdict,
};

use crate::support::log::Log;

fn per_hour(name: &'static str, limit: u64) -> Policy {
    Policy::new(name, FixedWindow::new(Quota::per_hour(limit)))
}

async fn get_from(app: &Router) -> (StatusCode, HeaderMap, String) {
    let response = app.clone().oneshot(Request::get("/").body(Body::empty()).unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    (parts.status, parts.headers, String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap())
}

fn shown(verdict: &Verdict) -> String {
    let policies =
        verdict.policies().iter().map(|policy| format!("{} {}", policy.name(), policy.decision().remaining()));
    policies.collect::<Vec<_>>().join(", ")
}

#[tokio::test]
async fn a_handler_takes_its_requests_verdict() {
    async fn handler(verdict: Verdict) -> String {
        assert!(verdict.is_allowed());
        shown(&verdict)
    }
    let layer = |policies: Vec<Policy>| RateLimitLayer::builder(policies).verdict().build();
    let app = Router::new().route("/", get(handler).layer(layer(vec![per_hour("a", 9), per_hour("b", 5)])));
    for expected in ["a 8, b 4", "a 7, b 3"] {
        assert_eq!(get_from(&app).await.2, expected);
    }
    // The outer layer's verdict comes first. A layer without a verdict does not hide the other one's.
    let inner = [layer(vec![per_hour("inner", 5)]), RateLimitLayer::new(per_hour("silent", 5))];
    for (inner, expected) in inner.into_iter().zip(["outer 8, inner 4", "outer 8"]) {
        let app = Router::new().route("/", get(handler)).layer(inner).layer(layer(vec![per_hour("outer", 9)]));
        assert_eq!(get_from(&app).await.2, expected);
    }
    // An estimate that the response settles.
    let settled = per_hour("settled", 9).cost(4).settle_by_handler();
    let app = Router::new().route("/", get(handler)).layer(layer(vec![settled]));
    assert_eq!(get_from(&app).await.2, "settled 5");
}

#[tokio::test]
async fn a_request_that_waited_has_its_verdict() {
    let queue = tower_sluice::LeakyQueue::new(Quota::per_second(1_000));
    let layer = RateLimitLayer::builder(Policy::new("queue", queue)).verdict().build();
    let service = layer.layer(service_fn(|request: Request<()>| {
        let body = request.extensions().get::<Verdict>().map(shown).unwrap_or_default();
        std::future::ready(Ok::<_, Infallible>(Response::new(Full::<bytes::Bytes>::from(body))))
    }));
    for _ in 0..2 {
        let response = service.clone().oneshot(Request::new(())).await.unwrap();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert!(body.starts_with(b"queue "), "{body:?}");
    }
}

#[tokio::test]
async fn a_layer_without_verdict_adds_nothing() {
    let count = |request: Request<()>| {
        let is_there = request.extensions().get::<Verdict>().is_some();
        std::future::ready(Ok::<_, Infallible>(Response::new(Full::<bytes::Bytes>::from(is_there.to_string()))))
    };
    let service = ServiceBuilder::new().layer(RateLimitLayer::new(per_hour("p", 1))).service(service_fn(count));
    let response = service.oneshot(Request::new(())).await.unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "false");
}

/// One test covers this, because the process logs it once.
#[tokio::test]
async fn a_missing_verdict_is_a_server_error() {
    let (log, _guard) = Log::start();
    let app = Router::new()
        .route("/", get(|verdict: Verdict| async move { shown(&verdict) }))
        .layer(RateLimitLayer::new(per_hour("p", 9)));
    for _ in 0..3 {
        let (status, headers, body) = get_from(&app).await;
        assert_eq!(
            (status, &headers["content-type"]),
            (StatusCode::INTERNAL_SERVER_ERROR, &"application/problem+json".parse().unwrap())
        );
        assert!(body.contains(r#""detail":"The server is misconfigured.""#) && !body.contains("Verdict"), "{body}");
    }
    let lines = log.lines();
    let [line] = &lines[..] else { panic!("{lines:?}") };
    let link = "guide/misconfigured/#a-handler-takes-a-verdict-that-no-layer-adds";
    assert!(line.contains("RateLimitLayerBuilder::verdict") && line.contains(link), "{line}");

    let optional = |verdict: Option<Verdict>| async move { format!("{:?}", verdict.is_some()) };
    assert_eq!(get_from(&Router::new().route("/", get(optional))).await.2, "false");
}

#[derive(Clone)]
struct Mails {
    limiter: Arc<dyn Limiter>,
    fields: DecisionFields,
}

impl Mails {
    fn app(limiter: impl Limiter) -> Router {
        async fn send(State(mails): State<Mails>) -> Result<(HeaderMap, String), Box<Rejection>> {
            let permit = mails.limiter.acquire(&"alice".into(), 1).await?;
            let permit = Rejection::unless_allowed("mails", permit)?;
            Ok((mails.fields.of(&permit), permit.remaining().to_string()))
        }
        let fields = DecisionFields::new(RateLimitFields::draft11(), "mails", &limiter);
        Router::new().route("/", get(send)).with_state(Self { limiter: Arc::new(limiter), fields })
    }
}

/// The oracle is a layer with an equal limit.
#[tokio::test]
async fn a_handler_answers_as_a_layer_does() {
    let limiter = || {
        let store = MemoryStore::with_capacity(16).with_clock(ManualClock::new());
        RateLimiter::new(TokenBucket::new(Quota::per_minute(2)), store)
    };
    let policy = Policy::new("mails", limiter()).status(StatusCode::TOO_MANY_REQUESTS);
    let layered = Router::new().route("/", get(|| async { "sent" })).layer(RateLimitLayer::new(policy));
    let handled = Mails::app(limiter());
    for expected in [200, 200, 429, 429] {
        let [(status, mut headers, body), (layer_status, mut layer_headers, layer_body)] =
            [get_from(&handled).await, get_from(&layered).await];
        assert_eq!((status, layer_status.as_u16()), (layer_status, expected));
        if expected == 429 {
            assert_eq!(body, layer_body);
            // The handler's rejection does not report the remaining quota, which is zero.
            for name in ["ratelimit", "ratelimit-policy"] {
                layer_headers.remove(name);
            }
        }
        for headers in [&mut headers, &mut layer_headers] {
            headers.remove("content-length");
        }
        assert_eq!(headers, layer_headers);
    }
}

#[tokio::test]
async fn a_handler_answers_503_for_failed_limiters() {
    struct Failing;

    impl Limiter for Failing {
        fn decide(&self, _: &Ask<'_>) -> Answer {
            Answer::Ready(Err(LimiterError::new("out of reach")))
        }
    }
    let (status, headers, body) = get_from(&Mails::app(Failing)).await;
    assert_eq!((status.as_u16(), &headers["retry-after"]), (503, &"1".parse().unwrap()));
    assert!(
        body.contains("The rate limit cannot be checked at the moment.") && !body.contains("out of reach"),
        "{body}"
    );
}

#[tokio::test]
async fn a_grpc_request_is_rejected_in_grpc() {
    let limiter = RateLimiter::in_memory(TokenBucket::new(Quota::per_hour(1)));
    let key = "alice".into();
    assert!(Rejection::unless_allowed("p", limiter.check(&key)).is_ok());
    let rejection = Rejection::unless_allowed("p", limiter.check(&key)).unwrap_err();
    assert_eq!(rejection.reason(), Reason::LimitExceeded);
    let mut request = Request::post("/").header("content-type", "application/grpc").body(()).unwrap();
    *request.version_mut() = http::Version::HTTP_2;
    let response = rejection.response(&RequestHead::from(&request));
    assert_eq!((response.status().as_u16(), &response.headers()["grpc-status"]), (200, &"8".parse().unwrap()));
}

/// The first decision reports the bad name.
#[test]
#[should_panic(expected = "cannot be a policy's name")]
fn names_unfit_for_fields_are_reported() {
    let limiter = RateLimiter::in_memory(TokenBucket::new(Quota::per_hour(1)));
    let _ = Rejection::unless_allowed("\"", limiter.check(&"alice".into()));
}

/// Two layers around one route. They form a tuple, because a second call of `layer` does not compile.
#[tokio::test]
async fn a_tuples_first_layer_is_the_outermost() {
    let layer = |name, limit| RateLimitLayer::builder(per_hour(name, limit)).verdict().build();
    let app = Router::new().route(
        "/",
        get(|verdict: Verdict| async move { shown(&verdict) }).layer((layer("outer", 9), layer("inner", 1))),
    );
    assert_eq!(get_from(&app).await.2, "outer 8, inner 0");
    assert_eq!(get_from(&app).await.0, 503);
}
