//! The inside of a cell: one thread sends many concurrent requests over one connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::server::Server;
use super::subject::{Make, Subject, Terms};
use crate::load::{self, Outcome, Subject as _, on_a_worker};
use crate::machine;

/// One subject's run.
pub struct Plan {
    pub server: Arc<Server>,
    pub make: Make,
    pub terms: Terms,
    pub keys: u64,
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
    /// The processor time of the server's main thread.
    pub server: f64,
    /// The part that the server attributes to commands.
    pub command: f64,
    /// Commands per request.
    pub calls: f64,
    /// The asking thread's processor time, if the system tells.
    pub client: Option<f64>,
    pub pinned: bool,
}

/// Measures one subject on its own thread and connection, and an empty server.
pub fn measure(plan: Plan) -> Outcome<Sample> {
    on_a_worker(async move {
        let pinned = machine::pin(0);
        plan.server.empty()?;
        let keys = load::keys(plan.keys);
        let subject = Arc::new(Subject::new(plan.make, &plan.server.url(), plan.terms, &keys).await?);
        let admits = plan.terms.burst > 1;
        // Once each key, so that none is new to the server later.
        load::fill(&subject, &keys, plan.concurrency.max(64)).await?;
        load::ask_for(&subject, &keys, plan.concurrency, plan.time / 8, admits).await?;

        let (usage, thread) = (plan.server.usage()?, machine::thread_time());
        let begun = Instant::now();
        let mut times = load::ask_for(&subject, &keys, plan.concurrency, plan.time, admits).await?;
        let elapsed = begun.elapsed().as_secs_f64();
        let thread = machine::thread_time().zip(thread).map(|(after, before)| after - before);
        let usage = plan.server.usage()?.since(usage);

        let requests = times.len() as f64;
        let [p50, p99] = load::percentiles(&mut times);
        Ok(Sample {
            per_second: requests / elapsed,
            p50,
            p99,
            server: usage.processor / requests,
            command: usage.commands / requests,
            calls: usage.calls / requests,
            client: thread.map(|nanos| nanos as f64 / 1e3 / requests),
            pinned,
        })
    })
}

/// Sends twice the burst for one key concurrently. Returns how many requests are admitted.
pub fn admitted(server: &Arc<Server>, make: Make, burst: u32) -> Outcome<u32> {
    let server = Arc::clone(server);
    on_a_worker(async move {
        server.empty()?;
        let keys = load::keys(1);
        let subject = Arc::new(Subject::new(make, &server.url(), Terms::exactly(burst), &keys).await?);
        load::admitted(&subject, &keys, 2 * burst).await
    })
}

/// The cost of rejecting a key once Redis has said until when it rejects: nanoseconds, and calls to Redis.
pub fn rejected_hot_key(server: &Arc<Server>, make: Make, checks: u32) -> Outcome<(f64, f64)> {
    const CHUNKS: usize = 7;
    let server = Arc::clone(server);
    on_a_worker(async move {
        machine::pin(0);
        server.empty()?;
        let keys = load::keys(1);
        let subject = Subject::new(make, &server.url(), Terms::exactly(1), &keys).await?;
        let admitted = [subject.ask(&keys, 0).await?, subject.ask(&keys, 0).await?];
        if admitted != [true, false] {
            return Err(format!("of a burst of one: {admitted:?}"));
        }
        let usage = server.usage()?;
        let mut times = Vec::new();
        for _ in 0..CHUNKS {
            let begun = Instant::now();
            for _ in 0..checks {
                if subject.ask(&keys, 0).await? {
                    return Err("admitted".to_owned());
                }
            }
            times.push(begun.elapsed().as_nanos() as f64 / f64::from(checks));
        }
        Ok((crate::scale::median(times), server.usage()?.since(usage).calls))
    })
}
