// Included by a program in `docs/guide/keys.md`.

{
    accounts_are_counted_by_account_and_strangers_by_address(layer);
    fn accounts_are_counted_by_account_and_strangers_by_address(layer: RateLimitLayer) {
        use axum::{Router, body::Body, extract::ConnectInfo, http::Request, routing::get};
        let app = Router::new().route("/", get(|| async { "hello" })).layer(layer);
        let send = async |address: u8, account: Option<u64>| {
            let peer = ConnectInfo(std::net::SocketAddr::from(([192, 0, 2, address], 4711)));
            let mut request = Request::get("/").extension(peer).body(Body::empty()).unwrap();
            account.map(|number| request.extensions_mut().insert(Account { number }));
            tower::ServiceExt::oneshot(app.clone(), request).await.unwrap().status().as_u16()
        };
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
            // A thousand requests of one account from one address, and its next one from another.
            for _ in 0..1_000 {
                assert_eq!(send(1, Some(17)).await, 200);
            }
            assert_eq!(send(2, Some(17)).await, 429);
            // Another account on that address is not concerned, and neither are strangers.
            assert_eq!(send(1, Some(18)).await, 200);
            let mut sent = 0;
            while send(1, None).await != 429 {
                sent += 1;
                assert!(sent < 10_000, "strangers are never rejected");
            }
            assert!(sent >= 5, "{sent}");
            assert_eq!((send(2, None).await, send(1, Some(18)).await), (200, 200));
        });
    }
}
