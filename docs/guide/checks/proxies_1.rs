// Included by a program in `docs/guide/proxies.md`.

async fn clients_are_counted_by_their_own_address(app: Router) -> Result<(), Box<dyn std::error::Error>> {
    use axum::{body::Body, extract::ConnectInfo, http::Request};
    let send = async |peer: [u8; 4], forwarded: &str| {
        let request = Request::get("/").extension(ConnectInfo(SocketAddr::from((peer, 4711))));
        let request = request.header("x-forwarded-for", forwarded).body(Body::empty()).unwrap();
        tower::ServiceExt::oneshot(app.clone(), request).await.unwrap().status().as_u16()
    };
    let proxy = [127, 0, 0, 1];
    let mut sent = 0;
    // What the client itself sends comes before its address, and does not count.
    while send(proxy, &format!("10.0.0.{}, 198.51.100.1", sent % 256)).await != 429 {
        sent += 1;
        assert!(sent < 10_000, "a client is never rejected");
    }
    for _ in 0..20 {
        assert_eq!(send(proxy, "198.51.100.2").await, 200, "another client of the proxy");
    }
    // A client that goes around the proxy is counted by its own address, whatever it sends.
    let mut sent = 0;
    while send([203, 0, 113, 9], &format!("198.51.100.{}", sent % 256)).await != 429 {
        sent += 1;
        assert!(sent < 10_000, "a forged field is believed");
    }
    Ok(())
}
