// Included by a program in `docs/guide/support.md`.

async fn check() -> Result<(), Box<dyn std::error::Error>> {
    use axum::body::Body;
    let limits = limits();
    let (staff, app) = (staff(&limits, "secret".to_owned()), app(limits));
    let export = async || {
        app.clone().oneshot(Request::get("/export").body(Body::empty()).unwrap()).await.unwrap().status().as_u16()
    };
    let ask = async |call: &str, body: &str, token: &str| {
        let peer = axum::extract::ConnectInfo(SocketAddr::from(([192, 0, 2, 1], 1)));
        let request = Request::post(format!("/api/{call}")).extension(peer);
        let request = request.header("content-type", "application/json");
        let request = request.header("authorization", format!("Bearer {token}"));
        let response = staff.clone().oneshot(request.body(Body::from(body.to_owned())).unwrap()).await.unwrap();
        let status = response.status().as_u16();
        let body = axum::body::to_bytes(response.into_body(), 10_000).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    };
    for _ in 0..5 {
        assert_eq!(export().await, 200);
    }
    assert_eq!(export().await, 429);
    let (status, text) = ask("key", r#"{"key": "ada", "policy": "exports"}"#, "secret").await;
    assert!(status == 200 && text.contains(r#""left":0,"limit":5"#), "{status} {text}");
    let reset = r#"{"key": "ada", "policy": "exports"}"#;
    assert_eq!(ask("reset", reset, "wrong").await.0, 403);
    assert_eq!(export().await, 429);
    assert_eq!(ask("reset", reset, "secret").await.0, 200);
    assert_eq!(export().await, 200);
    for _ in 0..30 {
        let _ = ask("key", reset, "wrong").await;
    }
    assert_eq!(ask("key", reset, "wrong").await.0, 429);
    assert_eq!(ask("key", reset, "secret").await.0, 200);
    Ok(())
}
