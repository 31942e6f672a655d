// Included by a program in `docs/guide/quotas.md`.

{
    use axum::{Router, body::Body, http::Request};
    let app: Router = Router::new()
        .fallback(|| async { "hello" })
        .layer(tower_sluice::RateLimitLayer::new(api));
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
        let send = async |user: &'static str, plan: Option<Quota>| {
            let mut request = Request::get("/").extension(User::new(user)).body(Body::empty()).unwrap();
            plan.map(|quota| request.extensions_mut().insert(Plan(quota)));
            let response = tower::ServiceExt::oneshot(app.clone(), request).await.unwrap();
            (response.status().as_u16(), response.headers()["ratelimit-policy"].to_str().unwrap().to_owned())
        };
        let three = Some(Quota::per_day(3));
        for status in [200, 200, 200, 429] {
            assert_eq!(send("ada", three).await, (status, r#""api";q=3;w=86400"#.to_owned()));
        }
        assert_eq!(send("bob", None).await, (200, r#""api";q=60;w=60"#.to_owned()));
        assert_eq!(send("carl", three).await.0, 200, "each customer has a budget");
    });
}
