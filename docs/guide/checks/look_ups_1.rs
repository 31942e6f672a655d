// Included by a program in `docs/guide/look_ups.md`.

static QUERIES: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

async fn check() {
    use std::sync::atomic::Ordering::Relaxed;
    use axum::{body::Body, extract::ConnectInfo};
    use tower::ServiceExt;
    let app = app(Arc::new(Accounts::new()));
    let send = async |key: &str, address: u32| {
        let mut request = Request::get("/v1/orders").header("x-api-key", key).body(Body::empty()).unwrap();
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from((std::net::Ipv4Addr::from(address), 4711))));
        let response = app.clone().oneshot(request).await.unwrap();
        let policies = response.headers().get_all("ratelimit-policy").iter();
        let policies: Vec<_> = policies.map(|field| field.to_str().unwrap().to_owned()).collect();
        (response.status().as_u16(), policies.join(", "))
    };
    let (status, policies) = send("key-of-ada", 1).await;
    assert!(status == 200 && policies.contains(r#""pace";q=6000"#), "{policies}");
    for _ in 0..5 {
        assert_eq!(send("key-of-ada", 1).await.0, 200);
        assert_eq!(send("invented", 1).await.0, 401);
    }
    assert_eq!(QUERIES.load(Relaxed), 2);
    // A flood from many addresses.
    let start = Instant::now();
    let mut statuses = HashMap::<u16, u64>::new();
    for key in 0..5_000_u32 {
        *statuses.entry(send(&format!("invented {key}"), key + 100).await.0).or_default() += 1;
    }
    // Without the two from before, whose units are back.
    let calls = (QUERIES.load(Relaxed) - 2) as f64;
    assert!(calls <= 500.0 + 200.0 * start.elapsed().as_secs_f64() + 1.0, "{calls}");
    assert!(statuses[&401] >= 498 && statuses.keys().all(|status| [401, 503].contains(status)), "{statuses:?}");
    assert_eq!(send("key-of-ada", 1).await.0, 200);
    // The caches are bounded, and an entry in use stays.
    let cache = Cache::new(10, Duration::from_secs(60));
    let mut cache = cache.lock().unwrap();
    cache.insert("ada", (Instant::now(), 7));
    for key in 0..1_000 {
        cache.insert(&key.to_string(), (Instant::now(), 0));
        assert_eq!(cache.get("ada"), Some(7));
        assert!(cache.young.len() <= 10 && cache.old.len() <= 10);
    }
    cache.max_age = Duration::ZERO;
    assert_eq!(cache.get("ada"), None);
}
