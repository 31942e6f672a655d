// Included by a program in `docs/guide/from_tower_governor.md`.

{
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
        let send = async |address: u8| {
            let peer = axum::extract::ConnectInfo(std::net::SocketAddr::from(([192, 0, 2, address], 4711)));
            let request = axum::http::Request::get("/").extension(peer).body(axum::body::Body::empty()).unwrap();
            tower::ServiceExt::oneshot(app.clone(), request).await.unwrap().status().as_u16()
        };
        let mut sent = 0;
        while send(1).await != 429 {
            sent += 1;
            assert!(sent < 10_000, "a client is never rejected");
        }
        assert!(sent >= 5 && send(2).await == 200, "{sent}");
    });
}
