// Included by a program in `docs/guide/quotas.md`.

{
    use axum::{Router, body::Body, http::Request, routing::get};
    let app: Router = Router::new()
        .fallback(|| async { "hello" })
        .layer(tower_sluice::RateLimitLayer::new(policy));
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
        let send = async |path: &str| {
            let request = Request::get(path).body(Body::empty()).unwrap();
            tower::ServiceExt::oneshot(app.clone(), request).await.unwrap()
        };
        let left = |response: &http::Response<_>| {
            let field = response.headers()["ratelimit"].to_str().unwrap().to_owned();
            field.split(';').find_map(|part| part.strip_prefix("r=")).unwrap().parse::<u64>().unwrap()
        };
        assert_eq!([left(&send("/search").await), left(&send("/orders").await)].map(|left| left < 100), [true; 2]);
        let mut searches = 1;
        while send("/search").await.status().is_success() {
            searches += 1;
            assert!(searches < 10_000, "searches are never rejected");
        }
        // A hundred points are ten searches, but for the one of an order.
        assert!(searches >= 9, "{searches}");
        assert!(send("/health").await.status().is_success());
    });
}
