// Included by a program in `docs/guide/in_flight.md`.

{
    let app: axum::Router =
        axum::Router::new().fallback(|| async { "hello" }).layer(tower_sluice::RateLimitLayer::new(in_flight));
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
        let count = async |user: &'static str, seats: Option<u64>| {
            let mut open = Vec::new();
            loop {
                let mut request = http::Request::get("/").extension(User::new(user));
                if let Some(seats) = seats {
                    request = request.extension(Seats(seats));
                }
                let request = request.body(axum::body::Body::empty()).unwrap();
                let response = tower::ServiceExt::oneshot(app.clone(), request).await.unwrap();
                if response.status() == 429 {
                    break open.len();
                }
                open.push(response);
                assert!(open.len() < 100, "there is no limit");
            }
        };
        assert_eq!([count("ada", Some(5)).await, count("bob", None).await, count("carl", Some(1)).await], [5, 2, 1]);
    });
}
