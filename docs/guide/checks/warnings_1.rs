// Included by a program in `docs/guide/warnings.md`.

{
    let layer = tower_sluice::RateLimitLayer::new(daily);
    let limits = layer.handle();
    let app: axum::Router = axum::Router::new().fallback(|| async { "hello" }).layer(layer);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let send = async |user: &'static str| {
            let request = http::Request::get("/").extension(User::new(user)).body(axum::body::Body::empty()).unwrap();
            let response = tower::ServiceExt::oneshot(app.clone(), request).await.unwrap();
            tokio::task::yield_now().await;
            response.status().as_u16()
        };
        // Of 10,000 requests, alice has sent 7,998, and sends three more: the second one is the 8,000th.
        let _ = limits.charge("daily", "alice", 7_998).await.unwrap();
        let _ = limits.charge("daily", "bob", 7_998).await.unwrap();
        for _ in 0..3 {
            assert_eq!(send("alice").await, 200);
        }
        let mails = MAILS.lock().unwrap();
        // Unless the day has ended meanwhile.
        if limits.peek("daily", "alice").await.unwrap().decision().remaining() == 1_999 {
            let [(customer, text)] = &mails[..] else { panic!("{mails:?}") };
            assert!(customer == "alice" && text.starts_with("You have used 8000 of 10000 requests."), "{text}");
        }
    });
}
