//! [`Postgres`]: a table, and how it is called.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::timeout;
use tower_sluice::store::NodeHealth;
use tower_sluice::store::remote::Calls;
use tower_sluice::time::{Clock, Timestamp, Wall};

use crate::fault::PostgresFault;
use crate::pool::{Answer, Pool, Value};
use crate::sessions::{Sessions, Settings};
use crate::sql::{self, Parameter, Statement, Statements};
use crate::turns::Turns;

/// How many calls a process may have in flight: they wait for the pool's connections.
const IN_FLIGHT: usize = 1_000;

/// After this many new rows, a process deletes those that expired some time ago.
const NEW_ROWS: u32 = 16;

/// How many rows it examines then. If one row in 16 has been expired for a minute, a process deletes one row per new
/// row. So at a steady rate of new keys, at most one row in 16 is such a row.
const EXAMINED: i64 = 16 * NEW_ROWS as i64;

const SWEEP_TIMEOUT: Duration = Duration::from_secs(10);

/// PostgreSQL's names have 63 bytes, and the table of records needs some.
const LONGEST_NAME: usize = 63 - sql::RECORDS.len();

/// This process's sweeps.
#[derive(Debug, Default)]
struct Sweeps {
    new_rows: AtomicU32,
    is_running: AtomicBool,
}

/// A table on PostgreSQL, which many limiters can share, each with its own [settings](crate::PostgresStore).
///
/// Cloning is cheap. Clones share the circuit breaker, the connections and the bound on calls in flight.
///
/// # Connections
///
/// The store opens at most the number of connections that the [pool](Pool) allows, and while no connection can be made,
/// one attempt more. Each has a `statement_timeout` at three quarters of the [timeout](Self::timeout), so that the
/// server itself ends a statement that its request has given up, and `enable_seqscan = off`, so that no plan reads the
/// whole table. The store makes connections when requests need them, and they outlive those requests: connecting may
/// take up to a minute. If a statement gets no answer, its connection is closed, and never used again.
///
/// This process has at most one statement in flight for a key.
///
/// # The table
///
/// [`migration`](Self::migration) returns the statement that creates it, for your migrations;
/// [`migrate`](Self::migrate) executes it.
#[derive(Clone)]
#[must_use]
pub struct Postgres {
    sessions: Sessions,
    turns: Arc<Turns>,
    table: Arc<str>,
    statements: Arc<Statements>,
    calls: Arc<Calls>,
    /// Separate, so that a missing table of records does not stop limits over time.
    record_calls: Arc<Calls>,
    secret: Arc<[u8]>,
    sweeps: Arc<Sweeps>,
    record_sweeps: Arc<Sweeps>,
    #[cfg(test)]
    clocks: Clocks,
    /// Whether no charge is made by a plain statement.
    #[cfg(test)]
    is_whole: bool,
}

/// Clocks for tests.
#[cfg(test)]
#[derive(Clone, Default)]
struct Clocks {
    /// Replaces the server's clock.
    server: Option<Arc<dyn Clock>>,
    /// Replaces this process's clock.
    process: Option<Arc<dyn Clock>>,
}

/// Dropped with a sweep, even if its runtime ends before. Otherwise there would be no further sweep.
struct Running(Arc<Sweeps>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.is_running.store(false, Ordering::Relaxed);
    }
}

impl Postgres {
    /// Keeps budgets in the table `sluice_state`, over connections like those in `pool`. Makes no call before the first
    /// decision.
    pub fn new(pool: impl Pool) -> Self {
        const TABLE: &str = "sluice_state";
        let timeout = Duration::from_millis(100);
        let sessions = Sessions::new(Arc::new(pool), Settings { timeout, is_behind_pooler: false });
        let [calls, record_calls] = calls(TABLE, timeout, &sessions);
        Self {
            sessions,
            turns: Arc::default(),
            table: TABLE.into(),
            statements: Arc::new(Statements::new(TABLE)),
            calls,
            record_calls,
            secret: Arc::new([]),
            sweeps: Arc::default(),
            record_sweeps: Arc::default(),
            #[cfg(test)]
            clocks: Clocks::default(),
            #[cfg(test)]
            is_whole: false,
        }
    }

    /// Keeps budgets in another table, `schema.table` or `table`. Clones with different tables share their connections.
    ///
    /// # Panics
    ///
    /// If the name has characters other than lower-case letters, digits and underscores, and a dot behind the schema,
    /// or if one of its words has more than 55.
    #[track_caller]
    pub fn table(self, name: &str) -> Self {
        assert!(
            Self::is_table_name(name),
            "a table is called by up to 55 small letters, digits and underscores, such as limits.sluice_state, not {name:?}"
        );
        let [calls, record_calls] = calls(name, self.calls.timeout(), &self.sessions);
        Self { table: name.into(), statements: Arc::new(Statements::new(name)), calls, record_calls, ..self }
    }

    /// Whether a [`table`](Self::table) may have this name.
    pub(crate) fn is_table_name(name: &str) -> bool {
        let is_word = |word: &str| {
            let mut bytes = word.bytes();
            bytes.next().is_some_and(|first| first.is_ascii_lowercase() || first == b'_')
                && bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
                && word.len() <= LONGEST_NAME
        };
        name.split('.').count() <= 2 && name.split('.').all(is_word)
    }

    /// Sets how long a decision may take in total, including the wait for a connection; 100 ms by default. If
    /// PostgreSQL has not answered by then, the policy decides whether to admit the request, and units that PostgreSQL
    /// may have charged stay charged. On the server, a statement has three quarters of this time (`statement_timeout`),
    /// unless the role has less.
    ///
    /// A clone with another timeout has its own connections.
    ///
    /// # Panics
    ///
    /// If it is zero.
    #[track_caller]
    pub fn timeout(self, timeout: Duration) -> Self {
        let timeout = timeout.min(Calls::LONGEST_TIMEOUT);
        let settings = Settings { timeout, ..self.sessions.settings() };
        self.with_connections(timeout, settings)
    }

    /// Call this if the connections lead to a pooler that gives each statement to any connection to the server
    /// (pgbouncer's transaction mode). Then the store makes no settings and prepares no statements, since both would
    /// affect other clients. Each statement is parsed and planned every time, which takes the server some milliseconds.
    /// Give the role a `statement_timeout`.
    ///
    /// Without this, decisions behind such a pooler fail with [`FaultKind::Pooler`](crate::FaultKind::Pooler). `sqlx`
    /// takes two round trips for such a statement, so its pooler must follow prepared statements (pgbouncer from 1.21
    /// on).
    pub fn behind_pooler(self) -> Self {
        let settings = Settings { is_behind_pooler: true, ..self.sessions.settings() };
        let timeout = self.calls.timeout();
        self.with_connections(timeout, settings)
    }

    /// Makes other connections over the same pool.
    fn with_connections(self, timeout: Duration, settings: Settings) -> Self {
        let sessions = self.sessions.with(settings);
        let [calls, record_calls] = calls(&self.table, timeout, &sessions);
        Self { sessions, calls, record_calls, ..self }
    }

    /// Sets a secret for the hashes that represent clients in the table, so that a reader of the table cannot find out
    /// the clients by trying. All processes that share budgets need the same secret. Empty by default.
    pub fn secret(self, secret: impl AsRef<[u8]>) -> Self {
        Self { secret: secret.as_ref().into(), ..self }
    }

    /// Returns the statements that create the tables, for your migrations. They change nothing if the tables exist.
    ///
    /// The first table is for limits over time. It is `UNLOGGED`, so a decision writes no write-ahead log and does not
    /// wait for a disk. A server crash empties it, and a standby does not have its rows; all keys have their full
    /// budgets then. To keep the budgets, leave that word out. The second table, whose name ends with `_records`, holds
    /// all other limiters' [records](crate::PostgresRecords), and is logged.
    #[must_use]
    pub fn migration(&self) -> String {
        sql::migrations(&self.table).join(";\n\n")
    }

    /// Executes the [migration](Self::migration) over a connection of its own. Several processes may do so at once,
    /// because the server lets one at a time do it. It may take a minute, and the circuit breaker does not apply.
    ///
    /// # Errors
    ///
    /// If PostgreSQL cannot be reached, or the role may not create the table.
    pub async fn migrate(&self) -> Result<(), PostgresFault> {
        self.sessions.execute(&sql::migrate_in_turn(&self.table), Duration::from_secs(60)).await?;
        Ok(())
    }

    /// [Migrates](Self::migrate), unless both tables exist: a service's role may not be allowed to create them.
    #[cfg(feature = "file")]
    pub(crate) async fn prepare(&self) -> Result<(), PostgresFault> {
        match self.sessions.execute(&sql::look(&self.table), Duration::from_secs(10)).await {
            Err(fault) if fault.kind() == crate::FaultKind::NoTable => self.migrate().await,
            looked => looked.map(drop),
        }
    }

    /// Returns the server's state as this process knows it: the circuit breaker and the calls in flight. While the
    /// breaker is open, decisions fail at once.
    pub fn health(&self) -> NodeHealth {
        self.calls.health()
    }

    /// Sends a statement that waits for no lock.
    pub(crate) async fn run(&self, statement: &Statement, parameters: Vec<Value>) -> Answer {
        self.sessions.run(statement, parameters, ()).await
    }

    /// Sends a statement that locks these keys' rows, once no other statement by this process does.
    pub(crate) async fn run_in_turn(&self, statement: &Statement, parameters: Vec<Value>, keys: Vec<String>) -> Answer {
        let turn = self.turns.take(keys).await;
        self.sessions.run(statement, parameters, turn).await
    }

    /// Counts a new row. Now and then, deletes expired rows in the background.
    pub(crate) fn note_new_row(&self, key: &str) {
        self.note_new(&self.sweeps, key, |statements| &statements.sweep);
    }

    /// Counts a new record, and deletes expired records like [`note_new_row`](Self::note_new_row).
    pub(crate) fn note_new_record(&self, name: &str) {
        self.note_new(&self.record_sweeps, name, |statements| &statements.record_sweep);
    }

    fn note_new(&self, sweeps: &Arc<Sweeps>, key: &str, statement: fn(&Statements) -> &Statement) {
        let is_due = sweeps.new_rows.fetch_add(1, Ordering::Relaxed) % NEW_ROWS == NEW_ROWS - 1;
        if is_due && !sweeps.is_running.swap(true, Ordering::Relaxed) {
            let (postgres, key, running) = (self.clone(), key.to_owned(), Running(Arc::clone(sweeps)));
            tokio::spawn(async move {
                let sweep = postgres.sweep_by(statement(&postgres.statements), &key, EXAMINED);
                // After a failure, the next sweep examines other rows.
                let _ = timeout(SWEEP_TIMEOUT, sweep).await;
                drop(running);
            });
        }
    }

    /// Examines this many rows behind a key, and deletes those that have expired.
    #[cfg(test)]
    pub(crate) async fn sweep(&self, key: &str, examined: i64) -> Answer {
        self.sweep_by(&self.statements.sweep, key, examined).await
    }

    async fn sweep_by(&self, statement: &Statement, key: &str, examined: i64) -> Answer {
        let parameters = statement.parameters.iter().map(|parameter| match parameter {
            #[cfg(test)]
            Parameter::Now => Value::Int(self.test_clock()),
            Parameter::Count => examined.into(),
            _ => key.to_owned().into(),
        });
        self.run(statement, parameters.collect()).await
    }

    pub(crate) fn statements(&self) -> &Statements {
        &self.statements
    }

    /// Whether a plain charge is tried first. A test also charges by whole statements alone.
    pub(crate) const fn charges_plainly(&self) -> bool {
        #[cfg(test)]
        return !self.is_whole;
        #[cfg(not(test))]
        true
    }

    pub(crate) fn calls(&self) -> &Calls {
        &self.calls
    }

    pub(crate) fn record_calls(&self) -> &Calls {
        &self.record_calls
    }

    pub(crate) fn secret_of_keys(&self) -> &[u8] {
        &self.secret
    }

    /// The time by the test clock that replaces the server's.
    #[cfg(test)]
    pub(crate) fn test_clock(&self) -> Option<i64> {
        self.clocks.server.as_ref().map(|clock| i64::try_from(clock.now().as_nanos()).expect("a time before 2262"))
    }

    /// This process's clock, by which we guess the server's windows.
    pub(crate) fn time_here(&self) -> Timestamp {
        #[cfg(test)]
        if let Some(clock) = self.clocks.process.as_ref().or(self.clocks.server.as_ref()) {
            return clock.now();
        }
        Wall.now()
    }

    /// Identifies the pool and the table within this process.
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.statements).addr()
    }

    /// Whether both are clones of one [`Postgres`].
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.sessions.is_same_pool(&other.sessions) && self.table == other.table && self.secret == other.secret
    }
}

#[cfg(all(test, feature = "deadpool"))]
impl Postgres {
    /// Decides by another clock than the server's.
    pub(crate) fn with_clock(mut self, clock: impl Clock) -> Self {
        self.clocks.server = Some(Arc::new(clock));
        self
    }

    /// Charges by statements that decide on any row.
    pub(crate) fn with_whole_statements(mut self) -> Self {
        self.is_whole = true;
        self
    }

    /// Lets this process's clock differ from the server's.
    #[cfg(feature = "calendar")]
    pub(crate) fn with_clock_here(mut self, clock: impl Clock) -> Self {
        self.clocks.process = Some(Arc::new(clock));
        self
    }

    /// Sends a test's statement.
    pub(crate) async fn query(&self, text: &str) -> Answer {
        self.sessions.execute(text, Duration::from_secs(60)).await
    }

    /// Another process with the same table.
    pub(crate) fn with_pool(self, pool: impl Pool) -> Self {
        let sessions = Sessions::new(Arc::new(pool), self.sessions.settings());
        let [calls, record_calls] = calls(&self.table, self.calls.timeout(), &sessions);
        Self { sessions, calls, record_calls, turns: Arc::default(), ..self }
    }

    pub(crate) fn without_sweeps(self) -> Self {
        self.sweeps.is_running.store(true, Ordering::Relaxed);
        self
    }

    pub(crate) fn table_name(&self) -> &str {
        &self.table
    }

    pub(crate) fn is_sweeping(&self) -> bool {
        self.sweeps.is_running.load(Ordering::Relaxed)
    }
}

/// The calls for a table, and those for its records.
#[track_caller]
fn calls(table: &str, timeout: Duration, sessions: &Sessions) -> [Arc<Calls>; 2] {
    ["", sql::RECORDS].map(|end| {
        let calls = Arc::new(Calls::new(&format!("PostgreSQL table {table}{end}"), timeout, IN_FLIGHT));
        sessions.tell(&calls);
        calls
    })
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { table, calls, .. } = self;
        f.debug_struct("Postgres").field("table", table).field("calls", calls).finish_non_exhaustive()
    }
}
