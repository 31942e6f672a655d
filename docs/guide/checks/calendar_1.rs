// Included by a program in `docs/guide/calendar.md`.

async fn each_customer_has_a_month_and_a_pace(app: Router) -> Result<(), Box<dyn std::error::Error>> {
    use axum::{body::Body, http::Request};
    let send = async |customer: &str| {
        let request = Request::get("/").header("x-api-key", customer).body(Body::empty()).unwrap();
        let response = tower::ServiceExt::oneshot(app.clone(), request).await.unwrap();
        let field = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
        (response.status().as_u16(), field("ratelimit-policy"), field("ratelimit"))
    };
    let (status, policies, left) = send("a").await;
    assert!(status == 200 && policies.contains(r#""plan";q=10000"#) && left.contains(r#""plan";r=9999;t="#));
    let mut sent = 1;
    while send("a").await.0 != 429 {
        sent += 1;
        assert!(sent < 9_999, "the pace does not hold");
    }
    assert!(sent >= 20, "{sent}");
    assert!(send("b").await.2.contains(r#""plan";r=9999;t="#), "another customer has another month");
    Ok(())
}
