//! The inside of a cell: one thread sends many concurrent requests, each over its own connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::keys::{Order as _, Uniform};
use crate::load::{self, Outcome, on_a_worker};
use crate::machine;
use crate::rows::{Row, Terms};
use crate::server::Server;
use crate::subject::Subject;

/// One subject's run.
pub struct Plan {
    pub server: Arc<Server>,
    pub row: Row,
    pub concurrency: usize,
    /// For how long it is measured.
    pub time: Duration,
}

/// Microseconds per request, unless stated otherwise.
#[derive(Clone, Copy)]
pub struct Sample {
    pub per_second: f64,
    pub p50: f64,
    pub p99: f64,
    /// The processor time that all server processes took.
    pub server: f64,
    /// The asking thread's processor time; not a number if the system does not tell.
    pub client: f64,
    /// Write-ahead log bytes per request.
    pub wal: f64,
    /// Transactions that wrote something, per request.
    pub writes: f64,
    pub is_pinned: bool,
}

/// Measures one subject on its own thread and connections, and empty tables.
pub fn measure(Plan { server, row, concurrency, time }: Plan) -> Outcome<Sample> {
    on_a_worker(async move {
        let is_pinned = machine::pin(0);
        server.empty(row.kept).await?;
        let keys = load::keys(row.keys);
        // Once each key, so that none is new to the server later.
        load::fill(&Arc::new(Subject::new(&server, row.make, row.terms, 64).await?), &keys, 64).await?;
        let subject = Arc::new(Subject::new(&server, row.make, row.terms, concurrency).await?);
        warm_up(&subject, &keys, concurrency, row.admits()).await?;
        load::ask_for(&subject, &keys, concurrency, time / 8, row.admits()).await?;

        let (usage, thread) = (server.usage().await?, machine::thread_time());
        let begun = Instant::now();
        let mut times = load::ask_for(&subject, &keys, concurrency, time, row.admits()).await?;
        let elapsed = begun.elapsed().as_secs_f64();
        let thread = machine::thread_time().zip(thread).map(|(after, before)| after - before);
        let usage = server.usage().await?.since(usage);

        let requests = times.len() as f64;
        let [p50, p99] = load::percentiles(&mut times);
        Ok(Sample {
            per_second: requests / elapsed,
            p50,
            p99,
            server: usage.processor / requests,
            client: thread.map_or(f64::NAN, |nanos| nanos as f64 / 1e3 / requests),
            wal: usage.wal / requests,
            writes: usage.writes / requests,
            is_pinned,
        })
    })
}

/// PostgreSQL plans a statement again the first five times that a connection executes it. This warm-up gets these
/// expensive executions out of the way.
async fn warm_up(subject: &Arc<Subject>, keys: &load::Keys, concurrency: usize, admits: bool) -> Outcome<()> {
    const EACH: u64 = 20;
    let mut order = Uniform::new(keys.len() as u64, 4);
    let mut left = 0..EACH * concurrency as u64;
    load::ask(subject, keys, concurrency, admits, move |_| left.next().map(|_| order.next())).await.map(drop)
}

/// Sends twice the burst for one key concurrently. Returns how many requests are admitted.
pub fn admitted(server: &Arc<Server>, row: Row, burst: u32) -> Outcome<u32> {
    let server = Arc::clone(server);
    on_a_worker(async move {
        server.empty(row.kept).await?;
        let subject = Arc::new(Subject::new(&server, row.make, Terms::exactly(burst), 64).await?);
        load::admitted(&subject, &load::keys(1), 2 * burst).await
    })
}
