// Included by a program in `docs/guide/slow_down.md`.

async fn requests_wait_longer_and_longer(app: Router) -> std::io::Result<()> {
    use axum::{body::Body, extract::ConnectInfo, http::Request};
    use futures_util::{StreamExt, stream::FuturesUnordered};
    let send = |address: u8| {
        let peer = ConnectInfo(SocketAddr::from(([192, 0, 2, address], 4711)));
        let request = Request::get("/search").extension(peer).body(Body::empty()).unwrap();
        let response = tower::ServiceExt::oneshot(app.clone(), request);
        async move { response.await.unwrap().status().as_u16() }
    };
    // The 51st and the 52nd at once wait, the longer one for 400 ms.
    let start = std::time::Instant::now();
    let first: FuturesUnordered<_> = (0..52).map(|_| send(1)).collect();
    assert_eq!(first.collect::<Vec<_>>().await, [200; 52]);
    assert!(start.elapsed() >= Duration::from_millis(400));
    // A client that goes on is rejected, and another one is served at once.
    let more: FuturesUnordered<_> = (0..10_000).map(|_| send(1)).collect();
    assert!(more.any(async |status| status == 429).await);
    assert_eq!(send(2).await, 200);
    Ok(())
}
