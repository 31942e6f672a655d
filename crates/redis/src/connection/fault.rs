//! Why Redis gave no decision.

use std::fmt;

use ::redis::{ErrorKind, RedisError, ServerError};
use tower_sluice::store::remote;
use tower_sluice::store::remote::KindOfFault;

/// Why Redis gave no decision. It is never a rejection.
pub type Fault = remote::Fault<FaultKind>;

/// The reason for a [`Fault`].
// `COUNT` is computed from the last kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// No connection could be made: it was refused, the host does not exist, or TLS failed.
    Unreachable,
    /// No connection or no answer in time. The call may have been carried out.
    TimedOut,
    /// The connection ended before the answer came. The call may have been carried out.
    Disconnected,
    /// The calling task was cancelled, because its runtime was shut down, or it panicked. The call may have been
    /// carried out.
    Cancelled,
    /// No call was made, because the node kept failing: its circuit breaker is open.
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
    /// The server has reached its maximum number of clients (`maxclients`).
    MaxClients,
    /// The cluster does not serve the key (`CLUSTERDOWN`, or a slot without a node).
    ClusterDown,
    /// Redirected from node to node, without an answer (`MOVED`, `ASK`, `TRYAGAIN`).
    Redirected,
    /// A cluster's node was called with keys from several slots at once (`CROSSSLOT`).
    CrossSlot,
    /// User or password are wrong or missing (`WRONGPASS`, `NOAUTH`).
    Unauthenticated,
    /// The user's ACL forbids this (`NOPERM`).
    NoPermission,
    /// The script failed, or the server rejected the call for a reason that has no kind of its own.
    Script,
    /// The answer cannot be read.
    Unintelligible,
    /// Called from outside a Tokio runtime.
    NoRuntime,
    /// An address or an option is wrong, or the server rejects the connection because of it, such as a database that it
    /// does not have; or a server that was named as a sentinel or as a cluster's node has another role.
    Misconfigured,
}

impl FaultKind {
    /// How many kinds there are.
    #[cfg(feature = "metrics")]
    pub(super) const COUNT: usize = Self::Misconfigured as usize + 1;

    /// A short name, such as `timeout`, for a metric's label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        self.names().0
    }

    /// The label, and the message for people.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Unreachable => ("unreachable", "Redis cannot be reached"),
            Self::TimedOut => ("timed-out", "Redis did not answer in time"),
            Self::Disconnected => ("disconnected", "Redis closed the connection before it answered"),
            Self::Cancelled => ("cancelled", "the call to Redis was cancelled"),
            Self::BreakerOpen => ("breaker-open", "Redis was not called, because it kept failing"),
            Self::TooManyInFlight => {
                ("too-many-in-flight", "Redis was not called, because too many calls were in flight")
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
    // A script is one step, so no attempt is lost to contention.
    const CONTENTION: Self = Self::TimedOut;

    /// True if the call got as far as a connection. An error in the call, or a call that was not made, is no evidence
    /// about the node.
    fn blames_server(self) -> bool {
        !matches!(
            self,
            Self::Cancelled
                | Self::BreakerOpen
                | Self::TooManyInFlight
                | Self::Redirected
                | Self::CrossSlot
                | Self::NoPermission
                | Self::Script
                | Self::NoRuntime
        )
    }

    fn write_with(self, detail: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} ({detail})")
    }
}

/// The methods that this crate needs to read and to make a fault. It is a trait because all stores share the type.
pub(crate) trait RedisFault: Sized {
    /// The fault for a failed attempt to connect.
    fn connecting(error: &RedisError) -> Self;

    /// The fault for a call that was sent on a connection, and got no answer.
    fn underway(error: &RedisError) -> Self;

    /// The fault that the server answered.
    fn answered(error: &ServerError) -> Self;

    /// The fault that the server answered to a script. Names the command that the user may not run, because the server
    /// gives only its line.
    fn answered_to_script(error: &ServerError, source: &str) -> Self;

    /// The fault that the server answered to a question about the topology.
    fn answered_to_question(error: &ServerError) -> Self;

    /// Adds the name of the server that it is about.
    fn naming(self, server: &str) -> Self;

    /// Returns the fault to report after several servers got the same question, and each failed: the first fault that a
    /// server answered, such as a missing feature, or otherwise the first one. A server that is down must not hide the
    /// others' answers.
    fn most_telling(faults: Vec<Self>) -> Self;

    /// Whether it comes from a server's answer, and not from its silence.
    fn is_answer(&self) -> bool;

    /// Whether to make a new connection: the present one may lead nowhere, or to the wrong server.
    fn spoils_connection(&self) -> bool;

    /// Whether no answer came.
    fn is_silence(&self) -> bool;

    /// Whether to call again for each key alone: some keys are being moved to another node, or they are in several
    /// slots. The script did not run.
    fn wants_single_keys(&self) -> bool;

    /// Whether the server may have run the script nevertheless.
    fn may_have_run(&self) -> bool;

    /// Whether another node may have become responsible.
    fn questions_topology(&self) -> bool;
}

impl RedisFault for Fault {
    fn connecting(error: &RedisError) -> Self {
        let kind = match (error.kind(), error.code()) {
            (ErrorKind::AuthenticationFailed, _) => FaultKind::Unauthenticated,
            (ErrorKind::Parse, _) => FaultKind::Unintelligible,
            (ErrorKind::InvalidClientConfig | ErrorKind::RESP3NotSupported, _) => FaultKind::Misconfigured,
            (_, Some(code)) => classify_without_script(code, error.detail().unwrap_or_default()),
            _ => FaultKind::Unreachable,
        };
        Self::new(kind, error.to_string())
    }

    fn underway(error: &RedisError) -> Self {
        let kind = match error.kind() {
            ErrorKind::Parse => FaultKind::Unintelligible,
            _ => FaultKind::Disconnected,
        };
        Self::new(kind, error.to_string())
    }

    fn answered(error: &ServerError) -> Self {
        let text = error.details().unwrap_or_default();
        Self::new(classify(error.code(), text), format!("{} {text}", error.code()))
    }

    fn answered_to_script(error: &ServerError, source: &str) -> Self {
        let fault = Self::answered(error);
        let text = error.details().unwrap_or_default();
        match command_within_script(text, source).filter(|_| fault.kind() == FaultKind::NoPermission) {
            Some(command) => Self::new(fault.kind(), format!("the user may not run {command} in a script: {text}")),
            None => fault,
        }
    }

    fn answered_to_question(error: &ServerError) -> Self {
        let text = error.details().unwrap_or_default();
        Self::new(classify_without_script(error.code(), text), format!("{} {text}", error.code()))
    }

    fn naming(self, server: &str) -> Self {
        let detail = match self.detail() {
            Some(detail) => format!("{server}: {detail}"),
            None => server.to_owned(),
        };
        Self::new(self.kind(), detail)
    }

    fn most_telling(faults: Vec<Self>) -> Self {
        let index = faults.iter().position(Self::is_answer).unwrap_or(0);
        faults.into_iter().nth(index).unwrap_or_else(|| FaultKind::Unreachable.into())
    }

    fn is_answer(&self) -> bool {
        !matches!(
            self.kind(),
            FaultKind::Unreachable
                | FaultKind::TimedOut
                | FaultKind::Disconnected
                | FaultKind::Cancelled
                | FaultKind::BreakerOpen
                | FaultKind::TooManyInFlight
                | FaultKind::NoRuntime
        )
    }

    fn spoils_connection(&self) -> bool {
        matches!(
            self.kind(),
            FaultKind::Unreachable
                | FaultKind::TimedOut
                | FaultKind::Disconnected
                | FaultKind::Unintelligible
                | FaultKind::ReadOnly
                | FaultKind::MasterDown
        )
    }

    fn is_silence(&self) -> bool {
        matches!(self.kind(), FaultKind::Unreachable | FaultKind::TimedOut | FaultKind::Disconnected)
    }

    fn wants_single_keys(&self) -> bool {
        matches!(self.kind(), FaultKind::Redirected | FaultKind::CrossSlot)
    }

    fn may_have_run(&self) -> bool {
        use FaultKind::{Cancelled, Disconnected, TimedOut, Unintelligible};

        matches!(self.kind(), TimedOut | Disconnected | Cancelled | Unintelligible)
    }

    fn questions_topology(&self) -> bool {
        self.spoils_connection()
            || matches!(self.kind(), FaultKind::BreakerOpen | FaultKind::ClusterDown | FaultKind::Loading)
    }
}

/// Classifies an error by its code, which is its first word. The rest differs between versions, and between a command
/// and a script, so it is read only where the code is the general `ERR`.
fn classify(code: &str, text: &str) -> FaultKind {
    match code {
        "BUSY" => FaultKind::Busy,
        "READONLY" => FaultKind::ReadOnly,
        "OOM" => FaultKind::OutOfMemory,
        "NOREPLICAS" => FaultKind::NoReplicas,
        "MASTERDOWN" => FaultKind::MasterDown,
        "LOADING" => FaultKind::Loading,
        "MISCONF" => FaultKind::CannotPersist,
        "CLUSTERDOWN" => FaultKind::ClusterDown,
        "MOVED" | "ASK" | "TRYAGAIN" => FaultKind::Redirected,
        "CROSSSLOT" => FaultKind::CrossSlot,
        "NOAUTH" | "WRONGPASS" => FaultKind::Unauthenticated,
        "NOPERM" => FaultKind::NoPermission,
        "ERR" if text.starts_with("max number of clients") => FaultKind::MaxClients,
        // An ACL forbids one of the script's commands or keys.
        "ERR" if text.contains("The user executing the script can't") => FaultKind::NoPermission,
        "ERR" => code_within_script(text).map_or(FaultKind::Script, |code| classify(code, "")),
        _ => FaultKind::Script,
    }
}

/// Returns the code of an error that a command got within a script. Redis 6.2 wraps it, with a dash before it:
/// `Error running script (call to f_HASH): @user_script:1: @user_script: 1: -OOM command not allowed …`.
fn code_within_script(text: &str) -> Option<&str> {
    let (_, error) = text.strip_prefix("Error running script")?.split_once(": -")?;
    error.split(' ').next()
}

/// Returns the command in the script line that an error names: `…, on @user_script:3.`, or `@user_script: 3: …` on
/// Redis 6.2.
fn command_within_script<'a>(text: &str, source: &'a str) -> Option<&'a str> {
    let (_, place) = text.rsplit_once("@user_script:")?;
    let digits = place.trim_start().split(|char: char| !char.is_ascii_digit()).next()?;
    let line = source.lines().nth(digits.parse::<usize>().ok()?.checked_sub(1)?)?;
    let (_, call) = line.split_once("call('")?;
    call.split('\'').next()
}

/// Classifies an error from a login, or from a question about the topology. No script runs there. The `redis` crate
/// reports each refused `SELECT` as `ERR`, and drops its code.
fn classify_without_script(code: &str, text: &str) -> FaultKind {
    match classify(code, text) {
        FaultKind::Script if text.contains("has no permissions") => FaultKind::NoPermission,
        FaultKind::Script if text.starts_with("Redis is busy") => FaultKind::Busy,
        FaultKind::Script => FaultKind::Misconfigured,
        kind => kind,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "metrics")]
    #[test]
    fn each_kind_has_an_index_and_label() {
        use FaultKind::*;

        let all: [FaultKind; FaultKind::COUNT] = [
            Unreachable,
            TimedOut,
            Disconnected,
            Cancelled,
            BreakerOpen,
            TooManyInFlight,
            Busy,
            ReadOnly,
            OutOfMemory,
            NoReplicas,
            MasterDown,
            Loading,
            CannotPersist,
            MaxClients,
            ClusterDown,
            Redirected,
            CrossSlot,
            Unauthenticated,
            NoPermission,
            Script,
            Unintelligible,
            NoRuntime,
            Misconfigured,
        ];
        for (index, kind) in all.into_iter().enumerate() {
            assert_eq!(kind as usize, index, "{kind:?}");
            let same = all.into_iter().filter(|other| other.label() == kind.label());
            assert_eq!(same.count(), 1, "{kind:?}");
        }
    }

    #[test]
    fn errors_are_classified_by_their_code() {
        for (code, text, kind) in [
            ("BUSY", "Redis is busy running a script.", FaultKind::Busy),
            ("READONLY", "You can't write against a read only replica.", FaultKind::ReadOnly),
            ("READONLY", "", FaultKind::ReadOnly),
            ("OOM", "command not allowed. script: 9b3f, on @user_script:1.", FaultKind::OutOfMemory),
            ("NOREPLICAS", "Not enough good replicas to write.", FaultKind::NoReplicas),
            ("MASTERDOWN", "Link with MASTER is down", FaultKind::MasterDown),
            ("LOADING", "Redis is loading the dataset in memory", FaultKind::Loading),
            ("MISCONF", "Redis is configured to save RDB snapshots", FaultKind::CannotPersist),
            ("CLUSTERDOWN", "Hash slot not served", FaultKind::ClusterDown),
            ("MOVED", "3999 127.0.0.1:6381", FaultKind::Redirected),
            ("ASK", "3999 127.0.0.1:6381", FaultKind::Redirected),
            ("TRYAGAIN", "Multiple keys request during rehashing of slot", FaultKind::Redirected),
            ("CROSSSLOT", "Keys in request don't hash to the same slot", FaultKind::CrossSlot),
            ("NOAUTH", "Authentication required.", FaultKind::Unauthenticated),
            ("WRONGPASS", "invalid username-password pair", FaultKind::Unauthenticated),
            ("NOPERM", "User app has no permissions to run the 'eval' command", FaultKind::NoPermission),
            ("ERR", "max number of clients reached", FaultKind::MaxClients),
            ("ERR", "the word READONLY does not matter here", FaultKind::Script),
            ("WRONGTYPE", "Operation against a key", FaultKind::Script),
        ] {
            assert_eq!(classify(code, text), kind, "{code} {text}");
        }
    }

    /// Otherwise, a replica with that version would never open its breaker, and its sentinels would not be asked.
    #[test]
    fn errors_wrapped_by_old_redis_are_classified() {
        for (error, kind) in [
            ("@user_script: 1: -READONLY You can't write against a read only replica.", FaultKind::ReadOnly),
            ("@user_script: 1: -OOM command not allowed when used memory > 'maxmemory'.", FaultKind::OutOfMemory),
            ("@user_script: 1: -MISCONF Redis is configured to save RDB snapshots", FaultKind::CannotPersist),
            ("@user_script: 1: -NOREPLICAS Not enough good replicas to write.", FaultKind::NoReplicas),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", FaultKind::Script),
            ("@user_script: 1: -ERR something else", FaultKind::Script),
        ] {
            let text = format!("Error running script (call to f_9b5da7354cb61e2c): @user_script:1: {error}");
            assert_eq!(classify("ERR", &text), kind, "{text}");
        }
    }

    /// It was a fault in the script, without the command's name.
    #[test]
    fn a_forbidden_command_is_named() {
        let source = "local call = redis.call\nlocal old = call('GET', KEYS[1])\ncall('SET', KEYS[1], 1)\n";
        let forbidden = "The user executing the script can't run this command or subcommand";
        for text in [
            format!("{forbidden} script: 7c723b38b08a2b51a6dff3fbf7bfd204a92a0bd1, on @user_script:3."),
            format!("Error running script (call to f_9b5da7354cb61e2c): @user_script:3: @user_script: 3: {forbidden}"),
        ] {
            assert_eq!(classify("ERR", &text), FaultKind::NoPermission, "{text}");
            assert_eq!(command_within_script(&text, source), Some("SET"), "{text}");
        }
        let keys = "The user executing the script can't access at least one of the keys, on @user_script:99.";
        for text in [forbidden, keys] {
            assert_eq!((classify("ERR", text), command_within_script(text, source)), (FaultKind::NoPermission, None));
        }
    }

    /// Questions about the topology never do, either.
    #[test]
    fn logins_never_blame_a_script() {
        for (code, text, kind) in [
            ("ERR", "DB index is out of range", FaultKind::Misconfigured),
            ("ERR", "User app has no permissions to run the 'select' command", FaultKind::NoPermission),
            ("ERR", "Redis is busy running a script.", FaultKind::Busy),
            ("ERR", "max number of clients reached", FaultKind::MaxClients),
            ("DENIED", "Redis is running in protected mode", FaultKind::Misconfigured),
            ("NOAUTH", "HELLO must be called with the client already authenticated", FaultKind::Unauthenticated),
            ("ERR", "unknown command 'SENTINEL', with args beginning with: 'get-master", FaultKind::Misconfigured),
            ("ERR", "This instance has cluster support disabled", FaultKind::Misconfigured),
        ] {
            assert_eq!(classify_without_script(code, text), kind, "{code} {text}");
        }
    }

    #[test]
    fn the_first_answered_fault_is_reported() {
        for (kinds, reported) in [
            (&[FaultKind::Misconfigured, FaultKind::Unreachable][..], FaultKind::Misconfigured),
            (&[FaultKind::TimedOut, FaultKind::Unauthenticated, FaultKind::Disconnected], FaultKind::Unauthenticated),
            (&[FaultKind::ClusterDown, FaultKind::NoPermission], FaultKind::ClusterDown),
            (&[FaultKind::TimedOut, FaultKind::Unreachable, FaultKind::Cancelled], FaultKind::TimedOut),
        ] {
            let faults = kinds.iter().copied().map(Fault::from).collect();
            assert_eq!(Fault::most_telling(faults).kind(), reported, "{kinds:?}");
        }
    }

    #[test]
    fn a_fault_names_its_server_first() {
        let bare = Fault::from(FaultKind::TimedOut).naming("host:1");
        assert_eq!(bare.to_string(), "Redis did not answer in time (host:1)");
        let detailed = Fault::new(FaultKind::TimedOut, "connecting").naming("host:1");
        assert_eq!(detailed.to_string(), "Redis did not answer in time (host:1: connecting)");
    }
}
