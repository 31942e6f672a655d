// Included by a program in `docs/guide/start.md`.

{
    use axum::{body::Body, extract::ConnectInfo, http::Request};
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
        let send = async |method: &str, path: &str, address: u8| {
            let peer = ConnectInfo(std::net::SocketAddr::from(([192, 0, 2, address], 4711)));
            let request = Request::builder().method(method).uri(path).extension(peer).body(Body::empty()).unwrap();
            tower::ServiceExt::oneshot(app.clone(), request).await.unwrap().status().as_u16()
        };
        // Unknown paths are not charged to the limit of exports.
        for path in ["/unknown", "/export/unknown", "/exports"] {
            assert_eq!(send("GET", path, 1).await, 404);
        }
        let mut sent = 0;
        while send("POST", "/export", 1).await != 429 {
            sent += 1;
            assert!(sent < 10_000, "exports are never rejected");
        }
        assert!(sent >= 2, "{sent}");
        assert_eq!(send("POST", "/export", 2).await, 200, "of another client");
        for _ in 0..100 {
            assert_eq!(send("GET", "/healthz", 1).await, 200);
        }
    });
}
