// Included by a program in `docs/guide/monitoring.md`.

{
    async fn check() -> Result<(), LimiterError> {
        let layer = layer();
        let app: axum::Router = axum::Router::new().fallback(|| async { "hello" }).layer(layer.clone());
        let send = async |address: u8| {
            let peer = std::net::SocketAddr::from(([192, 0, 2, address], 4711));
            let request = http::Request::get("/").extension(peer).body(axum::body::Body::empty()).unwrap();
            tower::ServiceExt::oneshot(app.clone(), request).await.unwrap().status().as_u16()
        };
        assert_eq!(send(2).await, 200);
        let mut sent = 0;
        while send(1).await != 429 {
            sent += 1;
            assert!(sent < 10_000, "it is never rejected");
        }
        let offenders = layer.handle().offenders("per-client", 20).await?;
        assert_eq!((offenders.list().len(), offenders.total()), (1, 1));
        print_offenders(&layer.handle()).await
    }
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(check()).unwrap();
}
