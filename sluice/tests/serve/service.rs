//! `sluice serve` as a process, and clients of it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic_prost::ProstCodec;

use crate::proto::{Entry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse};

/// A service, which ends with this value.
pub(crate) struct Service {
    process: Child,
    pub(crate) address: SocketAddr,
    pub(crate) config: PathBuf,
}

/// A file of this test, in a folder that Cargo has for it.
pub(crate) fn file(name: &str, content: &str) -> PathBuf {
    static FILES: AtomicU32 = AtomicU32::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("serve-{}-{number}-{name}", std::process::id()));
    fs::write(&path, content).unwrap();
    path
}

impl Service {
    /// Serves this configuration.
    pub(crate) fn start(config: &str) -> Self {
        Self::start_with(config, &[])
    }

    /// Serves it with further arguments.
    pub(crate) fn start_with(config: &str, arguments: &[&str]) -> Self {
        let config = file("limits.toml", config);
        let mut process = Command::new(env!("CARGO_BIN_EXE_sluice"))
            .args(["serve", "--listen", "127.0.0.1:0", "--config"])
            .arg(&config)
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let line = lines.next().expect("the service starts").unwrap();
        let address = line.strip_prefix("listening on ").expect("it prints its address").parse().unwrap();
        Self { process, address, config }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) async fn connect(&self) -> Client {
        let channel = Channel::from_shared(self.url("")).unwrap().connect().await.unwrap();
        Client(Grpc::new(channel))
    }

    pub(crate) fn signal(&self, signal: &str) {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    /// Waits for its end, and returns whether it succeeded.
    pub(crate) async fn wait(mut self) -> bool {
        // Beside the runtime, which closes the connections of clients that were dropped.
        tokio::task::spawn_blocking(move || self.process.wait().unwrap().success()).await.unwrap()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_file(&self.config);
    }
}

/// A client of Envoy's protocol.
#[derive(Clone)]
pub(crate) struct Client(Grpc<Channel>);

impl Client {
    pub(crate) async fn ask(&mut self, request: RateLimitRequest) -> Result<RateLimitResponse, tonic::Status> {
        self.0.ready().await.unwrap();
        let path = PathAndQuery::from_static("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
        let codec = ProstCodec::<RateLimitRequest, RateLimitResponse>::default();
        Ok(self.0.unary(tonic::Request::new(request), path, codec).await?.into_inner())
    }
}

/// A request with descriptors of these entries.
pub(crate) fn request(domain: &str, descriptors: &[&[(&str, &str)]]) -> RateLimitRequest {
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors: descriptors.iter().map(|entries| descriptor(entries)).collect(),
        hits_addend: 0,
    }
}

pub(crate) fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).to_owned(), value: (*value).to_owned() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), limit: None, hits_addend: None }
}
