//! Runs the example server as a child process.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

pub(crate) struct Server {
    process: Child,
    pub(crate) address: SocketAddr,
    /// The admin service's address, if it was asked for.
    admin: Option<SocketAddr>,
}

impl Server {
    /// Starts it with its built-in configuration.
    pub(crate) fn start() -> Self {
        Self::run(&[])
    }

    /// Starts it with this text as its configuration.
    pub(crate) fn start_with(config: &str) -> Self {
        let file = config_file(config);
        Self::run(&["--config", file.to_str().unwrap()])
    }

    /// Starts it with a configuration file, and logs to `log`.
    pub(crate) fn start_with_file(file: &Path, log: &Path) -> Self {
        Self::spawn(command(&["--config", file.to_str().unwrap()]).stderr(std::fs::File::create(log).unwrap()))
    }

    /// Starts it with this text as its configuration, and its limits on this Redis.
    #[cfg(feature = "redis")]
    pub(crate) fn start_on(redis: &str, config: &str) -> Self {
        let file = config_file(config);
        Self::run(&["--config", file.to_str().unwrap(), "--redis", redis])
    }

    /// Starts it with the admin service on its own port, this text as its configuration, and more arguments.
    pub(crate) fn start_with_admin(config: &str, more: &[&str]) -> Self {
        let file = config_file(config);
        Self::run(&[&["--config", file.to_str().unwrap(), "--admin", "127.0.0.1:0"], more].concat())
    }

    /// The admin service's address.
    pub(crate) fn admin(&self) -> SocketAddr {
        self.admin.expect("it was started with one")
    }

    /// Starts it with this text in a file. Returns that file, for edits, and the log file.
    pub(crate) fn start_edited(config: &str) -> (Self, PathBuf, PathBuf) {
        let file = config_file(config);
        let log = file.with_extension("log");
        (Self::start_with_file(&file, &log), file, log)
    }

    /// Starts it with the admin service behind a token.
    pub(crate) fn start_with_token(token: &str) -> Self {
        Self::spawn(command(&["--admin", "0.0.0.0:0"]).env("SLUICE_ADMIN_TOKEN", token))
    }

    fn run(arguments: &[&str]) -> Self {
        Self::spawn(&mut command(arguments))
    }

    fn spawn(command: &mut Command) -> Self {
        let has_admin = command.get_args().any(|argument| argument == "--admin");
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.as_mut().unwrap()).lines();
        let mut address_after = |words: &str| -> SocketAddr {
            let line = lines.next().expect("the server prints its address").unwrap();
            line.strip_prefix(words).unwrap_or_else(|| panic!("{line}")).parse().unwrap()
        };
        let address = address_after("listening on http://");
        let admin = has_admin.then(|| address_after("admin on http://"));
        Self { address, admin, process }
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Waits for its exit for at most `time`. Returns its exit code.
    pub(crate) fn exits_within(&mut self, time: Duration) -> Option<i32> {
        let begun = Instant::now();
        loop {
            match self.process.try_wait().unwrap() {
                Some(status) => return status.code(),
                None if begun.elapsed() > time => return None,
                None => sleep(Duration::from_millis(20)),
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails if the process has exited already, which is fine.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs the server with a configuration that it should reject.
pub(crate) fn rejected(config: &str) -> Output {
    let file = config_file(config);
    output(&["--config", file.to_str().unwrap()])
}

pub(crate) fn output(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

/// Runs the server with this environment and arguments that it should reject.
pub(crate) fn output_with(variable: (&str, &str), arguments: &[&str]) -> Output {
    command(arguments).env(variable.0, variable.1).output().unwrap()
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_server"));
    command.args(["--listen", "127.0.0.1:0"]).args(arguments).env_remove("SLUICE_ADMIN_TOKEN");
    command
}

fn config_file(text: &str) -> PathBuf {
    use std::sync::atomic::{AtomicU32, Ordering};
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("server-{}-{}.toml", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&file, text).unwrap();
    file
}
