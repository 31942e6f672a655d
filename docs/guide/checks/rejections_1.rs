// Included by a program in `docs/guide/rejections.md`.

{
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
        use tower::ServiceExt;
        let get = || http::Request::get("/orders").body(axum::body::Body::empty()).unwrap();
        assert_eq!(app.clone().oneshot(get()).await.unwrap().status(), 200);
        let (head, body) = app.clone().oneshot(get()).await.unwrap().into_parts();
        assert_eq!(head.status, 429);
        assert!(head.headers.contains_key("retry-after") && head.headers.contains_key("ratelimit"));
        let body = axum::body::to_bytes(body, 1_000).await.unwrap();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["error"]["code"], "rate_limited");
        assert_eq!(body["error"]["limits"], serde_json::json!(["everybody"]));
        assert!(body["error"]["retry_after_ms"].as_u64().unwrap() > 59_000);
    });
}
