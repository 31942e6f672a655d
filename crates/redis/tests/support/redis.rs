//! Redis servers for tests: on free loopback ports, each in a separate folder, stopped when dropped.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

pub use ports::free_port;

pub use super::timing::await_until;

#[path = "../../../../tests/support/ports.rs"]
mod ports;

pub struct RedisServer {
    process: Child,
    port: u16,
    folder: PathBuf,
    settings: Vec<String>,
    environment: Vec<(String, String)>,
}

impl RedisServer {
    /// A server without persistence.
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// A server with further settings, as on its command line: `["--maxmemory", "8mb"]`.
    pub fn with(settings: &[&str]) -> Self {
        Self::with_environment(settings, Vec::new())
    }

    /// A server with these variables in its environment.
    pub fn with_environment(settings: &[&str], environment: Vec<(String, String)>) -> Self {
        let server = Self::begin(settings, environment);
        server.await_ready();
        server
    }

    /// A replica of `primary`, with the data that it has already.
    pub fn replica_of(primary: SocketAddr, settings: &[&str]) -> Self {
        let port = primary.port().to_string();
        let replica = Self::with(&[&["--replicaof", "127.0.0.1", &port][..], settings].concat());
        await_until("the replica follows", || replica.info("master_link_status") == "up");
        replica
    }

    /// A sentinel that watches over the server at `primary` alone, as `name`.
    pub fn sentinel(name: &str, primary: SocketAddr) -> Self {
        let port = free_port();
        let folder = folder(port);
        let text = format!(
            "port {port}\nbind 127.0.0.1\nsentinel monitor {name} 127.0.0.1 {} 1\n\
             sentinel down-after-milliseconds {name} 500\nsentinel failover-timeout {name} 3000\n",
            primary.port()
        );
        // A sentinel writes its observations into its configuration.
        fs::write(folder.join("sentinel.conf"), text).expect("a configuration");
        let settings = vec!["sentinel.conf".to_owned(), "--sentinel".to_owned()];
        let environment = Vec::new();
        let process = spawn(&folder, &settings, &environment);
        let server = Self { process, port, folder, settings, environment };
        server.await_ready();
        server
    }

    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    pub fn url(&self) -> String {
        format!("redis://{}/", self.address())
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Opens a blocking connection, to inspect the server.
    pub fn connection(&self) -> redis::Connection {
        redis::Client::open(self.url()).and_then(|client| client.get_connection()).expect("the server answers")
    }

    /// Such as `["CONFIG", "SET", "maxmemory", "1"]`.
    pub fn run<T: redis::FromRedisValue>(&self, command: &[&str]) -> T {
        self.try_run(command).unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    pub fn try_run<T: redis::FromRedisValue>(&self, command: &[&str]) -> redis::RedisResult<T> {
        let mut connection = redis::Client::open(self.url())?.get_connection()?;
        let mut cmd = redis::Cmd::new();
        cmd.arg(command);
        cmd.query(&mut connection)
    }

    /// How many scripts the server ran. A script's first call is made twice, because the server does not know its hash.
    pub fn runs(&self) -> u64 {
        let number = |command: &str, field: &str| {
            let stats = self.info(&format!("cmdstat_{command}"));
            let value = stats.split(',').find_map(|pair| pair.strip_prefix(field)?.strip_prefix('='));
            value.map_or(0, |value| value.parse::<u64>().unwrap())
        };
        number("evalsha", "calls") - number("evalsha", "failed_calls") + number("eval", "calls")
    }

    /// A field in `INFO`. Asked again if the connection is lost, because a server whose role changes closes all
    /// connections.
    pub fn info(&self, field: &str) -> String {
        let ask = || self.try_run::<String>(&["INFO", "all"]);
        let text = ask().or_else(|_| ask()).unwrap_or_else(|error| panic!("INFO: {error}"));
        let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.unwrap_or_default().trim().to_owned()
    }

    /// Such as `-STOP` and `-CONT`.
    pub fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.pid().to_string()]).status();
        assert!(status.expect("`kill`").success());
    }

    pub fn kill(&mut self) {
        // A stopped server (SIGSTOP) dies from this, too.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Starts it again on the same port, and as empty as at first.
    pub fn restart(&mut self) {
        self.kill();
        self.process = spawn(&self.folder, &self.settings, &self.environment);
        self.await_ready();
    }

    fn begin(settings: &[&str], environment: Vec<(String, String)>) -> Self {
        let port = free_port();
        let folder = folder(port);
        let port_text = port.to_string();
        let usual = ["--port", &port_text, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
        let for_tests = ["--enable-debug-command", "yes", "--repl-diskless-sync-delay", "0"];
        let settings: Vec<String> = usual.iter().chain(&for_tests).chain(settings).map(|it| (*it).to_owned()).collect();
        let process = spawn(&folder, &settings, &environment);
        Self { process, port, folder, settings, environment }
    }

    fn await_ready(&self) {
        let client = redis::Client::open(self.url()).expect("a valid address");
        let ping = || client.get_connection().and_then(|mut it| redis::cmd("PING").query::<String>(&mut it));
        await_until("redis-server answers (its log is in its folder)", || ping().is_ok());
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A cluster: first the primaries, which share the slots evenly, then their replicas, in the same order.
pub struct RedisCluster {
    pub nodes: Vec<RedisServer>,
    primaries: usize,
}

impl RedisCluster {
    pub fn start(primaries: usize, replicas_of_each: usize) -> Self {
        let start = |_| {
            let bus = free_port().to_string();
            let settings = ["--cluster-enabled", "yes", "--cluster-port", &bus, "--cluster-node-timeout", "1000"];
            RedisServer::begin(&settings, Vec::new())
        };
        let nodes: Vec<_> = (0..primaries * (1 + replicas_of_each)).map(start).collect();
        nodes.iter().for_each(RedisServer::await_ready);
        let cluster = Self { nodes, primaries };
        for (index, node) in cluster.nodes.iter().enumerate() {
            node.run::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
            if index < primaries {
                let edge = |index: usize| 16_384 * index / primaries;
                let (first, last) = (edge(index), edge(index + 1) - 1);
                node.run::<()>(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]);
            }
            if index > 0 {
                let bus: Vec<String> = cluster.nodes[0].run(&["CONFIG", "GET", "cluster-port"]);
                node.run::<()>(&["CLUSTER", "MEET", "127.0.0.1", &cluster.nodes[0].port.to_string(), &bus[1]]);
            }
        }
        let size = cluster.nodes.len().to_string();
        let knows_all = |node: &RedisServer| node.cluster_info("cluster_known_nodes") == size;
        await_until("all nodes met", || cluster.nodes.iter().all(knows_all));
        for (index, replica) in cluster.nodes.iter().enumerate().skip(primaries) {
            let id: String = cluster.nodes[index % primaries].run(&["CLUSTER", "MYID"]);
            await_until("it knows its primary", || replica.try_run::<()>(&["CLUSTER", "REPLICATE", &id]).is_ok());
        }
        let replicas = &cluster.nodes[primaries..];
        await_until("the replicas follow", || replicas.iter().all(|it| it.info("master_link_status") == "up"));
        await_until("the cluster is well", || cluster.nodes.iter().all(RedisServer::serves_its_cluster));
        cluster
    }

    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(RedisServer::url).collect()
    }

    /// Returns the index of the node that had that slot at first.
    pub fn owner_of(&self, slot: u16) -> usize {
        (0..self.primaries).rfind(|index| 16_384 * index / self.primaries <= usize::from(slot)).expect("a slot")
    }
}

impl RedisServer {
    pub fn cluster_info(&self, field: &str) -> String {
        let text: String = self.run(&["CLUSTER", "INFO"]);
        let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.unwrap_or_default().trim().to_owned()
    }

    pub fn serves_its_cluster(&self) -> bool {
        self.cluster_info("cluster_state") == "ok"
    }
}

fn folder(port: u16) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("sluice-redis-{}-{port}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder for a server");
    folder
}

fn spawn(folder: &Path, settings: &[String], environment: &[(String, String)]) -> Child {
    let log = fs::File::create(folder.join("log")).expect("a log");
    Command::new("redis-server")
        .args(settings)
        .envs(environment.iter().cloned())
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(log)
        .spawn()
        .expect("redis-server is missing: `scripts/test` installs it (Debian's package `redis-server`)")
}
