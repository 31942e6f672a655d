// Included by a program in `docs/guide/from_aspnet.md`.

{
    let app: axum::Router = axum::Router::new().fallback(|| async { "hello" }).layer(layer);
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
        let send = async |user: &'static str| {
            let request = http::Request::get("/").extension(User::new(user)).body(axum::body::Body::empty()).unwrap();
            tower::ServiceExt::oneshot(app.clone(), request).await.unwrap().status().as_u16()
        };
        let mut sent = 0;
        while send("ada").await != 429 {
            sent += 1;
            assert!(sent < 10_000, "a user is never rejected");
        }
        assert!(sent >= 20 && send("bob").await == 200, "{sent}");
    });
}
