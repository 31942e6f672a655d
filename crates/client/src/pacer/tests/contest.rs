//! Clients in several processes share the quota of a partner that answers a bare 429 beyond it, as in the experiments
//! in "Rethinking HTTP API Rate Limiting: A Client-Side Approach" (arXiv 2510.04516). Each client always has ten calls
//! to make, and does not see other clients. Tokio's clock is paused.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::internal::Lock;

use super::{Partner, SECOND};
use crate::effort::rounds;
use crate::pacer::PacerLayer;

/// How a client deals with rejections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strategy {
    /// Sends again after a second, each call for itself.
    Retry,
    /// Waits for a random time up to a second, 2, 4, … 64 seconds, each call for itself.
    Backoff,
    /// Sends nothing for a second, all the client's calls together, and then at will.
    Pause,
    Pacer,
}

/// The partner, and the latencies on the way to it: half of 50 ms to three halves.
struct World {
    partner: Partner,
    random: u64,
    begun: Instant,
    served: u64,
    rejected: u64,
    /// Whether a rejection has `Retry-After`.
    states_wait: bool,
}

impl World {
    fn below(&mut self, end: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % end
    }

    fn way(&mut self) -> Duration {
        Duration::from_micros(12_500 + self.below(25_000))
    }

    /// Judges a call: how many seconds a rejected one has to wait, or 0 if the partner does not say.
    fn judge(&mut self) -> Result<(), u64> {
        let now = u64::try_from(self.begun.elapsed().as_micros()).unwrap();
        let (is_served, report) = self.partner.judge(now);
        *(if is_served { &mut self.served } else { &mut self.rejected }) += 1;
        if is_served { Ok(()) } else { Err(if self.states_wait { report.wait / SECOND } else { 0 }) }
    }
}

type Shared = Arc<Mutex<World>>;

/// Makes one call.
async fn call(world: &Shared) -> Result<(), u64> {
    let way = world.lock().unwrap().way();
    sleep(way).await;
    let (verdict, way) = {
        let mut world = world.lock().unwrap();
        (world.judge(), world.way())
    };
    sleep(way).await;
    verdict
}

/// A worker that makes its calls one after the other, for ever.
async fn work(strategy: Strategy, world: Shared, paused: Arc<Lock<Instant>>, pacer: PacerLayer<()>) {
    let partner = Arc::clone(&world);
    let service = service_fn(move |_: Request<()>| {
        let partner = Arc::clone(&partner);
        async move {
            let response = match call(&partner).await {
                Ok(()) => Response::builder(),
                Err(0) => Response::builder().status(429),
                Err(seconds) => Response::builder().status(429).header("retry-after", seconds),
            };
            Ok::<_, Infallible>(response.body(()).unwrap())
        }
    });
    let client = pacer.layer(service);
    let mut rejections = 0;
    loop {
        if strategy == Strategy::Pacer {
            client.clone().oneshot(Request::get("http://partner/").body(()).unwrap()).await.unwrap();
            continue;
        }
        if strategy == Strategy::Pause {
            let until = *paused.lock();
            sleep_until(until).await;
        }
        let Err(wait) = call(&world).await else {
            rejections = 0;
            continue;
        };
        let wait = Duration::from_secs(wait.max(1));
        match strategy {
            Strategy::Retry => sleep(wait).await,
            Strategy::Pause => *paused.lock() = Instant::now() + wait,
            _ => {
                let wait = world.lock().unwrap().below(SECOND << rejections.min(6));
                rejections += 1;
                sleep(Duration::from_micros(wait)).await;
            }
        }
    }
}

/// The calls that were served in percent of the quota, and the rejections per thousand served calls.
#[derive(Clone, Copy, Debug)]
struct Score {
    used: u64,
    rejected: u64,
}

async fn contest(strategy: Strategy, partner: Partner, states_wait: bool, seconds: u64, clients: u64) -> Score {
    // A client that learns nothing behaves alike in each window.
    let learns = matches!(strategy, Strategy::Backoff | Strategy::Pacer);
    let (time, quota) = partner.quota(if learns { seconds } else { 120 } * SECOND);
    let (random, begun) = (88_172_645_463_325_252, Instant::now());
    let world = World { partner, random, begun, served: 0, rejected: 0, states_wait };
    let world = Arc::new(Mutex::new(world));
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..clients {
        let (paused, pacer) = (Arc::new(Lock::new(Instant::now())), PacerLayer::new().max_wait(Duration::MAX));
        for _ in 0..10 {
            workers.spawn(work(strategy, Arc::clone(&world), Arc::clone(&paused), pacer.clone()));
        }
    }
    let end = Instant::now() + Duration::from_micros(time);
    assert!(timeout_at(end, workers.join_next()).await.is_err(), "they work for ever");
    workers.shutdown().await;
    let world = world.lock().unwrap();
    Score { used: world.served * 100 / quota, rejected: world.rejected * 1_000 / world.served }
}

#[tokio::test(start_paused = true)]
async fn bare_429s_teach_a_shared_pace() {
    println!("rejections per thousand calls served (and the share of the quota used)");
    println!("{:48}{:>14}{:>14}{:>14}{:>14}", "", "retry 1 s", "backoff", "pause 1 s", "pacer");
    // With eight clients, it is the table in the guide.
    for clients in [8, 2].into_iter().take(rounds(1, 2).min(2)) {
        for (name, partner, seconds) in [
            ("100 per 10 s", Partner::window(100, 10), 600),
            ("60 per minute", Partner::window(60, 60), 600),
            ("1,000 per minute", Partner::window(1_000, 60), 600),
            ("100 per second, burst 100", Partner::bucket(100, 100), 150),
            ("10 per second, burst 20", Partner::bucket(10, 20), 600),
        ] {
            let mut scores = Vec::new();
            for strategy in [Strategy::Retry, Strategy::Backoff, Strategy::Pause, Strategy::Pacer] {
                scores.push(contest(strategy, partner, false, seconds, clients).await);
            }
            let row: String = scores.iter().map(|score| format!("{:>8} {:4}%", score.rejected, score.used)).collect();
            println!("{:48}{row}", format!("{clients} clients, {name}"));
            let (backoff, pause, pacer) = (scores[1], scores[2], scores[3]);
            assert!(pacer.used >= 90, "{name}: {pacer:?}");
            assert!(pacer.rejected * 2 < backoff.rejected.min(pause.rejected), "{name}: {scores:?}");
        }
    }
}

/// Clients that obey `Retry-After` to the letter would all come back at one instant.
#[tokio::test(start_paused = true)]
async fn a_stated_wait_teaches_a_pace_too() {
    for (name, partner, seconds) in [
        ("100 per 10 s", Partner::window(100, 10), 300),
        ("60 per minute", Partner::window(60, 60), 600),
        ("20 per second, burst 20", Partner::bucket(20, 20), 150),
    ] {
        for clients in [1, 4] {
            let obedient = contest(Strategy::Pause, partner, true, seconds, clients).await;
            let pacer = contest(Strategy::Pacer, partner, true, seconds, clients).await;
            println!("{clients} clients, {name}: {obedient:?}, {pacer:?}");
            assert!(pacer.used >= 85, "{clients} clients, {name}: {pacer:?}");
            assert!(pacer.rejected * 2 < obedient.rejected, "{clients} clients, {name}: {obedient:?}, {pacer:?}");
        }
    }
}
