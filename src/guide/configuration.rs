//! Limits from a file: change them without building, and without a restart.
//!
//! **You want** operators to change limits without a new build. With the package
//! [`tower-sluice-config`](https://docs.rs/tower-sluice-config), routes and policies come from TOML. An error names the
//! file, the line and the cure; an edited file is checked as a whole before anything changes.
//!
//! `limits.toml`:
//!
//! ```toml
//! [client-ip]                    # behind a proxy on this machine; without a proxy, leave it out
//! source = "x-forwarded-for"
//! trusted = ["127.0.0.1"]
//!
//! [[route]]
//! path = "/orders"
//!   [[route.policy]]
//!   name = "per-client"
//!   algorithm = "token-bucket"
//!   limit = 10
//!   per = "1s"
//!   burst = 20
//!   key = "client-ip"
//!
//! [[route]]
//! path = "/login"
//!   [[route.policy]]
//!   name = "failures"
//!   algorithm = "sliding-window"
//!   limit = 5
//!   per = "15m"
//!   key = "client-ip"
//!   charge-when = [401]
//! ```
//!
//! `main.rs`: a complete program, which reads the file again on SIGHUP:
//!
#![cfg_attr(all(unix, feature = "axum"), doc = "```no_run")]
#![cfg_attr(not(all(unix, feature = "axum")), doc = "```ignore")]
//! use std::fs;
//! use std::net::SocketAddr;
//!
//! use axum::routing::{get, post};
//! use tokio::signal::unix::{SignalKind, signal};
//! use tower_sluice_config::Config;
//!
//! const FILE: &str = "limits.toml";
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let mut config = Config::parse(FILE, &fs::read_to_string(FILE)?)?;
//!     let app = config.router([
//!         ("/orders", get(|| async { "[]" })),
//!         ("/login", post(|| async { "welcome" })),
//!         ("/healthz", get(|| async { "ok" })), // not in the file: no limit
//!     ])?;
//!
//!     let mut hangups = signal(SignalKind::hangup())?;
//!     tokio::spawn(async move {
//!         while hangups.recv().await.is_some() {
//!             let text = fs::read_to_string(FILE).map_err(|error| error.to_string());
//!             // An error changes nothing: the limits in force stay.
//!             match text.and_then(|text| config.change(FILE, &text).map_err(|error| error.to_string())) {
//!                 Ok(changed) => println!("limits changed: {changed}"),
//!                 Err(error) => println!("limits unchanged: {error}"),
//!             }
//!         }
//!     });
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//!     axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
//!     Ok(())
//! }
//! ```
//!
//! ```text
//! $ sed -i 's/limit = 10/limit = 50/' limits.toml && kill -HUP $(pidof shop)
//! limits changed: all policies kept their state
//! $ sed -i 's/burst = 20/bursts = 20/' limits.toml && kill -HUP $(pidof shop)
//! limits unchanged: limits.toml:12: unknown field `bursts` (did you mean `burst`?), expected one of …
//! ```
//!
//! Without a signal (on Windows, or for a file that a ConfigMap mounts), poll the text of the file. Its time of change
//! can stay the same, and a watch of the file can miss one that was replaced. In place of `hangups`:
//!
#![cfg_attr(feature = "axum", doc = "```no_run")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use std::time::Duration;
//! # use tower_sluice_config::Config;
//! # const FILE: &str = "limits.toml";
//!
//! # async fn watch(mut config: Config, mut seen: String) {
//! // Before: let mut seen = fs::read_to_string(FILE)?; let mut config = Config::parse(FILE, &seen)?;
//! loop {
//!     tokio::time::sleep(Duration::from_secs(2)).await;
//!     // A file that is missing is being replaced.
//!     let Ok(text) = tokio::fs::read_to_string(FILE).await else { continue };
//!     if text != seen {
//!         match config.change(FILE, &text) {
//!             Ok(changed) => println!("limits changed: {changed}"),
//!             Err(error) => println!("limits unchanged: {error}"),
//!         }
//!         seen = text;
//!     }
//! }
//! # }
//! ```
//!
//! - A path of the file without a handler is an error, so that a misspelled path leaves no handler unlimited. For
//!   nested services and other routers, mount the [layer](https://docs.rs/tower-sluice-config/latest/tower_sluice_config/struct.Route.html#method.layer) of each route.
//! - The [whole format](https://docs.rs/tower-sluice-config/latest/tower_sluice_config/#format), with the default of each key beside it.
//!   [`SCHEMA`](https://docs.rs/tower-sluice-config/latest/tower_sluice_config/constant.SCHEMA.html) is a JSON Schema for editors.
//! - [What a change keeps](super::hot_reload): used quota carries over, and requests that wait are evaluated
//!   again. Paths, `[client-ip]`, `[redis]`, `[store]`, `[snapshot]` and `[response]` need a restart, and the error
//!   says so.
//! - `[redis]` with a `url` puts all limits [on Redis](super::machines), once the program knows it:
//!   `Config::reader().store("redis", tower_sluice_redis::file::open)`. `[store.postgres]` puts them [on
//!   PostgreSQL](super::postgres#by-configuration). A file may have several stores; then each policy names its own.
//! - A file cannot have code: `Config::reader().layers(|layer| layer.verdict())` sets up all layers, [a response of
//!   your own](super::rejections) for instance. Limits [by plan](super::plans#by-configuration) are in a file, and
//!   quotas of single customers in code.
//! - Check the file before it is deployed: a test that parses it takes three lines.
//!
//! ```
//! # let text = "[[route]]\npath = \"/\"\n[[route.policy]]\nname = \"x\"\n\
//! #     algorithm = \"token-bucket\"\nlimit = 1\nper = \"1s\"";
//! # /*
//! let text = include_str!("../limits.toml");
//! # */
//! let config = tower_sluice_config::Config::parse("limits.toml", text);
//! assert!(config.is_ok(), "{}", config.unwrap_err());
//! ```
//!
//! The example server is such a program: it watches its file instead of waiting for a signal.
//!
//! Next: [exempt callers of your own](super::allow_list).
