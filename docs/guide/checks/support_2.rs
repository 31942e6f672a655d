// Included by a program in `docs/guide/support.md`.

{
    use tower_sluice::key::{ExtensionKey, PeerIp};
    use tower_sluice::{Policy, Quota, SlidingWindow};
    #[derive(Clone)]
    struct Login {
        name: String,
    }

    async fn check() {
        use tower::{Layer, ServiceExt, service_fn};
        let name = ExtensionKey::new(|login: &Login| login.name.clone());
        let logins = RateLimitLayer::new([
            Policy::new("address", SlidingWindow::new(Quota::per_hour(20))).key(PeerIp::new()),
            Policy::new("account-here", SlidingWindow::new(Quota::per_hour(5))).key((name, PeerIp::new())),
        ]);
        let login = |address: &str| {
            let mut request = http::Request::new(());
            request.extensions_mut().insert(Login { name: "ada".to_owned() });
            request.extensions_mut().insert(std::net::SocketAddr::new(address.parse().unwrap(), 4711));
            let ok = service_fn(|_| async { Ok::<_, std::convert::Infallible>(http::Response::new(String::new())) });
            let response = logins.layer(ok).oneshot(request);
            async { response.await.unwrap().status().as_u16() }
        };
        for address in ["192.0.2.1", "2001:db8::1"] {
            for _ in 0..5 {
                assert_eq!(login(address).await, 200);
            }
            assert_eq!(login(address).await, 429);
            // Of IPv6, any address of the customer's network.
            unlock(&logins, "ada", &address.replace("::1", "::2")).await.unwrap();
            assert_eq!(logins.handle().peek("address", address).await.unwrap().decision().remaining(), 20);
            assert_eq!(login(address).await, 200);
        }
    }
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(check());
}
