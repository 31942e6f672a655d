//! The inside of a cell: one thread asks, many times at once, over one connection.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::{JoinSet, LocalSet};

use super::server::Server;
use super::subject::{Make, Outcome, Subject, Terms};
use crate::keys::{Order as _, Uniform};
use crate::machine;

/// One run of one subject.
#[derive(Clone, Copy)]
pub struct Plan<'a> {
    pub server: &'a Server,
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
pub fn measure(plan: Plan<'_>) -> Outcome<Sample> {
    on_a_thread(|| async move {
        let pinned = machine::pin(0);
        plan.server.empty()?;
        let keys = keys(plan.keys);
        let subject = Rc::new(Subject::new(plan.make, &plan.server.url(), plan.terms, &keys).await?);
        let admits = plan.terms.burst > 1;
        // Once each key, so that none is new to the server later.
        let all = Rc::new(Cell::new(0));
        let fill = move |_| {
            let index = all.replace(all.get() + 1);
            (index < plan.keys).then_some(index)
        };
        ask(&subject, &keys, plan.concurrency.max(64), true, fill).await?;
        for_a_while(&subject, &keys, plan, plan.time / 8, admits).await?;

        let (usage, thread) = (plan.server.usage()?, machine::thread_time());
        let begun = Instant::now();
        let mut times = for_a_while(&subject, &keys, plan, plan.time, admits).await?;
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
pub fn admitted(server: &Server, make: Make, burst: u32) -> Outcome<u32> {
    on_a_thread(|| async move {
        server.empty()?;
        let keys = keys(1);
        let subject = Rc::new(Subject::new(make, &server.url(), Terms::exactly(burst), &keys).await?);
        let (mut tasks, set) = (JoinSet::new(), LocalSet::new());
        for _ in 0..2 * burst {
            let (subject, keys) = (Rc::clone(&subject), Rc::clone(&keys));
            tasks.spawn_local_on(async move { subject.ask(&keys, 0).await }, &set);
        }
        let all = async {
            let mut admitted = 0;
            while let Some(answer) = tasks.join_next().await {
                admitted += u32::from(answer.map_err(|error| error.to_string())??);
            }
            Ok(admitted)
        };
        set.run_until(all).await
    })
}

/// What a refusal costs of a key of which Redis has said until when it refuses: nanoseconds, and calls to Redis.
pub fn refused_hot_key(server: &Server, make: Make, checks: u32) -> Outcome<(f64, f64)> {
    const CHUNKS: usize = 7;
    on_a_thread(|| async move {
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
        Ok((crate::measure::median(times), server.usage()?.since(usage).calls))
    })
}

/// Twenty bytes each.
fn keys(count: u64) -> Rc<[Arc<String>]> {
    (0..count).map(|index| Arc::new(format!("client-of-us-{index:07}"))).collect()
}

async fn for_a_while(
    subject: &Rc<Subject>,
    keys: &Rc<[Arc<String>]>,
    plan: Plan<'_>,
    time: Duration,
    admits: bool,
) -> Outcome<Vec<u64>> {
    let order = Rc::new(RefCell::new(Uniform::new(plan.keys, 2)));
    let end = Instant::now() + time;
    let next = move |now| (now < end).then(|| order.borrow_mut().next());
    ask(subject, keys, plan.concurrency, admits, next).await
}

/// Keeps so many requests under way until there is no next key, and returns how many nanoseconds each took.
async fn ask(
    subject: &Rc<Subject>,
    keys: &Rc<[Arc<String>]>,
    concurrency: usize,
    admits: bool,
    next: impl Fn(Instant) -> Option<u64> + Clone + 'static,
) -> Outcome<Vec<u64>> {
    let times = Rc::new(RefCell::new(Vec::with_capacity(1 << 20)));
    let (mut tasks, set) = (JoinSet::new(), LocalSet::new());
    for _ in 0..concurrency {
        let (subject, keys, times, next) = (Rc::clone(subject), Rc::clone(keys), Rc::clone(&times), next.clone());
        let asking = async move {
            let mut start = Instant::now();
            while let Some(index) = next(start) {
                let admitted = subject.ask(&keys, index as usize).await?;
                if admitted != admits {
                    return Err(if admitted { "admits" } else { "refuses" }.to_owned());
                }
                // One reading of the clock is the end of one request and the beginning of the next.
                let end = Instant::now();
                times.borrow_mut().push((end - start).as_nanos() as u64);
                start = end;
            }
            Ok(())
        };
        tasks.spawn_local_on(asking, &set);
    }
    let all = async {
        while let Some(task) = tasks.join_next().await {
            task.map_err(|error| error.to_string())??;
        }
        Ok::<_, String>(())
    };
    set.run_until(all).await?;
    Ok(times.take())
}

/// On a thread and runtime of its own, so that no subject sees what another left behind.
fn on_a_thread<T: Send, F: Future<Output = Outcome<T>>>(body: impl FnOnce() -> F + Send) -> Outcome<T> {
    let body = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|error| error.to_string())?.block_on(body())
    };
    let panicked = |_| Err("panics".to_owned());
    std::thread::scope(|scope| scope.spawn(body).join()).unwrap_or_else(panicked)
}
