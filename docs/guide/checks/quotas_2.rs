// Included by a program in `docs/guide/quotas.md`.

{
    use axum::{Router, body::Body, extract::ConnectInfo, http::Request, routing::get};
    let app: Router = Router::new()
        .route("/right", get(|| async { StatusCode::OK }))
        .route("/wrong", get(|| async { StatusCode::UNAUTHORIZED }))
        .layer(tower_sluice::RateLimitLayer::new(failed_logins));
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
        let send = async |path: &str, address: u8| {
            let peer = ConnectInfo(std::net::SocketAddr::from(([192, 0, 2, address], 4711)));
            let request = Request::get(path).extension(peer).body(Body::empty()).unwrap();
            tower::ServiceExt::oneshot(app.clone(), request).await.unwrap().status().as_u16()
        };
        for _ in 0..30 {
            assert_eq!(send("/right", 1).await, 200);
        }
        for _ in 0..10 {
            assert_eq!(send("/wrong", 1).await, 401);
        }
        assert_eq!([send("/wrong", 1).await, send("/right", 1).await, send("/wrong", 2).await], [429, 429, 401]);
    });
}
