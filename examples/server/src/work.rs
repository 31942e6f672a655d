//! The work of the routes `/overload` and `/overload/bare`: processor time, by one worker for both.
//!
//! A worker does [`CAPACITY`] requests per second, and the others wait for it in the order of their arrival. There is one,
//! so that the page, the health check and whatever loads the server have the rest of a machine with two processors.
//!
//! A request whose client has gone leaves the queue if its work has not begun; else the work is done for nobody. So it is
//! with a semaphore in front of `spawn_blocking`. It is kind to the bare route: a server that also works for clients that
//! are gone needs minutes to recover.

use std::hint::black_box;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// The processor time of a request, on any machine.
pub(crate) const WORK: Duration = Duration::from_millis(8);

/// The most requests per second that the worker does: fewer if the processor has other things to do.
pub(crate) const CAPACITY: u64 = 125;

/// The least time of a run that measures how fast the processor is.
const SAMPLE: Duration = Duration::from_millis(1);
const SAMPLES: u32 = 16;

pub(crate) struct Worker {
    turn: Arc<Semaphore>,
    /// The rounds of the loop that take [`WORK`] on this machine.
    rounds: Arc<OnceLock<u64>>,
}

impl Worker {
    pub(crate) fn new() -> Self {
        Self { turn: Arc::new(Semaphore::new(1)), rounds: Arc::default() }
    }

    /// Waits for the worker, and returns when it has done the work of one request.
    pub(crate) async fn work(&self) {
        let Ok(turn) = Arc::clone(&self.turn).acquire_owned().await else { return };
        let rounds = Arc::clone(&self.rounds);
        let working = spawn_blocking(move || {
            burn(*rounds.get_or_init(measure));
            // Not when the client disconnects: the worker is busy until here.
            drop(turn);
        });
        // An error is a panic, or the end of the server.
        let _ = working.await;
    }
}

/// Finds the rounds that take [`WORK`], before the first request. Whatever else a machine does only makes a run slower, so
/// the fastest of some short runs counts.
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
