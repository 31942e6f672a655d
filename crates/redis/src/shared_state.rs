//! States that other packages keep on Redis: each is one key, which scripts read and write.
//!
//! A script replies like the stores' scripts: the time, how many requests it has admitted, and a text.

use tower_sluice::PartitionKey;
use tower_sluice::time::Timestamp;

use crate::connection::{Fault, Redis, ScriptCaller};
use crate::script::{Key, KeyNames, Script, ScriptCall, ScriptReply};

/// A script on one key.
#[allow(missing_debug_implementations, reason = "it is a constant")]
pub struct StateScript(Script);

impl StateScript {
    /// Makes a script from its source.
    #[must_use]
    pub const fn new(source: &'static str) -> Self {
        Self(Script::new(source))
    }

    /// Its source.
    #[must_use]
    pub const fn source(&self) -> &'static str {
        self.0.source
    }
}

/// The states with one name on a Redis. Clones are the same states.
#[derive(Clone)]
#[allow(missing_debug_implementations, reason = "no public function returns it")]
pub struct SharedStates {
    caller: ScriptCaller,
    names: KeyNames,
}

impl SharedStates {
    /// The states called `name`, which all processes share that have the same prefix and secret.
    #[must_use]
    pub fn new(redis: &Redis, name: &str) -> Self {
        Self { caller: ScriptCaller::new(redis), names: KeyNames::new(redis.prefix(), name, redis.secret()) }
    }

    /// This key's state. `kind` is a separate letter for each kind of state: see `KeyNames::key`.
    #[must_use]
    pub fn of(&self, key: &PartitionKey, kind: char) -> SharedState {
        SharedState { caller: self.caller.clone(), key: self.names.key(self.names.tag(key), kind) }
    }
}

/// One key's state.
#[allow(missing_debug_implementations, reason = "no public function returns it")]
pub struct SharedState {
    caller: ScriptCaller,
    key: Key,
}

impl SharedState {
    /// Runs the script on the state, within the timeout. The arguments are below 2^53. If the future is dropped, or if
    /// no answer came, the script may have run nevertheless.
    ///
    /// # Errors
    ///
    /// If Redis did not answer in time, or not as our scripts do.
    pub async fn run<const N: usize>(&self, script: &'static StateScript, args: [u64; N]) -> Result<StateReply, Fault> {
        let reply = self.caller.call_one(ScriptCall::new(&script.0, [self.key.clone()], args)).await?;
        Ok(StateReply(reply))
    }
}

/// A [`StateScript`]'s reply.
#[derive(Debug)]
pub struct StateReply(ScriptReply);

impl StateReply {
    /// Reads a server's reply, if a [`StateScript`] made it.
    #[must_use]
    pub fn read(reply: redis::Value) -> Option<Self> {
        ScriptReply::read(reply, 1).ok().map(Self)
    }

    /// The time at which the script ran, on the server's clock.
    #[must_use]
    pub const fn now(&self) -> Timestamp {
        self.0.now
    }

    /// Whether the script has admitted the request.
    #[must_use]
    pub const fn is_admitted(&self) -> bool {
        self.0.admitted > 0
    }

    /// The text, if it is not empty, and UTF-8.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        std::str::from_utf8(self.0.old(0).ok()??).ok()
    }
}
