//! The search for the limit against simulated servers, a test for each trap that others fell into; and the limiter.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use super::Overload;
use super::fair_queue::{Arrival, Ticket};
use super::gate::Gate;
use super::limit_search::LimitSearch;
use crate::limiter::{Limiter, LimiterExt};
use crate::testing::Random;
use crate::util::wake::owning;
use crate::values::{Answer, Ask, Decision, Mode, PartitionKey, Priority, RequestEnd};

/// Nanoseconds per millisecond.
const MS: u64 = 1_000_000;

/// A server before which requests always wait, so that the limit always binds.
struct Server {
    search: LimitSearch,
    workers: usize,
    now: u64,
    random: Random,
    /// The end of each request that it works on, whether that takes a worker, and whether it is served.
    working: BinaryHeap<Reverse<(u64, bool, bool)>>,
    /// The requests that wait for a worker.
    queued: VecDeque<Request>,
    served: u64,
    least: u64,
}

/// A request: the work, whether that needs a worker, and its end.
struct Request {
    work: u64,
    takes_worker: bool,
    end: RequestEnd,
}

fn served(work: u64) -> Request {
    Request { work, takes_worker: true, end: RequestEnd::Served }
}

impl Server {
    fn new(workers: usize, search: LimitSearch) -> Self {
        let (working, queued, random) = (BinaryHeap::new(), VecDeque::new(), Random::of_trial(0));
        Self { search, workers, now: 0, random, working, queued, served: 0, least: u64::MAX }
    }

    /// A number below `bound`.
    fn random(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    /// Works for this time on requests that `next` makes.
    fn run(&mut self, span: u64, mut next: impl FnMut(&mut Self) -> Request) {
        let until = self.now + span;
        while self.now < until {
            while ((self.working.len() + self.queued.len()) as u64) < self.search.limit() {
                let request = next(self);
                if request.takes_worker {
                    self.queued.push_back(request);
                } else {
                    self.begin(&request);
                }
                self.fill_workers();
            }
            let Some(Reverse((at, _, is_served))) = self.working.pop() else { break };
            self.now = at;
            self.fill_workers();
            self.served += u64::from(is_served);
            self.search.count(self.now, 1, is_served, true);
            self.least = self.least.min(self.search.limit());
        }
    }

    /// Works for this time, and returns the median limit in it: the search wanders about its aim.
    fn limit_over(&mut self, span: u64, mut next: impl FnMut(&mut Self) -> Request) -> u64 {
        let mut limits = [(); 41].map(|()| {
            self.run(span / 41, &mut next);
            self.search.base()
        });
        limits.sort_unstable();
        limits[20]
    }

    fn begin(&mut self, request: &Request) {
        let is_served = request.end == RequestEnd::Served;
        self.working.push(Reverse((self.now + request.work, request.takes_worker, is_served)));
    }

    fn fill_workers(&mut self) {
        while self.working.iter().filter(|it| it.0.1).count() < self.workers {
            let Some(request) = self.queued.pop_front() else { break };
            self.begin(&request);
        }
    }
}

/// Exponentially distributed, but never longer than seven times the mean.
fn exponential(server: &mut Server, mean: u64) -> u64 {
    // The logarithm to the base 2 in 1/1,024, from the leading bit and the next ten. It is too small by 0.057 on
    // average, so the mean is 1.5 of it, and not 1/ln 2.
    let random = server.random(1 << 20) + 1;
    let bit = u64::from(random.ilog2());
    let rest = ((random << 20) >> bit) - (1 << 20);
    let log2 = (bit << 10) + (rest >> 10);
    mean * ((20 << 10) - log2.min(20 << 10)) * 667 / 1_000 / 1_024
}

fn search() -> LimitSearch {
    LimitSearch::new(4..=1_024, 20)
}

#[test]
fn it_finds_the_number_of_workers() {
    for workers in [8, 16, 64] {
        let mut server = Server::new(workers, search());
        server.run(100_000 * MS, |server| served(exponential(server, 20 * MS)));
        let limit = server.limit_over(20_000 * MS, |server| served(exponential(server, 20 * MS)));
        let workers = workers as u64;
        assert!(limit >= workers * 3 / 4 && limit <= workers * 2, "{limit} for {workers} workers");
        let before = server.served;
        server.run(60_000 * MS, |server| served(exponential(server, 20 * MS)));
        let capacity = 60_000 / 20 * workers;
        let served = server.served - before;
        assert!(served >= capacity * 85 / 100, "{served} of {capacity} by {workers} workers");
    }
}

#[test]
fn requests_ending_together_do_not_mislead() {
    let mut server = Server::new(64, search());
    server.run(60_000 * MS, |_| served(50 * MS));
    let limit = server.search.base();
    assert!((56..=100).contains(&limit), "{limit}");
}

#[test]
fn trap_the_capacity_grows() {
    let mut server = Server::new(4, search());
    server.run(50_000 * MS, |server| served(exponential(server, 5 * MS)));
    let before = server.limit_over(20_000 * MS, |server| served(exponential(server, 5 * MS)));
    // It wanders by a quarter, and is mostly within twice the workers.
    assert!(before <= 12, "{before}");
    server.workers = 32;
    server.run(90_000 * MS, |server| served(exponential(server, 5 * MS)));
    let after = server.limit_over(10_000 * MS, |server| served(exponential(server, 5 * MS)));
    assert!(after >= 24, "{after}");
}

#[test]
fn trap_per_request_samples() {
    let mut server = Server::new(16, search());
    server.run(40_000 * MS, |server| served(exponential(server, 5 * MS)));
    let before = server.limit_over(20_000 * MS, |server| served(exponential(server, 5 * MS)));
    // Ten times, one request of a second in some thousand others.
    let mut turn = 0;
    let after = server.limit_over(20_000 * MS, |server| {
        turn += 1;
        served(if turn % 6_000 == 1 { 1_000 * MS } else { exponential(server, 5 * MS) })
    });
    // It wanders by a quarter without them, too.
    assert!((12..=26).contains(&before) && (12..=26).contains(&after), "{before}, then {after}");
}

#[test]
fn trap_a_stable_timeout_that_looks_healthy() {
    let mut server = Server::new(16, search());
    server.run(40_000 * MS, |server| served(exponential(server, 5 * MS)));
    let before = server.limit_over(20_000 * MS, |server| served(exponential(server, 5 * MS)));
    // Every request fails after a second, however many there are.
    let timeout = || Request { work: 1_000 * MS, takes_worker: false, end: RequestEnd::Failed };
    server.run(600_000 * MS, |_| timeout());
    assert!(server.search.base() <= before * 3 / 2, "{before}, then {}", server.search.base());
}

#[test]
fn trap_the_baseline_that_learns_the_incident() {
    let mut server = Server::new(16, search());
    server.run(40_000 * MS, |server| served(exponential(server, 5 * MS)));
    let before = server.limit_over(20_000 * MS, |server| served(exponential(server, 5 * MS)));
    server.run(600_000 * MS, |server| served(exponential(server, 15 * MS)));
    server.run(5_000 * MS, |server| served(exponential(server, 5 * MS)));
    let after = server.limit_over(20_000 * MS, |server| served(exponential(server, 5 * MS)));
    // The number of the workers, as exactly as the search finds it.
    assert!((12..=26).contains(&before) && (12..=26).contains(&after), "{before}, then {after}");
}

#[test]
fn trap_rejections_while_probing() {
    let mut server = Server::new(16, search());
    server.run(60_000 * MS, |server| served(exponential(server, 5 * MS)));
    server.least = u64::MAX;
    server.run(600_000 * MS, |server| served(exponential(server, 5 * MS)));
    assert!(server.least >= 10, "no server is drained to measure it: {}", server.least);
}

#[test]
fn trap_health_checks_as_fast_samples() {
    let mut server = Server::new(16, search());
    let mut turn = 0;
    let mut next = |server: &mut Server| {
        turn += 1;
        served(if turn % 2 == 0 { MS / 10 } else { exponential(server, 10 * MS) })
    };
    server.run(100_000 * MS, &mut next);
    let limit = server.limit_over(20_000 * MS, next);
    assert!((12..=32).contains(&limit), "{limit}");
}

/// A slow route drags down the limit for the fast ones.
#[test]
fn trap_slow_route_lowers_the_limit() {
    let mut server = Server::new(4, LimitSearch::new(4..=1_024, 40));
    let mut turn = 0;
    // One in ten waits for another server, for 100 ms; the others need a worker for 5 ms.
    let mut next = |server: &mut Server| {
        turn += 1;
        match turn % 10 {
            0 => Request { work: 100 * MS + turn % 97, takes_worker: false, end: RequestEnd::Served },
            _ => served(exponential(server, 5 * MS)),
        }
    };
    server.run(100_000 * MS, &mut next);
    // 4 workers serve 800 fast requests per second, and beside these 89 slow ones, nine at a time.
    let limit = server.limit_over(20_000 * MS, next);
    assert!((10..=40).contains(&limit), "{limit}");
    let before = server.served;
    server.run(20_000 * MS, |server| served(exponential(server, 5 * MS)));
    assert!(server.served - before > 16_000 * 9 / 10, "{}", server.served - before);
}

/// The limit drifts to its maximum.
#[test]
fn trap_idle_hours_raise_the_limit() {
    let mut search = search();
    for second in 0..3_600 {
        // Nobody waits.
        search.count(second * 1_000 * MS, 1, true, false);
        assert_eq!(search.limit(), 20);
    }
    assert!(!search.is_counting());
}

#[test]
fn idle_time_ends_the_open_window() {
    let mut search = search();
    search.count(0, 1, true, true);
    assert!(search.is_counting());
    for n in 1..100 {
        search.count(n, 1, true, false);
    }
    assert!(!search.is_counting() && search.time_of(1).is_none());
}

#[test]
fn the_limit_stays_between_its_bounds() {
    for (bounds, workers) in [(1..=1, 8), (1..=3, 8), (7..=7, 1), (2..=1_000_000, 1), (4..=20, 64)] {
        let mut server = Server::new(workers, LimitSearch::new(bounds.clone(), 20));
        for _ in 0..200 {
            server.run(1_000 * MS, |server| served(exponential(server, 5 * MS)));
            assert!(bounds.contains(&server.search.limit()), "{} is not in {bounds:?}", server.search.limit());
        }
    }
}

#[test]
fn other_bounds_hold_at_once() {
    let mut search = search();
    search.set_bounds(1..=10);
    assert_eq!(search.limit(), 10);
    search.set_bounds(64..=128);
    assert_eq!(search.limit(), 64);
}

fn key(name: &str) -> PartitionKey {
    name.into()
}

fn overload(limit: u64) -> Overload {
    Overload::new().limits(limit..=limit)
}

/// Takes a unit that is free.
fn take(overload: &Overload) -> Decision {
    let decision = overload.decide(&Ask::charge(&key("a"), 1)).at_once().expect("it need not wait");
    assert!(decision.is_allowed());
    decision
}

fn release(overload: &Overload, decision: &Decision) {
    overload.release(&Ask::charge(&key("a"), 1), decision.receipt(), 1, RequestEnd::Served);
}

/// A request that has to wait.
fn wait(overload: &Overload, name: &str, priority: Priority) -> tokio_test::task::Spawn<crate::values::Pending> {
    match overload.decide(&Ask::charge(&key(name), 1).prioritized(priority)) {
        Answer::Pending(pending) => {
            let mut waiting = tokio_test::task::spawn(pending);
            assert!(waiting.poll().is_pending());
            waiting
        }
        Answer::Ready(result) => panic!("it does not wait: {result:?}"),
    }
}

fn ready(waiting: &mut tokio_test::task::Spawn<crate::values::Pending>) -> Decision {
    assert!(waiting.is_woken(), "nobody has woken it");
    tokio_test::assert_ready_ok!(waiting.poll())
}

#[tokio::test(start_paused = true)]
async fn units_go_by_class_then_turn() {
    let overload = overload(1);
    let first = take(&overload);
    let mut low = wait(&overload, "a", Priority::Low);
    let mut heavy = [0, 1, 2].map(|_| wait(&overload, "a", Priority::Normal));
    let mut other = wait(&overload, "b", Priority::Normal);
    let mut critical = wait(&overload, "a", Priority::Critical);
    release(&overload, &first);
    let [one, two, three] = &mut heavy;
    for next in [&mut critical, one, &mut other, two, three, &mut low] {
        let decision = ready(next);
        assert!(decision.is_allowed());
        overload.gate().check(1);
        release(&overload, &decision);
    }
    overload.gate().check(0);
}

#[tokio::test(start_paused = true)]
async fn heavier_keys_are_served_more_often() {
    let overload = overload(1);
    let first = take(&overload);
    let weighing = |name: &str, weight| {
        let ask_key = key(name);
        let ask = Ask::charge(&ask_key, 1).weighing(NonZeroU32::new(weight).unwrap());
        let Answer::Pending(pending) = overload.decide(&ask) else { panic!("it does not wait") };
        let mut waiting = tokio_test::task::spawn(pending);
        assert!(waiting.poll().is_pending());
        waiting
    };
    let mut light: Vec<_> = (0..4).map(|_| weighing("light", 1)).collect();
    let mut heavy: Vec<_> = (0..4).map(|_| weighing("heavy", 3)).collect();
    release(&overload, &first);
    let mut served = Vec::new();
    for _ in 0..8 {
        for (name, waiting) in [("light", &mut light), ("heavy", &mut heavy)] {
            if waiting.first().is_some_and(|first| first.is_woken()) {
                let decision = ready(&mut waiting[0]);
                drop(waiting.remove(0));
                served.push(name);
                release(&overload, &decision);
            }
        }
    }
    assert_eq!(served[..4].iter().filter(|name| **name == "heavy").count(), 3, "{served:?}");
}

#[tokio::test(start_paused = true)]
async fn bounds_and_patience_end_waits() {
    let overload = overload(1).max_wait(Duration::from_millis(500));
    let _first = take(&overload);
    let mut waiting = wait(&overload, "a", Priority::Normal);
    let other = key("b");
    let hurried = Ask::charge(&other, 1).within(Some(Duration::from_millis(100)));
    let Answer::Pending(hurried) = overload.decide(&hurried) else { panic!("it waits") };
    let mut hurried = tokio_test::task::spawn(hurried);
    assert!(hurried.poll().is_pending());
    tokio::time::advance(Duration::from_millis(101)).await;
    let decision = ready(&mut hurried);
    assert!(!decision.is_allowed() && decision.retry_after().is_none(), "how fast it serves is not known");
    tokio::time::advance(Duration::from_millis(400)).await;
    assert!(!ready(&mut waiting).is_allowed());
    assert_eq!(overload.stats().overload.unwrap().shed, [0, 2, 0, 0]);
    overload.gate().check(1);
}

#[tokio::test(start_paused = true)]
async fn overload_serves_newest_and_sheds_oldest() {
    let overload = overload(1).queue_target(Duration::from_millis(10)).max_wait(Duration::from_millis(300));
    let mut running = take(&overload);
    let mut waiting: VecDeque<_> = VecDeque::new();
    // A request comes every 5 ms, and one is served every 20 ms.
    for step in 0..320 {
        waiting.push_back(wait(&overload, "a", Priority::Normal));
        tokio::time::advance(Duration::from_millis(5)).await;
        if step % 4 == 3 {
            release(&overload, &running);
            let overloaded = overload.stats().overload.unwrap().is_overloaded;
            assert_eq!(overloaded, step * 5 >= 110, "step {step}");
            let (mut decided, rest): (VecDeque<_>, _) = waiting.into_iter().partition(|it| it.is_woken());
            waiting = rest;
            // The shed requests are older than the served one.
            running = ready(&mut decided.pop_back().expect("one is served"));
            assert!(running.is_allowed() && decided.iter_mut().all(|shed| !ready(shed).is_allowed()));
            // The longest wait after the first one has waited for 10 ms.
            let sheds = step * 5 >= 310;
            assert!(sheds || decided.is_empty());
            if sheds {
                // At first, the load may come and go: fifteen are served in the longest wait.
                let most = if step * 5 < 1_210 { 24 } else { 4 };
                assert!(waiting.len() <= most, "{} wait", waiting.len());
            }
        }
    }
    assert!(overload.stats().overload.unwrap().shed[Priority::Normal as usize] > 10);
}

#[tokio::test(start_paused = true)]
async fn full_queues_evict_by_class_then_length() {
    let overload = overload(1).max_queue(3);
    let _running = take(&overload);
    let mut low = wait(&overload, "a", Priority::Low);
    let mut heavy = [0, 1].map(|_| wait(&overload, "a", Priority::Normal));
    let mut other = wait(&overload, "b", Priority::Normal);
    assert!(!ready(&mut low).is_allowed(), "the lowest class");
    // A third one of the heavy key would be served last: it is shed itself.
    let third = overload.decide(&Ask::charge(&key("a"), 1));
    assert!(!third.at_once().unwrap().is_allowed());
    let mut critical = wait(&overload, "c", Priority::Critical);
    assert!(heavy[1].is_woken() && !ready(&mut heavy[1]).is_allowed(), "the longest queue");
    assert!(heavy[0].poll().is_pending() && other.poll().is_pending() && critical.poll().is_pending());
    let stats = overload.stats().overload.unwrap();
    assert_eq!((stats.shed, stats.shed_over_share), ([1, 0, 0, 0], [0, 2, 0, 0]));
    assert_eq!(stats.waiting, [0, 2, 0, 1]);
}

/// Without a place in the queue, no request needs the lock to be shed.
#[tokio::test(start_paused = true)]
async fn requests_without_a_queue_are_shed() {
    let before = overload(1).max_queue(0);
    let running = take(&before);
    let shed = |overload: &Overload, priority| {
        let decision = overload.decide(&Ask::charge(&key("a"), 1).prioritized(priority)).at_once().unwrap();
        assert!(!decision.is_allowed() && decision.retry_after().is_none());
    };
    [Priority::Low, Priority::High, Priority::High].into_iter().for_each(|class| shed(&before, class));
    assert_eq!(before.stats().overload.unwrap().shed, [1, 0, 2, 0]);
    // After a live change, one request may wait, and after another change, no request may.
    let after = overload(1).max_queue(1);
    after.inherit(&before).expect("it is of the same kind").finish();
    let mut waiting = wait(&after, "a", Priority::Normal);
    before.inherit(&after).expect("they share a gate").finish();
    shed(&after, Priority::Critical);
    release(&after, &running);
    let running = ready(&mut waiting);
    assert!(running.is_allowed());
    assert_eq!(after.stats().overload.unwrap().shed, [1, 0, 2, 1]);
    after.close();
    assert!(matches!(after.decide(&Ask::charge(&key("a"), 1)), Answer::Ready(Err(error)) if error.is_closed()));
    after.gate().check(1);
    release(&after, &running);
}

/// They take at most the queue's places.
#[tokio::test(start_paused = true)]
async fn invented_keys_leave_nothing_behind() {
    let overload = overload(1).max_queue(100);
    let running = take(&overload);
    let mut waiting: Vec<_> = (0..100).map(|n| wait(&overload, &format!("invented {n}"), Priority::Normal)).collect();
    for n in 100..10_000 {
        // The key whose turn is last gives way: among equal ones, the newest.
        let shed = overload.decide(&Ask::charge(&key(&format!("invented {n}")), 1)).at_once();
        assert!(!shed.expect("it does not wait").is_allowed());
    }
    assert_eq!(overload.stats().overload.unwrap().waiting, [0, 100, 0, 0]);
    release(&overload, &running);
    let served = ready(&mut waiting[0]);
    drop(waiting);
    release(&overload, &served);
    overload.gate().check(0);
    assert!(overload.gate().is_empty());
}

#[tokio::test(start_paused = true)]
async fn trap_futures_that_leak_when_dropped() {
    let overload = overload(2);
    let running = [0, 1].map(|_| take(&overload));
    let mut waiting: Vec<_> = (0..10).map(|_| wait(&overload, "a", Priority::Normal)).collect();
    // One that waits, and one whose turn has come and that does not know it yet.
    drop(waiting.pop());
    release(&overload, &running[0]);
    assert!(waiting[0].is_woken());
    drop(waiting.remove(0));
    overload.gate().check(2);
    assert!(waiting[0].is_woken(), "the next one has its units");
    drop(waiting);
    overload.gate().check(1);
    release(&overload, &running[1]);
    overload.gate().check(0);
}

/// Leaves when it is dropped, as the future of a request does.
struct Leaver(Arc<Gate>, Ticket);

impl Drop for Leaver {
    fn drop(&mut self) {
        self.0.leave(self.1, false);
    }
}

/// A task's last waker is dropped with the task, and with the other futures in it.
#[test]
fn a_dropped_waker_may_drop_another_waiter() {
    let overload = overload(1);
    let running = take(&overload);
    let gate = overload.gate();
    let enter = || {
        let (key, weight) = (key("a"), NonZeroU32::MIN);
        match gate.enter(Arrival { key, priority: Priority::Normal, weight, cost: 1, at: gate.now() }) {
            Ok(ticket) => ticket,
            Err(turn) => panic!("it does not wait: {turn:?}"),
        }
    };
    for leaves in [true, false] {
        let (one, other) = (enter(), enter());
        let owner = owning(Leaver(Arc::clone(gate), other));
        assert!(gate.poll(one, &Context::from_waker(&owner)).is_pending());
        drop(owner);
        assert_eq!(gate.waiting(), 2);
        if !leaves {
            // Another task polls it now.
            assert!(gate.poll(one, &Context::from_waker(Waker::noop())).is_pending());
            assert_eq!(gate.waiting(), 1);
        }
        gate.leave(one, false);
        assert_eq!(gate.waiting(), 0);
    }
    release(&overload, &running);
}

#[tokio::test(start_paused = true)]
async fn trap_clones_that_admit_more() {
    let overload = Arc::new(overload(3));
    let held: Vec<_> = (0..3).map(|_| take(&Arc::clone(&overload))).collect();
    let shadow = overload.decide(&Ask::charge(&key("a"), 1).to(Mode::Shadow)).at_once().unwrap();
    assert!(!shadow.is_allowed());
    held.iter().for_each(|decision| release(&overload, decision));
    overload.gate().check(0);
}

#[tokio::test(start_paused = true)]
async fn trap_shrinking_limit_ignored_while_requests_wait() {
    let before = Overload::new().limits(10..=10);
    let running: Vec<_> = (0..10).map(|_| take(&before)).collect();
    let mut waiting: Vec<_> = (0..5).map(|_| wait(&before, "a", Priority::Normal)).collect();
    let after = Overload::new().limits(4..=4);
    after.inherit(&before).expect("it is of the same kind").finish();
    for decision in &running[..6] {
        release(&after, decision);
        assert!(waiting.iter().all(|it| !it.is_woken()), "ten were in flight, and four may be");
    }
    release(&after, &running[6]);
    assert_eq!(waiting.iter().filter(|it| it.is_woken()).count(), 1);
    assert!(ready(&mut waiting[0]).is_allowed());
    after.gate().check(4);
}

#[tokio::test(start_paused = true)]
async fn trap_cold_start_with_full_queue() {
    let overload = Overload::new();
    let running: Vec<_> = (0..20).map(|_| take(&overload)).collect();
    let waiting: Vec<_> = (0..1_024).map(|_| wait(&overload, "a", Priority::Normal)).collect();
    assert_eq!((running.len(), waiting.len()), (20, 1_024));
    overload.gate().check(20);
    drop(waiting);
    overload.gate().check(20);
}

#[tokio::test(start_paused = true)]
async fn refunds_do_not_end_requests() {
    let overload = overload(2);
    let one = take(&overload);
    overload.refund(&Ask::charge(&key("a"), 1), one.receipt(), 1);
    // A receipt from another limiter releases nothing.
    overload.refund(&Ask::charge(&key("a"), 1), crate::values::Receipt::new(0), 1);
    overload.gate().check(0);
}

#[tokio::test(start_paused = true)]
async fn a_closed_limiter_lets_nobody_wait() {
    let overload = overload(1);
    let running = take(&overload);
    let mut waiting = wait(&overload, "a", Priority::Normal);
    overload.close();
    assert!(waiting.is_woken());
    assert!(matches!(waiting.poll(), std::task::Poll::Ready(Err(error)) if error.is_closed()));
    let next = overload.decide(&Ask::charge(&key("a"), 1));
    assert!(matches!(next, Answer::Ready(Err(error)) if error.is_closed()));
    release(&overload, &running);
    assert!(take(&overload).is_allowed(), "who need not wait still passes");
}

/// A cost beyond the bounds never passes.
#[tokio::test(start_paused = true)]
async fn costs_above_the_limit_pass_alone() {
    let overload = Overload::new().limits(4..=100).starting_at(4);
    let running = take(&overload);
    let Answer::Pending(pending) = overload.decide(&Ask::charge(&key("a"), 50)) else { panic!("it waits") };
    let mut pending = tokio_test::task::spawn(pending);
    assert!(pending.poll().is_pending());
    release(&overload, &running);
    assert!(ready(&mut pending).is_allowed());
    overload.gate().check(50);
    let never = overload.decide(&Ask::charge(&key("a"), 101)).at_once().unwrap();
    assert!(!never.is_allowed() && !never.is_until_released() && never.retry_after().is_none());
    assert!(overload.decide(&Ask::charge(&key("a"), 0)).at_once().unwrap().is_allowed());
}

#[tokio::test(start_paused = true)]
async fn the_hint_covers_the_requests_before() {
    let overload =
        Arc::new(overload(2).max_queue(8).max_wait(Duration::from_secs(60)).queue_target(Duration::from_secs(60)));
    let mut running: VecDeque<_> = (0..2).map(|_| take(&overload)).collect();
    let mut waiting: VecDeque<_> = (0..8).map(|_| wait(&overload, "a", Priority::Normal)).collect();
    let shed = |overload: &Overload| overload.decide(&Ask::charge(&key("a"), 1)).at_once().unwrap();
    assert_eq!(shed(&overload).retry_after(), None, "nothing is known yet");
    // Two are served each second.
    for _ in 0..60 {
        tokio::time::advance(Duration::from_millis(500)).await;
        release(&overload, &running.pop_front().unwrap());
        running.push_back(ready(&mut waiting.pop_front().unwrap()));
        waiting.push_back(wait(&overload, "a", Priority::Normal));
    }
    // Eight are before it.
    assert_eq!(shed(&overload).retry_after(), Some(Duration::from_millis(4_500)));
    let critical = overload.stats().overload.unwrap();
    assert_eq!(critical.waiting[Priority::Normal as usize], 8);
}

#[test]
fn waiting_needs_a_runtime() {
    let overload = overload(1);
    let _running = take(&overload);
    let answer = overload.decide(&Ask::charge(&key("a"), 1));
    assert!(matches!(answer, Answer::Ready(Err(error)) if error.to_string().contains("runtime")));
    overload.gate().check(1);
}

#[tokio::test(start_paused = true)]
async fn permits_without_a_layer_release_units() {
    let overload = overload(1);
    let name = key("a");
    let permit = overload.acquire(&name, 1).await.unwrap().admitted().unwrap();
    overload.gate().check(1);
    drop(permit);
    overload.gate().check(0);
}

fn limit_of(overload: &Overload) -> u64 {
    overload.stats().overload.unwrap().limit
}

/// A shadow is never reached by a request that waits, so a limit that went down would not come back.
#[tokio::test(start_paused = true)]
async fn shadows_ignore_clients_that_give_up() {
    let (overload, name) = (Overload::new(), key("a"));
    for _ in 0..100 {
        let shadow = overload.decide(&Ask::charge(&name, 1).to(Mode::Shadow)).at_once().unwrap();
        assert!(shadow.is_allowed());
        tokio::time::advance(Duration::from_secs(1)).await;
        overload.release(&Ask::charge(&name, 1), shadow.receipt(), 1, RequestEnd::Abandoned);
    }
    assert_eq!(limit_of(&overload), 20);
    overload.gate().check(0);
}

/// A server that sleeps for 50 ms has ten requests in flight, and a client resets two streams in each millisecond.
#[tokio::test(start_paused = true)]
async fn immediate_resets_keep_the_limit() {
    let (overload, name) = (Overload::new(), key("a"));
    let ask = Ask::charge(&name, 1);
    let mut running = VecDeque::new();
    for now in 0..5_000 {
        for _ in 0..2 {
            let reset = take(&overload);
            overload.release(&ask, reset.receipt(), 1, RequestEnd::Abandoned);
        }
        if now % 5 == 0 {
            running.push_back((now + 50, take(&overload)));
        }
        while running.front().is_some_and(|(end, _)| *end <= now) {
            release(&overload, &running.pop_front().unwrap().1);
        }
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    assert_eq!(limit_of(&overload), 20);
}

/// A load balancer's probe that waits for a millisecond, on a server that has nothing else to do.
#[tokio::test(start_paused = true)]
async fn impatient_health_checks_keep_the_limit() {
    let (overload, name) = (Overload::new(), key("a"));
    for _ in 0..200 {
        let check = take(&overload);
        tokio::time::advance(Duration::from_millis(1)).await;
        overload.release(&Ask::charge(&name, 1), check.receipt(), 1, RequestEnd::Abandoned);
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert_eq!(limit_of(&overload), 20);
}

/// Three in four requests come from one client, which gives each up after 25 ms. The others are served in 30 ms.
#[tokio::test(start_paused = true)]
async fn one_client_cannot_lower_the_limit() {
    let (overload, patient) = (Overload::new(), key("patient"));
    let others = [0, 1, 2].map(|number: u64| PartitionKey::from(number));
    let mut running = VecDeque::new();
    for now in 0..4_000 {
        let turn = now / 5 % 4;
        if now % 5 == 0 {
            let other = &others[now / 20 % 3];
            let (name, time, end) =
                if turn < 3 { (&patient, 25, RequestEnd::Abandoned) } else { (other, 30, RequestEnd::Served) };
            let decision = overload.decide(&Ask::charge(name, 1)).at_once().expect("it need not wait");
            running.push_back((now + time, name, end, decision));
        }
        let (over, others): (VecDeque<_>, _) = running.into_iter().partition(|(until, ..)| *until <= now);
        running = others;
        for (_, name, end, decision) in over {
            overload.release(&Ask::charge(name, 1), decision.receipt(), 1, end);
        }
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    assert_eq!(limit_of(&overload), 20);
}

/// One request after the other is given up, and then a stream lasts: nothing else ends.
#[tokio::test(start_paused = true)]
async fn the_fast_path_comes_back() {
    let (overload, name) = (Overload::new(), key("a"));
    let lost = take(&overload);
    overload.release(&Ask::charge(&name, 1), lost.receipt(), 1, RequestEnd::Abandoned);
    assert!(overload.gate().word().is_queued());
    // Nobody waits, so a shadow of the same limiter need not, either.
    let shadow = overload.decide(&Ask::charge(&name, 1).to(Mode::Shadow)).at_once().unwrap();
    assert!(shadow.is_allowed());
    release(&overload, &shadow);
    let _streams: Vec<_> = (0..10).map(|_| take(&overload)).collect();
    tokio::time::advance(Duration::from_secs(3_600)).await;
    let one = take(&overload);
    assert!(!overload.gate().word().is_queued());
    release(&overload, &one);
    overload.gate().check(10);
}

/// Arrivals equal departures, and one client joins the queue and leaves it again all the time.
#[tokio::test(start_paused = true)]
async fn early_leavers_do_not_shed_others() {
    let overload = overload(1).max_wait(Duration::from_millis(400));
    let mut running = take(&overload);
    let _first = wait(&overload, "a", Priority::Normal);
    let mut _second = None;
    for now in (0..600).step_by(20) {
        if now == 200 {
            _second = Some(wait(&overload, "a", Priority::Normal));
        }
        let mut next = wait(&overload, "b", Priority::High);
        for _ in 0..5 {
            drop(wait(&overload, "a", Priority::Normal));
        }
        release(&overload, &running);
        running = ready(&mut next);
        tokio::time::advance(Duration::from_millis(20)).await;
    }
    assert_eq!(overload.stats().overload.unwrap().shed, [0; 4]);
}
