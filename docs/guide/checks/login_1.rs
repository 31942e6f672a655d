// Included by a program in `docs/guide/login.md`.

async fn an_attacker_does_not_lock_the_owner_out() -> Result<(), Box<dyn std::error::Error>> {
    use axum::extract::ConnectInfo;
    use tower::ServiceExt;
    let app = app();
    let ask = async |address: u8, name: &str, password: &str, cookie: &str| {
        let body = serde_json::json!({ "name": name, "password": password }).to_string();
        let mut request = Request::post("/login")
            .header("content-type", "application/json")
            .header("cookie", cookie)
            .body(Body::from(body))
            .unwrap();
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([192, 0, 2, address], 4711))));
        app.clone().oneshot(request).await.unwrap()
    };
    let send = async |address: u8, name: &str, password: &str, cookie: &str| {
        ask(address, name, password, cookie).await.status().as_u16()
    };
    // Five failures from one address: then it is over there, also with the right password and another spelling.
    for _ in 0..5 {
        assert_eq!(send(1, "ada", "guess", "").await, 401);
    }
    assert_eq!(send(1, "ada", "correct horse", "").await, 429);
    assert_eq!(send(1, " ADA ", "guess", "").await, 429);
    // The owner is elsewhere, and successes are not counted.
    for _ in 0..20 {
        assert_eq!(send(2, "ada", "correct horse", "").await, 200);
    }
    // The address tries other accounts: 15 more failures, and no more.
    for account in 0..15 {
        assert_eq!(send(1, &format!("user-{account}"), "guess", "").await, 401);
    }
    assert_eq!(send(1, "user-15", "guess", "").await, 429);
    // Many addresses try the account of Ada: 45 more failures, and no more.
    for address in 10..55 {
        assert_eq!(send(address, "ada", "guess", "").await, 401, "{address}");
    }
    assert_eq!(send(60, "ada", "guess", "").await, 429);
    // So nobody can log in from a new device. On the known one, the owner can, and a forged cookie is none.
    assert_eq!(send(3, "ada", "correct horse", "").await, 429);
    assert_eq!(send(3, "ada", "correct horse", "device=signed-8").await, 429);
    assert_eq!(send(3, "ada", "correct horse", "device=signed-7").await, 200);
    // Another account is not touched, and one that does not exist looks like one that does.
    assert_eq!(send(3, "nobody", "guess", "").await, 401);
    // A flood is banned, by its address alone.
    let mut last = 0;
    for _ in 0..60 {
        last = send(99, "bob", "guess", "").await;
    }
    assert_eq!(last, 429);
    assert_eq!(send(98, "bob", "guess", "").await, 401);
    // A client that continues after five failures is banned for this account there, though `attempts` has not
    // rejected a request.
    for attempt in 0..17 {
        assert_eq!(send(97, "carl", "guess", "").await, if attempt < 5 { 401 } else { 429 });
    }
    let banned = ask(97, "carl", "guess", "").await;
    let wait: u64 = banned.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((3_500..=3_600).contains(&wait), "{wait}");
    assert_eq!(send(97, "dora", "guess", "").await, 401);
    assert_eq!(send(96, "carl", "guess", "").await, 401);
    // An unknown path is a 404, as without limits.
    let unknown = Request::get("/unknown").body(Body::empty()).unwrap();
    assert_eq!(app.clone().oneshot(unknown).await.unwrap().status(), 404);
    Ok(())
}
