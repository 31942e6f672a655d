//! The pacer around reqwest's clients, against a server on this machine.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{Extensions, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{any, post};
use reqwest::{Body, Client};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware, Next};
use tokio::net::TcpListener;
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_sluice_client::{AdaptiveThrottle, PacerError, PacerLayer};

/// Rejects the first call, for a millisecond, and echoes the body of the second.
async fn reject_first(State(calls): State<Arc<AtomicUsize>>, body: Bytes) -> Response {
    if calls.fetch_add(1, Ordering::SeqCst) == 0 {
        return [("grpc-status", "8"), ("grpc-retry-pushback-ms", "1")].into_response();
    }
    body.into_response()
}

/// Returns the address of a partner, and how many calls `/reject-first` got.
async fn partner() -> (SocketAddr, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let app = Router::new()
        .route("/reject-first", post(reject_first))
        .route("/fail", any(|| async { StatusCode::INTERNAL_SERVER_ERROR }))
        .route("/hang", any(std::future::pending::<()>))
        .route("/pause", any(|| async { (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "3600")]) }))
        .with_state(Arc::clone(&calls));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    (address, calls)
}

fn middleware(layer: PacerLayer<Body>) -> ClientWithMiddleware {
    ClientBuilder::new(Client::new()).with(layer).build()
}

/// Returns the layer's own error for a call that was not sent.
fn own_error(error: &reqwest_middleware::Error) -> &PacerError<reqwest::Error> {
    PacerError::find(error).expect("an error of the layer")
}

#[tokio::test]
async fn the_middleware_repeats_calls_with_bodies() {
    let (address, calls) = partner().await;
    let client = middleware(PacerLayer::reqwest());
    let response = client.post(format!("http://{address}/reject-first")).body("an order").send().await.unwrap();
    assert_eq!(response.text().await.unwrap(), "an order");
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn the_tower_service_repeats_calls_too() {
    let (address, calls) = partner().await;
    let client = ServiceBuilder::new().layer(PacerLayer::reqwest()).service(Client::new());
    let request = Client::new().post(format!("http://{address}/reject-first")).body("an order").build().unwrap();
    let response = client.oneshot(request).await.unwrap();
    assert_eq!(response.text().await.unwrap(), "an order");
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn pausing_partners_are_not_called() {
    let (address, _) = partner().await;
    let client = middleware(PacerLayer::reqwest());
    let call = || client.get(format!("http://{address}/pause")).send();
    assert_eq!(call().await.unwrap().status(), 429);
    let error = call().await.unwrap_err();
    assert!(matches!(own_error(&error), PacerError::WaitTooLong { retry_after: Some(_), .. }), "{error:?}");
    // The Tower service gives this error, too, as its own type.
    let service = PacerLayer::reqwest().layer(Client::new());
    let request = || Client::new().get(format!("http://{address}/pause")).build().unwrap();
    assert_eq!(service.clone().oneshot(request()).await.unwrap().status(), 429);
    let error = service.oneshot(request()).await.unwrap_err();
    assert!(matches!(error, PacerError::WaitTooLong { .. }), "{error:?}");
}

/// The error in `reqwest-retry` 0.9, as `thiserror` writes `#[error(transparent)]`.
#[derive(Debug)]
struct RetryError(reqwest_middleware::Error);

impl std::fmt::Display for RetryError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for RetryError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

/// Wraps each error, as `reqwest-retry` does.
struct Wrapping;

#[async_trait::async_trait]
impl Middleware for Wrapping {
    async fn handle(
        &self,
        request: reqwest::Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> reqwest_middleware::Result<reqwest::Response> {
        let response = next.run(request, extensions).await;
        response.map_err(|error| reqwest_middleware::Error::middleware(RetryError(error)))
    }
}

/// Another middleware may wrap the error in its own, whose type hides the content.
#[tokio::test]
async fn the_error_is_found_inside_of_others() {
    let (address, _) = partner().await;
    let client = ClientBuilder::new(Client::new()).with(Wrapping).with(PacerLayer::reqwest()).build();
    let call = || client.get(format!("http://{address}/pause")).send();
    assert_eq!(call().await.unwrap().status(), 429);
    let error = call().await.unwrap_err();
    assert!(matches!(own_error(&error), PacerError::WaitTooLong { .. }), "{error:?}");
    assert!(error.to_string().contains("the partner takes no call for"), "{error}");
    // It is found in the program's error, too.
    let error: Box<dyn std::error::Error> = Box::new(error);
    assert!(PacerError::<reqwest::Error>::find(&*error).is_some());
    assert!(PacerError::<reqwest::Error>::find(&std::io::Error::other("another one")).is_none());
}

/// A host that redirects its callers to another one, and answers some calls itself. Returns its address, and how many
/// calls the other one got.
async fn redirecting(to: SocketAddr) -> (SocketAddr, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let on = move |path: &'static str| move || async move { Redirect::temporary(&format!("http://{to}{path}")) };
    let counted = Arc::clone(&calls);
    let own = move || async move {
        counted.fetch_add(1, Ordering::SeqCst);
        "mine"
    };
    let app = Router::new()
        .route("/pause", any(on("/pause")))
        .route("/reject-first", any(on("/reject-first")))
        .route("/own", any(own));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    (address, calls)
}

/// reqwest follows redirects inside, so the host that answered last pauses.
#[tokio::test]
async fn an_answer_is_booked_on_its_host() {
    let (other, _) = partner().await;
    let (called, own_calls) = redirecting(other).await;
    let service = PacerLayer::reqwest().max_wait(Duration::from_secs(10)).layer(Client::new());
    let call = |address: SocketAddr, path: &str| {
        service.clone().oneshot(Client::new().get(format!("http://{address}{path}")).build().unwrap())
    };
    assert_eq!(call(called, "/pause").await.unwrap().status(), 429);
    // The host that was called is open, and the other one is paused.
    for _ in 0..5 {
        assert_eq!(call(called, "/own").await.unwrap().status(), 200);
    }
    assert_eq!(own_calls.load(Ordering::SeqCst), 5);
    let error = call(other, "/fail").await.unwrap_err();
    assert!(matches!(error, PacerError::WaitTooLong { .. }), "{error}");
}

#[tokio::test]
async fn redirected_calls_are_sent_again() {
    let (other, calls) = partner().await;
    let (called, _) = redirecting(other).await;
    let client = middleware(PacerLayer::reqwest());
    let response = client.post(format!("http://{called}/reject-first")).body("an order").send().await.unwrap();
    assert_eq!(response.text().await.unwrap(), "an order");
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

/// All the inner client's failures are passed on unchanged.
#[tokio::test]
async fn failures_are_passed_on_and_throttle() {
    let (address, _) = partner().await;
    let client = middleware(PacerLayer::reqwest().throttle(AdaptiveThrottle::new()));
    let hung = client.get(format!("http://{address}/hang")).timeout(Duration::from_millis(20)).send().await;
    assert!(matches!(&hung, Err(reqwest_middleware::Error::Reqwest(error)) if error.is_timeout()), "{hung:?}");
    for sent in 0.. {
        assert!(sent < 1_000, "no call was throttled");
        match client.get(format!("http://{address}/fail")).send().await {
            Ok(response) => assert_eq!(response.status(), 500),
            Err(error) => {
                assert!(matches!(own_error(&error), PacerError::Throttled { .. }), "{error:?}");
                break;
            }
        }
    }
}

/// The key function sees the method, the URI, the fields and the extensions, and the call is sent unchanged.
#[tokio::test]
async fn a_key_is_made_of_the_head() {
    #[derive(Clone)]
    struct Account(&'static str);

    let (address, _) = partner().await;
    let layer = PacerLayer::reqwest().key(|request| {
        assert_eq!((request.method().as_str(), request.uri().path()), ("POST", "/reject-first"));
        assert_eq!(request.headers()["x-tenant"], "a");
        request.extensions().get::<Account>().unwrap().0
    });
    let client = middleware(layer);
    let request = client.post(format!("http://{address}/reject-first")).header("x-tenant", "a").body("an order");
    let response = request.with_extension(Account("acme")).send().await.unwrap();
    assert_eq!(response.text().await.unwrap(), "an order");
}
