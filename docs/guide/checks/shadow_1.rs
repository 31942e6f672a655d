// Included by a program in `docs/guide/shadow.md`.

{
    let app: axum::Router = axum::Router::new().fallback(|| async { "hello" }).layer(layer.clone());
    assert_eq!(layer.shadow_rejected("stricter"), Some(0));
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
        use axum::{body::Body, extract::ConnectInfo, http::Request};
        let send = async |address: u8| {
            let peer = ConnectInfo(std::net::SocketAddr::from(([192, 0, 2, address], 4711)));
            let request = Request::get("/").extension(peer).body(Body::empty()).unwrap();
            tower::ServiceExt::oneshot(app.clone(), request).await.unwrap().status().as_u16()
        };
        // Fifty at once pass, of which the shadow would have rejected up to forty.
        for _ in 0..50 {
            assert_eq!(send(1).await, 200);
        }
        let mut address = 2;
        while layer.shadow_rejected("stricter") == Some(0) {
            for _ in 0..50 {
                assert_eq!(send(address).await, 200);
            }
            address += 1;
        }
    });
}
