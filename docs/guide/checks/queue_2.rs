// Included by a program in `docs/guide/queue.md`.

{
    let app: axum::Router =
        axum::Router::new().fallback(|| async { "hello" }).layer(tower_sluice::RateLimitLayer::new(policy));
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let send = |user: &'static str, pace: Quota| {
            let request = http::Request::get("/").extension(User::new(user)).extension(Pace(pace));
            tower::ServiceExt::oneshot(app.clone(), request.body(axum::body::Body::empty()).unwrap())
        };
        let (slow, fast) = (Quota::per_hour(1), Quota::per_second(20));
        assert_eq!(send("bob", slow).await.unwrap().status(), 200);
        // Bob's next turn is an hour away, which is more than he may wait, and Ada's is 50 ms away.
        let response = send("bob", slow).await.unwrap();
        let policy = response.headers()["ratelimit-policy"].to_str().unwrap();
        assert!(response.status() == 429 && policy.contains("w=3600"), "{policy}");
        for response in futures_util::future::join_all((0..3).map(|_| send("ada", fast))).await {
            assert_eq!(response.unwrap().status(), 200);
        }
    });
}
