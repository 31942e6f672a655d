//! The work behind the routes `/overload` and `/overload/bare`: processor time, by one worker for both.
//!
//! The worker does [`CAPACITY`] requests per second, and the others wait for it in arrival order. There is only one, so
//! that on a machine with two processors, the other one is free for the pages, the health check and the program that
//! loads the server.
//!
//! If a request's client has gone, the worker skips the request unless its work has begun; work that has begun is done
//! in vain. That is kind to the bare route: a server that begins to work for clients that are gone needs minutes to
//! recover.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

/// A request's processor time, on any machine.
pub(crate) const WORK: Duration = Duration::from_millis(20);

/// The most requests per second that the worker does: fewer if the processor has other things to do.
pub(crate) const CAPACITY: u64 = 50;

/// The least time for a run that measures how fast the processor is.
const SAMPLE: Duration = Duration::from_millis(1);
const SAMPLES: u32 = 16;

#[derive(Default)]
pub(crate) struct Worker {
    /// The requests that wait. The thread begins with the first one.
    queue: OnceLock<mpsc::Sender<oneshot::Sender<()>>>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    done: AtomicU64,
    /// The time that the work has taken, in microseconds: more than [`WORK`] each if others use the processor.
    busy: AtomicU64,
}

impl Worker {
    /// Waits for the worker, and returns when it has done one request's work.
    pub(crate) async fn work(&self) {
        let (done, is_done) = oneshot::channel();
        // Neither fails: the worker does not end before the server.
        let _ = self.queue.get_or_init(|| begin(Arc::clone(&self.counts))).send(done);
        let _ = is_done.await;
    }

    /// Does one request's work on this thread, which should belong to the runtime, like a handler that computes.
    pub(crate) fn work_inline(&self) {
        static ROUNDS: OnceLock<u64> = OnceLock::new();
        self.counts.time(*ROUNDS.get_or_init(measure));
    }

    /// Returns how many requests the worker has done, and the microseconds that it took for them.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.counts.done.load(Ordering::Relaxed), self.counts.busy.load(Ordering::Relaxed))
    }
}

impl Counts {
    fn time(&self, rounds: u64) {
        let took = u64::try_from(time(rounds).as_micros()).unwrap_or(u64::MAX);
        self.done.fetch_add(1, Ordering::Relaxed);
        self.busy.fetch_add(took, Ordering::Relaxed);
    }
}

fn begin(counts: Arc<Counts>) -> mpsc::Sender<oneshot::Sender<()>> {
    let (queue, requests) = mpsc::channel::<oneshot::Sender<()>>();
    thread::spawn(move || {
        let rounds = measure();
        for request in requests {
            // When a client disconnects, its request is dropped, and with it the receiver that waits here.
            if !request.is_closed() {
                counts.time(rounds);
                let _ = request.send(());
            }
        }
    });
    queue
}

/// Finds the rounds that take [`WORK`], before the first request. A machine's other work only makes a run slower, so
/// the fastest among some short runs counts.
fn measure() -> u64 {
    let mut rounds = 1_000;
    while time(rounds) < SAMPLE {
        rounds *= 2;
    }
    let fastest = (0..SAMPLES).map(|_| time(rounds)).min().unwrap_or(SAMPLE);
    let needed = u128::from(rounds) * WORK.as_nanos() / fastest.as_nanos().max(1);
    u64::try_from(needed).unwrap_or(u64::MAX)
}

fn time(rounds: u64) -> Duration {
    let begun = Instant::now();
    burn(rounds);
    begun.elapsed()
}

/// Computes a random number from the one before (xorshift), again and again.
fn burn(rounds: u64) {
    let mut number = black_box(1_u64);
    for _ in 0..rounds {
        number ^= number << 13;
        number ^= number >> 7;
        number ^= number << 17;
    }
    black_box(number);
}
