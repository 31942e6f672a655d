//! `--admin`: the admin service on a separate address, and its guard.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use tower::ServiceExt;
use tower_sluice::key::PeerIp;
use tower_sluice::{Policy, Quota, RateLimitLayer, SlidingWindow};
use tower_sluice_admin::Admin;

const TOKEN: &str = "SLUICE_ADMIN_TOKEN";

/// The admin service's address and token.
#[derive(Clone)]
pub struct Settings {
    /// Where it listens.
    pub address: SocketAddr,
    /// Every holder may do everything. Without a token, every client that reaches the address may.
    token: Option<Arc<str>>,
}

impl Settings {
    /// Reads the address from the arguments, and the token from the environment, because other users on the machine
    /// cannot see that.
    ///
    /// # Errors
    ///
    /// If one of the two is unsafe or unreadable: the message to print.
    pub fn read(address: &str) -> Result<Self, String> {
        let address: SocketAddr =
            address.parse().map_err(|_| format!("--admin {address}: write an address such as 127.0.0.1:3001"))?;
        let token = std::env::var(TOKEN).ok().map(|token| token.trim().to_owned());
        match &token {
            Some(token) if token.len() < 16 => {
                Err(format!("{TOKEN} has less than 16 characters; make one with: openssl rand -hex 16"))
            }
            None if !address.ip().is_loopback() => Err(format!(
                "--admin {address}: others can reach this address, and whoever reaches it may ban every client; write \
                 127.0.0.1, or set {TOKEN} to a token that calls then need (make one with: openssl rand -hex 16)"
            )),
            _ => Ok(Self { address, token: token.map(Arc::from) }),
        }
    }

    /// Makes the router for these layers.
    pub fn router(&self, layers: impl Into<Admin>) -> Router {
        let router = tower_sluice_admin::router(layers);
        let Some(token) = self.token.clone() else { return router };
        let guesses = Policy::new("guesses", SlidingWindow::new(Quota::per_hour(100))).key(PeerIp::new());
        let wrong = Router::new().fallback(ask_for_token).layer(RateLimitLayer::new(guesses));
        router.layer(from_fn_with_state(Guard { token, wrong }, only_with_token))
    }
}

/// The token, and the answer to wrong ones.
#[derive(Clone)]
struct Guard {
    token: Arc<str>,
    /// Counts wrong tokens by address. A request with the right token is never counted, so guessing cannot lock its
    /// owner out.
    wrong: Router,
}

async fn only_with_token(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    let fields = request.headers();
    if has_token(fields, &guard.token) {
        return next.run(request).await;
    }
    // Not a guess: a browser sends no password before it is asked for one.
    if !fields.contains_key(header::AUTHORIZATION) {
        return ask_for_token().await.into_response();
    }
    guard.wrong.oneshot(request).await.into_response()
}

/// A browser then asks for a name, which may be any, and a password.
async fn ask_for_token() -> impl IntoResponse {
    let ask = [(header::WWW_AUTHENTICATE, "Basic realm=\"limits\", Bearer")];
    (StatusCode::UNAUTHORIZED, ask, "this needs the token, as a bearer token or as the password\n")
}

fn has_token(fields: &HeaderMap, token: &str) -> bool {
    let Some(given) = fields.get(header::AUTHORIZATION).and_then(|given| given.to_str().ok()) else { return false };
    if let Some(given) = given.strip_prefix("Bearer ") {
        return is_same(given.trim().as_bytes(), token.as_bytes());
    }
    let Some(pair) = given.strip_prefix("Basic ").and_then(|pair| BASE64_STANDARD.decode(pair.trim()).ok()) else {
        return false;
    };
    let password = pair.iter().position(|byte| *byte == b':').map_or(&[][..], |colon| &pair[colon + 1..]);
    is_same(password, token.as_bytes())
}

/// Compares in a time that does not depend on where the two differ.
fn is_same(given: &[u8], token: &[u8]) -> bool {
    given.len() == token.len() && given.iter().zip(token).fold(0, |differing, (a, b)| differing | (a ^ b)) == 0
}

/// Shows no token.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("address", &self.address).finish_non_exhaustive()
    }
}
