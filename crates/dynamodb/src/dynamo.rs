//! [`Dynamo`]: a table, and how it is called.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use tower_sluice::store::NodeHealth;
use tower_sluice::store::remote::Calls;
use tower_sluice::time::{Clock, Wall};

use crate::clock_check::ClockCheck;
use crate::items::LONGEST_WAY;
use crate::table::{SharedClock, Table};

/// How many calls a process may have in flight by default: the writes that one partition makes in a second.
const IN_FLIGHT: usize = 1_000;

/// A table on DynamoDB, which many limiters can share, each with its own [settings](crate::DynamoStore).
///
/// Cloning is cheap. Clones share the circuit breaker, the bound on calls in flight, and the knowledge about the clock.
///
/// # The client
///
/// Region, credentials, endpoint and HTTP client come from `client`. We switch off its retries, because a charge whose
/// answer got lost may have been made, and a retry would make it again. Its connection timeouts hold; it needs no
/// operation timeout.
///
/// # The table
///
/// Its key is `k`, a string, without a sort key. Items expire by the attribute `x`.
/// [`create_table`](Self::create_table) creates it.
#[derive(Clone)]
#[must_use]
pub struct Dynamo {
    table: Table,
    calls: Calls,
    in_flight: usize,
    secret: Arc<[u8]>,
}

impl Dynamo {
    /// Keeps budgets in the table `table`. Makes no call before the first decision.
    #[allow(clippy::needless_pass_by_value, reason = "the client is for this table alone from now on")]
    pub fn new(client: Client, table: impl Into<String>) -> Self {
        let client = Client::from_conf(client.config().to_builder().retry_config(RetryConfig::disabled()).build());
        let table = Table {
            client,
            name: table.into().into(),
            clock: SharedClock(Arc::new(Wall)),
            clock_check: Arc::new(ClockCheck::default()),
            clock_error: Duration::from_millis(5),
        };
        let calls = calls(&table.name, Duration::from_millis(100), IN_FLIGHT);
        Self { table, calls, in_flight: IN_FLIGHT, secret: Arc::new([]) }
    }

    /// Sets how long a decision may take in total, even if it needs two writes; 100 ms by default. If DynamoDB has not
    /// answered by then, the policy decides whether to admit the request, and units that DynamoDB may have charged stay
    /// charged.
    ///
    /// # Panics
    ///
    /// If it is zero, or more than a minute.
    #[track_caller]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        assert!(timeout <= LONGEST_WAY, "a decision may take a minute at the most, not {timeout:?}");
        self.calls = calls(&self.table.name, timeout, self.in_flight);
        self
    }

    /// Sets how many decisions this process may have in flight at a time; 1,000 by default. Further ones wait for half
    /// of their timeout, and then fail.
    ///
    /// # Panics
    ///
    /// If it is zero.
    #[track_caller]
    pub fn max_in_flight(mut self, decisions: usize) -> Self {
        self.in_flight = decisions;
        self.calls = calls(&self.table.name, self.calls.timeout(), decisions);
        self
    }

    /// Sets by how much the clocks of two processes may differ; 5 ms by default, which `chrony` with EC2's time service
    /// keeps with room to spare.
    ///
    /// # Accuracy
    ///
    /// If the clocks stay within it, a bucket admits up to burst + rate × (*t* + `error`) in an interval of length *t*.
    /// The excess occurs once and not per request. A state that no such clock can have written is ignored, and the next
    /// charge overwrites it.
    pub fn clock_error(mut self, error: Duration) -> Self {
        self.table.clock_error = error;
        self
    }

    /// Decides by another clock than the system's [wall clock](Wall), such as one that reads ClockBound. Like the
    /// clocks of all other processes, it must count from 1970.
    pub fn with_clock(mut self, clock: impl Clock) -> Self {
        self.table.clock = SharedClock(Arc::new(clock));
        self
    }

    /// Sets a secret for the hashes that represent clients in item keys, so that a reader of the table cannot find out
    /// the clients by trying. All processes that share budgets need the same secret. Empty by default.
    pub fn secret(mut self, secret: impl AsRef<[u8]>) -> Self {
        self.secret = secret.as_ref().into();
        self
    }

    /// Returns the table's state as this process knows it: the circuit breaker and the calls in flight. While the
    /// breaker is open, decisions fail at once.
    pub fn health(&self) -> NodeHealth {
        self.calls.health()
    }

    pub(crate) const fn table(&self) -> &Table {
        &self.table
    }

    pub(crate) const fn calls(&self) -> &Calls {
        &self.calls
    }

    pub(crate) fn secret_of_keys(&self) -> &[u8] {
        &self.secret
    }

    /// Whether both are clones of one [`Dynamo`].
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.table.clock_check, &other.table.clock_check)
    }
}

#[track_caller]
fn calls(table: &str, timeout: Duration, in_flight: usize) -> Calls {
    Calls::new(&format!("DynamoDB table {table}"), timeout, in_flight)
}

impl fmt::Debug for Dynamo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { table, calls, .. } = self;
        f.debug_struct("Dynamo").field("table", &table.name).field("calls", calls).finish_non_exhaustive()
    }
}
