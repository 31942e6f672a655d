// Included by a program in `docs/guide/pool.md`.

{
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
        let app = app();
        let send = async |key: &str| {
            let request = http::Request::get("/report").header("x-api-key", key);
            let request = request.body(axum::body::Body::empty()).unwrap();
            let response = tower::ServiceExt::oneshot(app.clone(), request).await.unwrap();
            let left = response.headers().get("ratelimit").map_or("", |left| left.to_str().unwrap());
            (response.status().as_u16(), left.contains("\"own\""), left.contains("\"pool\""))
        };
        // A thousand of her own, and then five thousand of the team's.
        for sent in 0..6_000 {
            assert_eq!(send("key-of-ada").await, (200, sent < 1_000, sent >= 1_000), "{sent}");
        }
        assert_eq!(send("key-of-ada").await.0, 429);
        // A user without a team has no pool.
        for _ in 0..1_000 {
            assert_eq!(send("key-of-bob").await, (200, true, false));
        }
        assert_eq!(send("key-of-bob").await.0, 429);
    });
}
