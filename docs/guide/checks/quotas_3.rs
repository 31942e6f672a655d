// Included by a program in `docs/guide/quotas.md`.

{
    use axum::{Router, body::Body, http::Request};
    let app: Router = Router::new()
        .fallback(|| async { "paid" })
        .layer(tower_sluice::RateLimitLayer::new(payments));
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
        let send = async |idempotency_key: &str| {
            let request = Request::post("/payments").header("x-api-key", "a").header("idempotency-key", idempotency_key);
            let request = request.body(Body::empty()).unwrap();
            let (head, body) = tower::ServiceExt::oneshot(app.clone(), request).await.unwrap().into_parts();
            axum::body::to_bytes(body, 100).await.unwrap();
            let field = head.headers["ratelimit"].to_str().unwrap();
            field.split(';').find_map(|part| part.strip_prefix("r=")).unwrap().parse::<u64>().unwrap()
        };
        // The first request, and three retries; the fourth is charged, and so is another payment.
        let mut left = Vec::new();
        for key in ["one", "one", "one", "one", "one", "two"] {
            left.push(send(key).await);
        }
        // Unless the day has ended meanwhile.
        if left.is_sorted_by(|earlier, later| earlier >= later) {
            assert_eq!(left, [9_999, 9_999, 9_999, 9_999, 9_998, 9_997]);
        }
    });
}
