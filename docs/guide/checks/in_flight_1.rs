// Included by a program in `docs/guide/in_flight.md`.

async fn a_key_has_four_at_once(app: Router) -> std::io::Result<()> {
    use axum::{body::Body, http::Request};
    let send = async |key: &str| {
        let request = Request::get("/export").header("x-api-key", key).body(Body::empty()).unwrap();
        tower::ServiceExt::oneshot(app.clone(), request).await.unwrap()
    };
    // A response whose body is not read yet is in flight.
    let mut open = Vec::new();
    for _ in 0..4 {
        open.push(send("a").await);
    }
    assert!(open.iter().all(|response| response.status() == 200));
    assert_eq!([send("a").await.status().as_u16(), send("b").await.status().as_u16()], [429, 200]);
    axum::body::to_bytes(open.pop().unwrap().into_body(), 100).await.unwrap();
    assert_eq!(send("a").await.status(), 200);
    Ok(())
}
