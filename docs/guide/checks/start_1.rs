// Included by a program in `docs/guide/start.md`.

async fn a_client_gets_twenty_at_once(app: Router) -> std::io::Result<()> {
    use axum::{body::Body, extract::ConnectInfo, http::Request};
    let send = async |address: u8| {
        let peer = ConnectInfo(SocketAddr::from(([192, 0, 2, address], 4711)));
        let request = Request::get("/").extension(peer).body(Body::empty()).unwrap();
        tower::ServiceExt::oneshot(app.clone(), request).await.unwrap().status().as_u16()
    };
    let mut sent = 0;
    while send(1).await != 429 {
        sent += 1;
        assert!(sent < 10_000, "it is never rejected");
    }
    assert!(sent >= 20, "{sent}");
    assert_eq!(send(2).await, 200);
    Ok(())
}
