// Included by a program in `docs/guide/from_tower.md`.

/// What tower's limits count in axum, and what the layer of this crate counts.
async fn check() {
    use std::time::Duration;
    use axum::{error_handling::HandleErrorLayer, http::StatusCode};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tower::limit::{ConcurrencyLimitLayer, GlobalConcurrencyLimitLayer};
    use tower::{BoxError, ServiceBuilder};
    async fn serve(app: Router, per_connection: bool) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            match per_connection {
                true => axum::serve(listener, app).await,
                false => axum::serve(listener, app.into_make_service()).await,
            }
        });
        address
    }
    async fn ask(connection: &mut TcpStream, path: &str) -> u16 {
        connection.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).await.unwrap();
        let mut head = [0; 2_000];
        assert!(connection.read(&mut head).await.unwrap() > 12);
        std::str::from_utf8(&head[9..12]).unwrap().parse().unwrap()
    }
    let shed = || {
        ServiceBuilder::new()
            .layer(HandleErrorLayer::new(|_: BoxError| async { StatusCode::SERVICE_UNAVAILABLE }))
            .load_shed()
    };
    let slow = || {
        get(|| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            "slow"
        })
    };
    let routes = || Router::new().route("/", slow()).route("/b", slow());
    let ours = || RateLimitLayer::new(Policy::new("in-flight", Concurrency::new(1)));
    let cases = [
        (routes().layer(shed().layer(ConcurrencyLimitLayer::new(1))), true, 3),
        (routes().layer(shed().layer(ConcurrencyLimitLayer::new(1))), false, 2),
        (routes().layer(shed().layer(GlobalConcurrencyLimitLayer::new(1))), true, 1),
        (routes().layer(shed().layer(GlobalConcurrencyLimitLayer::new(1))), false, 1),
        (routes().layer(ours()), true, 1),
        (routes().layer(ours()), false, 1),
    ];
    let cases = cases.into_iter().map(|(app, per_connection, served)| async move {
        let address = serve(app, per_connection).await;
        let mut connections = Vec::new();
        for path in ["/", "/", "/b"] {
            connections.push((TcpStream::connect(address).await.unwrap(), path));
        }
        let asked = connections.iter_mut().map(|(connection, path)| ask(connection, path));
        let statuses = futures_util::future::join_all(asked).await;
        assert_eq!(statuses.iter().filter(|status| **status == 200).count(), served, "{statuses:?}");
    });
    futures_util::future::join_all(cases).await;
    let rate = || shed().buffer(1).rate_limit(1, Duration::from_secs(60));
    for per_connection in [true, false] {
        let address = serve(routes_without_wait().layer(rate()), per_connection).await;
        let mut connections = Vec::new();
        for _ in 0..2 {
            connections.push(TcpStream::connect(address).await.unwrap());
        }
        assert_eq!(ask(&mut connections[0], "/").await, 200);
        let patience = if per_connection { Duration::from_secs(10) } else { Duration::from_millis(200) };
        let second = tokio::time::timeout(patience, ask(&mut connections[1], "/")).await;
        assert_eq!(second.is_ok(), per_connection);
        let again = tokio::time::timeout(Duration::from_millis(200), ask(&mut connections[0], "/")).await;
        assert!(again.is_err(), "it waits");
    }
}

fn routes_without_wait() -> Router {
    Router::new().route("/", get(|| async { "fast" }))
}
