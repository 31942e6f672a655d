//! `router`: the admin service for axum.

use axum::Router;

use super::Admin;

/// Makes a router for the [`Admin`] service. It is not mounted by itself: serve it on [a separate
/// address](crate#guard-it).
///
/// ```no_run
/// use std::net::SocketAddr;
///
/// use axum::{Router, routing::get};
/// use tower_sluice::{Quota, RateLimitLayer};
///
/// #[tokio::main]
/// async fn main() -> std::io::Result<()> {
///     let layer = RateLimitLayer::per_client(Quota::per_second(10));
///     let admin = tower_sluice_admin::router([("api", layer.handle())]);
///     let app = Router::new().route("/", get(|| async { "hello" })).layer(layer);
///
///     let public = tokio::net::TcpListener::bind("0.0.0.0:3000").await?;
///     let private = tokio::net::TcpListener::bind("127.0.0.1:3001").await?; // open it in a browser
///     let app = app.into_make_service_with_connect_info::<SocketAddr>();
///     tokio::try_join!(axum::serve(public, app).into_future(), axum::serve(private, admin).into_future())?;
///     Ok(())
/// }
/// ```
///
/// # Panics
///
/// As [`Admin::new`].
#[track_caller]
pub fn router(admin: impl Into<Admin>) -> Router {
    Router::new().fallback_service(admin.into())
}
