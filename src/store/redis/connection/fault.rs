use std::error::Error;
use std::fmt;
use std::sync::Arc;

use ::redis::{ErrorKind, RedisError, ServerError};

/// Why Redis gave no decision. Never a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    reason: Reason,
    detail: Option<Arc<str>>,
}

/// What kind of trouble a [`Fault`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// No connection could be made: refused, no such host, TLS.
    Unreachable,
    /// No answer in time. The call may have been carried out.
    TimedOut,
    /// The connection ended before the answer came. The call may have been carried out.
    Disconnected,
    /// Not asked, since the node failed again and again a moment ago.
    BreakerOpen,
    /// Not asked, since too many calls were under way.
    TooManyInFlight,
    /// A script runs for too long on the server (`BUSY`).
    Busy,
    /// The server is a replica (`READONLY`).
    ReadOnly,
    /// The server has no memory left, and may not evict (`OOM`).
    OutOfMemory,
    /// Too few replicas are connected to the server (`NOREPLICAS`).
    NoReplicas,
    /// A replica has lost its primary (`MASTERDOWN`).
    MasterDown,
    /// The server is still reading its data from disk (`LOADING`).
    Loading,
    /// The server cannot save to disk, and so refuses writes (`MISCONF`).
    CannotPersist,
    /// The server has as many clients as it may have.
    MaxClients,
    /// The cluster does not serve the key (`CLUSTERDOWN`, or a slot without a node).
    ClusterDown,
    /// Sent from node to node, and none would answer (`MOVED`, `ASK`, `TRYAGAIN`).
    Redirected,
    /// A server that is a node of a cluster was asked about keys of several slots at once (`CROSSSLOT`).
    CrossSlot,
    /// User or password are wrong or missing (`WRONGPASS`, `NOAUTH`).
    Unauthenticated,
    /// The user may not do this (`NOPERM`).
    NoPermission,
    /// The script failed, or the server did not understand us.
    Script,
    /// The answer makes no sense.
    Unintelligible,
    /// Called from outside of a Tokio runtime.
    NoRuntime,
    /// An address or an option is wrong.
    Misconfigured,
}

impl Reason {
    /// A short name, such as `timeout`, for the label of a metric.
    #[must_use]
    pub const fn label(self) -> &'static str {
        self.names().0
    }

    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Unreachable => ("unreachable", "Redis cannot be reached"),
            Self::TimedOut => ("timeout", "Redis did not answer in time"),
            Self::Disconnected => ("disconnected", "Redis closed the connection before it answered"),
            Self::BreakerOpen => ("breaker_open", "Redis was not asked, since it kept failing"),
            Self::TooManyInFlight => ("too_many_in_flight", "Redis was not asked, since too many calls were under way"),
            Self::Busy => ("busy", "Redis is busy with a script"),
            Self::ReadOnly => ("readonly", "Redis is a replica here and cannot write"),
            Self::OutOfMemory => ("oom", "Redis is out of memory"),
            Self::NoReplicas => ("noreplicas", "Redis has too few replicas to write"),
            Self::MasterDown => ("masterdown", "Redis is a replica here and lost its primary"),
            Self::Loading => ("loading", "Redis is still loading its data"),
            Self::CannotPersist => ("misconf", "Redis cannot save to disk and refuses to write"),
            Self::MaxClients => ("maxclients", "Redis has too many clients"),
            Self::ClusterDown => ("clusterdown", "the Redis cluster does not serve this key"),
            Self::Redirected => ("redirected", "Redis sent us from node to node"),
            Self::CrossSlot => ("crossslot", "Redis wants all keys of a call in one slot"),
            Self::Unauthenticated => ("unauthenticated", "Redis does not accept user and password"),
            Self::NoPermission => ("noperm", "the Redis user lacks a permission"),
            Self::Script => ("script", "Redis could not run the script"),
            Self::Unintelligible => ("unintelligible", "Redis gave an answer that makes no sense"),
            Self::NoRuntime => ("no_runtime", "Redis can only be asked from within a Tokio runtime"),
            Self::Misconfigured => ("misconfigured", "the way to Redis is misconfigured"),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.names().1)
    }
}

impl Fault {
    pub(in crate::store::redis) fn new(reason: Reason, detail: impl Into<Arc<str>>) -> Self {
        Self { reason, detail: Some(detail.into()) }
    }

    /// What kind of trouble this is.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// What came of an attempt to connect.
    pub(super) fn connecting(error: &RedisError) -> Self {
        let reason = match (error.kind(), error.code()) {
            (ErrorKind::AuthenticationFailed, _) => Reason::Unauthenticated,
            (ErrorKind::Parse, _) => Reason::Unintelligible,
            (ErrorKind::InvalidClientConfig | ErrorKind::RESP3NotSupported, _) => Reason::Misconfigured,
            (_, Some(code)) => classify(code, error.detail()),
            _ => Reason::Unreachable,
        };
        Self::new(reason, error.to_string())
    }

    /// What became of a call that was handed to a connection.
    pub(super) fn underway(error: &RedisError) -> Self {
        let reason = if error.kind() == ErrorKind::Parse { Reason::Unintelligible } else { Reason::Disconnected };
        Self::new(reason, error.to_string())
    }

    /// What the server said.
    pub(super) fn answered(error: &ServerError) -> Self {
        let reason = classify(error.code(), error.details());
        Self::new(reason, format!("{} {}", error.code(), error.details().unwrap_or_default()))
    }

    /// Whether the node is to blame. What is wrong with the question says nothing of it, nor does what was not asked.
    pub(super) const fn counts(&self) -> bool {
        !matches!(
            self.reason,
            Reason::BreakerOpen
                | Reason::TooManyInFlight
                | Reason::NoPermission
                | Reason::Script
                | Reason::Redirected
                | Reason::CrossSlot
                | Reason::NoRuntime
        )
    }

    /// Whether the connection is better made anew: it may be a hole that swallows all, or end at the wrong server.
    pub(super) const fn spoils_connection(&self) -> bool {
        matches!(
            self.reason,
            Reason::Unreachable
                | Reason::TimedOut
                | Reason::Disconnected
                | Reason::Unintelligible
                | Reason::ReadOnly
                | Reason::MasterDown
        )
    }

    /// Whether the keys of the call are to be asked for one by one: some of them are on their way to another node, or they
    /// lie in several slots. The call was not run then.
    pub(in crate::store::redis) const fn wants_single_keys(&self) -> bool {
        matches!(self.reason, Reason::Redirected | Reason::CrossSlot)
    }

    /// Whether another node may have become responsible.
    pub(super) const fn questions_topology(&self) -> bool {
        self.spoils_connection() || matches!(self.reason, Reason::BreakerOpen | Reason::ClusterDown | Reason::Loading)
    }
}

impl From<Reason> for Fault {
    fn from(reason: Reason) -> Self {
        Self { reason, detail: None }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.detail {
            Some(detail) => write!(f, "{} ({detail})", self.reason),
            None => self.reason.fmt(f),
        }
    }
}

impl Error for Fault {}

/// By the first word alone: the rest differs between versions, and between a command and a script.
fn classify(code: &str, rest: Option<&str>) -> Reason {
    match code {
        "BUSY" => Reason::Busy,
        "READONLY" => Reason::ReadOnly,
        "OOM" => Reason::OutOfMemory,
        "NOREPLICAS" => Reason::NoReplicas,
        "MASTERDOWN" => Reason::MasterDown,
        "LOADING" => Reason::Loading,
        "MISCONF" => Reason::CannotPersist,
        "CLUSTERDOWN" => Reason::ClusterDown,
        "MOVED" | "ASK" | "TRYAGAIN" => Reason::Redirected,
        "CROSSSLOT" => Reason::CrossSlot,
        "NOAUTH" | "WRONGPASS" => Reason::Unauthenticated,
        "NOPERM" => Reason::NoPermission,
        // The one that has no word of its own.
        "ERR" if rest.is_some_and(|rest| rest.starts_with("max number of clients")) => Reason::MaxClients,
        _ => Reason::Script,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_word_counts() {
        for (code, rest, reason) in [
            ("OOM", "command not allowed when used memory > 'maxmemory'. script: 9b3f, on @user_script:1.", "oom"),
            ("READONLY", "You can't write against a read only replica.", "readonly"),
            ("READONLY", "", "readonly"),
            ("ERR", "max number of clients reached", "maxclients"),
            ("ERR", "the word READONLY does not matter here", "script"),
            ("WRONGTYPE", "Operation against a key", "script"),
        ] {
            assert_eq!(classify(code, Some(rest)).label(), reason, "{code} {rest}");
        }
    }
}
