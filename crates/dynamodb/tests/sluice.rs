//! The program `sluice`, with its budgets in an emulator's table behind HTTP. The variable `SLUICE` has the path to the
//! program, with its feature `dynamodb`: `check_dynamodb` in `scripts/ci/lib.sh` builds it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::{env, fs, thread};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::config::timeout::TimeoutConfig;
use aws_sdk_dynamodb::config::{
    BehaviorVersion, Config, Credentials, IdentityCache, Region, StalledStreamProtectionConfig,
};
use tokio::net::TcpListener;
use tower_sluice_dynamodb::Dynamo;

const LIMIT: usize = 77;

/// One window for all requests to `/shop`. A decision may take longer than a busy machine pauses. Otherwise, each
/// service would decide by itself.
const FILE: &str = r#"
[store.dynamodb]
table = "limits"
timeout = "60s"

[[route]]
path = "/shop"

[[route.policy]]
name = "everybody"
algorithm = "fixed-window"
limit = 77
per = "365days"
"#;

fn sluice() -> Command {
    let path = env::var("SLUICE").expect("SLUICE must have the path of the program: see the top of this file");
    let mut command = Command::new(path);
    for (name, _) in env::vars().filter(|(name, _)| name.starts_with("AWS_")) {
        command.env_remove(name);
    }
    // Do not use the developer's own AWS files.
    let none = env!("CARGO_TARGET_TMPDIR").to_owned() + "/no-such-file";
    command.env("AWS_CONFIG_FILE", &none).env("AWS_SHARED_CREDENTIALS_FILE", &none);
    command
}

/// Writes the configuration to a file, in a folder that Cargo provides for it.
fn file(name: &str, text: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, text).unwrap();
    path
}

/// A `sluice serve` process, which is killed when this value is dropped.
struct Service {
    process: Child,
    address: String,
}

impl Service {
    fn start(endpoint: &str) -> Self {
        let mut command = sluice();
        command.args(["serve", "--listen", "127.0.0.1:0", "--config"]).arg(file("served.toml", FILE));
        command.env("AWS_ENDPOINT_URL", endpoint).env("AWS_REGION", "eu-central-1");
        command.env("AWS_ACCESS_KEY_ID", "id").env("AWS_SECRET_ACCESS_KEY", "secret");
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let line = lines.next().expect("the service starts").unwrap();
        let address = line.strip_prefix("listening on ").expect("it prints its address").to_owned();
        Self { process, address }
    }

    /// Asks whether a request may pass, and returns the status.
    fn ask(&self) -> String {
        let mut connection = TcpStream::connect(&self.address).unwrap();
        let head = "GET /auth HTTP/1.1\r\nhost: a\r\nx-forwarded-uri: /shop\r\nconnection: close\r\n\r\n";
        connection.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap().to_owned()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_services_share_a_limit_exactly() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(dynoxide::server::serve_on(listener, dynoxide::Database::memory().unwrap()));
    let config = Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::from_static("eu-central-1"))
        .credentials_provider(Credentials::new("id", "secret", None, None, "test"))
        .endpoint_url(&endpoint)
        // The client creates a table, and needs no timer for that.
        .retry_config(RetryConfig::disabled())
        .timeout_config(TimeoutConfig::disabled())
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .identity_cache(IdentityCache::no_cache())
        .http_client(aws_smithy_http_client::Builder::new().build_http());
    Dynamo::new(Client::from_conf(config.build()), "limits").create_table().await.unwrap();

    let admitted = tokio::task::spawn_blocking(move || {
        let services = [(); 2].map(|()| Service::start(&endpoint));
        thread::scope(|scope| {
            let clients: Vec<_> = (0..4)
                .map(|number| {
                    let service = &services[number % 2];
                    scope.spawn(move || (0..30).map(|_| service.ask()).collect::<Vec<_>>())
                })
                .collect();
            clients.into_iter().flat_map(|client| client.join().unwrap()).collect::<Vec<_>>()
        })
    });
    let statuses = admitted.await.unwrap();
    assert!(statuses.iter().all(|status| status == "200" || status == "429"), "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| *status == "200").count(), LIMIT);
}

#[test]
fn a_missing_region_is_an_error() {
    let output = sluice().arg("check").arg(file("checked.toml", FILE)).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success() && error.contains("set AWS_REGION"), "{error}");
    let output =
        sluice().arg("check").arg(file("with_region.toml", FILE)).env("AWS_REGION", "eu-west-1").output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
