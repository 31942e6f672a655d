// Included by a program in `docs/guide/queue.md`.

async fn pages_are_printed_one_by_one(app: Router) -> std::io::Result<()> {
    use axum::{body::Body, extract::ConnectInfo, http::Request};
    let send = |address: u8| {
        let peer = ConnectInfo(SocketAddr::from(([192, 0, 2, address], 4711)));
        let request = Request::post("/print").extension(peer).body(Body::empty()).unwrap();
        let response = tower::ServiceExt::oneshot(app.clone(), request);
        async move { response.await.unwrap().status().as_u16() }
    };
    // Four clients at once: one page every 100 ms, all of them.
    let start = std::time::Instant::now();
    assert_eq!(futures_util::future::join_all((1..5).map(send)).await, [200; 4]);
    assert!(start.elapsed() >= Duration::from_millis(300));
    // A client that sends many is rejected before it fills the queue, and others are not.
    let many = futures_util::future::join_all((0..500).map(|_| send(9)));
    assert!(many.await.contains(&429));
    assert_eq!(send(10).await, 200);
    Ok(())
}
