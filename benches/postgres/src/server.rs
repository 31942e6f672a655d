//! Our own PostgreSQL server, and how it reports its work.

use std::fs;

use bb8_postgres::PostgresConnectionManager;
use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod};
use sqlx::postgres::{PgPool, PgPoolOptions};
use tokio::runtime::Runtime;
use tokio_postgres::types::FromSql;
use tokio_postgres::{Client, NoTls};
use tower_rate_limiter::POSTGRES_GCRA_MIGRATION_V1;
use tower_sluice_postgres::Postgres;

use crate::load::{Outcome, text};
use crate::machine;
use crate::postgres::PostgresServer;
use crate::rows::Kept;

/// The table in which the bare statements count.
const COUNTS: &str = "CREATE UNLOGGED TABLE counts (key text PRIMARY KEY, n bigint NOT NULL) WITH (fillfactor = 70)";

/// The measured tables: the bare statements', the peer's, and ours.
const TABLES: [&str; 3] = ["counts", "tower_rate_limiter_gcra_v1.state", "sluice_state"];

pub struct Server {
    postgres: PostgresServer,
    postmaster: u32,
    /// Whether all its processes were tied to a processor.
    pub is_pinned: bool,
    /// For questions between two measurements.
    control: Client,
    runtime: Runtime,
}

/// The server's work since it was started.
#[derive(Clone, Copy)]
pub struct Usage {
    /// For how many microseconds its processes had a processor.
    pub processor: f64,
    /// How many bytes it wrote to its write-ahead log.
    pub wal: f64,
    /// How many transactions wrote something.
    pub writes: f64,
}

impl Server {
    pub fn start() -> Outcome<Self> {
        let postgres = PostgresServer::start();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(text)?;
        let control = runtime.block_on(async {
            let (control, connection) = tokio_postgres::connect(&postgres.url(), NoTls).await.map_err(text)?;
            tokio::spawn(connection);
            for migration in [COUNTS, POSTGRES_GCRA_MIGRATION_V1] {
                control.batch_execute(migration).await.map_err(text)?;
            }
            Outcome::Ok(control)
        })?;
        let file = postgres.run("SELECT pg_read_file('postmaster.pid')");
        let postmaster = file.lines().next().unwrap_or_default().parse().map_err(text)?;
        let mut server = Self { postgres, postmaster, is_pinned: false, control, runtime };
        let ours = Postgres::new(server.deadpool(1)?);
        server.runtime.block_on(ours.migrate()).map_err(text)?;
        // The processes for later connections inherit it.
        let processes = server.processes();
        server.is_pinned = processes.into_iter().chain([server.postmaster]).all(|id| machine::pin_process(id, 1));
        Ok(server)
    }

    pub fn version(&self) -> String {
        self.postgres.run("SHOW server_version")
    }

    /// The settings that differ from PostgreSQL's defaults, without paths and ports.
    pub fn settings(&self) -> String {
        const CHANGED: &str = "SELECT string_agg(name || ' = ' || setting, ', ' ORDER BY name) FROM pg_settings \
            WHERE setting <> boot_val AND source = 'configuration file' AND category NOT LIKE 'Client%' \
            AND category NOT LIKE 'Reporting%' AND name NOT IN ('port', 'unix_socket_directories', 'listen_addresses')";
        self.postgres.run(CHANGED)
    }

    /// A pool with this many connections, from the client that ours goes through.
    pub fn deadpool(&self, connections: usize) -> Outcome<Pool> {
        let config = self.postgres.url().parse().map_err(text)?;
        let settings = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        Pool::builder(Manager::from_config(config, NoTls, settings)).max_size(connections).build().map_err(text)
    }

    /// A pool with this many connections, from the peer's client. By default it sends a ping before each statement.
    pub async fn sqlx(&self, connections: usize, pings: bool) -> Outcome<PgPool> {
        let connections = u32::try_from(connections).map_err(text)?;
        let options = PgPoolOptions::new().max_connections(connections).test_before_acquire(pings);
        options.connect(&self.postgres.url()).await.map_err(text)
    }

    /// A pool through `bb8`.
    pub async fn bb8(&self, connections: usize) -> Outcome<bb8::Pool<PostgresConnectionManager<NoTls>>> {
        let manager = PostgresConnectionManager::new_from_stringlike(self.postgres.url(), NoTls).map_err(text)?;
        let connections = u32::try_from(connections).map_err(text)?;
        bb8::Pool::builder().max_size(connections).test_on_check_out(false).build(manager).await.map_err(text)
    }

    /// A pool through the `sqlx` version that ours takes, which sends no ping.
    pub async fn older_sqlx(&self, connections: usize) -> Outcome<sqlx_0_8::PgPool> {
        let connections = u32::try_from(connections).map_err(text)?;
        let options = sqlx_0_8::postgres::PgPoolOptions::new().max_connections(connections).test_before_acquire(false);
        options.connect(&self.postgres.url()).await.map_err(text)
    }

    /// Forgets all keys.
    pub async fn empty(&self, kept: Kept) -> Outcome<()> {
        for table in TABLES {
            let kept = if kept == Kept::Logged { "LOGGED" } else { "UNLOGGED" };
            let statement = format!("TRUNCATE {table}; ALTER TABLE {table} SET {kept}");
            self.control.batch_execute(&statement).await.map_err(text)?;
        }
        Ok(())
    }

    pub async fn usage(&self) -> Outcome<Usage> {
        Ok(Usage {
            processor: self.processor()?,
            wal: self.ask("(pg_current_wal_insert_lsn() - '0/0')::float8").await?,
            // Only a transaction that writes takes a number.
            writes: self.ask("pg_snapshot_xmax(pg_current_snapshot())::text::float8").await?,
        })
    }

    pub async fn ask<T: for<'a> FromSql<'a>>(&self, what: &str) -> Outcome<T> {
        let row = self.control.query_one(&format!("SELECT {what}"), &[]).await.map_err(text)?;
        row.try_get(0).map_err(text)
    }

    /// For how many microseconds its processes had a processor, including those that have ended.
    fn processor(&self) -> Outcome<f64> {
        const TICK: f64 = 10_000.0;
        let living = self.processes().into_iter().chain([self.postmaster]).filter_map(machine::process_time);
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.postmaster)).map_err(text)?;
        let ended = [15, 16].map(|field| field_of(&stat, field).and_then(|it| it.parse().ok()).unwrap_or(0.0));
        Ok(living.sum::<u64>() as f64 / 1e3 + ended.iter().sum::<f64>() * TICK)
    }

    /// The postmaster's children.
    fn processes(&self) -> Vec<u32> {
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        let all = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let is_child = |id: &u32| {
            let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
            field_of(&stat, 3).is_some_and(|parent| parent == self.postmaster.to_string())
        };
        all.filter(is_child).collect()
    }
}

/// A field in `/proc/…/stat`, counted from zero. The program's name, which may contain anything, is before the last
/// parenthesis.
fn field_of(stat: &str, field: usize) -> Option<&str> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(field - 2)
}

impl Usage {
    pub fn since(self, before: Self) -> Self {
        Self {
            processor: self.processor - before.processor,
            wal: self.wal - before.wal,
            writes: self.writes - before.writes,
        }
    }
}
