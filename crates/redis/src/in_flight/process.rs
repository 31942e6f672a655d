//! [`Process`]: the calls of one process to the server, and how it handles calls that fail or are cancelled.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;
use tower_sluice::internal::redis::{KeyTag, identity};
use tower_sluice::store::remote::CallLimits;
use tower_sluice::time::{Clock, Monotonic};
use tower_sluice::{Decision, LimiterError, PartitionKey};

use super::lines::KeyLines;
use super::local_counts::{CallEnd, LocalCounts, PATIENCE_DIVISOR, Release, Renewal};
use super::rejected;
use super::renewers::Renewers;
use super::script::{self, ProcessField};
use crate::connection::RedisFault as _;
use crate::connection::{Fault, FaultKind, Redis};
use crate::script::{Key, KeyNames, ScriptCall, ScriptReply};
use crate::store::{ScriptCaller, failed};
use crate::undo::{OnDrop, complete_or_undo};

/// The units that a request asks for.
#[derive(Clone, Copy)]
pub(super) struct RedisWanted {
    pub(super) tag: KeyTag,
    pub(super) cost: u64,
    pub(super) limit: u64,
}

/// The units that one process has in flight under one name, and its calls for them. Shared by a limiter and its heirs,
/// its permits and its tasks.
pub(super) struct Process {
    redis: Redis,
    scripts: ScriptCaller,
    names: KeyNames,
    name: Box<str>,
    /// Distinguishes it from the other processes.
    id: u64,
    /// An heir may have been set another, which has no effect.
    lease: Duration,
    pub(super) counts: LocalCounts,
    pub(super) renewers: Renewers,
    pub(super) lines: Arc<KeyLines>,
}

impl Process {
    pub(super) fn new(redis: &Redis, name: &str, lease: Duration) -> Self {
        // 52 bits, which a script reads exactly: of a thousand processes, two have the same once in 10^10 times.
        let id = identity() >> 12;
        Self {
            redis: redis.clone(),
            scripts: ScriptCaller::new(redis),
            names: KeyNames::new(redis.prefix(), name, redis.secret()),
            name: name.into(),
            id,
            lease,
            counts: LocalCounts::new(),
            renewers: Renewers::default(),
            lines: Arc::new(KeyLines::new()),
        }
    }

    /// Whether it counts for limiters with this name on this server.
    pub(super) fn is_named(&self, redis: &Redis, name: &str) -> bool {
        self.redis.id() == redis.id() && *self.name == *name
    }

    pub(super) fn lease(&self) -> Duration {
        self.lease
    }

    pub(super) fn tag(&self, key: &PartitionKey) -> KeyTag {
        self.names.tag(key)
    }

    /// Rejects a request without a call, if the units of this process alone leave no room for it. These are in flight
    /// for certain, so no answer of the server could admit it.
    pub(super) fn rejection(&self, RedisWanted { tag, cost, limit }: RedisWanted) -> Option<Decision> {
        let here = self.counts.units(tag);
        let is_full = cost > 0 && cost <= limit && here.saturating_add(cost) > limit;
        is_full.then(|| rejected(limit, limit.saturating_sub(here)))
    }

    /// Takes units of a key, if the server has them. If this is dropped before the server has answered, the call goes
    /// on in the background, and the units that it took are released.
    pub(super) async fn take(self: &Arc<Self>, wanted: RedisWanted) -> Result<Decision, LimiterError> {
        if let Some(rejection) = self.rejection(wanted) {
            return Ok(rejection);
        }
        let RedisWanted { tag, cost, limit } = wanted;
        let runtime = Handle::try_current().map_err(|_| failed(FaultKind::NoRuntime))?;
        let process = Arc::clone(self);
        complete_or_undo(runtime, Arc::clone(self).call_take(tag, cost, limit), move |answer| {
            if answer.is_ok_and(|decision| decision.is_allowed()) {
                process.release(tag, cost);
            }
            std::future::ready(())
        })
        .await
    }

    async fn call_take(self: Arc<Self>, tag: KeyTag, cost: u64, limit: u64) -> Result<Decision, LimiterError> {
        if cost == 0 || cost > limit {
            let call = script::take(self.key(tag), self.field(0), cost, limit, self.lease_micros());
            let answer = self.call(call).await.map_err(failed)?;
            return script::decision(&answer, cost, limit).map_err(failed);
        }
        let number = self.counts.begin(tag, Monotonic.now());
        // A call that is dropped before its end, because its runtime was shut down, may or may not have run.
        let under_way = OnDrop::new(|| self.counts.took_none(tag, number, CallEnd::Unknown));
        let call = script::take(self.key(tag), self.field(number), cost, limit, self.lease_micros());
        let answer = self.call(call).await;
        under_way.end();
        let decision = match answer {
            Ok(answer) => script::decision(&answer, cost, limit).map_err(Fault::from),
            Err(fault) => Err(fault),
        };
        match &decision {
            Ok(decision) if decision.is_allowed() => self.counts.took(tag, number, cost),
            Ok(_) => return decision.map_err(failed),
            Err(fault) => {
                let end = end_of(fault);
                self.counts.took_none(tag, number, end);
                if end == CallEnd::NotRun {
                    return decision.map_err(failed);
                }
            }
        }
        self.start_renewing();
        decision.map_err(failed)
    }

    /// Releases units of a request that is over: here at once, on the server in the background.
    pub(super) fn release(self: &Arc<Self>, tag: KeyTag, cost: u64) {
        match self.counts.release(tag, cost) {
            Some(release) => self.release_on_server(tag, release),
            // There is nothing to release on the server: it counts at most the units in flight.
            None => self.lines.released(tag),
        }
    }

    fn release_on_server(self: &Arc<Self>, tag: KeyTag, Release { number, units }: Release) {
        let process = Arc::clone(self);
        // If this thread is not on a runtime, the call runs on one of the runtimes that renew.
        let Some(runtime) = Handle::try_current().ok().or_else(|| self.renewers.any()) else {
            return self.counts.released(tag, number, CallEnd::Unknown);
        };
        let lost = Arc::clone(self);
        let under_way = OnDrop::new(move || lost.counts.released(tag, number, CallEnd::Unknown));
        runtime.spawn(async move {
            let answer = process.call(script::release(process.key(tag), process.field(number), units)).await;
            under_way.end();
            let end = match answer {
                Ok(answer) if answer.admitted == 1 => CallEnd::Ran,
                // The server has lost the field, or a later renewal has deleted it.
                _ => CallEnd::Unknown,
            };
            process.counts.released(tag, number, end);
            // Only now that the server has the units back: earlier, the first waiter would be rejected.
            process.lines.released(tag);
            if end == CallEnd::Unknown {
                process.start_renewing();
            }
        });
    }

    /// Moves the units of a key to a new field.
    pub(super) async fn renew(self: Arc<Self>, tag: KeyTag, renewal: Renewal) {
        let under_way = OnDrop::new(|| self.end_renewal(tag, renewal, CallEnd::Unknown));
        let call = script::renew(self.key(tag), self.field(renewal.number), renewal.units, self.lease_micros());
        let answer = self.call(call).await;
        under_way.end();
        self.end_renewal(tag, renewal, if answer.is_ok() { CallEnd::Ran } else { CallEnd::Unknown });
    }

    fn end_renewal(self: &Arc<Self>, tag: KeyTag, renewal: Renewal, end: CallEnd) {
        if let Some(release) = self.counts.renewed(tag, renewal, end) {
            self.release_on_server(tag, release);
        }
    }

    /// Lets the current runtime renew the units in flight, if it does not yet.
    pub(super) fn start_renewing(self: &Arc<Self>) {
        if let Ok(runtime) = Handle::try_current() {
            Renewers::start(self, &runtime);
        }
    }

    async fn call(&self, call: ScriptCall) -> Result<ScriptReply, Fault> {
        let deadline = Instant::now() + self.call_timeout();
        self.scripts.call(call, CallLimits::until(deadline)).await
    }

    /// The longest time that a call takes. It is at most the time that a renewal waits for earlier calls, so that each
    /// renewal is sent with their results.
    pub(super) fn call_timeout(&self) -> Duration {
        self.redis.timeout().min(self.lease() / PATIENCE_DIVISOR)
    }

    fn key(&self, tag: KeyTag) -> Key {
        self.names.key(tag, 'n')
    }

    const fn field(&self, number: u64) -> ProcessField {
        ProcessField { process: self.id, number }
    }

    fn lease_micros(&self) -> u64 {
        u64::try_from(self.lease.as_micros()).unwrap_or(u64::MAX)
    }
}

/// How a call to take units ended, if it failed with this fault.
fn end_of(fault: &Fault) -> CallEnd {
    if fault.may_have_run() { CallEnd::Unknown } else { CallEnd::NotRun }
}
