//! [`RedisRecords`]: small values that are read, and swapped unless another process has changed them.

#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use tower_sluice::internal::remote::Tags;
use tower_sluice::store::NodeHealth;
use tower_sluice::store::remote::{CallLimits, GaveUp, Record, Records, Server};
use tower_sluice::{LimiterError, PartitionKey};

use crate::connection::{Fault, Redis};
use crate::script::{Key, Script, ScriptCall, ScriptReply};
use crate::store::failed;

static READ: Script = Script::new(include_str!("lua/read.lua"));

static SWAP: Script = Script::new(include_str!("lua/swap.lua"));

/// The records on a [`Redis`]: state that its limiters share without a script, such as the [most rejected
/// keys](tower_sluice::LimitsHandle::offenders). Made by [`Redis::records`].
///
/// # Cost
///
/// A read and a swap are one call each. A record is a string in a separate slot, and expires with its lifetime.
#[derive(Clone)]
#[must_use]
pub struct RedisRecords {
    redis: Redis,
    tags: Tags,
}

impl Redis {
    /// Returns its records.
    pub fn records(&self) -> RedisRecords {
        RedisRecords { redis: self.clone(), tags: Tags::new(self.secret()) }
    }
}

/// The longest lifetime that is kept to, in milliseconds: 35 years. A longer one counts as forever.
const LONGEST: u64 = 1 << 40;

impl RedisRecords {
    /// The key contains the name's hash, so that records are on all nodes of a cluster.
    fn key(&self, name: &str) -> Key {
        Key::new(self.redis.prefix(), name, self.tags.of(&PartitionKey::from(name)), &["record"])
    }

    async fn call(&self, call: &ScriptCall, limits: CallLimits) -> Result<ScriptReply, Fault> {
        Ok(ScriptReply::read(self.redis.call_by(call, limits).await?, call.keys.len())?)
    }
}

/// Rounded up to a millisecond; 0 is forever.
fn millis(lifetime: Duration) -> u64 {
    let millis = u64::try_from(lifetime.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
    if millis > LONGEST { 0 } else { millis.max(1) }
}

fn swap(key: Key, old: Option<&[u8]>, new: Option<&[u8]>, lifetime: Duration) -> ScriptCall {
    let mut call = ScriptCall::new(&SWAP, [key], [millis(lifetime), old.is_some().into(), new.is_some().into()]);
    call.texts.extend([old, new].into_iter().flatten().map(Vec::from));
    call
}

impl Records for RedisRecords {
    async fn read(&self, name: &str, limits: CallLimits) -> Result<Record, LimiterError> {
        let reply = self.call(&ScriptCall::new(&READ, [self.key(name)], []), limits).await.map_err(failed)?;
        let value = reply.old(0).map_err(|problem| failed(Fault::from(problem)))?.map(Vec::from);
        Ok(Record { value, now: reply.now })
    }

    async fn swap(
        &self,
        name: &str,
        old: Option<&[u8]>,
        new: Option<&[u8]>,
        lifetime: Duration,
        limits: CallLimits,
    ) -> Result<bool, LimiterError> {
        let reply = self.call(&swap(self.key(name), old, new, lifetime), limits).await.map_err(failed)?;
        Ok(reply.admitted == 1)
    }
}

impl Server for RedisRecords {
    fn timeout(&self) -> Duration {
        self.redis.timeout()
    }

    fn is_same_as(&self, other: &Self) -> bool {
        self.redis.is_same_as(&other.redis)
    }

    fn secret(&self) -> &[u8] {
        self.redis.secret()
    }

    fn health(&self) -> Vec<NodeHealth> {
        self.redis.health()
    }

    fn gave_up(&self, reason: GaveUp) -> LimiterError {
        failed(reason)
    }
}

impl fmt::Debug for RedisRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisRecords").field("redis", &self.redis).finish_non_exhaustive()
    }
}
