// Included by a program in `docs/guide/direct.md`.

{
    use tower::ServiceExt;
    let app = app();
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
        let send = async |rows: usize| {
            let mut request = http::Request::post("/import").body(axum::body::Body::from("row\n".repeat(rows))).unwrap();
            request.extensions_mut().insert(User::new("ada"));
            let response = app.clone().oneshot(request).await.unwrap();
            (response.status().as_u16(), response.headers().get("retry-after").is_some())
        };
        assert_eq!(send(900).await, (200, false));
        assert_eq!(send(900).await, (429, true));
        assert_eq!(send(1_001).await, (429, false));
        assert_eq!(send(100).await, (200, false));
    });
}
