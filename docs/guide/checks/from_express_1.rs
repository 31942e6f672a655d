// Included by a program in `docs/guide/from_express.md`.

{
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
        let send = async |path: &str, client: &str| {
            let request = axum::http::Request::get(path).header("x-forwarded-for", client);
            let peer = axum::extract::ConnectInfo(std::net::SocketAddr::from(([10, 0, 0, 5], 4711)));
            let request = request.extension(peer).body(axum::body::Body::empty()).unwrap();
            tower::ServiceExt::oneshot(app.clone(), request).await.unwrap().status().as_u16()
        };
        let mut sent = 0;
        while send("/api/orders", "198.51.100.1").await != 429 {
            sent += 1;
            assert!(sent < 10_000, "a client is never rejected");
        }
        assert!(sent >= 100, "{sent}");
        assert_eq!(send("/api/orders", "198.51.100.2").await, 200);
        for _ in 0..200 {
            assert_eq!(send("/api/health", "198.51.100.1").await, 200);
        }
    });
}
