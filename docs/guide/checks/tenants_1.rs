// Included by a program in `docs/guide/tenants.md`.

tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    for key in ["key-of-ada", "none"] {
        let request = http::Request::get("/report").header("x-api-key", key);
        let request = request.body(axum::body::Body::empty()).unwrap();
        assert_eq!(tower::ServiceExt::oneshot(app(), request).await.unwrap().status(), 200);
    }
})
