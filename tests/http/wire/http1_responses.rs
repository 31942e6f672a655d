//! Responses in HTTP/1.1.

use tower_http::cors::{Any, CorsLayer};
use tower_sluice::RateLimitLayer;
use tower_sluice::headers::{EXPOSED_HEADERS, RateLimitFields};
use tower_sluice::rejection::RejectionFormat;

use super::http1_client::Connection;
use super::{Server, only};

/// Otherwise it equals a rejected GET.
#[tokio::test]
async fn a_rejected_head_omits_the_content() {
    for format in [RejectionFormat::Problem, RejectionFormat::Text] {
        let server = Server::http1(RateLimitLayer::builder(only(1)).rejection_format(&format).build()).await;
        let mut connection = Connection::open(server.address).await;
        assert_eq!(connection.ask("GET", "/").await.status, 200);
        let rejected = connection.ask("GET", "/").await.at_any_time();
        assert_eq!((rejected.status, rejected.field("retry-after")), (429, Some("60")));
        assert!(!rejected.content.is_empty());

        let head = connection.ask("HEAD", "/").await.at_any_time();
        assert_eq!((head.status, &head.fields), (429, &rejected.fields));
        // The client would parse any byte after the head as the next response.
        assert_eq!(connection.ask("GET", "/").await.at_any_time(), rejected);
        assert_eq!(server.called(), 1);
    }

    let layer = RateLimitLayer::builder(only(1)).rejection_format(&RejectionFormat::Empty).build();
    let mut connection = Connection::open(Server::http1(layer).await.address).await;
    assert_eq!(connection.ask("HEAD", "/").await.status, 200);
    let head = connection.ask("HEAD", "/").await;
    assert_eq!((head.status, head.field("content-type")), (429, None));
    let rejected = connection.ask("GET", "/").await;
    assert_eq!((rejected.status, rejected.field("content-length")), (429, Some("0")));
}

/// Every response has a date.
#[tokio::test]
async fn only_rejections_are_no_store() {
    let server = Server::http1(RateLimitLayer::builder(only(1)).fields(RateLimitFields::none()).build()).await;
    let mut connection = Connection::open(server.address).await;
    let mut names = async || {
        let answer = connection.ask("GET", "/").await;
        let names: Vec<_> = answer.fields.iter().map(|(name, _)| name.clone()).collect();
        (answer.field("cache-control").unwrap().to_owned(), names.join(" "))
    };
    assert_eq!(names().await, ("max-age=60".to_owned(), "cache-control content-length date".to_owned()));
    let (caching, names) = names().await;
    assert_eq!(caching, "no-store");
    assert_eq!(names, "content-type retry-after x-rate-limited-for cache-control content-length date");
}

/// A redirect or a 304 needs no `Retry-After`, since the client does not wait for either. A cacheable response never
/// has a partition key, because a cache would pass it on to other clients.
#[tokio::test]
async fn redirects_and_304_get_no_retry_after() {
    let fields = RateLimitFields::draft11().partition_key();
    for (path, status, content) in [("/unchanged", 304, ""), ("/moved", 307, "over there")] {
        let server = Server::http1(RateLimitLayer::builder(only(2)).fields(fields).build()).await;
        let mut connection = Connection::open(server.address).await;
        for left in [Some(1), None] {
            let answer = connection.ask("GET", path).await;
            assert_eq!((answer.status, answer.content.as_str()), (status, content));
            assert_eq!(answer.field("ratelimit-policy"), Some("\"p\";q=2;w=60"));
            let state = answer.field("ratelimit");
            assert_eq!(state.is_some(), left.is_some(), "{state:?}");
            assert!(state.is_none_or(|state| state.starts_with("\"p\";r=1;t=")), "{state:?}");
            assert_eq!(state.is_some_and(|state| state.contains(";pk=:")), status == 307 && left.is_some());
            let (tag, caching) = if status == 304 { (Some("\"v1\""), Some("max-age=60")) } else { (None, None) };
            assert_eq!((answer.field("etag"), answer.field("cache-control")), (tag, caching));
            assert_eq!(answer.field("location"), (status == 307).then_some("/"));
        }
        assert_eq!(connection.ask("GET", path).await.status, 429);
    }
}

/// A client that sends `Expect: 100-continue` is rejected before it uploads.
#[tokio::test]
async fn a_rejection_replaces_continue() {
    let server = Server::http1(RateLimitLayer::new(only(1))).await;
    let upload = "PUT /upload HTTP/1.1\r\nhost: test\r\ncontent-length: 2000000\r\nexpect: 100-continue\r\n\r\n";

    let mut connection = Connection::open(server.address).await;
    connection.send(upload).await;
    assert_eq!(connection.answer("PUT").await.status, 100);
    connection.send(vec![b'x'; 2_000_000]).await;
    let served = connection.answer("PUT").await;
    assert_eq!((served.status, served.content.as_str()), (200, "2000000"));
    let polled = server.polled();
    assert!(polled > 0);

    connection.send(upload).await;
    assert_eq!(connection.answer("PUT").await.status, 429);
    assert_eq!(server.polled(), polled, "the body of a rejected request was polled");
    // hyper cannot know whether the client will send the body, so it closes the connection.
    connection.ends().await;
    assert_eq!((server.arrived(), server.called()), (2, 1));
}

/// On a connection that is kept alive, a body's rest would be parsed as a request.
#[tokio::test]
async fn an_unread_body_is_never_a_request() {
    let smuggled = "GET /smuggled HTTP/1.1\r\nhost: test\r\n\r\n";
    let length = smuggled.len();
    let framings = [
        format!("content-length: {length}\r\n\r\n{smuggled}"),
        format!("transfer-encoding: chunked\r\n\r\n{length:x}\r\n{smuggled}\r\n0\r\n\r\n"),
    ];
    for framed in framings {
        let server = Server::http1(RateLimitLayer::new(only(1))).await;
        let mut connection = Connection::open(server.address).await;
        assert_eq!(connection.ask("GET", "/").await.status, 200);
        // hyper skips a body that has arrived, and keeps the connection alive.
        connection.send(format!("POST /upload HTTP/1.1\r\nhost: test\r\n{framed}")).await;
        let rejected = connection.answer("POST").await;
        assert_eq!(rejected.status, 429);
        assert_eq!(connection.ask("GET", "/").await.status, 429);
        assert_eq!((server.arrived(), server.called(), server.polled()), (3, 1, 0));

        // This also holds if the next request is pipelined.
        let next = "HEAD / HTTP/1.1\r\nhost: test\r\n\r\n";
        connection.send(format!("POST /upload HTTP/1.1\r\nhost: test\r\n{framed}{next}")).await;
        assert_eq!(connection.answer("POST").await.status, 429);
        assert_eq!(connection.answer("HEAD").await.status, 429);
        assert_eq!((server.arrived(), server.called(), server.polled()), (5, 1, 0));
    }

    // hyper does not wait for the rest of a body.
    let long = smuggled.repeat(2_000);
    for framing in [format!("content-length: {}", 10 * long.len()), "transfer-encoding: chunked".to_owned()] {
        let server = Server::http1(RateLimitLayer::new(only(1))).await;
        let mut connection = Connection::open(server.address).await;
        assert_eq!(connection.ask("GET", "/").await.status, 200);
        connection.send(format!("POST /upload HTTP/1.1\r\nhost: test\r\n{framing}\r\n\r\n")).await;
        let rejected = connection.answer("POST").await;
        assert_eq!(rejected.status, 429);
        // The connection may be closed by now.
        let _ = connection.try_send(&format!("{:x}\r\n{long}", 10 * long.len())).await;
        connection.ends().await;
        assert_eq!((server.arrived(), server.called(), server.polled()), (2, 1, 0));
    }
}

/// CORS outside the limit, as documented, and inside.
#[tokio::test]
async fn cors_outside_exposes_rejections_to_scripts() {
    let cors = || CorsLayer::new().allow_origin(Any).expose_headers(EXPOSED_HEADERS);
    let hello = || axum::Router::new().route("/", axum::routing::get(|| async { "hello" }));
    for (app, is_outside) in [
        (hello().layer(RateLimitLayer::new(only(1))).layer(cors()), true),
        (hello().layer(cors()).layer(RateLimitLayer::new(only(1))), false),
    ] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut connection = Connection::open(listener.local_addr().unwrap()).await;
        tokio::spawn(async { axum::serve(listener, app).await });
        let mut ask = async || {
            connection.send("GET / HTTP/1.1\r\nhost: test\r\norigin: http://page\r\n\r\n").await;
            connection.answer("GET").await
        };
        let admitted = ask().await;
        assert_eq!((admitted.status, admitted.field("access-control-allow-origin")), (200, Some("*")));
        let rejected = ask().await;
        assert_eq!(rejected.status, 429);
        assert_eq!(rejected.field("access-control-allow-origin"), is_outside.then_some("*"));
        if let Some(exposed) = rejected.field("access-control-expose-headers") {
            for ours in ["retry-after", "x-rate-limited-for", "ratelimit", "ratelimit-policy"] {
                assert!(rejected.field(ours).is_some());
                assert!(exposed.split(',').any(|name| name.trim() == ours), "{exposed}");
            }
        } else {
            assert!(!is_outside);
        }
    }
}
