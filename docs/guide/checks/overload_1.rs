// Included by a program in `docs/guide/overload.md`.

async fn check() -> Result<(), Box<dyn std::error::Error>> {
    use tower::ServiceExt;
    for path in ["/report", "/healthz"] {
        let request = http::Request::get(path).body(axum::body::Body::empty())?;
        assert_eq!(app()?.oneshot(request).await?.status(), 200);
    }
    Ok(())
}
