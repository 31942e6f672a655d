//! [`InFlight`] on Redis: one script per step.

use std::sync::Arc;
use std::time::Duration;

use tower_sluice::store::remote::{AnyRecords, CallLimits, InFlight, ProcessField, RemoteKey, TakenUnits, Unchanged};

use crate::connection::{Fault, Redis, RedisFault as _};
use crate::script::{Key, ScriptCall, ScriptReply};
use crate::store::failed;

/// One round trip for each step.
impl InFlight for Redis {
    async fn take(
        &self,
        key: &RemoteKey<'_>,
        field: ProcessField,
        units: u64,
        limit: u64,
        lease: Duration,
        limits: CallLimits,
    ) -> Result<TakenUnits, Unchanged> {
        let answer = run(self, super::take(name(self, key), field, units, limit, micros(lease)), limits).await?;
        super::taken(&answer).map_err(|bad| unchanged(bad.into()))
    }

    async fn renew(
        &self,
        key: &RemoteKey<'_>,
        field: ProcessField,
        units: u64,
        lease: Duration,
        limits: CallLimits,
    ) -> Result<(), Unchanged> {
        run(self, super::renew(name(self, key), field, units, micros(lease)), limits).await?;
        Ok(())
    }

    async fn release(
        &self,
        key: &RemoteKey<'_>,
        field: ProcessField,
        units: u64,
        limits: CallLimits,
    ) -> Result<bool, Unchanged> {
        let answer = run(self, super::release(name(self, key), field, units), limits).await?;
        Ok(answer.admitted == 1)
    }

    fn shared_records(self: &Arc<Self>) -> Option<AnyRecords> {
        Some(AnyRecords::new(Self::records(self)))
    }
}

fn name(redis: &Redis, key: &RemoteKey<'_>) -> Key {
    Key::new(redis.prefix(), key.limiter(), key.tag(), &["n"])
}

fn micros(lease: Duration) -> u64 {
    u64::try_from(lease.as_micros()).unwrap_or(u64::MAX)
}

async fn run(redis: &Redis, call: ScriptCall, limits: CallLimits) -> Result<ScriptReply, Unchanged> {
    let reply = redis.call_by(&call, limits).await.map_err(unchanged)?;
    ScriptReply::read(reply, call.keys.len()).map_err(|bad| unchanged(bad.into()))
}

fn unchanged(fault: Fault) -> Unchanged {
    if fault.may_have_run() { Unchanged::Unknown(failed(fault)) } else { Unchanged::NotWritten(failed(fault)) }
}
