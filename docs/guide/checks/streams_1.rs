// Included by a program in `docs/guide/streams.md`.

async fn check() {
    use tower::ServiceExt;
    // A model that answers in five events, whose chunks end within lines. It fails if asked to.
    async fn model(Json(prompt): Json<Value>) -> Result<Body, StatusCode> {
        assert_eq!(prompt["stream_options"]["include_usage"], true);
        if prompt["model"] == "none" {
            return Err(StatusCode::NOT_FOUND);
        }
        let mut text = String::new();
        for _ in 0..5 {
            text += "data: {\"choices\":[{\"delta\":{\"content\":\"word\"}}],\"usage\":null}\n\n";
        }
        text += "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":40,\"total_tokens\":47}}\n\n";
        text += "data: [DONE]\n\n";
        let chunks: Vec<_> = text.as_bytes().chunks(66).map(|part| Bytes::from(part.to_vec())).collect();
        let slowly = futures_util::StreamExt::then(futures_util::stream::iter(chunks), |chunk| async {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            Ok::<_, std::io::Error>(chunk)
        });
        Ok(Body::from_stream(slowly))
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, Router::new().route("/", post(model))).await });
    let app = app(format!("http://{address}/"));
    let send = async |customer: &str, model: &str| {
        let request = Request::post("/v1/chat").header("x-api-key", customer);
        let request = request.header(CONTENT_TYPE, "application/json");
        let body = Body::from(json!({ "model": model }).to_string());
        app.clone().oneshot(request.body(body).unwrap()).await.unwrap()
    };
    // A model that does not answer costs nothing, so such a request shows the units that are left.
    let left = async |customer: &str| {
        let response = send(customer, "none").await;
        assert_eq!(response.status(), 502);
        let field = response.headers()["ratelimit"].to_str().unwrap().to_owned();
        field.split(";r=").nth(1).unwrap().split(';').next().unwrap().parse::<u64>().unwrap()
    };
    let full = left("ada").await;
    assert_eq!(left("ada").await, full);
    // To the end: the usage is charged.
    let text = send("ada", "some").await.into_body().collect().await.unwrap().to_bytes();
    assert!(text.ends_with(b"data: [DONE]\n\n"));
    assert_eq!(full - left("ada").await, 47);
    // A client that hangs up: the prompt, and the events that it got.
    let mut body = send("bob", "some").await.into_body();
    for _ in 0..3 {
        body.frame().await.unwrap().unwrap();
    }
    drop(body);
    let charged = full - left("bob").await;
    assert!((10..=30).contains(&charged), "{charged}");
}
