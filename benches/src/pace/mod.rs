//! How evenly waiting requests leave, and in which order: ours, its peers, and nginx.
//!
//! All run one after another in this process, each on its own runtime with one thread, so that the arrival order is
//! known: it is the order in which the waiters are first polled.

mod figures;
mod nginx;
mod subject;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout};

use figures::{Departure, Figures, mean_gap};
use subject::Pacer;

const RATES: [u32; 4] = [10, 100, 1_000, 10_000];

/// Files per process are often limited to 1,024, and a waiter at nginx is a connection.
const MOST_WAITERS: u32 = 900;

/// One subject's run.
#[derive(Clone, Copy)]
pub struct Plan<'a> {
    rate: u32,
    /// How many requests there are in all.
    requests: usize,
    /// How many requests wait at a time. A waiter that leaves comes back at once, as another request.
    waiters: usize,
    /// Some waiters leave early.
    cancelling: bool,
    /// Where nginx listens, or why it does not.
    nginx: &'a Result<SocketAddr, String>,
}

impl Plan<'_> {
    fn interval(&self) -> Duration {
        Duration::from_secs(1) / self.rate
    }
}

/// A measured row: a name, and how to run it.
struct Row {
    name: &'static str,
    run: fn(Plan<'_>) -> Result<Log, String>,
}

const OURS: &str = "ours, `LeakyQueue`";
const OURS_PRECISE: &str = "ours, `LeakyQueue::precise`";

fn rows() -> Vec<Row> {
    vec![
        Row { name: OURS, run: on_a_thread::<subject::Ours<false>> },
        Row { name: OURS_PRECISE, run: on_a_thread::<subject::Ours<true>> },
        Row { name: "`leaky-bucket`, one per interval, fair", run: on_a_thread::<subject::LeakyBucket> },
        Row { name: "`governor`, `until_ready`", run: on_a_thread::<subject::Governor> },
        Row { name: "a sleep per request", run: on_a_thread::<subject::Sleeps> },
        Row { name: "nginx `limit_req`", run: on_a_thread::<nginx::LimitReq> },
    ]
}

/// Runs everything and prints the tables; `false` if ours did not finish a run.
pub fn run(quick: bool) -> bool {
    let begun = Instant::now();
    println!("# Pacing\n\n{}.", crate::machine::describe());
    println!(
        "{}{}.",
        crate::pages::versions(crate::report::LOCK, &["governor", "leaky-bucket", "tokio"]),
        nginx::version()
    );
    if quick {
        println!("\n{} half a second each. Not to be quoted.**", crate::pages::QUICK);
    }
    let server = nginx::Server::start(&RATES);
    let address = server.as_ref().map(nginx::Server::address).map_err(Clone::clone);
    let (tenths, mut whole, mut targets) = (if quick { 5 } else { 40 }, true, String::new());
    // A peer's panic message goes into its row.
    std::panic::set_hook(Box::new(|_| {}));
    for rate in RATES {
        let requests = (rate as usize * tenths / 10).max(5);
        let waiters = requests.min(rate.min(MOST_WAITERS) as usize).max(requests.min(40));
        println!("\n## {rate} per second: {requests} requests, {waiters} at a time\n");
        println!(
            "| | mean rate error, % | gap error p50 / p99, µs | late p50 / p99, µs | passed by a later one | most in 10 slots | slots lost of those cancelled |"
        );
        println!("|---|---|---|---|---|---|---|");
        for Row { name, run } in rows() {
            crate::progress(&format!("{:3} s  {rate}/s  {name}", begun.elapsed().as_secs()));
            let is_ours = [OURS, OURS_PRECISE].contains(&name);
            let plan = Plan { rate, requests, waiters, cancelling: false, nginx: &address };
            let outcome = run(plan).and_then(|log| {
                let figures = Figures::of(&log.departures, plan.interval()).ok_or("nobody left in time")?;
                let waiters = (waiters.min(rate as usize * tenths / 20)).max(5);
                let cancelled = run(Plan { requests: waiters, waiters, cancelling: true, ..plan })?;
                Ok((figures, log.complete, lost(&cancelled, mean_gap(&log.departures))))
            });
            match outcome {
                Ok((figures, complete, lost)) => {
                    let note = if complete { "" } else { " (not done in time)" };
                    println!("| {name}{note} | {figures} | {lost} |");
                    if is_ours {
                        whole &= complete;
                        let _ = figures.targets(&mut targets, name, rate, most_late(name, rate));
                    }
                }
                Err(problem) => {
                    println!("| {name} | {problem} | – | – | – | – | – |");
                    whole &= !is_ours;
                }
            }
        }
    }
    crate::progress("");
    if !quick {
        print!("\n## Targets\n\n| what | target | here | |\n|---|---|---|---|\n{targets}");
    }
    println!("\nTook {} s; load at the end {}.", begun.elapsed().as_secs(), crate::machine::load());
    whole
}

/// The project's target, in microseconds at the 99th percentile. On the finer timer, it is for rates which tokio's
/// timer does not resolve.
fn most_late(name: &str, rate: u32) -> u32 {
    if name == OURS_PRECISE && rate >= 1_000 { 300 } else { 2_500 }
}

/// How many slots later than needed the last one left, at the pace that it has without cancelling.
fn lost(log: &Log, gap: f64) -> String {
    let slots = mean_gap(&log.departures) / gap * (log.departures.len() as f64 - 1.0);
    let needed = log.departures.len() as f64 - 1.0;
    if !log.complete || !slots.is_finite() {
        return "not done in time".to_owned();
    }
    // Zero is added, so that a value that rounds to zero has no sign.
    format!("{:.0} of {}", (slots - needed).round() + 0.0, log.cancelled)
}

/// A run's events.
struct Log {
    /// In departure order.
    departures: Vec<Departure>,
    cancelled: usize,
    /// Whether all requests left, or were cancelled, in time.
    complete: bool,
}

/// On its own thread, to detect a subject that panics.
fn on_a_thread<P: Pacer>(plan: Plan<'_>) -> Result<Log, String> {
    let body = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|error| error.to_string())?.block_on(measure::<P>(plan))
    };
    std::thread::scope(|scope| scope.spawn(body).join()).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Err(format!("panics: {}", text.lines().next().unwrap_or_default()))
    })
}

/// State that a run's waiters share.
struct Book {
    arrived: AtomicUsize,
    departures: Mutex<Vec<Departure>>,
    cancelled: AtomicUsize,
}

async fn measure<P: Pacer>(plan: Plan<'_>) -> Result<Log, String> {
    let pacer = Arc::new(P::new(&plan)?);
    let book = Arc::new(Book {
        arrived: AtomicUsize::new(0),
        departures: Mutex::new(Vec::with_capacity(plan.requests)),
        cancelled: AtomicUsize::new(0),
    });
    let mut waiters = Vec::new();
    for _ in 0..plan.waiters {
        waiters.push(pacer.waiter().await?);
    }
    let (mut tasks, mut random) = (JoinSet::new(), Random(0x5eed));
    let (start, requests) = (tokio::time::Instant::now(), plan.requests);
    for (index, mut waiter) in waiters.into_iter().enumerate() {
        // Three in ten, at any time at which they surely wait: those behind move up by up to three tenths.
        let cancels = plan.cancelling && index > 0 && random.below(10) < 3;
        let until = start + plan.interval() * (index as u32) * random.below(700) / 1_000;
        let (pacer, book) = (Arc::clone(&pacer), Arc::clone(&book));
        tasks.spawn(async move {
            loop {
                // Nothing comes between this and the turn's first poll, because one thread runs all waiters.
                let number = book.arrived.fetch_add(1, Ordering::Relaxed);
                if number >= requests {
                    return Ok(());
                }
                if cancels {
                    tokio::select! {
                        biased;
                        turn = pacer.turn(&mut waiter) => turn?,
                        () = sleep_until(until) => {
                            book.cancelled.fetch_add(1, Ordering::Relaxed);
                            return Ok::<_, String>(());
                        }
                    }
                } else {
                    pacer.turn(&mut waiter).await?;
                }
                let departure = Departure { number, at: Instant::now() };
                book.departures.lock().unwrap_or_else(PoisonError::into_inner).push(departure);
            }
        });
    }
    let all = async {
        while let Some(task) = tasks.join_next().await {
            task.map_err(|error| error.to_string())??;
        }
        Ok::<_, String>(())
    };
    // Twice the time that is needed, and a little.
    let limit = plan.interval() * (requests as u32) * 5 / 2;
    let complete =
        timeout(limit + Duration::from_millis(100), all).await.map_or(Ok(false), |all| all.map(|()| true))?;
    tasks.shutdown().await;
    let departures = std::mem::take(&mut *book.departures.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(Log { departures, cancelled: book.cancelled.load(Ordering::Relaxed), complete })
}

/// Equal numbers in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(end)) as u32
    }
}
