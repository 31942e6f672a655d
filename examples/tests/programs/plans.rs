//! The program `plans`: alone, and as two processes on PostgreSQL.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use crate::postgres::PostgresServer;
use crate::program::Program;
use crate::timing::await_until;

/// The file that names a program's server. Deleted when dropped.
pub(crate) struct StoreFile(PathBuf);

impl StoreFile {
    /// `kind` is the table's name.
    pub(crate) fn new(kind: &str, url: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("plans-{}-{number}.toml", std::process::id()));
        std::fs::write(&path, format!("[store.{kind}]\nurl = \"{url}\"\ntimeout = \"5s\"\n")).unwrap();
        Self(path)
    }

    /// Starts the program on that server.
    pub(crate) fn start(&self, environment: Vec<(String, String)>) -> Program {
        let file = self.0.to_str().unwrap();
        Program::start_with(env!("CARGO_BIN_EXE_plans"), &["127.0.0.1:0", file], environment)
    }
}

impl Drop for StoreFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Sends a request's head, with further `fields`.
fn begin(program: &Program, method: &str, path: &str, customer: &str, fields: &str) -> TcpStream {
    let address = program.url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nx-api-key: key-of-{customer}\r\nconnection: close\r\n{fields}\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

/// Sends a request, and returns the status line with the fields, in lower case, and the body.
pub(crate) fn send(program: &Program, method: &str, path: &str, customer: &str) -> (String, String) {
    let mut stream = begin(program, method, path, customer, "");
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").expect(&response);
    (head.to_lowercase(), body.to_owned())
}

pub(crate) fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

#[test]
fn plans() {
    let mut plans = Program::start(env!("CARGO_BIN_EXE_plans"), &["127.0.0.1:0"]);
    let fields = plans.try_next();
    assert!(fields.contains(r#""included";r=999;t="#), "{fields}");
    assert_eq!(plans.try_next(), "HOWAREYOU");
    let fields = plans.try_next();
    assert!(fields.contains(r#""included";r=9999;t="#), "{fields}");
    let usage = plans.try_next();
    assert!(usage.contains("included: 998 left\n") && usage.contains("tokens: 19997 left\n"), "{usage}");
}

/// Two program processes that share a database.
struct Processes([Program; 2]);

impl Processes {
    fn start(store: &StoreFile) -> Self {
        Self([(), ()].map(|()| store.start(Vec::new())))
    }

    /// Sends `count` concurrent requests by a customer for `rows` rows each, half of them to each process. Returns how
    /// many were served; the others got 429.
    fn request(&self, customer: &str, rows: u64, count: usize) -> usize {
        let path = format!("/v1/rows/{rows}");
        let send_all = |program, count| {
            let statuses = (0..count).map(|_| send(program, "GET", &path, customer).0);
            let is_served = |head: String| match head.split(' ').nth(1) {
                Some("200") => true,
                Some("429") => false,
                _ => panic!("{head}"),
            };
            statuses.map(is_served).filter(|served| *served).count()
        };
        thread::scope(|scope| {
            let threads = self.0.each_ref().map(|program| scope.spawn(move || send_all(program, count / 2)));
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        })
    }
}

/// Two processes on PostgreSQL share everything that a plan includes.
#[test]
fn two_processes_share_a_plan() {
    let server = PostgresServer::start();
    let processes = Processes::start(&StoreFile::new("postgres", &server.url()));

    // Included units, and then the overage: 10,000 and 5,000, in requests for 250 rows. Nothing is left, to the row.
    assert_eq!(processes.request("ada", 250, 80), 60);
    assert_eq!(processes.request("ada", 1, 2), 0);
    // Units that she buys. The payment is reported to both processes.
    let paid = processes.0.each_ref().map(|program| send(program, "POST", "/paid/ada/1000/invoice-1", "").1);
    assert_eq!(paid, ["bought", "was bought before"]);
    assert_eq!(processes.request("ada", 50, 40), 20);

    // A team: each member has 2,000 included units, and may take up to 4,000 from the pool of 6,000.
    assert_eq!(processes.request("cyd", 100, 80), 20 + 40);
    assert_eq!(processes.request("dee", 100, 80), 20 + 20);
    assert_eq!(processes.request("cyd", 1, 2) + processes.request("dee", 1, 2), 0);
    // The other team has its own pool: four thousand from it, and the included units.
    assert_eq!(processes.request("eve", 500, 20), 12);

    // The free plan: 60 per minute.
    let begun = std::time::Instant::now();
    let served = processes.request("bob", 1, 70) as u64;
    // Each second that this took allows one more.
    assert!((60..=60 + begun.elapsed().as_secs() + 1).contains(&served), "{served} of 60");
    // One process counts his early requests, and bans him.
    let [first, second] = &processes.0;
    let wait = |program| {
        let (head, _) = send(program, "GET", "/v1/rows/1", "bob");
        field(&head, "retry-after").map_or(0, |wait| wait.parse::<u64>().unwrap())
    };
    assert!((0..100).any(|_| wait(first) > 500), "he is not banned");
    // The other one asks the server about him twice per second, and rejects him, too. It would not ban him by itself
    // for these few requests.
    let sees_ban = |_| {
        thread::sleep(Duration::from_secs(1));
        wait(second) > 500
    };
    assert!((0..10).any(sees_ban), "the other process does not know of the ban");
}

/// The free plan allows two requests in flight: here, chats whose prompts have not come yet.
#[test]
fn two_processes_share_requests_in_flight() {
    let server = PostgresServer::start();
    let Processes([first, second]) = Processes::start(&StoreFile::new("postgres", &server.url()));
    let open = [(), ()].map(|()| {
        let mut stream = begin(&first, "POST", "/v1/chat", "bob", "content-length: 3\r\nexpect: 100-continue\r\n");
        // The handler asks for the prompt, so the request was admitted. Asking the other process again and again
        // instead would use up the plan's units per minute.
        let mut status = [0; b"HTTP/1.1 100".len()];
        stream.read_exact(&mut status).unwrap();
        assert_eq!(&status, b"HTTP/1.1 100");
        stream
    });
    let (head, body) = send(&second, "GET", "/v1/usage", "bob");
    assert!(head.starts_with("http/1.1 429") && body.contains("in-flight"), "{head}: {body}");
    drop(open);
    await_until("their units are free again", || {
        send(&second, "GET", "/v1/usage", "bob").0.starts_with("http/1.1 200")
    });
}
