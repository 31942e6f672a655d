//! `sluice serve` as a process, and clients for it.

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
use crate::timing::eventually;

/// A running service. Dropping this value ends it.
pub(crate) struct Service {
    process: Child,
    pub(crate) address: SocketAddr,
    /// Its configuration in TOML, if it has one.
    config: Option<PathBuf>,
    /// Its log, if that is kept.
    log: Option<PathBuf>,
}

/// A file for this test, in the folder that Cargo provides.
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
        let config = file("limits.toml", config);
        let mut service = Self::start_alone(&["--config", config.to_str().unwrap()]);
        service.config = Some(config);
        service
    }

    /// Serves this configuration, and keeps its log.
    pub(crate) fn start_logging(config: &str) -> Self {
        let (config, log) = (file("limits.toml", config), file("service.log", ""));
        let mut command = Self::command(&["--config", config.to_str().unwrap()]);
        command.stderr(fs::File::create(&log).unwrap());
        let mut service = Self::of(command);
        (service.config, service.log) = (Some(config), Some(log));
        service
    }

    /// Waits until the log has these words.
    pub(crate) async fn has_logged(&self, words: &str) {
        let log = self.log.as_ref().unwrap();
        eventually(words, async || fs::read_to_string(log).unwrap().contains(words)).await;
    }

    /// Edits the configuration.
    pub(crate) fn write_config(&self, config: &str) {
        fs::write(self.config.as_ref().unwrap(), config).unwrap();
    }

    /// Serves with these arguments.
    pub(crate) fn start_alone(arguments: &[&str]) -> Self {
        Self::start_with(arguments, &[])
    }

    /// Serves with these arguments, and these variables in its environment.
    pub(crate) fn start_with(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = Self::command(arguments);
        command.envs(variables.iter().copied());
        Self::of(command)
    }

    fn command(arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
        command.args(["serve", "--listen", "127.0.0.1:0"]).args(arguments);
        command
    }

    /// Starts the service, and waits until it listens.
    fn of(mut command: Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let line = lines.next().expect("the service starts").unwrap();
        let address = line.strip_prefix("listening on ").expect("it prints its address").parse().unwrap();
        Self { process, address, config: None, log: None }
    }

    /// Its process ID.
    #[allow(dead_code, reason = "only Linux shows the memory of another process")]
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
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
        // On a blocking thread, because the runtime closes the connections of dropped clients meanwhile.
        tokio::task::spawn_blocking(move || self.process.wait().unwrap().success()).await.unwrap()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        for file in self.config.iter().chain(&self.log) {
            let _ = fs::remove_file(file);
        }
    }
}

/// A client that speaks Envoy's protocol.
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

/// `grpc.health.v1.HealthCheckRequest`.
#[derive(Clone, PartialEq, prost::Message)]
struct HealthRequest {
    #[prost(string, tag = "1")]
    service: String,
}

/// `grpc.health.v1.HealthCheckResponse`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
struct HealthResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

impl Client {
    /// Returns the number for a service's status.
    pub(crate) async fn health(&mut self, service: &str) -> Result<i32, tonic::Status> {
        self.0.ready().await.unwrap();
        let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
        let request = tonic::Request::new(HealthRequest { service: service.to_owned() });
        let codec = ProstCodec::<HealthRequest, HealthResponse>::default();
        Ok(self.0.unary(request, path, codec).await?.into_inner().status)
    }
}

/// A request with descriptors that have these entries.
pub(crate) fn request(domain: &str, descriptors: &[&[(&str, &str)]]) -> RateLimitRequest {
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors: descriptors.iter().map(|entries| descriptor(entries)).collect(),
        hits_addend: 0,
    }
}

pub(crate) fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry::new(key, value);
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), limit: None, hits_addend: None }
}
