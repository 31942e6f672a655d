//! Calls a partner with reqwest, as fast as its responses allow, and not at all while it keeps failing.
//!
//! ```sh
//! cargo run -p tower-sluice-server &
//! cargo run -p examples --features reqwest --bin reqwest_client -- http://127.0.0.1:3000/fixed-window
//! ```

use std::error::Error;

use reqwest_middleware::ClientBuilder;
use tower_sluice_client::{AdaptiveThrottle, PacerError, PacerLayer};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let url = std::env::args().nth(1).ok_or("usage: reqwest_client URL")?;
    let pacer = PacerLayer::reqwest().throttle(AdaptiveThrottle::new()).name("partner");
    let client = ClientBuilder::new(reqwest::Client::new()).with(pacer).build();

    let mut calls = tokio::task::JoinSet::new();
    for order in 0..30 {
        let call = client.get(&url).header("x-order", order);
        calls.spawn(call.send());
    }
    while let Some(call) = calls.join_next().await {
        match call? {
            Ok(response) => println!("{}", response.status()),
            Err(error) => match PacerError::<reqwest::Error>::find(&error) {
                // Not sent: put the job back, or do without it.
                Some(PacerError::WaitTooLong { retry_after, .. }) => println!("not within a minute: {retry_after:?}"),
                Some(error) => println!("not sent: {error}"),
                None => println!("failed: {error}"),
            },
        }
    }
    Ok(())
}
