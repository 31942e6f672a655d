//! Keep budgets through a restart.
//!
//! **You want** a deploy to give no client a fresh budget, and to lift no ban. In memory, a restart forgets both. Load
//! a snapshot before the server serves, and save one while it runs and when it stops:
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use axum::{Router, routing::get};
//! use tokio::signal::unix::{SignalKind, signal};
//! use tokio::task::spawn_blocking;
//! use tower_sluice::key::PeerIp;
//! use tower_sluice::snapshot::Snapshots;
//! use tower_sluice::{Policy, Quota, RateLimitLayer};
//!
//! const FILE: &str = "/var/lib/server/limits.snapshot";
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let layer = RateLimitLayer::new(Policy::new("clients", Quota::per_hour(1_000)).key(PeerIp::new()));
//!     let snapshots = std::sync::Arc::new(Snapshots::new().layer("api", &layer));
//!     match snapshots.load(FILE) {
//!         Ok(restored) => println!("{restored}"),
//!         Err(error) => eprintln!("{error}; all clients begin with full budgets"),
//!     }
//!
//!     let regular = std::sync::Arc::clone(&snapshots);
//!     tokio::spawn(async move {
//!         loop {
//!             tokio::time::sleep(Duration::from_secs(10)).await;
//!             let snapshots = std::sync::Arc::clone(&regular);
//!             if let Ok(Err(error)) = spawn_blocking(move || snapshots.save(FILE)).await {
//!                 eprintln!("{FILE}: {error}");
//!             }
//!         }
//!     });
//!
//!     let app = Router::new().route("/", get(|| async { "hello" })).layer(layer);
//!     let mut sigterm = signal(SignalKind::terminate())?;
//!     let stop = async move {
//!         sigterm.recv().await;
//!     };
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//!     axum::serve(listener, app.into_make_service_with_connect_info::<std::net::SocketAddr>())
//!         .with_graceful_shutdown(stop)
//!         .await?;
//!     // After the last request.
//!     snapshots.save(FILE)?;
//!     Ok(())
//! }
//! ```
//!
//! # What a restart costs
//!
//! | the process | then |
//! |---|---|
//! | stops after its last request, and saves once more | no client gets a unit more |
//! | is killed | the charges since the last snapshot are forgotten |
//! | is killed while it writes | the file before stays whole |
//! | starts with another quota or capacity | as after a [change at run time](super::hot_reload): what is used stays used |
//! | starts with another algorithm or another name | the policy begins anew, and [`Restored`](crate::snapshot::Restored) names it |
//! | starts after the wall clock was set back | nothing is forgiven, and no ban gets longer |
//! | finds a file that is damaged, or of another format | the file is refused with the reason, and kept beside |
//! | finds something that is no snapshot, such as a configuration or a FIFO | it is refused, and stays: no snapshot is written until you have chosen another path |
//!
//! Requests in flight, waiters and [bought units](super::top_ups) are not in a snapshot, nor is what a server keeps:
//! see [`Snapshots`](crate::snapshot::Snapshots), which also has the size of the file and the time that it takes.
//!
//! # One process, one file
//!
//! If a new process starts before the old one has stopped, as in a rolling deploy, it misses what the old one still
//! charges. Then let the old one stop first, or keep the budgets [on Redis](super::machines). Several processes that
//! serve at the same time have [budgets of their own](super::sharing), and each needs a file of its own.
//!
//! The file has the keys of bans and allowances by hand, and of all others bits of their hashes and the secret of
//! these. It is made so that its owner alone may read it; keep it in a folder of the service, not in `/tmp`.
//!
//! # From a file
//!
//! ```toml
//! snapshot = { path = "/var/lib/server/limits.snapshot", every = "10s" }
//! ```
//!
//! at the top of the [configuration](super::configuration).
//! [`Config::snapshots`](https://docs.rs/tower-sluice-config/latest/tower_sluice_config/struct.Config.html#method.snapshots) has all routes, and
//! [`Config::snapshot`](https://docs.rs/tower-sluice-config/latest/tower_sluice_config/struct.Config.html#method.snapshot) the path and the time. The example server does this.
//!
//! Next: [mistakes that the log reports](super::misconfigured).
