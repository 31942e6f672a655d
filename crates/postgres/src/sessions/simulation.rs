//! Connections in simulated time, over a network that loses, delays and forgets. A seed determines the faults.
//!
//! Statements are not carried out. The test checks that the store never has more than one connection beyond the pool's
//! maximum, and that a request ends within its timeout. Once the network is back and the last probe has ended, requests
//! must be answered within a second and three times the time that a connection takes.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;
use tokio::time::sleep;
use tower_sluice::store::remote::{CallLimits, GaveUp};
use tower_sluice::testing::{Random, seeds};

use super::*;
use crate::pool::{Connecting, Running};
use crate::sql::Statements;
use crate::tests::effort::rounds;

const TIMEOUT: Duration = Duration::from_millis(100);

/// Tokio's timers are a millisecond apart.
const TIMERS: Duration = Duration::from_millis(3);

/// How the network treats bytes on all connections.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Pass,
    /// Answers are delayed by this time.
    Late(Duration),
    /// Bytes are lost, in both directions. A connection that has lost some never receives anything again.
    Lost,
    /// Connections end, and new ones are refused.
    Refused,
    /// Another session has locked all rows, so the server ends statements that wait.
    Locked,
}

/// The server, as it is seen over the network.
#[derive(Clone, Debug)]
struct Network(Arc<NetworkState>);

#[derive(Debug)]
struct NetworkState {
    mode: watch::Sender<Mode>,
    /// How long it takes to connect, in either direction.
    connecting: Duration,
    size: usize,
    /// Connections that are made or being made, and their maximum so far.
    open: AtomicU64,
    most: AtomicU64,
}

/// A connection that is open, or is being made.
#[derive(Debug)]
struct Open(Network);

impl Open {
    fn new(network: &Network) -> Self {
        let open = network.0.open.fetch_add(1, Ordering::SeqCst) + 1;
        network.0.most.fetch_max(open, Ordering::SeqCst);
        Self(network.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Network {
    fn mode(&self) -> Mode {
        *self.0.mode.borrow()
    }

    /// Waits for an answer, which takes this long. An answer that meets a loss never comes.
    async fn answer(&self, takes: Duration) -> Result<(), PostgresFault> {
        let mut modes = self.0.mode.subscribe();
        let late = if let Mode::Late(late) = self.mode() { late } else { Duration::ZERO };
        let fault = modes.wait_for(|mode| matches!(mode, Mode::Lost | Mode::Refused));
        tokio::select! {
            biased;
            fault = fault => {
                if *fault.expect("the network is there") == Mode::Refused {
                    return Err(FaultKind::ConnectionLost.into());
                }
            }
            () = sleep(takes + late) => return Ok(()),
        }
        std::future::pending().await
    }
}

impl Connect for Network {
    fn max_connections(&self) -> usize {
        self.0.size
    }

    fn connect(&self) -> Connecting<'_> {
        let open = Open::new(self);
        Box::pin(async move {
            self.answer(self.0.connecting).await?;
            Ok(Box::new(Simulated { open, is_dead: false }) as Box<dyn Session>)
        })
    }
}

struct Simulated {
    open: Open,
    /// Bytes were lost on it.
    is_dead: bool,
}

impl Session for Simulated {
    fn query<'a>(&'a mut self, text: &'a str, _: &'a [Value], _: bool) -> Running<'a> {
        let network = self.open.0.clone();
        Box::pin(async move {
            if self.is_dead {
                std::future::pending::<()>().await;
            }
            self.is_dead = true;
            if network.mode() == Mode::Locked && text != crate::sql::SET_UP {
                network.answer(TIMEOUT / 4 * 3).await?;
                self.is_dead = false;
                return Err(FaultKind::StatementTimeout.into());
            }
            network.answer(Duration::from_millis(1)).await?;
            self.is_dead = false;
            Ok(vec![vec![Value::from("marker".to_owned())]])
        })
    }

    fn is_closed(&self) -> bool {
        self.open.0.mode() == Mode::Refused
    }

    fn abandon(self: Box<Self>, _: bool) {}
}

struct Process {
    sessions: Sessions,
    calls: Arc<Calls>,
    statements: Statements,
}

impl Process {
    fn new(network: &Network) -> Arc<Self> {
        let settings = Settings { timeout: TIMEOUT, is_behind_pooler: false };
        let sessions = Sessions::new(Arc::new(network.clone()), settings);
        let calls = Arc::new(Calls::new("simulated", TIMEOUT, 1_000));
        sessions.tell(&calls);
        Arc::new(Self { sessions, calls, statements: Statements::new("simulated") })
    }

    /// Makes a request, which must be answered in time.
    async fn ask(self: Arc<Self>) -> Result<(), PostgresFault> {
        let began = Instant::now();
        let limits = CallLimits::until(began + TIMEOUT);
        let this = Arc::clone(&self);
        let call = async move {
            let parameters = vec![Value::Text(None)];
            this.sessions.run(&this.statements.read, parameters, ()).await.map(drop)
        };
        let answer = self.calls.run(limits, call, PostgresFault::blames_server).await;
        let took = began.elapsed();
        assert!(took <= TIMEOUT + TIMERS, "a request took {took:?}");
        answer.unwrap_or_else(|reason: GaveUp| Err(reason.into()))
    }
}

/// Lets some requests come, until a time.
async fn load(process: &Arc<Process>, random: &mut Random, until: Instant) {
    while Instant::now() < until {
        for _ in 0..=random.below(6) {
            tokio::spawn(Arc::clone(process).ask());
        }
        sleep(Duration::from_millis(1 + random.below(40))).await;
    }
}

async fn run(seed: u64) {
    let mut random = Random::new(seed);
    let size = random.pick(&[1, 2, 4, 8, 64]);
    let connecting = Duration::from_millis(random.pick(&[0, 5, 80, 150, 3_000, 20_000]));
    let mode = watch::Sender::new(Mode::Pass);
    let state = NetworkState { mode, connecting, size, open: AtomicU64::new(0), most: AtomicU64::new(0) };
    let network = Network(Arc::new(state));
    let process = Process::new(&network);
    let mut log = Vec::new();
    // A connection that was lost as it was made may have the only place, until a probe replaces it. A probe that met
    // the fault may end a timeout later, and then the pause of a second begins.
    let recovers = Duration::from_secs(1) + 3 * connecting + 2 * TIMEOUT;
    // A store that has never connected does not know how long that takes.
    if connecting > Duration::from_millis(200) {
        load(&process, &mut random, Instant::now() + recovers).await;
    }
    for _ in 0..6 {
        let late = Mode::Late(Duration::from_millis(random.pick(&[30, 130, 250])));
        let fault = random.pick(&[Mode::Lost, Mode::Refused, Mode::Locked, late]);
        let lasts = Duration::from_millis(random.pick(&[20, 300, 1_000, 20_000]));
        log.push((fault, lasts));
        network.0.mode.send_replace(fault);
        load(&process, &mut random, Instant::now() + lasts).await;
        network.0.mode.send_replace(Mode::Pass);
        load(&process, &mut random, Instant::now() + recovers).await;
        let context = format!("seed {seed}: {size} connections of {connecting:?}, {log:?}");
        for _ in 0..50 {
            let answer = Arc::clone(&process).ask().await;
            assert!(answer.is_ok(), "{context}: {answer:?}");
        }
        let most = network.0.most.load(Ordering::SeqCst);
        assert!(most <= size as u64 + 1, "{context}: {most} connections");
    }
    let state = process.sessions.0.lock();
    assert!(state.live <= size && state.waiters.iter().all(Waiter::is_closed), "seed {seed}");
}

#[test]
fn the_store_recovers_from_network_faults() {
    for seed in seeds(rounds(6, 200)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(run(seed));
    }
}

/// The connecting task runs in the runtime whose request needed the first connection. That runtime is dropped while a
/// request in another one waits.
#[test]
fn a_request_outlives_the_connecting_runtime() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let network = Network(Arc::new(NetworkState {
        mode: watch::Sender::new(Mode::Pass),
        connecting: Duration::from_millis(5),
        size: 4,
        open: AtomicU64::new(0),
        most: AtomicU64::new(0),
    }));
    let process = Process::new(&network);
    let (first, second) = (runtime(), runtime());
    first.spawn(Arc::clone(&process).ask());
    // The first request has begun to connect, and its runtime is not driven again.
    first.block_on(tokio::task::yield_now());
    assert!(process.sessions.0.lock().is_connecting);
    let answer = second.block_on(async {
        let asked = tokio::spawn(Arc::clone(&process).ask());
        tokio::task::yield_now().await;
        first.shutdown_background();
        asked.await.unwrap()
    });
    assert!(answer.is_ok(), "{answer:?}");
}
