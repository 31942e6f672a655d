//! Random requests of several processes that wait, end, give up and die, against a naive model.

use super::*;

use std::collections::{BTreeMap, VecDeque};

use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;
use tower_sluice::testing::Random;

const LIMIT: u32 = 5;

/// Half of it is not long, and a busy machine does not miss its end.
const LEASE: Duration = Duration::from_secs(4);

/// What lines of one key have to do, naively: only the first of a line may be served, if its units are free. Which of
/// several lines is served is left to chance.
#[derive(Default)]
struct Model {
    in_flight: u32,
    lines: [VecDeque<(usize, u32)>; 3],
}

impl Model {
    fn fits(&self, process: usize) -> bool {
        self.lines[process].front().is_some_and(|(_, cost)| self.in_flight + cost <= LIMIT)
    }

    fn serve(&mut self, process: usize, id: usize) {
        assert!(self.fits(process), "request {id} was served, and does not fit");
        let (first, cost) = self.lines[process].pop_front().unwrap();
        assert_eq!(id, first, "served out of turn");
        self.in_flight += cost;
    }
}

/// A process, as far as this one can have several: with a runtime and connections of its own. It has one thread, so that
/// it reports its requests in the order in which they were served.
struct Process {
    limiter: Arc<RedisConcurrency>,
    runtime: Runtime,
}

impl Process {
    fn start(server: &RedisServer) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        Self { limiter: Arc::new(process(server, LIMIT, LEASE).queue(100).max_wait(HOUR)), runtime }
    }

    fn is_idle(&self) -> bool {
        let stats = self.limiter.stats();
        stats.in_flight == Some(0) && stats.backlog.unwrap().waiting() == 0
    }
}

struct Served {
    process: usize,
    id: usize,
    permit: Permit,
}

struct World {
    server: RedisServer,
    processes: [Option<Process>; 3],
    waiting: BTreeMap<usize, (usize, AbortHandle)>,
    held: BTreeMap<usize, (usize, Permit)>,
    model: Model,
    report: UnboundedSender<Served>,
    reports: UnboundedReceiver<Served>,
}

impl World {
    fn new() -> Self {
        let server = RedisServer::start();
        let (report, reports) = unbounded_channel();
        let processes = [0, 1, 2].map(|_| Some(Process::start(&server)));
        let (waiting, held) = (BTreeMap::new(), BTreeMap::new());
        Self { server, processes, waiting, held, model: Model::default(), report, reports }
    }

    async fn arrive(&mut self, process: usize, id: usize, cost: u32) {
        let Process { limiter, runtime } = self.processes[process].as_ref().unwrap();
        let (theirs, report) = (Arc::clone(limiter), self.report.clone());
        let (began, has_begun) = tokio::sync::oneshot::channel();
        let task = runtime.spawn(async move {
            let mut permit = Box::pin(theirs.acquire(&key("a"), cost));
            // Is in line, or asks, after the first poll. Another one arrives after that.
            let at_once = (&mut permit).now_or_never();
            let _ = began.send(());
            let permit = match at_once {
                Some(permit) => permit,
                None => permit.await,
            };
            let permit = permit.unwrap().expect("it waits until it is served");
            let _ = report.send(Served { process, id, permit });
        });
        has_begun.await.unwrap();
        self.waiting.insert(id, (process, task.abort_handle()));
        self.model.lines[process].push_back((id, cost));
    }

    fn end(&mut self, id: usize) {
        let (_, permit) = self.held.remove(&id).unwrap();
        self.model.in_flight -= permit.units();
    }

    async fn give_up(&mut self, id: usize) {
        let (process, task) = self.waiting.remove(&id).unwrap();
        task.abort();
        self.model.lines[process].retain(|(waiting, _)| *waiting != id);
        let limiter = &self.processes[process].as_ref().unwrap().limiter;
        let others = self.model.lines[process].len();
        // Those behind it may have their turn by then.
        until("it has left", || limiter.stats().backlog.unwrap().waiting() <= others).await;
    }

    /// Stops all tasks of a process, and what its requests hold is never released: only its lease ends.
    fn kill(&mut self, process: usize) {
        self.processes[process].take().unwrap().runtime.shutdown_background();
        self.waiting.retain(|_, (of, _)| *of != process);
        self.model.lines[process].clear();
        let dead: Vec<_> = self.held.iter().filter(|(_, (of, _))| *of == process).map(|(id, _)| *id).collect();
        for id in dead {
            let (_, permit) = self.held.remove(&id).unwrap();
            self.model.in_flight -= permit.units();
            std::mem::forget(permit);
        }
        self.processes[process] = Some(Process::start(&self.server));
    }

    /// Waits until all have their turn whose turn it is.
    async fn settle(&mut self) {
        while (0..3).any(|process| self.model.fits(process)) {
            let served = tokio::time::timeout(20 * SECOND, self.reports.recv()).await;
            let Served { process, id, permit } = served.expect("a waiter that fits is served").unwrap();
            self.model.serve(process, id);
            self.waiting.remove(&id);
            self.held.insert(id, (process, permit));
        }
        // One that is still asking for the first time is in no line yet, and others could come before it.
        let do_not_fit = |process: usize| {
            let stats = self.processes[process].as_ref().unwrap().limiter.stats();
            stats.backlog.unwrap().waiting() == self.model.lines[process].len()
        };
        until("all others wait", || (0..3).all(do_not_fit)).await;
        assert!(self.reports.try_recv().is_err(), "one more was served");
    }
}

#[tokio::test]
async fn random_schedules_follow_the_model_and_leave_nothing() {
    let mut world = World::new();
    let seed = u64::from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos());
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let mut pick = |end: usize| usize::try_from(random.below(end as u64)).unwrap();
    let mut seen = [0_u32; 3];
    for id in 0..500 {
        match pick(10) {
            _ if id % 200 == 199 => world.kill(pick(3)),
            0..=4 if world.waiting.len() < 12 => {
                world.arrive(pick(3), id, 1 + u32::try_from(pick(3)).unwrap()).await;
                seen[0] += 1;
            }
            5..=7 if !world.held.is_empty() => {
                let index = pick(world.held.len());
                let id = *world.held.keys().nth(index).unwrap();
                world.end(id);
                seen[1] += 1;
            }
            8 if !world.waiting.is_empty() => {
                let index = pick(world.waiting.len());
                let id = *world.waiting.keys().nth(index).unwrap();
                world.give_up(id).await;
                seen[2] += 1;
            }
            _ => continue,
        }
        world.settle().await;
    }
    println!("{seen:?} requests came, ended, gave up");
    assert!(seen.iter().all(|count| *count > 5), "{seen:?}");
    while let Some(id) = world.waiting.keys().next().copied() {
        world.give_up(id).await;
    }
    world.held.clear();
    until("nothing is left", || {
        // Those behind one that gave up had their turn.
        while let Ok(Served { permit, .. }) = world.reports.try_recv() {
            drop(permit);
        }
        counted(&world.server) == 0 && world.processes.iter().flatten().all(Process::is_idle)
    })
    .await;
    for process in world.processes.into_iter().flatten() {
        process.runtime.shutdown_background();
    }
}
