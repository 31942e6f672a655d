//! Limits from a file, `limits.toml`, which you can edit while the program runs: it reads the file again on SIGHUP. The
//! guide's page `configuration` explains the program.
//!
//! ```sh
//! cargo run -p examples --features config --bin configuration
//! ```

use std::fs;
use std::net::SocketAddr;

use axum::http::StatusCode;
use axum::routing::{get, post};
use tokio::signal::unix::{SignalKind, signal};
use tower_sluice_config::Config;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let file = arguments.next().unwrap_or_else(|| "examples/limits.toml".to_owned());

    let mut config = Config::parse(&file, &fs::read_to_string(&file)?)?;
    let app = config.router([
        ("/orders", get(|| async { "[]" })),
        ("/login", post(|| async { StatusCode::UNAUTHORIZED })),
        ("/healthz", get(|| async { "ok" })), // not in the file: no limit
    ])?;

    let mut hangups = signal(SignalKind::hangup())?;
    let listener = tokio::net::TcpListener::bind(address).await?;
    let url = format!("http://{}", listener.local_addr()?);
    println!("listening on {url}");
    println!("try: for i in $(seq 7); do curl -s -o /dev/null -w '%{{http_code}} ' {url}/orders; done");
    println!("edit {file}, then try: kill -HUP {}", std::process::id());

    tokio::spawn(async move {
        while hangups.recv().await.is_some() {
            let text = fs::read_to_string(&file).map_err(|error| error.to_string());
            // An error changes nothing: the limits in force stay.
            match text.and_then(|text| config.change(&file, &text).map_err(|error| error.to_string())) {
                Ok(changed) => println!("limits changed: {changed}"),
                Err(error) => println!("limits unchanged: {error}"),
            }
        }
    });
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
