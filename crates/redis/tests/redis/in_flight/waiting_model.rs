//! Random requests in several processes that wait, end, give up and die, against a naive model.

use std::collections::{BTreeMap, VecDeque};

use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;
use tower_sluice::testing::Random;

use super::*;
use crate::support::trace::Trace;

const LIMIT: u64 = 5;

/// A naive model of a key's lines: only a line's first waiter may be served, if its units are free. If several lines
/// may be served, chance decides.
#[derive(Default)]
struct Model {
    in_flight: u64,
    lines: [VecDeque<(usize, u64)>; 3],
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

/// A process, as far as this one can have several: with a separate runtime and separate connections. It has one thread,
/// so that it reports its requests in the order in which they were served.
struct Process {
    limiter: Arc<SharedConcurrency<Redis>>,
    runtime: Runtime,
    /// The beginning of its fields' names on the server.
    id: String,
}

impl Process {
    async fn start(server: &RedisServer) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let limiter = Arc::new(process(server, LIMIT, HOUR).max_queue(100).max_wait(HOUR));
        let theirs = Arc::clone(&limiter);
        let permit =
            runtime.spawn(async move { theirs.acquire_owned(&key("another"), 1).await.unwrap() }).await.unwrap();
        let known: Vec<String> = server.run(&["SMEMBERS", "known"]);
        let ids = fields_by_name(server).into_iter().map(|(_, field)| format!("{}:", field.split(':').next().unwrap()));
        let id = ids.into_iter().find(|id| !known.contains(id)).expect("it has a field");
        server.run::<()>(&["SADD", "known", &id]);
        drop(permit);
        let is_gone = || fields_by_name(server).iter().all(|(_, field)| !field.starts_with(&id));
        until("it is released", is_gone).await;
        Self { limiter, runtime, id }
    }

    fn is_idle(&self) -> bool {
        let stats = self.limiter.stats();
        stats.in_flight == Some(0) && stats.backlog.unwrap().waiting() == 0
    }
}

/// All fields on the server: the key's name, and the field's.
fn fields_by_name(server: &RedisServer) -> Vec<(String, String)> {
    let keys: Vec<String> = server.run(&["KEYS", "sluice:*:test:n"]);
    let fields =
        |key: String| server.run::<Vec<String>>(&["HKEYS", &key]).into_iter().map(move |field| (key.clone(), field));
    keys.into_iter().flat_map(fields).collect()
}

struct Served {
    process: usize,
    id: usize,
    permit: Owned,
}

struct World {
    server: RedisServer,
    processes: [Option<Process>; 3],
    waiting: BTreeMap<usize, (usize, AbortHandle)>,
    held: BTreeMap<usize, (usize, Owned)>,
    model: Model,
    /// The killed processes' ids.
    dead: Vec<String>,
    report: UnboundedSender<Served>,
    reports: UnboundedReceiver<Served>,
}

impl World {
    async fn new() -> Self {
        let server = RedisServer::start();
        let (report, reports) = unbounded_channel();
        let mut processes = [None, None, None];
        for process in &mut processes {
            *process = Some(Process::start(&server).await);
        }
        let (waiting, held) = (BTreeMap::new(), BTreeMap::new());
        Self { server, processes, waiting, held, model: Model::default(), dead: Vec::new(), report, reports }
    }

    async fn arrive(&mut self, process: usize, id: usize, cost: u64) {
        let Process { limiter, runtime, .. } = self.processes[process].as_ref().unwrap();
        let (theirs, report) = (Arc::clone(limiter), self.report.clone());
        let (began, has_begun) = tokio::sync::oneshot::channel();
        let task = runtime.spawn(async move {
            let mut permit = Box::pin(theirs.acquire_owned(&key("a"), cost));
            // The request is in line, or asks, after the first poll. Another one arrives after that.
            let at_once = (&mut permit).now_or_never();
            let _ = began.send(());
            let permit = match at_once {
                Some(permit) => permit,
                None => permit.await,
            };
            let permit = permit.unwrap().admitted().expect("it waits until it is served");
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

    /// Stops all a process's tasks, so that its requests' units are never released. Only its lease ends, at once.
    async fn kill(&mut self, process: usize) {
        let killed = self.processes[process].take().unwrap();
        killed.runtime.shutdown_background();
        self.dead.push(killed.id);
        self.waiting.retain(|_, (of, _)| *of != process);
        self.model.lines[process].clear();
        let dead: Vec<_> = self.held.iter().filter(|(_, (of, _))| *of == process).map(|(id, _)| *id).collect();
        for id in dead {
            let (_, permit) = self.held.remove(&id).unwrap();
            self.model.in_flight -= permit.units();
            std::mem::forget(permit);
        }
        self.processes[process] = Some(Process::start(&self.server).await);
    }

    /// Ends the killed processes' leases. One of their calls may have reached the server since the last time.
    fn end_leases_of_the_dead(&self) {
        for (key, field) in fields_by_name(&self.server) {
            if self.dead.iter().any(|id| field.starts_with(id)) {
                self.server.run::<()>(&["HDEL", &key, &field]);
            }
        }
    }

    /// Waits until all have their turn whose turn it is.
    async fn settle(&mut self) {
        while (0..3).any(|process| self.model.fits(process)) {
            let mut served = None;
            until("a waiter that fits is served", || {
                served = self.reports.try_recv().ok();
                if served.is_none() && !self.dead.is_empty() {
                    self.end_leases_of_the_dead();
                }
                served.is_some()
            })
            .await;
            let Served { process, id, permit } = served.unwrap();
            self.model.serve(process, id);
            self.waiting.remove(&id);
            self.held.insert(id, (process, permit));
        }
        // A request that is still asking for the first time is not in line yet, and others could come before it.
        let do_not_fit = |process: usize| {
            let stats = self.processes[process].as_ref().unwrap().limiter.stats();
            stats.backlog.unwrap().waiting() == self.model.lines[process].len()
        };
        until("all others wait", || (0..3).all(do_not_fit)).await;
        assert!(self.reports.try_recv().is_err(), "one more was served");
    }
}

#[tokio::test]
async fn random_schedules_follow_the_model() {
    let mut world = World::new().await;
    let mut random = Random::of_trial(0);
    let mut pick = |end: usize| usize::try_from(random.below(end as u64)).unwrap();
    let mut seen = [0_u32; 3];
    let mut trace = Trace::of(500);
    while trace.goes_on([("arrivals", seen[0] > 5), ("ends", seen[1] > 5), ("waiters that give up", seen[2] > 5)]) {
        let id = trace.step();
        match pick(10) {
            _ if id % 200 == 199 => world.kill(pick(3)).await,
            0..=4 if world.waiting.len() < 12 => {
                world.arrive(pick(3), id, 1 + pick(3) as u64).await;
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
    while let Some(id) = world.waiting.keys().next().copied() {
        world.give_up(id).await;
    }
    world.held.clear();
    until("nothing is left", || {
        // When a request gives up, the next requests may get their turn.
        while let Ok(Served { permit, .. }) = world.reports.try_recv() {
            drop(permit);
        }
        world.end_leases_of_the_dead();
        counted(&world.server) == 0 && world.processes.iter().flatten().all(Process::is_idle)
    })
    .await;
    for process in world.processes.into_iter().flatten() {
        process.runtime.shutdown_background();
    }
}
