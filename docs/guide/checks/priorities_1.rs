// Included by a program in `docs/guide/priorities.md`.

tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    let request = http::Request::get("/export").body(axum::body::Body::empty()).unwrap();
    assert_eq!(tower::ServiceExt::oneshot(app(), request).await.unwrap().status(), 200);
})
