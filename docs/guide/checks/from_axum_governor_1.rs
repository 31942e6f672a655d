// Included by a program in `docs/guide/from_axum_governor.md`.

{
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
        let send = async |path: &str, address: u8, token: &str| {
            let peer = axum::extract::ConnectInfo(std::net::SocketAddr::from(([192, 0, 2, address], 4711)));
            let request = axum::http::Request::get(path).extension(peer).header("authorization", token);
            let request = request.body(axum::body::Body::empty()).unwrap();
            tower::ServiceExt::oneshot(app.clone(), request).await.unwrap().status().as_u16()
        };
        // Both limits hold: ten per second and address, and 600 per minute and token.
        let mut sent = 0;
        while send("/", 1, &format!("token {sent}")).await != 429 {
            sent += 1;
            assert!(sent < 10_000, "an address is never rejected");
        }
        let mut sent = 0_u32;
        while send("/", u8::try_from(2 + sent % 200).unwrap(), "one").await != 429 {
            sent += 1;
            assert!(sent < 100_000, "a token is never rejected");
        }
        assert!(sent >= 600, "{sent}");
        assert_eq!(send("/health", 1, "one").await, 200);
    });
}
