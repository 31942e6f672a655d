//! Why Redis gave no decision.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use ::redis::{ErrorKind, RedisError, ServerError};

/// Why Redis gave no decision. Never a rejection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    reason: Reason,
    detail: Option<Arc<str>>,
}

/// The kind of a [`Fault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// No connection could be made: refused, no such host, TLS.
    Unreachable,
    /// No answer in time. The call may have been carried out.
    TimedOut,
    /// The connection ended before the answer came. The call may have been carried out.
    Disconnected,
    /// No call was made, because the node kept failing a moment ago.
    BreakerOpen,
    /// No call was made, because too many were in flight.
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
    /// The server cannot save to disk, and so rejects writes (`MISCONF`).
    CannotPersist,
    /// The server has as many clients as it may have.
    MaxClients,
    /// The cluster does not serve the key (`CLUSTERDOWN`, or a slot without a node).
    ClusterDown,
    /// Redirected from node to node, without an answer (`MOVED`, `ASK`, `TRYAGAIN`).
    Redirected,
    /// A server that is a node of a cluster was called with keys of several slots at once (`CROSSSLOT`).
    CrossSlot,
    /// User or password are wrong or missing (`WRONGPASS`, `NOAUTH`).
    Unauthenticated,
    /// The ACL of the user forbids this (`NOPERM`).
    NoPermission,
    /// The script failed, or the server did not understand the call.
    Script,
    /// The answer cannot be read.
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
            Self::BreakerOpen => ("breaker_open", "Redis was not called, because it kept failing"),
            Self::TooManyInFlight => {
                ("too_many_in_flight", "Redis was not called, because too many calls were in flight")
            }
            Self::Busy => ("busy", "Redis is busy with a script"),
            Self::ReadOnly => ("readonly", "Redis is a replica here and cannot write"),
            Self::OutOfMemory => ("oom", "Redis is out of memory"),
            Self::NoReplicas => ("noreplicas", "Redis has too few replicas to write"),
            Self::MasterDown => ("masterdown", "Redis is a replica here and lost its primary"),
            Self::Loading => ("loading", "Redis is still loading its data"),
            Self::CannotPersist => ("misconf", "Redis cannot save to disk and rejects writes"),
            Self::MaxClients => ("maxclients", "Redis has too many clients"),
            Self::ClusterDown => ("clusterdown", "the Redis cluster does not serve this key"),
            Self::Redirected => ("redirected", "Redis redirected the call from node to node"),
            Self::CrossSlot => ("crossslot", "Redis wants all keys of a call in one slot"),
            Self::Unauthenticated => ("unauthenticated", "Redis does not accept user and password"),
            Self::NoPermission => ("noperm", "the Redis user lacks a permission"),
            Self::Script => ("script", "Redis could not run the script"),
            Self::Unintelligible => ("unintelligible", "Redis gave an answer that cannot be read"),
            Self::NoRuntime => ("no_runtime", "Redis can only be called from within a Tokio runtime"),
            Self::Misconfigured => ("misconfigured", "the connection to Redis is misconfigured"),
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

    /// Returns the kind of this fault.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// The fault of an attempt to connect.
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

    /// The fault of a call that was handed to a connection.
    pub(super) fn underway(error: &RedisError) -> Self {
        let reason = if error.kind() == ErrorKind::Parse { Reason::Unintelligible } else { Reason::Disconnected };
        Self::new(reason, error.to_string())
    }

    /// The fault that the server answered.
    pub(super) fn answered(error: &ServerError) -> Self {
        let reason = classify(error.code(), error.details());
        Self::new(reason, format!("{} {}", error.code(), error.details().unwrap_or_default()))
    }

    /// Whether the node is to blame. An error in the call is no evidence about the node, nor is a call that was not
    /// made.
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

    /// Whether to make a new connection: this one may lead nowhere, or to the wrong server.
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

    /// Whether to call for each key alone: some of them are on their way to another node, or they are in several slots.
    /// The script was not run then.
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

/// Classifies by the first word alone: the rest differs between versions, and between a command and a script.
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
        // The only one without a word of its own.
        "ERR" if rest.is_some_and(|rest| rest.starts_with("max number of clients")) => Reason::MaxClients,
        _ => Reason::Script,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_classified_by_their_first_word() {
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
