//! Our own PostgreSQL servers: on free loopback ports, each in its own folder, stopped when dropped.
//!
//! PostgreSQL refuses to run as root. Tests that run as root run it as the system user `postgres`.

use std::ffi::OsStr;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, OnceLock};
use std::{env, fs, process};

use ports::free_port;

use super::timing::await_until;

#[path = "ports.rs"]
mod ports;

/// Makes a cluster in less than a second. A copy takes a tenth of that, so each process does this once.
const INITDB: &[&str] = &["--username=postgres", "--auth=trust", "--no-locale", "--encoding=UTF8", "--no-sync"];

/// The socket is in the folder, whose path may be longer than a socket's path can be, so this one is relative.
const SETTINGS: &str = "listen_addresses = '127.0.0.1'\nunix_socket_directories = '.'\nmax_connections = 200\n";

pub struct PostgresServer {
    postmaster: Child,
    port: u16,
    folder: PathBuf,
    environment: Vec<(String, String)>,
}

impl PostgresServer {
    /// A server with an empty database.
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// A server with further settings, as in its configuration file: `["fsync = off"]`.
    pub fn with(settings: &[&str]) -> Self {
        Self::with_environment(settings, Vec::new())
    }

    /// A server with these variables in its environment.
    pub fn with_environment(settings: &[&str], environment: Vec<(String, String)>) -> Self {
        // First, so that each test reports missing programs. `CLUSTERS` would report them once, and be poisoned then.
        programs();
        let port = free_port();
        let folder = CLUSTERS.folder.join(port.to_string());
        run(as_postgres("cp").arg("-R").arg(CLUSTERS.template()).arg(&folder));
        add_settings(&folder, &format!("port = {port}\n{}\n", settings.join("\n")));
        let mut server = Self { postmaster: spawn(&folder, &environment), port, folder, environment };
        server.await_ready();
        server
    }

    /// A standby that follows this server.
    pub fn standby(&self) -> Self {
        let port = free_port();
        let folder = CLUSTERS.folder.join(port.to_string());
        let mut copy = as_postgres(programs().join("pg_basebackup"));
        run(copy
            .args(["--write-recovery-conf", "--checkpoint=fast", "--no-sync", "--wal-method=stream", "--pgdata"])
            .arg(&folder)
            .args(["--dbname", &self.url()]));
        add_settings(&folder, &format!("port = {port}\nhot_standby = on\n"));
        let mut server = Self { postmaster: spawn(&folder, &[]), port, folder, environment: Vec::new() };
        server.await_ready();
        server
    }

    /// The server that this process's tests share: each takes its own [`database`](Self::database).
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<PostgresServer> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// The address of the database `postgres`, as its only user.
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    /// Makes a new, empty database, and returns its address.
    pub fn database(&self) -> String {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("test_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        self.run(&format!("CREATE DATABASE {name}"));
        self.url_of(&name)
    }

    /// Runs a statement in the database `postgres`. Returns a line for each row, with `|` between its columns.
    pub fn run(&self, statement: &str) -> String {
        let options = ["-X", "--quiet", "--no-align", "--tuples-only", "--command", statement];
        run(Command::new(programs().join("psql")).args(options).arg(self.url())).trim_end().to_owned()
    }

    /// The server's log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("server.log")).unwrap_or_default()
    }

    /// Stops all its processes (SIGSTOP). It still accepts connections, but does not answer.
    pub fn suspend(&mut self) {
        self.signal("-STOP");
    }

    /// Lets a suspended server continue.
    pub fn resume(&mut self) {
        self.signal("-CONT");
    }

    /// Kills all its processes (SIGKILL). Its folder holds everything that it has committed.
    pub fn kill(&mut self) {
        // Once a postmaster's exit was collected, its process is gone, and another process may have its number.
        if self.postmaster.try_wait().is_ok_and(|exit| exit.is_none()) {
            let children = self.signal("-KILL");
            let _ = self.postmaster.wait();
            // A successor does not start while one of them has the shared memory.
            await_until("the processes of the server are dead", || {
                !processes().any(|it| children.contains(&it.id) && !it.is_zombie)
            });
        }
    }

    /// Kills it if it runs, and starts it again on its port, with the transactions that it had committed.
    pub fn restart(&mut self) {
        self.kill();
        self.postmaster = spawn(&self.folder, &self.environment);
        self.await_ready();
    }

    fn url_of(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// Signals all its processes, and returns its children.
    fn signal(&self, signal: &str) -> Vec<u32> {
        let postmaster = self.postmaster.id();
        // A stopped postmaster starts no child that would miss the signal.
        send("-STOP", &[postmaster]);
        let children: Vec<u32> = processes().filter(|it| it.parent == postmaster).map(|it| it.id).collect();
        send(signal, &children);
        send(signal, &[postmaster]);
        children
    }

    fn await_ready(&mut self) {
        // In this file's lines, the process id comes first, and the state is the eighth.
        let (id, file) = (self.postmaster.id().to_string(), self.folder.join("postmaster.pid"));
        await_until("PostgreSQL accepts connections", || {
            if let Ok(Some(status)) = self.postmaster.try_wait() {
                let log = self.log();
                panic!("PostgreSQL ended ({status}):\n{log}");
            }
            let text = fs::read_to_string(&file).unwrap_or_default();
            let mut lines = text.lines().map(str::trim);
            lines.next() == Some(&id) && lines.nth(6) == Some("ready")
        });
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A pgbouncer in front of a server, with two connections to it. Stopped when dropped.
pub struct Pgbouncer {
    process: Child,
    port: u16,
    folder: PathBuf,
}

impl Pgbouncer {
    /// Starts one with this `pool_mode`.
    pub fn start(server: &PostgresServer, mode: &str) -> Self {
        let port = free_port();
        let folder = CLUSTERS.folder.join(format!("pgbouncer-{port}"));
        fs::create_dir(&folder).expect("a folder");
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = {mode}\ndefault_pool_size = 2\n\
             ignore_startup_parameters = extra_float_digits\n",
            server.port
        );
        fs::write(folder.join("pgbouncer.ini"), settings).expect("a configuration");
        let log = fs::File::create(folder.join("pgbouncer.log")).expect("a log");
        // Debian puts it into a folder that is not on every user's PATH.
        let debian = "/usr/sbin/pgbouncer";
        let mut command = as_postgres(if std::path::Path::new(debian).exists() { debian } else { "pgbouncer" });
        command.arg(folder.join("pgbouncer.ini")).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let mut pooler = Self { process: command.spawn().expect("install Debian's pgbouncer"), port, folder };
        await_until("pgbouncer accepts connections", || {
            if let Ok(Some(status)) = pooler.process.try_wait() {
                let log = fs::read_to_string(pooler.folder.join("pgbouncer.log")).unwrap_or_default();
                panic!("pgbouncer ended ({status}):\n{log}");
            }
            std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        pooler
    }

    /// The address of the database `postgres`, as its only user.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }
}

impl Drop for Pgbouncer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A folder for all of this process's clusters, and a process that outlives this one: it stops the remaining servers,
/// and removes the folder. Nobody drops the shared server, or the servers of a process that is killed.
struct Clusters {
    folder: PathBuf,
    _guard: Child,
}

static CLUSTERS: LazyLock<Clusters> = LazyLock::new(Clusters::new);

impl Clusters {
    fn new() -> Self {
        /// Reads its input, which ends when this process does.
        const GUARD: &str = r#"
            cat >/dev/null
            for file in "$1"/*/postmaster.pid; do
                read -r postmaster <"$file" && kill -QUIT "$postmaster" && kill -CONT "$postmaster"
            done
            for attempt in 1 2 3 4 5; do
                rm -rf "$1" && break
                sleep 1
            done"#;
        let folder = env::temp_dir().join(format!("sluice-postgres-{}", process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).expect("a folder for clusters");
        let mut guard = Command::new("sh");
        guard.args(["-c", GUARD, "guard"]).arg(&folder).stdin(Stdio::piped());
        // In its own group: Ctrl-C in a terminal ends the tests, and not the guard.
        guard.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let clusters = Self { _guard: guard.spawn().expect("`sh`"), folder };
        if *IS_ROOT {
            run(Command::new("chown").arg("postgres:").arg(&clusters.folder));
        }
        run(as_postgres(programs().join("initdb")).args(INITDB).arg("--pgdata").arg(clusters.template()));
        add_settings(&clusters.template(), SETTINGS);
        clusters
    }

    fn template(&self) -> PathBuf {
        self.folder.join("template")
    }
}

/// The folder with the server's programs: the newest version that Debian's packages have installed, which are not on
/// `PATH`, or the one on `PATH`.
fn programs() -> &'static Path {
    static FOLDER: LazyLock<Option<PathBuf>> = LazyLock::new(find_programs);
    FOLDER.as_deref().expect("PostgreSQL is missing: install Debian's postgresql, or run scripts/test")
}

fn find_programs() -> Option<PathBuf> {
    let entries = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut debian: Vec<PathBuf> = entries.map(|version| version.path().join("bin")).collect();
    debian.sort_by_key(|bin| {
        let version = bin.parent().and_then(Path::file_name).and_then(OsStr::to_str).unwrap_or_default();
        version.split('.').map(|part| part.parse().unwrap_or(0)).collect::<Vec<u32>>()
    });
    let path = env::var_os("PATH").unwrap_or_default();
    debian.into_iter().rev().chain(env::split_paths(&path)).find(|bin| bin.join("initdb").is_file())
}

static IS_ROOT: LazyLock<bool> = LazyLock::new(|| run(Command::new("id").arg("-u")).trim() == "0");

fn spawn(folder: &Path, environment: &[(String, String)]) -> Child {
    let log = fs::File::options().create(true).append(true).open(folder.join("server.log")).expect("a log");
    let mut command = as_postgres(programs().join("postgres"));
    command.arg("-D").arg(folder).current_dir(folder).stdin(Stdio::null());
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    command.stdout(log.try_clone().expect("a log")).stderr(log).process_group(0);
    command.spawn().expect("a postmaster")
}

/// A command as the user that PostgreSQL runs as. `setpriv` becomes the command, so they share a process.
fn as_postgres(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(if *IS_ROOT { OsStr::new("setpriv") } else { program.as_ref() });
    if *IS_ROOT {
        command.args(["--reuid=postgres", "--regid=postgres", "--init-groups", "--"]).arg(program);
    }
    command
}

/// Runs a command that must succeed, and returns its output.
fn run(command: &mut Command) -> String {
    // The programs warn about a working directory that their user may not enter.
    let output = command.current_dir(env::temp_dir()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let [stdout, stderr] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{command:?} failed:\n{stdout}{stderr}");
    stdout
}

fn add_settings(folder: &Path, settings: &str) {
    let file = fs::File::options().append(true).open(folder.join("postgresql.conf"));
    file.and_then(|mut file| file.write_all(settings.as_bytes())).expect("a configuration");
}

/// Some processes may have ended.
fn send(signal: &str, ids: &[u32]) {
    let ids = ids.iter().map(u32::to_string);
    Command::new("kill").arg(signal).args(ids).stderr(Stdio::null()).status().expect("`kill`");
}

struct Process {
    id: u32,
    parent: u32,
    is_zombie: bool,
}

/// All processes on the system.
fn processes() -> impl Iterator<Item = Process> {
    let text = run(Command::new("ps").args(["-A", "-o", "pid=", "-o", "ppid=", "-o", "stat="]));
    let parse = |line: &str| {
        let mut words = line.split_whitespace();
        let [id, parent] = [words.next()?, words.next()?].map(|number| number.parse().ok());
        Some(Process { id: id?, parent: parent?, is_zombie: words.next()?.starts_with('Z') })
    };
    text.lines().filter_map(parse).collect::<Vec<_>>().into_iter()
}
