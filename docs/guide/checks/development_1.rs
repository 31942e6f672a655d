// Included by a program in `docs/guide/development.md`.

// No limit, so no address is needed.
async fn check() {
    use tower::ServiceExt;
    let send = async |is_limited| {
        app(is_limited).oneshot(http::Request::new(axum::body::Body::empty())).await.unwrap().status().as_u16()
    };
    assert_eq!((send(false).await, send(true).await), (200, 500));
}
