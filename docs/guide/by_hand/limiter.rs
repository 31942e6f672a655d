use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{ConnectInfo, Request, State};
use axum::response::{IntoResponse, Response};
use axum::{http::StatusCode, middleware::Next};
use tokio::time::Instant;

/// How often each client may send in a window, and when its window began.
#[derive(Clone)]
pub struct SimpleLimiter {
    pub limit: u32,
    pub window: Duration,
    pub clients: Arc<Mutex<HashMap<String, (Instant, u32)>>>,
}

impl SimpleLimiter {
    fn check(&self, client: String) -> Result<(), Duration> {
        let mut clients = self.clients.lock().unwrap();
        let now = Instant::now();
        let (began, count) = clients.entry(client).or_insert((now, 0));
        if now - *began >= self.window {
            (*began, *count) = (now, 0);
        }
        *count += 1;
        if *count <= self.limit { Ok(()) } else { Err(*began + self.window - now) }
    }
}

pub async fn rate_limit(State(limiter): State<SimpleLimiter>, request: Request, next: Next) -> Response {
    let forwarded = request.headers().get("x-forwarded-for").and_then(|list| list.to_str().ok());
    let first = forwarded.and_then(|list| list.split(',').next()).map(|client| client.trim().to_owned());
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip().to_string());
    match limiter.check(first.or(peer).unwrap_or_default()) {
        Ok(()) => next.run(request).await,
        Err(wait) => (StatusCode::TOO_MANY_REQUESTS, [("retry-after", wait.as_secs().to_string())]).into_response(),
    }
}
