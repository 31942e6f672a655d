//! A gRPC client that makes four calls, and waits for the time that the server asks for when one is rejected. The
//! guide's page `grpc` explains it.
//!
//! ```sh
//! cargo run -p examples --features grpc --bin grpc_server &
//! cargo run -p examples --features grpc --bin grpc_client
//! ```

use std::time::Duration;

use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;

/// The wait that a rejection asks for.
fn wait_of(status: &Status) -> Option<Duration> {
    let is_rejection = matches!(status.code(), Code::ResourceExhausted | Code::Unavailable);
    if is_rejection { status.get_details_retry_info()?.retry_delay } else { None }
}

/// Calls up to three times, and waits between them for the time that the server asks for.
async fn check(client: &mut HealthClient<Channel>) -> Result<i32, Status> {
    for _ in 0..2 {
        match client.check(HealthCheckRequest::default()).await {
            Err(status) => match wait_of(&status) {
                Some(wait) => {
                    println!("rejected ({:?}: {}); waiting for {wait:?}", status.code(), status.message());
                    tokio::time::sleep(wait).await;
                }
                None => return Err(status),
            },
            Ok(response) => return Ok(response.into_inner().status),
        }
    }
    Ok(client.check(HealthCheckRequest::default()).await?.into_inner().status)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "http://127.0.0.1:3000".to_owned());
    let channel = Endpoint::from_shared(address)?.connect().await?;
    let mut client = HealthClient::new(channel);
    for call in 1..=4 {
        println!("call {call} was served, with status {}", check(&mut client).await?);
    }
    Ok(())
}
