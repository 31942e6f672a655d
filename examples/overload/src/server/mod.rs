//! The simulated server: workers, and a run queue that is served first come, first served.
//!
//! A request's part occupies a worker until it is done. A request whose client has given up is [skipped or
//! done](Abandoned) when its turn comes; a part that has begun is finished.

mod body;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};

use http::{Request, Response, StatusCode};
use tokio::sync::{Notify, oneshot};
use tower::Service;
use tower_sluice::Permits;
use tower_sluice::policy::TakenPermits;

use self::body::BodyEnd;
pub use self::body::ServerBody;
use crate::job::Job;
use crate::plan::{Abandoned, Plan};
use crate::time::{Epoch, SECOND};

/// The simulated server, as a service. Clones share it.
#[derive(Clone)]
pub struct Server {
    shared: Arc<Shared>,
}

struct Shared {
    plan: Plan,
    epoch: Epoch,
    state: Mutex<State>,
    /// An event was added.
    changed: Notify,
}

#[derive(Default)]
struct State {
    busy: u32,
    queue: VecDeque<Task>,
    /// The next events, in order; the number tells events at one instant apart.
    events: BinaryHeap<Reverse<(u64, u64)>>,
    /// The events' tasks, by number.
    running: std::collections::HashMap<u64, Task>,
    numbers: u64,
    /// Requests that were sent and are not over, and since when.
    inside: u64,
    since: u64,
    /// For each second, the time that requests spent inside, in nanoseconds.
    load: Vec<u64>,
}

/// A request that is worked on, or in the run queue.
struct Task {
    job: Job,
    parts_left: u32,
    status: StatusCode,
    reply: Reply,
    /// The units that the handler has taken along.
    _held: Option<TakenPermits>,
}

enum Reply {
    Head(oneshot::Sender<Response<ServerBody>>),
    Body(BodyEnd),
}

impl Reply {
    fn is_abandoned(&self) -> bool {
        match self {
            Self::Head(head) => head.is_closed(),
            Self::Body(body) => body.is_dropped(),
        }
    }
}

impl Server {
    pub(crate) fn new(plan: Plan, epoch: Epoch) -> Self {
        let shared = Shared { plan, epoch, state: Mutex::default(), changed: Notify::new() };
        Self { shared: Arc::new(shared) }
    }

    /// The next event's time.
    pub(crate) fn next_event(&self) -> Option<u64> {
        self.lock().events.peek().map(|event| event.0.0)
    }

    pub(crate) fn changed(&self) -> &Notify {
        &self.shared.changed
    }

    /// Handles all events that are due.
    pub(crate) fn work(&self) {
        let now = self.shared.epoch.now();
        let mut state = self.lock();
        while state.events.peek().is_some_and(|event| event.0.0 <= now) {
            let Some(Reverse((_, number))) = state.events.pop() else { break };
            let Some(task) = state.running.remove(&number) else { continue };
            self.advance(&mut state, task, now);
        }
        self.start(&mut state, now);
    }

    /// For each second, the mean number of requests inside.
    pub(crate) fn mean_load(&self) -> Vec<f64> {
        self.lock().load.iter().map(|time| *time as f64 / SECOND as f64).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().expect("nobody panics with the lock")
    }

    /// Handles a finished part of a task.
    fn advance(&self, state: &mut State, mut task: Task, now: u64) {
        task.parts_left -= 1;
        let is_io = task.job.is_io || task.status != StatusCode::OK;
        if !is_io {
            state.busy -= 1;
        }
        if let Reply::Head(head) = task.reply {
            let (body, end) = ServerBody::new(task.parts_left > 0);
            let mut response = Response::new(body);
            *response.status_mut() = task.status;
            // A client that has given up gets none.
            let _ = head.send(response);
            task.reply = Reply::Body(end);
        }
        if task.parts_left == 0 {
            state.count(now, |inside| inside - 1);
        } else if is_io {
            let part = task.job.work / u64::from(task.job.parts);
            state.schedule(now + part, task);
        } else {
            state.queue.push_back(task);
        }
    }

    /// Gives waiting work to idle workers.
    fn start(&self, state: &mut State, now: u64) {
        let plan = &self.shared.plan;
        while state.busy < plan.workers_at(now) {
            let Some(task) = state.queue.pop_front() else { return };
            if plan.abandoned == Abandoned::Skipped && task.reply.is_abandoned() {
                state.count(now, |inside| inside - 1);
                continue;
            }
            state.busy += 1;
            let part = task.job.work / u64::from(task.job.parts);
            state.schedule(now + plan.slowed(part, now), task);
        }
    }

    fn receive(&self, job: Job, head: oneshot::Sender<Response<ServerBody>>, held: Option<TakenPermits>) {
        let now = self.shared.epoch.now();
        let mut state = self.lock();
        state.count(now, |inside| inside + 1);
        let mut task =
            Task { job, parts_left: job.parts, status: StatusCode::OK, reply: Reply::Head(head), _held: held };
        if self.shared.plan.hangs(now) {
            (task.status, task.parts_left) = (StatusCode::GATEWAY_TIMEOUT, 1);
            state.schedule(now + SECOND, task);
        } else if job.is_io {
            let part = job.work / u64::from(job.parts);
            state.schedule(now + self.shared.plan.slowed(part, now), task);
        } else {
            state.queue.push_back(task);
            self.start(&mut state, now);
        }
        self.shared.changed.notify_one();
    }
}

impl State {
    fn schedule(&mut self, at: u64, task: Task) {
        self.numbers += 1;
        self.events.push(Reverse((at, self.numbers)));
        self.running.insert(self.numbers, task);
    }

    /// Notes for how long the present number of requests was inside, and changes the number.
    fn count(&mut self, now: u64, change: impl FnOnce(u64) -> u64) {
        while self.since < now {
            let second = (self.since / SECOND) as usize;
            let until = now.min((self.since / SECOND + 1) * SECOND);
            if self.load.len() <= second {
                self.load.resize(second + 1, 0);
            }
            self.load[second] += self.inside * (until - self.since);
            self.since = until;
        }
        self.inside = change(self.inside);
    }
}

impl Service<Request<()>> for Server {
    type Response = Response<ServerBody>;
    type Error = Infallible;
    type Future = Head;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Head {
        let job = request.extensions().get::<Job>().expect("each request has a job");
        let permits = request.extensions().get::<Permits>().filter(|_| self.shared.plan.abandoned == Abandoned::Held);
        let (send, head) = oneshot::channel();
        self.receive(*job, send, permits.map(Permits::take));
        Head(head)
    }
}

/// Waits for a response's head.
#[derive(Debug)]
pub struct Head(oneshot::Receiver<Response<ServerBody>>);

impl Future for Head {
    type Output = Result<Response<ServerBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let head = ready!(Pin::new(&mut self.0).poll(cx));
        Poll::Ready(Ok(head.expect("the server answers whoever waits")))
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("plan", &self.shared.plan).finish_non_exhaustive()
    }
}
