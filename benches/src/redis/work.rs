//! The inside of a cell: one thread asks, many times at once, over one connection.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::server::Server;
use super::subject::{Make, Outcome, Subject, Terms, text};
use crate::keys::{Order as _, Uniform};
use crate::machine;

/// One run of one subject.
pub struct Plan {
    pub server: Arc<Server>,
    pub make: Make,
    pub terms: Terms,
    pub keys: u64,
    pub concurrency: usize,
    /// For how long it is measured.
    pub time: Duration,
}

/// Microseconds per request, where nothing else is said.
#[derive(Clone, Copy)]
pub struct Sample {
    pub per_second: f64,
    pub p50: f64,
    pub p99: f64,
    /// Of the server's main thread.
    pub server: f64,
    /// What of that the server counts as the commands' own.
    pub command: f64,
    /// Commands per request.
    pub calls: f64,
    /// Of the thread that asks, if the system tells.
    pub client: Option<f64>,
    pub pinned: bool,
}

/// Measures one subject on a thread and connection of its own, and an empty server.
pub fn measure(plan: Plan) -> Outcome<Sample> {
    on_a_worker(async move {
        let pinned = machine::pin(0);
        plan.server.empty()?;
        let keys = keys(plan.keys);
        let subject = Arc::new(Subject::new(plan.make, &plan.server.url(), plan.terms, &keys).await?);
        let admits = plan.terms.burst > 1;
        // Once each key, so that none is new to the server later.
        let filled = Arc::new(AtomicU64::new(0));
        let fill = move |_| Some(filled.fetch_add(1, Ordering::Relaxed)).filter(|index| *index < plan.keys);
        ask(&subject, &keys, plan.concurrency.max(64), true, fill).await?;
        for_a_while(&subject, &keys, &plan, plan.time / 8, admits).await?;

        let (usage, thread) = (plan.server.usage()?, machine::thread_time());
        let begun = Instant::now();
        let mut times = for_a_while(&subject, &keys, &plan, plan.time, admits).await?;
        let elapsed = begun.elapsed().as_secs_f64();
        let thread = machine::thread_time().zip(thread).map(|(after, before)| after - before);
        let usage = plan.server.usage()?.since(usage);

        let requests = times.len() as f64;
        times.sort_unstable();
        let at = |percent: usize| times[times.len() * percent / 100] as f64 / 1e3;
        Ok(Sample {
            per_second: requests / elapsed,
            p50: at(50),
            p99: at(99),
            server: usage.processor / requests,
            command: usage.commands / requests,
            calls: usage.calls / requests,
            client: thread.map(|nanos| nanos as f64 / 1e3 / requests),
            pinned,
        })
    })
}

/// How many of twice the burst are admitted that ask for one key at the same time.
pub fn admitted(server: &Arc<Server>, make: Make, burst: u32) -> Outcome<u32> {
    let server = Arc::clone(server);
    on_a_worker(async move {
        server.empty()?;
        let keys = keys(1);
        let subject = Arc::new(Subject::new(make, &server.url(), Terms::exactly(burst), &keys).await?);
        let mut tasks = JoinSet::new();
        for _ in 0..2 * burst {
            let (subject, keys) = (Arc::clone(&subject), Arc::clone(&keys));
            tasks.spawn(async move { subject.ask(&keys, 0).await });
        }
        let mut admitted = 0;
        while let Some(answer) = tasks.join_next().await {
            admitted += u32::from(answer.map_err(text)??);
        }
        Ok(admitted)
    })
}

/// What a rejection costs of a key of which Redis has said until when it rejects: nanoseconds, and calls to Redis.
pub fn rejected_hot_key(server: &Arc<Server>, make: Make, checks: u32) -> Outcome<(f64, f64)> {
    const CHUNKS: usize = 7;
    let server = Arc::clone(server);
    on_a_worker(async move {
        machine::pin(0);
        server.empty()?;
        let keys = keys(1);
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

type Keys = Arc<[Arc<String>]>;

/// Twenty bytes each.
fn keys(count: u64) -> Keys {
    (0..count).map(|index| Arc::new(format!("client-of-us-{index:07}"))).collect()
}

async fn for_a_while(
    subject: &Arc<Subject>,
    keys: &Keys,
    plan: &Plan,
    time: Duration,
    admits: bool,
) -> Outcome<Vec<u64>> {
    let order = Arc::new(Mutex::new(Uniform::new(plan.keys, 2)));
    let end = Instant::now() + time;
    let next = move |now| (now < end).then(|| order.lock().unwrap_or_else(PoisonError::into_inner).next());
    ask(subject, keys, plan.concurrency, admits, next).await
}

/// Keeps so many requests under way until there is no next key, and returns how many nanoseconds each took.
async fn ask(
    subject: &Arc<Subject>,
    keys: &Keys,
    concurrency: usize,
    admits: bool,
    next: impl Fn(Instant) -> Option<u64> + Clone + Send + 'static,
) -> Outcome<Vec<u64>> {
    let mut tasks = JoinSet::new();
    for _ in 0..concurrency {
        let (subject, keys, next) = (Arc::clone(subject), Arc::clone(keys), next.clone());
        tasks.spawn(async move {
            let (mut times, mut start) = (Vec::with_capacity(1 << 10), Instant::now());
            while let Some(index) = next(start) {
                let admitted = subject.ask(&keys, index as usize).await?;
                if admitted != admits {
                    return Err(if admitted { "admits" } else { "rejects" }.to_owned());
                }
                // One reading of the clock is the end of one request and the beginning of the next.
                let end = Instant::now();
                times.push((end - start).as_nanos() as u64);
                start = end;
            }
            Ok(times)
        });
    }
    let mut all = Vec::new();
    while let Some(times) = tasks.join_next().await {
        all.extend(times.map_err(text)??);
    }
    Ok(all)
}

/// On a runtime of its own with one worker, so that no subject sees what another left behind.
fn on_a_worker<T: Send + 'static, F: Future<Output = Outcome<T>> + Send + 'static>(body: F) -> Outcome<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let worker = runtime.map_err(text)?;
    worker.block_on(worker.spawn(body)).unwrap_or_else(|error| Err(text(error)))
}
