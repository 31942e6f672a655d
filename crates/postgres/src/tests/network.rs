//! Each pool over a network that fails in all ways that the [proxy](super::proxy) knows, and on a server that is
//! locked, ended and replaced. A seed determines the order.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;

use tokio::task::JoinHandle;
use tower_sluice::algorithm::FixedWindow;
use tower_sluice::testing::{Random, seeds};

use super::effort::rounds;
use super::proxy::{Mode, Proxy};
use super::*;

const TIMEOUT: Duration = Duration::from_millis(200);

/// A pool's connections.
const SIZE: u32 = 4;

const PROCESSES: usize = 2;

const KEYS: u64 = 20;

#[derive(Clone, Copy, Debug)]
enum Fault {
    Network(Mode),
    /// Another session has locked a row, or the table.
    RowLock,
    TableLock,
    /// An operator ends all connections.
    Ended,
    /// The server refuses writes from now on, and its address leads to another server.
    Failover,
}

const FAULTS: [Fault; 10] = [
    Fault::Network(Mode::Latency(Duration::from_millis(60))),
    Fault::Network(Mode::BlackHole),
    Fault::Network(Mode::Reset),
    Fault::Network(Mode::HalfOpen),
    Fault::Network(Mode::Swallow),
    Fault::Network(Mode::Slices),
    Fault::RowLock,
    Fault::TableLock,
    Fault::Ended,
    Fault::Failover,
];

fn address(server: &PostgresServer) -> SocketAddr {
    let url = server.url();
    let (_, rest) = url.split_once('@').expect("an address");
    rest.split_once('/').expect("a database").0.parse().expect("a port")
}

fn url(proxy: &Proxy) -> String {
    format!("postgres://postgres@{}/postgres", proxy.address())
}

/// A process, with tasks that repeatedly ask for one unit of a random key.
struct Load {
    ends: Arc<AtomicBool>,
    admitted: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
    tasks: Vec<JoinHandle<()>>,
}

impl Load {
    fn on(postgres: &Postgres, seed: u64) -> Self {
        let limiter = Arc::new(limiter(postgres, FixedWindow::new(Quota::per(1_000_000_000, YEAR))));
        let (ends, admitted, failed) = (Arc::<AtomicBool>::default(), Arc::default(), Arc::default());
        let task = |task: u64| {
            let (limiter, ends) = (Arc::clone(&limiter), Arc::clone(&ends));
            let (admitted, failed): (Arc<AtomicU64>, Arc<AtomicU64>) = (Arc::clone(&admitted), Arc::clone(&failed));
            let mut random = Random::new(seed.wrapping_mul(1_000) + task);
            tokio::spawn(async move {
                while !ends.load(Ordering::Relaxed) {
                    let key = random.below(KEYS);
                    let answer = limiter.acquire(&key.into(), 1).await;
                    let count = if answer.is_ok() { &admitted } else { &failed };
                    count.fetch_add(1, Ordering::Relaxed);
                    // An open breaker answers at once.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            })
        };
        let tasks = (0..8).map(task).collect();
        Self { ends, admitted, failed, tasks }
    }

    /// Waits until there are many more answers, whether admitted or failed.
    async fn goes_on(&self) {
        let count = || self.admitted.load(Ordering::Relaxed) + self.failed.load(Ordering::Relaxed);
        let before = count();
        timing::eventually("there are answers", async || count() > before + 120).await;
    }

    async fn recovers(&self, what: &str) {
        let before = self.admitted.load(Ordering::Relaxed);
        timing::eventually(what, async || self.admitted.load(Ordering::Relaxed) > before + 40).await;
    }

    async fn end(self) {
        self.ends.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
    }
}

/// How many connections the processes have, as the server sees it.
const BACKENDS: &str = "SELECT count(*)::int8 FROM pg_stat_activity WHERE backend_type = 'client backend' \
    AND query NOT LIKE '%pg_stat_activity%' AND pid <> pg_backend_pid() AND application_name = ''";

fn backends(server: &PostgresServer) -> usize {
    server.run(BACKENDS).parse().unwrap()
}

const MOST: usize = PROCESSES * (SIZE as usize + 1);

/// Carries out a fault, and waits until it has been felt. `most` bounds the connections while something is locked.
async fn carry_out(
    fault: Fault,
    proxy: &Proxy,
    [server, other]: [&PostgresServer; 2],
    (table, most): (&str, usize),
    loads: &[Load],
) {
    let all_go_on = async || {
        for load in loads {
            load.goes_on().await;
        }
    };
    match fault {
        Fault::Network(mode) => {
            proxy.set(mode);
            all_go_on().await;
            proxy.set(Mode::Pass);
        }
        Fault::RowLock | Fault::TableLock => {
            let lock_pool = pool_of(&format!("{}?application_name=lock", server.url()), 1);
            let mut connection = lock_pool.get().await.unwrap();
            let lock = connection.transaction().await.unwrap();
            let text = match fault {
                Fault::TableLock => format!("LOCK TABLE {table}"),
                _ => format!("SELECT FROM {table} LIMIT 1 FOR UPDATE"),
            };
            lock.execute(&text, &[]).await.unwrap();
            for _ in 0..3 {
                all_go_on().await;
                let count = backends(server);
                assert!(count <= most, "{count} connections wait for a lock");
            }
            lock.rollback().await.unwrap();
        }
        Fault::Ended => {
            server.run(&BACKENDS.replace("count(*)::int8", "pg_terminate_backend(pid)"));
        }
        Fault::Failover => {
            proxy.redirect(address(other));
            server.run("ALTER SYSTEM SET default_transaction_read_only = on");
            server.run("SELECT pg_reload_conf()");
            all_go_on().await;
        }
    }
}

async fn run(seed: u64) {
    let mut random = Random::new(seed);
    let servers = [PostgresServer::start(), PostgresServer::start()];
    for (name, direct) in super::drivers::over_each_pool(&servers[0].url(), 1).await {
        let table = direct.table_name().to_owned();
        for server in &servers {
            server.run("ALTER SYSTEM RESET default_transaction_read_only");
            server.run("SELECT pg_reload_conf()");
        }
        let other = direct.clone().with_pool(pool_of(&servers[1].url(), 1));
        timing::eventually("it takes writes again", async || other.migrate().await.is_ok()).await;
        drop((direct, other));
        let proxy = Proxy::to(address(&servers[0]));
        let mut loads = Vec::new();
        for process in 0..PROCESSES {
            let pool = super::drivers::over(name, &url(&proxy), SIZE).await;
            let postgres = pool.table(&table).timeout(TIMEOUT);
            loads.push(Load::on(&postgres, seed * 10 + process as u64));
        }
        let mut faults = FAULTS;
        for index in 0..faults.len() {
            let other = random.below(FAULTS.len() as u64);
            faults.swap(index, usize::try_from(other).unwrap());
        }
        let mut primary = 0;
        let mut is_closed_at_once = true;
        for (_, fault) in (1_000..).zip(faults).filter(|(case, _)| is_drawn(*case)) {
            for load in &loads {
                load.recovers(&format!("seed {seed}, {name}: it decides before {fault:?}")).await;
            }
            let most = if is_closed_at_once { MOST } else { usize::MAX };
            carry_out(fault, &proxy, [&servers[primary], &servers[1 - primary]], (&table, most), &loads).await;
            if matches!(fault, Fault::Failover) {
                primary = 1 - primary;
            }
            for load in &loads {
                load.recovers(&format!("seed {seed}, {name}: it decides after {fault:?}")).await;
            }
            // The bb8 manager keeps a socket open until it hears from the server again.
            is_closed_at_once &= name != "bb8" || !matches!(fault, Fault::Network(Mode::HalfOpen));
            if is_closed_at_once {
                let what = format!("seed {seed}, {name}: few connections after {fault:?}");
                timing::eventually(&what, async || backends(&servers[primary]) <= MOST).await;
            }
        }
        for load in loads {
            load.end().await;
        }
    }
}

/// Over bb8, no decision was made in 90 s after 0.3 s without answers. While a row was locked, connections grew by 32
/// in each ten seconds, until the server refused all its clients.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_fails_each_pool_recovers() {
    for seed in seeds(rounds(1, 10)) {
        run(seed).await;
    }
}

/// Each answer comes 40 ms late, and connecting takes five of them. No decision was ever made over deadpool and sqlx.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_connection_is_made() {
    let server = PostgresServer::start();
    let proxy = Proxy::at(address(&server), Duration::from_millis(40));
    for (name, direct) in super::drivers::over_each_pool(&server.url(), 1).await {
        let table = direct.table_name().to_owned();
        let postgres =
            super::drivers::over(name, &url(&proxy), 2).await.table(&table).timeout(Duration::from_millis(110));
        let limiter = limiter(&postgres, FixedWindow::new(greatest()));
        timing::eventually(name, async || limiter.acquire(&"key".into(), 1).await.is_ok()).await;
    }
}
