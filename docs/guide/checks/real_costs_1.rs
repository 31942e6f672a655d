// Included by a program in `docs/guide/real_costs.md`.

async fn a_search_costs_its_rows(app: Router) -> std::io::Result<()> {
    let send = async |customer: &str, query: &'static str| {
        let request = axum::http::Request::post("/search").header("x-api-key", customer);
        let request = request.body(axum::body::Body::from(query)).unwrap();
        let (head, body) = tower::ServiceExt::oneshot(app.clone(), request).await.unwrap().into_parts();
        axum::body::to_bytes(body, 1_000).await.unwrap();
        let left = head.headers["ratelimit"].to_str().unwrap();
        left.split(';').find_map(|part| part.strip_prefix("r=")).unwrap().parse::<u64>().unwrap()
    };
    let left = [send("a", "a").await, send("a", "b").await, send("a", "nobody").await, send("b", "a").await];
    // Two rows, one, and none, and not 500 each; unless a minute has ended meanwhile.
    if left[..3].is_sorted_by(|earlier, later| earlier >= later) {
        assert_eq!(left, [99_998, 99_997, 99_997, 99_998]);
    }
    Ok(())
}
