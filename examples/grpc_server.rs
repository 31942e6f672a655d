//! A gRPC server whose clients may call once per second, and twice at once after a pause. A rejection is a gRPC error,
//! with the wait in its details (`RetryInfo`) and in `grpc-retry-pushback-ms`. The guide's page `grpc` explains it.
//!
//! ```sh
//! cargo run -p examples --features grpc --bin grpc_server
//! cargo run -p examples --features grpc --bin grpc_client
//! ```

use tonic::transport::server::{Server, TcpIncoming};
use tower_sluice::{Quota, RateLimitLayer};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let layer = RateLimitLayer::per_client(Quota::per_second(1).burst(2));
    // Stands for your service.
    let (_, service) = tonic_health::server::health_reporter();

    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let incoming = TcpIncoming::bind(address.parse()?)?;
    let url = format!("http://{}", incoming.local_addr()?);
    println!("listening on {url}");
    println!("try: cargo run -p examples --features grpc --bin grpc_client -- {url}");
    Server::builder().layer(layer).add_service(service).serve_with_incoming(incoming).await?;
    Ok(())
}
