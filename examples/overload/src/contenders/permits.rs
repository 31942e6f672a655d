//! A service around a rule that finds a limit: permits are held until the response future is ready, as in the libraries
//! that these rules come from.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use http::{Request, Response, StatusCode};
use tokio::sync::oneshot;
use tokio::time::{Duration, Instant};
use tower::Service;
use tower_sluice::testing::Random;

use crate::server::{Server, ServerBody};

/// Finds the limit on requests in flight.
pub trait Rule: Send {
    /// The limit in force.
    fn limit(&self) -> usize;

    /// Learns from a response. Requests that were dropped are not reported.
    fn learn(&mut self, sample: Sample);
}

/// The facts known when a response is there.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Sample {
    /// The time since the request got its permit.
    pub latency: Duration,
    /// The requests in flight when this one got its permit, itself included.
    pub in_flight: usize,
    /// All permits are taken.
    pub is_full: bool,
    /// Now.
    pub now: Instant,
}

/// How many requests wait for a permit, in multiples of the limit: from the first number on, some are rejected by
/// chance, and from the second on, all.
#[derive(Clone, Copy, Debug)]
pub struct Queue(pub usize, pub usize);

/// Holds a permit for each request in flight.
#[derive(Clone)]
pub struct Permits {
    server: Server,
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    rule: Box<dyn Rule>,
    queue: Option<Queue>,
    in_flight: usize,
    waiting: VecDeque<oneshot::Sender<Permit>>,
    random: Random,
}

struct Permit {
    shared: Arc<Mutex<Shared>>,
    taken: Instant,
    in_flight: usize,
}

enum Turn {
    Now(Permit),
    Later(oneshot::Receiver<Permit>),
    Rejected,
}

impl Permits {
    /// Puts permits in front of a server. Without a queue, a request that finds none is rejected.
    #[must_use]
    pub fn new(server: Server, rule: Box<dyn Rule>, queue: Option<Queue>) -> Self {
        let shared = Shared { rule, queue, in_flight: 0, waiting: VecDeque::new(), random: Random::new(7) };
        Self { server, shared: Arc::new(Mutex::new(shared)) }
    }

    fn turn(&self) -> Turn {
        let mut shared = lock(&self.shared);
        if shared.in_flight < shared.rule.limit() && shared.waiting.is_empty() {
            return Turn::Now(shared.take(&self.shared));
        }
        if !shared.may_wait() {
            return Turn::Rejected;
        }
        let (send, turn) = oneshot::channel();
        shared.waiting.push_back(send);
        Turn::Later(turn)
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().expect("nobody panics with the lock")
}

impl Shared {
    fn take(&mut self, shared: &Arc<Mutex<Self>>) -> Permit {
        self.in_flight += 1;
        Permit { shared: Arc::clone(shared), taken: Instant::now(), in_flight: self.in_flight }
    }

    fn may_wait(&mut self) -> bool {
        let Some(Queue(some, all)) = self.queue else { return false };
        // Requests that have given up no longer wait.
        self.waiting.retain(|turn| !turn.is_closed());
        let (waiting, limit) = (self.waiting.len(), self.rule.limit());
        let excess = waiting.saturating_sub(some * limit) as u64;
        waiting < all * limit && self.random.below(((all - some) * limit) as u64) >= excess
    }
}

impl Permit {
    fn learn(&self) {
        let now = Instant::now();
        let mut shared = lock(&self.shared);
        let is_full = shared.in_flight >= shared.rule.limit();
        let latency = now.duration_since(self.taken);
        shared.rule.learn(Sample { latency, in_flight: self.in_flight, is_full, now });
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut turns = Vec::new();
        let mut shared = lock(&self.shared);
        shared.in_flight -= 1;
        while shared.in_flight < shared.rule.limit() {
            let Some(turn) = shared.waiting.pop_front() else { break };
            if !turn.is_closed() {
                turns.push((turn, shared.take(&self.shared)));
            }
        }
        drop(shared);
        // A permit whose receiver is dropped is dropped here, which takes the lock.
        for (turn, permit) in turns {
            let _ = turn.send(permit);
        }
    }
}

impl Service<Request<()>> for Permits {
    type Response = Response<ServerBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        let turn = self.turn();
        let mut server = self.server.clone();
        Box::pin(async move {
            let permit = match turn {
                Turn::Now(permit) => Some(permit),
                Turn::Later(turn) => turn.await.ok(),
                Turn::Rejected => None,
            };
            let Some(permit) = permit else {
                return Ok(ServerBody::response(StatusCode::SERVICE_UNAVAILABLE));
            };
            let response = server.call(request).await?;
            permit.learn();
            Ok(response)
        })
    }
}

impl std::fmt::Debug for Permits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Permits").field("server", &self.server).finish_non_exhaustive()
    }
}
