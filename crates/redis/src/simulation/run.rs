//! One run: carries out the plan, waits for the recovery, and checks the breakers and the end.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_sluice::store::BreakerState;
use tower_sluice::testing;
use tower_sluice::time::Timestamp;

use super::callers::{Callers, KINDS, Kind, Process};
use super::network::Network;
use super::plan::{Plan, start};
use crate::script::random::Xorshift;

pub(super) struct RunOutcome {
    pub(super) plan: Plan,
    pub(super) problems: Vec<String>,
    pub(super) log: Vec<String>,
}

thread_local! {
    /// When this thread's run began.
    static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The processes' own clock: the simulated time.
fn clock() -> Timestamp {
    let passed = BEGAN.get().map_or(Duration::ZERO, |began| began.elapsed());
    Timestamp::from_nanos(1_000_000_000_000).saturating_add(passed)
}

/// After the last fault, a breaker probes its node within 5 s, and a cluster is asked within 5 s for its nodes. A
/// connection that is being made at that time may have to fail first.
const RECOVERY: Duration = Duration::from_millis(5_500);

pub(super) fn run(seed: u64, is_logged: bool) -> RunOutcome {
    testing::simulate(Some((seed, clock)));
    let plan = Plan::from_seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let (problems, log) = runtime.expect("a runtime").block_on(async {
        BEGAN.set(Some(Instant::now()));
        let network = Network::new(seed, plan.processes, plan.shards, plan.delay, is_logged);
        let callers = Callers::new(&network, &plan);
        carry_out(seed, &plan, &network, &callers).await;
        recover(&plan, &network, &callers).await;
        finish(&plan, &network, &callers).await;
        let mut problems = std::mem::take(&mut callers.book().problems);
        let mut state = network.lock();
        if state.has_panicked {
            problems.push("PANIC: see above".to_owned());
        }
        let servers = &mut state.servers;
        let charged = servers.iter_mut().filter_map(|server| server.data.accounts.problem.take());
        problems.extend(charged.map(|problem| format!("TOO MANY: {problem}")));
        (problems, state.log.take().unwrap_or_default())
    });
    BEGAN.set(None);
    testing::simulate(None);
    RunOutcome { plan, problems, log }
}

/// Makes the plan's requests and faults.
async fn carry_out(seed: u64, plan: &Plan, network: &Arc<Network>, callers: &Arc<Callers>) {
    let mut random = Xorshift::from_seed(seed ^ 0x0063_616c);
    let kinds: Vec<Kind> =
        KINDS.iter().zip(plan.weights).flat_map(|(kind, weight)| (0..weight).map(|_| *kind)).collect();
    let mut faults = plan.faults.iter().copied().peekable();
    // When the servers that are down start again. In order, so that a seed gives the same run each time.
    let mut starts = BTreeMap::new();
    let mut last_fault = Instant::now();
    for ms in 0..plan.length {
        while let Some((_, fault)) = faults.next_if(|(at, _)| *at <= ms) {
            last_fault = Instant::now();
            let server = fault.strike(network, plan.processes);
            if let Some(later) = fault.starts_again() {
                // A server that was down already stays down until the later of both ends.
                let starts_at = starts.entry(server).or_insert(ms);
                *starts_at = (*starts_at).max(ms + later);
            }
        }
        starts.retain(|server, at| {
            if *at <= ms {
                start(network, *server);
            }
            *at > ms
        });
        if ms % plan.gap == 0 {
            for _ in 0..=random.below(plan.batch) {
                let process = random.below(plan.processes as u64) as usize;
                let (one_in, patience) = plan.give_up;
                let gives_up = one_in > 0 && random.below(one_in) == 0;
                let patience = if one_in == 1 { patience } else { 1 + random.below(patience.max(1)) };
                let give_up = gives_up.then(|| Duration::from_millis(patience));
                tokio::spawn(Arc::clone(callers).request(process, random.pick(&kinds), give_up));
            }
        }
        sleep(Duration::from_millis(1)).await;
        check_breakers(plan, network, callers, last_fault);
    }
    for server in starts.into_keys() {
        start(network, server);
    }
}

/// Checks that a silent node's breaker is open after two timeouts: the calls in the first timeout fail in one wave, the
/// calls in the second in another. A call may begin half a timeout late, behind a call for the same key.
fn check_breakers(plan: &Plan, network: &Network, callers: &Callers, last_fault: Instant) {
    let now = Instant::now();
    for (process, Process { redis, .. }) in callers.processes.iter().enumerate() {
        let health = redis.health();
        let mut state = network.lock();
        for shard in 0..state.shards.len() {
            let server = state.shards[shard].primary;
            let Some((since, until)) = state.link(process, server).dead.filter(|(_, until)| now < *until) else {
                continue;
            };
            // The client may not get to this node with several faults at once, or before it knows that this is the
            // primary.
            let is_known = state.link(process, server).connected.is_some_and(|at| at < since);
            let patience = plan.timeout * 3 + Duration::from_millis(10);
            if !is_known || last_fault != since || now < since + patience || until < now {
                continue;
            }
            let address = format!("10.0.0.{}:6379", if plan.shards == 0 { 1 } else { server + 1 });
            let is_closed = health.iter().any(|node| node.name() == address && node.breaker() == BreakerState::Closed);
            let book = callers.book();
            let came = book.came.get(&(process, shard)).map(Vec::as_slice).unwrap_or_default();
            let came = |from: Instant, to: Instant| came.iter().filter(|at| (from..to).contains(at)).count();
            let second = since + plan.timeout + Duration::from_millis(2);
            let is_busy = came(since, since + plan.timeout) >= 10 && came(second, second + plan.timeout / 2) >= 10;
            drop(book);
            if is_closed && is_busy && now == since + patience {
                callers.book().problems.push(format!("CLOSED: the breaker of {address} in process {process}"));
            }
        }
    }
}

/// Makes requests until they are all answered again.
async fn recover(plan: &Plan, network: &Arc<Network>, callers: &Arc<Callers>) {
    let healed = Instant::now();
    network.lock().note(format_args!("all is well again"));
    let mut last_failure = healed;
    let latest = healed + RECOVERY + plan.connect_timeout + plan.timeout * 4;
    while last_failure + Duration::from_millis(150) > Instant::now() {
        let mut answers = Vec::new();
        for process in 0..plan.processes {
            for _ in 0..2 * plan.shards.max(1) {
                answers.push(tokio::spawn(Arc::clone(callers).request(process, Kind::Fresh, None)));
            }
        }
        let began = Instant::now();
        sleep(Duration::from_millis(10)).await;
        for answer in answers {
            if !answer.await.unwrap_or(false) {
                last_failure = began;
            }
        }
        if last_failure > latest {
            let health: Vec<_> = callers.processes.iter().map(|process| process.redis.health()).collect();
            let problem = format!("NO RECOVERY: {:?} after all is well: {health:?}", healed.elapsed());
            return callers.book().problems.push(problem);
        }
    }
}

/// Checks that all kinds of requests work, and that no call is left in flight.
async fn finish(plan: &Plan, network: &Arc<Network>, callers: &Arc<Callers>) {
    for process in 0..plan.processes {
        for kind in KINDS {
            for _ in 0..4 {
                let answer = tokio::spawn(Arc::clone(callers).request(process, kind, None)).await;
                if !matches!(answer, Ok(true)) {
                    callers.book().problems.push(format!("BROKEN: {kind:?} of process {process}: {answer:?}"));
                }
            }
        }
    }
    sleep(plan.timeout * 3).await;
    for process in &callers.processes {
        for node in process.redis.health() {
            if node.in_flight() != Some(0) {
                callers.book().problems.push(format!("LEFT: {node:?}"));
            }
        }
    }
    callers.settle();
    let book = callers.book();
    let requests = book.requests;
    let failures = book.failures;
    drop(book);
    network.lock().note(format_args!("{requests} requests, {failures} failed"));
}
