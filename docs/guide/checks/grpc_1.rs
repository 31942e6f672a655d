// Included by a program in `docs/guide/grpc.md`.

{
    async fn serve_and_run() -> Result<(), Box<dyn std::error::Error>> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = format!("http://{}", listener.local_addr()?);
        let (_, service) = tonic_health::server::health_reporter();
        let layer = tower_sluice::RateLimitLayer::per_client(tower_sluice::Quota::per_second(20).burst(1));
        let server = tonic::transport::Server::builder().layer(layer).add_service(service);
        tokio::spawn(server.serve_with_incoming(tokio_stream::wrappers::TcpListenerStream::new(listener)));
        run(address).await
    }
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(serve_and_run()).unwrap();
}
