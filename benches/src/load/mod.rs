//! Asks a limiter behind a server: one thread, many concurrent requests.

mod cells;
mod layered;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

pub use cells::{Cell, Cells};
#[allow(unused_imports, reason = "only a peer on Redis looks at it")]
pub use layered::Caller;
pub use layered::{Hello, Layered, policies};

use crate::keys::{Order as _, Uniform};

pub type Outcome<T> = Result<T, String>;

pub fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

pub type Keys = Arc<[Arc<String>]>;

/// Twenty bytes each.
pub fn keys(count: u64) -> Keys {
    (0..count).map(|index| Arc::new(format!("client-of-us-{index:07}"))).collect()
}

/// A limiter that decides.
pub trait Subject: Send + Sync + 'static {
    /// Whether a request for the key at this index is admitted.
    fn ask(&self, keys: &[Arc<String>], index: usize) -> impl Future<Output = Outcome<bool>> + Send;
}

/// Asks for each key once.
pub async fn fill<S: Subject>(subject: &Arc<S>, keys: &Keys, concurrency: usize) -> Outcome<()> {
    let mut indices = 0..keys.len() as u64;
    ask(subject, keys, concurrency, true, move |_| indices.next()).await.map(drop)
}

/// Asks for keys in uniform order, for this time. All must be admitted, or none. Returns how many nanoseconds each
/// took.
pub async fn ask_for<S: Subject>(
    subject: &Arc<S>,
    keys: &Keys,
    concurrency: usize,
    time: Duration,
    admits: bool,
) -> Outcome<Vec<u64>> {
    let mut order = Uniform::new(keys.len() as u64, 2);
    let end = Instant::now() + time;
    ask(subject, keys, concurrency, admits, move |now| (now < end).then(|| order.next())).await
}

/// Sends `requests` concurrent requests for one key. Returns how many are admitted.
pub async fn admitted<S: Subject>(subject: &Arc<S>, keys: &Keys, requests: u32) -> Outcome<u32> {
    let mut tasks = JoinSet::new();
    for _ in 0..requests {
        let (subject, keys) = (Arc::clone(subject), Arc::clone(keys));
        tasks.spawn(async move { subject.ask(&keys, 0).await });
    }
    let mut admitted = 0;
    while let Some(answer) = tasks.join_next().await {
        admitted += u32::from(answer.map_err(text)??);
    }
    Ok(admitted)
}

/// Keeps `concurrency` requests under way until there is no next key, and returns how many nanoseconds each took.
pub async fn ask<S: Subject>(
    subject: &Arc<S>,
    keys: &Keys,
    concurrency: usize,
    admits: bool,
    next: impl FnMut(Instant) -> Option<u64> + Send + 'static,
) -> Outcome<Vec<u64>> {
    let next = Arc::new(Mutex::new(next));
    let mut tasks = JoinSet::new();
    for _ in 0..concurrency {
        let (subject, keys, next) = (Arc::clone(subject), Arc::clone(keys), Arc::clone(&next));
        tasks.spawn(async move {
            let (mut times, mut start) = (Vec::with_capacity(1 << 10), Instant::now());
            let next = |now| next.lock().unwrap_or_else(PoisonError::into_inner)(now);
            while let Some(index) = next(start) {
                let admitted = subject.ask(&keys, index as usize).await?;
                if admitted != admits {
                    return Err(if admitted { "admits" } else { "rejects" }.to_owned());
                }
                // One clock reading is the end of one request and the beginning of the next.
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

/// The median and the 99th percentile, in microseconds.
pub fn percentiles(times: &mut [u64]) -> [f64; 2] {
    times.sort_unstable();
    [50, 99].map(|percent| times.get(times.len() * percent / 100).map_or(f64::NAN, |nanos| *nanos as f64 / 1e3))
}

/// Runs on its own runtime with one worker, so that no subject sees another's remains.
pub fn on_a_worker<T: Send + 'static, F: Future<Output = Outcome<T>> + Send + 'static>(body: F) -> Outcome<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let worker = runtime.map_err(text)?;
    worker.block_on(worker.spawn(body)).unwrap_or_else(|error| Err(text(error)))
}
