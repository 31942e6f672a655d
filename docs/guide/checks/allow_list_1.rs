// Included by a program in `docs/guide/allow_list.md`.

{
    async fn check() -> Result<(), Box<dyn std::error::Error>> {
        use tower::ServiceExt;
        let app = app()?;
        let twice = async |path: &str, forwarded: &str, secret: &str| {
            let mut status = 0;
            for _ in 0..2 {
                let request = http::Request::get(path).header("x-forwarded-for", forwarded);
                let request = request.header("x-internal", secret);
                let mut request = request.body(axum::body::Body::empty()).unwrap();
                request.extensions_mut().insert(std::net::SocketAddr::from(([10, 0, 0, 5], 4711)));
                status = app.clone().oneshot(request).await.unwrap().status().as_u16();
            }
            status
        };
        assert_eq!(twice("/", "198.51.100.1", "").await, 429);
        assert_eq!(twice("/", "10.1.2.3", "").await, 200);
        assert_eq!(twice("/", "10.1.2.3, 198.51.100.2", "").await, 429);
        assert_eq!(twice("/", "198.51.100.3", "8c6bb4c9d2f04d0fb0a39a4d2c1be0c7").await, 200);
        assert_eq!(twice("/", "198.51.100.4", "8c6b").await, 429);
        assert_eq!(twice("/healthz", "198.51.100.5", "").await, 200);
        assert_eq!(twice("//healthz", "198.51.100.6", "").await, 429);
        Ok(())
    }
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(check()).unwrap();
}
