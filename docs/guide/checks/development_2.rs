// Included by a program in `docs/guide/development.md`.

{
    async fn check() {
        use tower::{Layer, ServiceExt, service_fn};
        let send = |is_limited| {
            let ok = service_fn(|_| async { Ok::<_, std::convert::Infallible>(http::Response::new(String::new())) });
            limits(is_limited).layer(ok).oneshot(http::Request::new(()))
        };
        assert_eq!(send(false).await.unwrap().status(), 200);
        assert_eq!(send(true).await.unwrap().status(), 500);
    }
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(check());
}
