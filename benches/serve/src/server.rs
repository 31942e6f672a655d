//! The services, each a process on its own processor.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::load::{Outcome, text};
use crate::machine;
use crate::protocol::{EXACTLY, HIGH, Limit, Protocol};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    Ours,
    Limitador,
    Throttlecrab,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settings {
    /// As it comes. Ours reads Limitador's file.
    Bare,
    /// That file, with [`OTHERS`] rules before the others.
    ManyRules,
    /// Answers have fields on the limit. Ours reads a TOML file.
    WithFields,
}

pub struct Server {
    process: Child,
    /// For gRPC, HTTP, and Redis' protocol; equal for all that one port serves.
    addresses: [SocketAddr; 3],
}

/// Rules that apply to no request.
const OTHERS: u32 = 100;

/// Room for all keys in the memory table.
const MOST_KEYS: u32 = 1_000_000;

impl Program {
    /// The environment variable that has the path.
    const fn variable(self) -> &'static str {
        match self {
            Self::Ours => "SLUICE",
            Self::Limitador => "LIMITADOR_SERVER",
            Self::Throttlecrab => "THROTTLECRAB_SERVER",
        }
    }

    /// Its path, if it is installed.
    pub fn path(self) -> Option<PathBuf> {
        std::env::var_os(self.variable()).filter(|path| !path.is_empty()).map(PathBuf::from)
    }

    fn version(self) -> Option<String> {
        let output = Command::new(self.path()?).arg("--version").stderr(Stdio::null()).output().ok()?;
        Some(String::from_utf8(output.stdout).ok()?.lines().next()?.to_owned())
    }
}

/// The versions of all installed programs.
pub fn versions() -> String {
    let all = [Program::Ours, Program::Limitador, Program::Throttlecrab];
    all.into_iter().filter_map(Program::version).collect::<Vec<_>>().join(", ")
}

impl Server {
    /// Starts it, and waits until it listens.
    pub fn start(program: Program, settings: Settings) -> Outcome<Self> {
        let path = program.path().ok_or_else(|| format!("{} is not set", program.variable()))?;
        let addresses = [free_address()?, free_address()?, free_address()?];
        let mut command = machine::tied(1, path.as_os_str());
        let addresses = match program {
            Program::Ours => {
                command.args(["serve", "--listen", &addresses[0].to_string()]);
                match settings {
                    Settings::Bare | Settings::ManyRules => {
                        command.args(["--max-keys", &MOST_KEYS.to_string(), "--limitador-config"]);
                        command.arg(file("limits.yaml", &limits_of_limitador(settings))?)
                    }
                    Settings::WithFields => command.arg("--config").arg(file("limits.toml", &limits_in_toml())?),
                };
                [addresses[0]; 3]
            }
            Program::Limitador => {
                let ports = addresses.map(|address| address.port().to_string());
                command.args(["--rls-ip", "127.0.0.1", "--rls-port", &ports[0]]);
                command.args(["--http-ip", "127.0.0.1", "--http-port", &ports[1]]);
                if settings == Settings::WithFields {
                    command.args(["--rate-limit-headers", "DRAFT_VERSION_03"]);
                }
                command.arg(file("limits.yaml", &limits_of_limitador(settings))?);
                command.args(["memory", "--cache", &MOST_KEYS.to_string()]);
                [addresses[0], addresses[1], addresses[1]]
            }
            Program::Throttlecrab => {
                let ports = addresses.map(|address| address.port().to_string());
                for (name, port) in ["grpc", "http", "redis"].iter().zip(&ports) {
                    command.args([format!("--{name}"), format!("--{name}-host=127.0.0.1")]);
                    command.arg(format!("--{name}-port={port}"));
                }
                command.arg(format!("--store-capacity={MOST_KEYS}"));
                addresses
            }
        };
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().map_err(text)?;
        let mut server = Self { process, addresses };
        server.await_ready()?;
        Ok(server)
    }

    pub fn address(&self, protocol: Protocol) -> SocketAddr {
        self.addresses[match protocol {
            Protocol::RateLimitService | Protocol::ThrottlecrabGrpc => 0,
            Protocol::Auth | Protocol::ThrottlecrabHttp => 1,
            Protocol::ThrottlecrabRedis => 2,
        }]
    }

    /// For how many nanoseconds its threads had a processor. No thread ends while it is measured.
    pub fn processor(&self) -> Outcome<u64> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.process.id())).map_err(text)?;
        let time = |thread: fs::DirEntry| -> Option<u64> {
            fs::read_to_string(thread.path().join("schedstat")).ok()?.split(' ').next()?.parse().ok()
        };
        Ok(threads.flatten().filter_map(time).sum())
    }

    /// How many bytes of memory it has in use.
    pub fn resident(&self) -> Outcome<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).map_err(text)?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        kibibytes.map(|kibibytes| 1024 * kibibytes).ok_or_else(|| "the system does not tell its memory".to_owned())
    }

    fn await_ready(&mut self) -> Outcome<()> {
        let begun = Instant::now();
        while self.addresses.iter().any(|address| TcpStream::connect(address).is_err()) {
            if let Some(status) = self.process.try_wait().map_err(text)? {
                return Err(format!("the server has ended: {status}"));
            }
            if begun.elapsed() > Duration::from_secs(10) {
                return Err("the server does not listen".to_owned());
            }
            sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn free_address() -> Outcome<SocketAddr> {
    TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr()).map_err(text)
}

/// Writes a file beside this program.
fn file(name: &str, content: &str) -> Outcome<PathBuf> {
    let path = std::env::current_exe().map_err(text)?.with_file_name(name);
    fs::write(&path, content).map_err(text)?;
    Ok(path)
}

/// A limit for each descriptor value.
fn limits_of_limitador(settings: Settings) -> String {
    let rule = |conditions: &str, name: &str, units: u32| {
        format!(
            "- namespace: shop\n  max_value: {units}\n  seconds: 86400\n  conditions: [{conditions}]\n  \
             variables: [\"descriptors[0].{name}\"]\n"
        )
    };
    let others = if settings == Settings::ManyRules { OTHERS } else { 0 };
    let others = (0..others).map(|plan| rule(&format!("\"descriptors[0].plan == '{plan}'\""), "user", HIGH));
    let measured = [(Limit::High, HIGH), (Limit::Low, EXACTLY)].map(|(limit, units)| rule("", limit.name(), units));
    others.chain(measured).collect()
}

/// The limits in our own file, for descriptors, and for an HTTP field.
fn limits_in_toml() -> String {
    let policy = |limit: Limit, units: u32, key: &str| {
        format!(
            "[[route.policy]]\nname = \"per-{}\"\nalgorithm = \"token-bucket\"\nlimit = {units}\nper = \"1day\"\n\
             key = \"{key}\"\nmax-keys = {MOST_KEYS}\n",
            limit.name()
        )
    };
    format!(
        "[[route]]\npath = \"/shop\"\n{}{}[[route]]\npath = \"/shop/user\"\n{}[[route]]\npath = \"/shop/few\"\n{}",
        policy(Limit::High, HIGH, "descriptor:user"),
        policy(Limit::Low, EXACTLY, "descriptor:few"),
        policy(Limit::High, HIGH, "header:x-client"),
        policy(Limit::Low, EXACTLY, "header:x-client"),
    )
}
