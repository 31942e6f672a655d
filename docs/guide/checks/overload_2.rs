// Included by a program in `docs/guide/overload.md`.

tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    let service = axum::Router::new().route("/", axum::routing::get(report));
    let request = http::Request::get("/").body(axum::body::Body::empty()).unwrap();
    assert_eq!(tower::ServiceExt::oneshot(service, request).await.unwrap().status(), 200);
})
