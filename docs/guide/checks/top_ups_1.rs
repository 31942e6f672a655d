// Included by a program in `docs/guide/top_ups.md`.

{
    async fn check() -> Result<(), Box<dyn std::error::Error>> {
        use tower::ServiceExt;
        let layer = RateLimitLayer::new(bought());
        let payments = payments(layer.handle());
        for _ in 0..2 {
            let request = axum::http::Request::post("/paid").header("content-type", "application/json");
            let body = r#"{"id": "invoice-17", "customer": "alice", "units": 500}"#;
            let response = payments.clone().oneshot(request.body(axum::body::Body::from(body))?).await?;
            assert_eq!(response.status(), 200);
        }
        assert_eq!(layer.handle().peek("bought", "alice").await?.decision().remaining(), 500);
        // Bought units are used once the included ones are used up: one per day, here.
        let included = Policy::new("included", tower_sluice::Quota::per_day(1)).key(User::key());
        let layer = RateLimitLayer::new(included.or_else(bought()));
        let limits = layer.handle();
        let _ = limits.credit("bought", "alice", Credit::units(2)).await?;
        let app = Router::new().route("/", axum::routing::get(|| async { "hello" })).layer(layer);
        for (status, bought) in [(200, 2), (200, 1), (200, 0), (429, 0)] {
            let request = axum::http::Request::get("/").extension(User::new("alice"));
            let response = app.clone().oneshot(request.body(axum::body::Body::empty())?).await?;
            let left = limits.peek("bought", "alice").await?.decision().remaining();
            assert_eq!((response.status().as_u16(), left), (status, bought));
        }
        Ok(())
    }
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(check()).unwrap();
}
