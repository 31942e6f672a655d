// Included by a program in `docs/guide/plans.md`.

async fn check() -> Result<(), Box<dyn std::error::Error>> {
    use axum::extract::ConnectInfo;
    use tower::ServiceExt;
    let app = app()?;
    let send = async |request: http::request::Builder, key: &str, body: &'static str| {
        let mut request = request.header("x-api-key", key).body(Body::from(body)).unwrap();
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([192, 0, 2, 1], 4711))));
        let response = app.clone().oneshot(request).await.unwrap();
        let (head, body) = response.into_parts();
        let body = axum::body::to_bytes(body, 100_000).await.unwrap();
        let field = |name: &str| head.headers.get(name).map_or("", |value| value.to_str().unwrap()).to_owned();
        (head.status.as_u16(), [field("ratelimit-policy"), field("ratelimit")], body)
    };
    let (status, [policies, left], _) = send(Request::get("/v1/orders"), "key-of-ada", "").await;
    assert_eq!(status, 200);
    assert!(policies.contains(r#""month";q=1000000"#) && policies.contains(r#""in-flight";q=50"#), "{policies}");
    assert!(left.contains(r#""pace";r=499"#) && left.contains(r#""month";r=999999;t="#), "{left}");
    let (_, [policies, left], _) = send(Request::get("/v1/orders"), "key-of-bob", "").await;
    assert!(policies.contains(r#""month";q=1000,"#) || policies.contains(r#""month";q=1000;"#), "{policies}");
    assert!(left.contains(r#""month";r=999;t="#), "{left}");
    // An estimate of 500, of which 3 are used: at the next answer, 3 are gone.
    let (status, [_, left], body) = send(Request::post("/v1/chat"), "key-of-bob", "how are you").await;
    assert_eq!((status, &body[..]), (200, &b"HOWAREYOU"[..]));
    assert!(left.contains(r#""tokens";r=19500"#), "{left}");
    let (_, [_, left], _) = send(Request::post("/v1/chat"), "key-of-bob", "fine").await;
    assert!(left.contains(r#""tokens";r=19497"#), "{left}");
    // An answer of 25,000 tokens: the next one is rejected, and has not paid the month.
    let long: &'static str = "a ".repeat(25_000).leak();
    assert_eq!(send(Request::post("/v1/chat"), "key-of-bob", long).await.0, 200);
    assert_eq!(send(Request::post("/v1/chat"), "key-of-bob", "more").await.0, 429);
    for _ in 0..2 {
        let (status, _, body) = send(Request::get("/v1/usage"), "key-of-bob", "").await;
        let usage = String::from_utf8_lossy(&body);
        assert!(status == 200 && usage.contains("month: 996 left\n") && usage.contains("\ntokens: "), "{usage}");
    }
    // A client that hangs up pays for what it has read.
    let peer = ConnectInfo(SocketAddr::from(([192, 0, 2, 1], 4711)));
    let ask = Request::post("/v1/chat").header("x-api-key", "key-of-ada").extension(peer);
    let mut body = app.clone().oneshot(ask.body(Body::from(long)).unwrap()).await?.into_body();
    for _ in 0..24_000 {
        http_body_util::BodyExt::frame(&mut body).await.unwrap()?;
    }
    drop(body);
    let (_, _, usage) = send(Request::get("/v1/usage"), "key-of-ada", "").await;
    assert!(String::from_utf8_lossy(&usage).contains("\ntokens: 476000 left"), "{usage:?}");
    // Right keys are not counted. Ten wrong ones, and a right one is rejected there, too.
    for _ in 0..20 {
        assert_eq!(send(Request::get("/v1/orders"), "key-of-ada", "").await.0, 200);
    }
    for _ in 0..10 {
        assert_eq!(send(Request::get("/v1/orders"), "guess", "").await.0, 401);
    }
    assert_eq!(send(Request::get("/v1/orders"), "key-of-ada", "").await.0, 429);
    Ok(())
}
