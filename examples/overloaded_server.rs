//! Measures how many requests an overloaded axum server answers in time: with nothing, with tower's limit, and with
//! `Overload`.
//!
//! The server has one worker thread, and a request occupies it for 5 ms, so it does 200 requests per second. A client
//! sends 2,000, and gives up after a second.
//!
//! ```sh
//! cargo run --release -p examples --features overload --bin overloaded_server              # all rows, two and a half minutes
//! cargo run --release -p examples --features overload --bin overloaded_server -- inline    # one kind of handler
//! ```
//!
//! Needs two idle processors, because the client takes the second one. Otherwise the worker is late, and a database
//! that gets at most two requests at once idles meanwhile: `sleeping` behind `Overload` shows it.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::float_arithmetic,
    reason = "it prints figures, and decides nothing"
)]

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::error_handling::HandleErrorLayer;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{BoxError, Router};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{Mutex, oneshot};
use tokio::time::{sleep, sleep_until, timeout};
use tower::ServiceBuilder;
use tower::limit::GlobalConcurrencyLimitLayer;
use tower_sluice::{Overload, Permits, Policy, RateLimitLayer};

const WORK: Duration = Duration::from_millis(5);
const OFFERED: u32 = 2_000;
const PATIENCE: Duration = Duration::from_secs(1);
const SECONDS: u32 = 10;
/// The connections that the kernel keeps until the server accepts them. With tokio's 128, no request waits there for
/// more than 640 ms, and a server that sheds nothing answers most of its requests in time.
const BACKLOG: u32 = 1_024;
/// The search for a limit needs some time.
const COUNTED_FROM: u32 = 3;

const KINDS: [&str; 4] = ["inline", "yields", "sleeping", "spawn_blocking"];
const LIMITERS: [&str; 3] = ["nothing", "tower", "Overload"];

fn main() -> io::Result<()> {
    let asked: Vec<_> = std::env::args().skip(1).collect();
    println!(
        "{:<16}{:<10}{:>12}{:>9}{:>9}{:>9}{:>9}",
        "handler", "limiter", "in time/s", "shed/s", "left/s", "p50 ms", "p99 ms"
    );
    for kind in KINDS {
        for limiter in LIMITERS {
            if asked.is_empty() || asked.iter().all(|it| it == kind || it == limiter) {
                let results = run(kind, limiter)?;
                results.print(kind, limiter);
            }
        }
    }
    Ok(())
}

/// Serves and loads one server.
fn run(kind: &'static str, limiter: &str) -> io::Result<Results> {
    let server = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let app = limited(limiter, Router::new().route("/", handler(kind)));
    let (bound, is_bound) = oneshot::channel();
    let serve = async move {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let listener = socket.listen(BACKLOG)?;
        let _ = bound.send(listener.local_addr()?);
        axum::serve(listener, app).await
    };
    // On the worker. If `main` accepts connections beside it, tokio happens to serve new ones before old ones.
    server.spawn(serve);
    let client = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let address = is_bound.blocking_recv().map_err(io::Error::other)?;
    let results = tokio::task::LocalSet::new().block_on(&client, load(address));
    server.shutdown_background();
    Ok(results)
}

fn handler(kind: &str) -> axum::routing::MethodRouter {
    match kind {
        "inline" => get(|| async { compute(WORK) }),
        "yields" => get(|| async {
            for _ in 0..5 {
                compute(WORK / 5);
                tokio::task::yield_now().await;
            }
        }),
        "sleeping" => {
            let database = Arc::new(Database::new());
            get(move || async move { database.ask().await })
        }
        _ => {
            let processor = Arc::new(std::sync::Mutex::new(()));
            get(move |permits: Permits| async move {
                let held = permits.take();
                let work = tokio::task::spawn_blocking(move || {
                    let _processor = processor.lock();
                    compute(WORK);
                    drop(held);
                });
                let _ = work.await;
            })
        }
    }
}

/// Another server, which does one request after the other, by its own clock.
///
/// tokio's timers are exact to the millisecond. If each request slept for 5 ms after the previous one has woken up, it
/// would take 6, and no limiter could get more than 167 per second out of the database.
struct Database {
    /// When it has done the request that was sent last.
    done: Mutex<Instant>,
}

impl Database {
    fn new() -> Self {
        Self { done: Mutex::new(Instant::now()) }
    }

    async fn ask(&self) {
        let sent = Instant::now();
        // A request that is given up before its turn costs the database nothing.
        let mut done = self.done.lock().await;
        *done = sent.max(*done) + WORK;
        sleep_until((*done).into()).await;
    }
}

/// Occupies the thread. Time that other processes take from it counts, so that the capacity is equal on any machine.
fn compute(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

fn limited(limiter: &str, app: Router) -> Router {
    match limiter {
        "tower" => {
            let shed = HandleErrorLayer::new(|_: BoxError| async { StatusCode::SERVICE_UNAVAILABLE });
            // One for all connections: axum applies a layer for each, and `ConcurrencyLimitLayer` would count each.
            let limit = GlobalConcurrencyLimitLayer::new(20);
            app.layer(ServiceBuilder::new().layer(shed).load_shed().layer(limit))
        }
        "Overload" => app.layer(RateLimitLayer::new(Policy::new("overload", Overload::new()))),
        _ => app,
    }
}

#[derive(Default)]
struct Results {
    /// How long the served requests took.
    served: RefCell<Vec<Duration>>,
    shed: Cell<u32>,
    left: Cell<u32>,
}

impl Results {
    fn take(&self) -> Self {
        Self { served: self.served.take().into(), shed: self.shed.take().into(), left: self.left.take().into() }
    }

    fn print(&self, kind: &str, limiter: &str) {
        let seconds = SECONDS - COUNTED_FROM;
        let mut served = self.served.borrow_mut();
        served.sort_unstable();
        let at = |share: f64| {
            served.get((served.len() as f64 * share) as usize).map_or(0.0, |time| time.as_secs_f64() * 1_000.0)
        };
        let [in_time, shed, left] = [served.len() as u32, self.shed.get(), self.left.get()].map(|it| it / seconds);
        println!("{kind:<16}{limiter:<10}{in_time:>12}{shed:>9}{left:>9}{:>9.0}{:>9.0}", at(0.5), at(0.99));
    }
}

/// Sends requests at equal intervals, whether or not the ones before were answered.
async fn load(server: SocketAddr) -> Results {
    let (results, idle) = (Rc::new(Results::default()), Rc::new(RefCell::new(Vec::new())));
    let begun = tokio::time::Instant::now();
    for number in 0..OFFERED * SECONDS {
        sleep_until(begun + Duration::from_secs(1) * number / OFFERED).await;
        let (results, idle) = (Rc::clone(&results), Rc::clone(&idle));
        tokio::task::spawn_local(async move {
            let sent = Instant::now();
            let connection = idle.borrow_mut().pop();
            let answer = timeout(PATIENCE, ask(server, connection)).await;
            let is_counted = number >= OFFERED * COUNTED_FROM;
            match answer {
                Ok(Ok((status, connection))) => {
                    idle.borrow_mut().push(connection);
                    let took = sent.elapsed();
                    if is_counted && status == 200 && took <= PATIENCE {
                        results.served.borrow_mut().push(took);
                    } else if is_counted && status != 200 {
                        results.shed.set(results.shed.get() + 1);
                    }
                }
                // The client gives up, and closes its connection.
                Ok(Err(_)) | Err(_) => results.left.set(results.left.get() + u32::from(is_counted)),
            }
        });
    }
    sleep(PATIENCE).await;
    // Requests that still wait have exceeded their patience, so they no longer count.
    results.take()
}

/// Sends a request, and reads its whole answer.
async fn ask(server: SocketAddr, connection: Option<TcpStream>) -> io::Result<(u16, TcpStream)> {
    let mut connection = match connection {
        Some(connection) => connection,
        None => TcpStream::connect(server).await?,
    };
    connection.write_all(b"GET / HTTP/1.1\r\nhost: server\r\n\r\n").await?;
    let mut answer = Vec::new();
    loop {
        if connection.read_buf(&mut answer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let text = String::from_utf8_lossy(&answer);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        if body.len() >= length.map_or(0, |length| length.parse().unwrap_or(0)) {
            return Ok((head[9..12].parse().unwrap_or(0), connection));
        }
    }
}
