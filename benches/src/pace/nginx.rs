//! nginx as a peer: its `limit_req` delays requests in front of an empty answer, and we are the clients, each on its
//! own connection, which is kept.

use std::fmt::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Plan;
use super::subject::Pacer;

/// A server on its own port, stopped when dropped.
pub struct Server {
    process: Child,
    address: SocketAddr,
}

/// The program's path: `$NGINX`, or wherever it is installed.
fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let installed = std::env::split_paths(&path).map(|folder| folder.join("nginx"));
    let all = std::env::var_os("NGINX").map(PathBuf::from).into_iter().chain(installed);
    all.chain([PathBuf::from("/usr/sbin/nginx")]).find(|program| program.is_file())
}

/// A suffix for a list of versions.
pub fn version() -> String {
    let output = program().and_then(|program| Command::new(program).arg("-v").output().ok());
    let text = output.map(|output| String::from_utf8_lossy(&output.stderr).into_owned()).unwrap_or_default();
    text.trim().rsplit_once('/').map_or(String::new(), |(_, version)| format!(", nginx {version}"))
}

/// A zone for each run, so that no run starts with another one's debt.
fn configuration(address: SocketAddr, rates: &[u32]) -> String {
    let (mut zones, mut locations) = (String::new(), String::new());
    for rate in rates {
        for run in ["whole", "cancelling"] {
            let zone = format!("{run}{rate}");
            let _ = writeln!(zones, "  limit_req_zone $server_addr zone={zone}:64k rate={rate}r/s;");
            // A handler in the content phase: answers before that phase are not delayed.
            let _ = writeln!(locations, "    location = /{zone} {{ limit_req zone={zone} burst=10000; empty_gif; }}");
        }
    }
    // One process, so that the one we started is the one to stop.
    format!(
        "daemon off;\nmaster_process off;\npid nginx.pid;\nerror_log error.log crit;\n\
         events {{ worker_connections 1000; }}\nhttp {{\n  access_log off;\n  keepalive_requests 1000000;\n  \
         client_body_temp_path body;\n  proxy_temp_path proxy;\n  fastcgi_temp_path fastcgi;\n  \
         uwsgi_temp_path uwsgi;\n  scgi_temp_path scgi;\n{zones}  server {{\n    \
         listen {address} backlog=1000;\n{locations}  }}\n}}\n"
    )
}

impl Server {
    pub fn start(rates: &[u32]) -> Result<Self, String> {
        let program = program().ok_or("nginx is not installed")?;
        let text = |error: std::io::Error| format!("nginx does not start: {error}");
        let folder = std::env::current_exe().map_err(text)?.with_file_name("pace-nginx");
        std::fs::create_dir_all(&folder).map_err(text)?;
        // Free a moment ago.
        let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).map_err(text)?;
        std::fs::write(folder.join("nginx.conf"), configuration(address, rates)).map_err(text)?;
        let mut command = Command::new(program);
        command.arg("-p").arg(&folder).args(["-c", "nginx.conf", "-e", "error.log"]);
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().map_err(text)?;
        let mut server = Self { process, address };
        for _ in 0..100 {
            if let Ok(Some(status)) = server.process.try_wait() {
                let log = std::fs::read_to_string(folder.join("error.log")).unwrap_or_default();
                return Err(format!("nginx does not start ({status}): {}", log.lines().last().unwrap_or_default()));
            }
            if std::net::TcpStream::connect(address).is_ok() {
                return Ok(server);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err("nginx does not answer".to_owned())
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub struct LimitReq {
    address: SocketAddr,
    request: String,
}

impl Pacer for LimitReq {
    type Waiter = TcpStream;

    fn new(plan: &Plan<'_>) -> Result<Self, String> {
        let run = if plan.cancelling { "cancelling" } else { "whole" };
        let request = format!("GET /{run}{} HTTP/1.1\r\nHost: nobody\r\n\r\n", plan.rate);
        Ok(Self { address: plan.nginx.clone()?, request })
    }

    async fn waiter(&self) -> Result<TcpStream, String> {
        let connection = TcpStream::connect(self.address).await.map_err(|error| error.to_string())?;
        connection.set_nodelay(true).map_err(|error| error.to_string())?;
        Ok(connection)
    }

    async fn turn(&self, connection: &mut TcpStream) -> Result<(), String> {
        connection.write_all(self.request.as_bytes()).await.map_err(|error| error.to_string())?;
        let (mut answer, mut length) = ([0; 1_024], 0);
        while !is_whole(&answer[..length]) {
            match connection.read(&mut answer[length..]).await {
                Ok(read) if read > 0 => length += read,
                Ok(_) => return Err("nginx closed a connection".to_owned()),
                Err(error) => return Err(error.to_string()),
            }
        }
        if answer.starts_with(b"HTTP/1.1 200 ") { Ok(()) } else { Err("nginx rejects".to_owned()) }
    }
}

/// Whether an answer has come with its whole body, given its own length.
fn is_whole(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer);
    let Some((head, _)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")?.parse::<usize>().ok());
    answer.len() >= head.len() + 4 + length.unwrap_or(0)
}
