//! [`PostgresFault`]: why PostgreSQL gave no decision.

use std::error::Error;
use std::fmt;

use tower_sluice::LimiterError;
use tower_sluice::store::remote::{Fault, KindOfFault};

use crate::sql;

/// Why PostgreSQL gave no decision. It is never a rejection. It is the [source](Error::source) of a [`LimiterError`].
pub type PostgresFault = Fault<FaultKind>;

/// The cause of a [`PostgresFault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// No connection could be made. Nothing was charged.
    Unreachable,
    /// No answer in time. The statement may have been carried out.
    TimedOut,
    /// The calling task was cancelled, because its runtime was shut down, or it panicked. The statement may have been
    /// carried out.
    Cancelled,
    /// No call was made, because PostgreSQL kept failing: the circuit breaker is open.
    BreakerOpen,
    /// No call was made, because too many were in flight.
    TooManyInFlight,
    /// A request has more than 62 keys in one table, so each is decided in a separate statement.
    TooManyKeys,
    /// All connections that the pool may have were waiting for an answer. Nothing was charged.
    PoolExhausted,
    /// The table does not exist.
    NoTable,
    /// The table differs from the migration's: it lacks a column or its primary key, or a column has another type.
    WrongTable,
    /// The database cannot store a text, because its encoding lacks a character.
    Encoding,
    /// A pooler gave the statement to another client's connection. Nothing was charged.
    Pooler,
    /// The role may not use the table, or may not connect.
    NoPermission,
    /// The server is a standby, or its transactions are read only.
    ReadOnly,
    /// This role's transactions are not under READ COMMITTED, and this one met another.
    Serialization,
    /// The statement waited for another transaction, which waited for it. Nothing was charged.
    Deadlock,
    /// The server cancelled the statement: it ran for longer than `statement_timeout`, which the store sets to three
    /// quarters of its timeout, or than the role's `statement_timeout` or `lock_timeout`. Nothing was charged.
    StatementTimeout,
    /// The connection ended before the answer came. The statement may have been carried out.
    ConnectionLost,
    /// The server is starting, or shutting down.
    ShuttingDown,
    /// The server has no space left.
    DiskFull,
    /// The server accepts no further connection.
    TooManyConnections,
    /// Other processes changed the key each time before it was written, until too little time was left. Nothing was
    /// charged.
    Contention,
    /// The answer, or the key's row, cannot be read.
    Unintelligible,
    /// Called from outside a Tokio runtime.
    NoRuntime,
    /// PostgreSQL gave an error that has no kind of its own.
    Other,
}

impl FaultKind {
    /// A short name, such as `timed_out`, for a metric's label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        self.names().0
    }

    /// The label, and the message for people.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Unreachable => ("unreachable", "PostgreSQL cannot be reached; check its address and that it runs"),
            Self::TimedOut => {
                ("timed_out", "PostgreSQL did not answer in time; look for locks and load, or raise the timeout")
            }
            Self::Cancelled => ("cancelled", "the call to PostgreSQL was cancelled"),
            Self::BreakerOpen => ("breaker_open", "PostgreSQL was not called, because it kept failing"),
            Self::TooManyInFlight => {
                ("too_many_in_flight", "PostgreSQL was not called, because too many calls were in flight")
            }
            Self::TooManyKeys => ("too_many_keys", "the request has more keys than a statement takes"),
            Self::PoolExhausted => (
                "pool_exhausted",
                "all connections that the pool may have were waiting for PostgreSQL; look for locks and load, or take a \
                 larger pool",
            ),
            Self::NoTable => (
                "no_table",
                "the table is missing; run the migration (`Postgres::migration`, or `sluice migration FILE`)",
            ),
            Self::WrongTable => (
                "wrong_table",
                "the table lacks a column or its primary key, or a column has another type; drop the table and run the \
                 migration (`Postgres::migration`, or `sluice migration FILE`)",
            ),
            Self::Encoding => ("encoding", "the database cannot store a text; take a database whose encoding is UTF8"),
            Self::Pooler => (
                "pooler",
                "a pooler gave the statement to a connection of another client; call `Postgres::behind_pooler`, or take \
                 session mode, or connect to PostgreSQL itself",
            ),
            Self::NoPermission => (
                "no_permission",
                "the role is not allowed to do this; grant it SELECT, INSERT, UPDATE and DELETE on the table, and check \
                 its password",
            ),
            Self::ReadOnly => {
                ("read_only", "the server takes no writes; connect to the primary (target_session_attrs=read-write)")
            }
            Self::Serialization => (
                "serialization",
                "transactions are not under READ COMMITTED; set default_transaction_isolation for the role",
            ),
            Self::Deadlock => ("deadlock", "PostgreSQL ended a deadlock; let nothing else lock rows of the table"),
            Self::StatementTimeout => (
                "statement_timeout",
                "PostgreSQL cancelled the statement; look for locks of its row, or raise statement_timeout and the \
                 timeout",
            ),
            Self::ConnectionLost => ("connection_lost", "the connection to PostgreSQL was lost before the answer came"),
            Self::ShuttingDown => ("shutting_down", "PostgreSQL is starting or shutting down; wait for it"),
            Self::DiskFull => ("disk_full", "PostgreSQL has no space left; free some, and look for old rows"),
            Self::TooManyConnections => (
                "too_many_connections",
                "PostgreSQL accepts no further connection; use smaller pools, or raise max_connections",
            ),
            Self::Contention => ("contention", "other processes changed the key each time before it was written"),
            Self::Unintelligible => (
                "unintelligible",
                "PostgreSQL gave an answer that cannot be read; if it is the row of one key, reset that key",
            ),
            Self::NoRuntime => ("no_runtime", "PostgreSQL can only be called from within a Tokio runtime"),
            Self::Other => ("other", "PostgreSQL gave an error"),
        }
    }

    /// Whether the connection cannot be used any more, and probably no other one that is as old, because it has ended,
    /// or its server is no longer a primary.
    pub(crate) const fn ends_connections(self) -> bool {
        matches!(self, Self::ConnectionLost | Self::ShuttingDown | Self::ReadOnly)
    }

    /// Whether the connection's prepared statements can no longer be used.
    pub(crate) const fn ends_this_connection(self) -> bool {
        self.ends_connections() || matches!(self, Self::Pooler | Self::WrongTable)
    }

    /// Classifies an error by its `SQLSTATE`, its message, and the server function that has sent it. Messages are in
    /// the server's language, but quote our own texts.
    fn of_error(state: &str, message: &str, routine: &str) -> Self {
        match state {
            "22P02" if message.contains(sql::OF_ANOTHER_CONNECTION) => Self::Pooler,
            // The statement does not exist, exists already, or has other parameters.
            "26000" | "42P05" | "22P03" => Self::Pooler,
            "08P01" if routine == "exec_bind_message" => Self::Pooler,
            // A prepared statement would return other columns: the table was changed.
            "0A000" if routine == "RevalidateCachedQuery" => Self::WrongTable,
            // An unlogged table cannot be read on a standby.
            "0A000" => Self::ReadOnly,
            "42P01" | "3F000" => Self::NoTable,
            "42703" | "42804" | "42883" | "42P10" | "42P13" | "42846" => Self::WrongTable,
            "22021" | "22P05" => Self::Encoding,
            "42501" => Self::NoPermission,
            "25006" => Self::ReadOnly,
            "40001" => Self::Serialization,
            "40P01" => Self::Deadlock,
            "57014" | "55P03" => Self::StatementTimeout,
            "57P01" | "57P02" | "57P03" => Self::ShuttingDown,
            "53300" => Self::TooManyConnections,
            "53100" => Self::DiskFull,
            _ if state.starts_with("28") => Self::NoPermission,
            _ if state.starts_with("08") => Self::ConnectionLost,
            _ => Self::Other,
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.names().1)
    }
}

impl KindOfFault for FaultKind {
    const TIMED_OUT: Self = Self::TimedOut;
    const CANCELLED: Self = Self::Cancelled;
    const BREAKER_OPEN: Self = Self::BreakerOpen;
    const TOO_MANY_IN_FLIGHT: Self = Self::TooManyInFlight;
    const NO_RUNTIME: Self = Self::NoRuntime;
    const UNINTELLIGIBLE: Self = Self::Unintelligible;
    const CONTENTION: Self = Self::Contention;

    fn blames_server(self) -> bool {
        !matches!(self, Self::Contention | Self::Unintelligible)
    }
}

/// An error that the server sent.
pub(crate) fn of_server(state: &str, message: &str, routine: Option<&str>) -> PostgresFault {
    let kind = FaultKind::of_error(state, message, routine.unwrap_or_default());
    PostgresFault::new(kind, format!("{message} (SQLSTATE {state})"))
}

/// An error of the connection while a statement ran over it.
pub(crate) fn of_connection(error: &dyn Error) -> PostgresFault {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    let detail = causes.fold(error.to_string(), |detail, cause| format!("{detail}: {cause}"));
    PostgresFault::new(FaultKind::ConnectionLost, detail)
}

/// Reclassifies an error from a connection over which no statement was sent yet.
pub(crate) fn before_the_statement(fault: PostgresFault) -> PostgresFault {
    match fault.kind() {
        FaultKind::ConnectionLost => fault.with_kind(FaultKind::Unreachable),
        _ => fault,
    }
}

/// Whether a statement has failed as a whole, and charged nothing, because another one was faster: see `joint.sql` and
/// `hand_insert.sql`.
pub(crate) fn is_of_another_statement(fault: &PostgresFault) -> bool {
    let detail = fault.detail().unwrap_or_default();
    detail.contains("sluice: another statement") && detail.contains("22P02")
}

/// Wraps a fault into a limiter's error, with the fault as its source.
pub(crate) fn failed(fault: impl Into<PostgresFault>) -> LimiterError {
    fault.into().into()
}
