// Included by a program in `docs/guide/overage.md`.

{
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
        let app = app();
        let limits = LIMITS.get().unwrap();
        let send = async |customer: &str| {
            let request = http::Request::get("/report").header("x-api-key", customer);
            let request = request.body(axum::body::Body::empty()).unwrap();
            let response = tower::ServiceExt::oneshot(app.clone(), request).await.unwrap();
            (response.status().as_u16(), response.headers()["ratelimit"].to_str().unwrap().to_owned())
        };
        // Included units first, then the others, and then nothing.
        assert!(send("a").await.1.contains("\"included\";r=9999"));
        let _ = limits.charge("included", "a", 9_999).await.unwrap();
        assert!(send("a").await.1.contains("\"overage\";r=4999"));
        let _ = limits.charge("overage", "a", 4_999).await.unwrap();
        assert_eq!(send("a").await.0, 429);
        assert!(send("b").await.1.contains("\"included\";r=9999"), "another customer");
    });
}
