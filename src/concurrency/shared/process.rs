//! [`Process`]: one process's calls to the server, and how it handles calls that fail or are cancelled.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::super::rejected;
use super::lines::KeyLines;
use super::local_counts::{CallEnd, LocalCounts, PATIENCE_DIVISOR, Release, Renewal};
use super::renewers::Renewers;
use crate::store::remote::limiter_keys::LimiterKeys;
use crate::store::remote::tag::KeyTag;
use crate::store::remote::{CallLimits, GaveUp, InFlight, ProcessField, RemoteKey, TakenUnits, Unchanged};
use crate::util::random::identity;
use crate::util::undo::{OnDrop, complete_or_undo};
use crate::values::time::{Clock, Monotonic};
use crate::values::{Decision, LimiterError, PartitionKey};

/// The units that a request asks for.
#[derive(Clone, Copy)]
pub(super) struct RemoteWanted {
    pub(super) tag: KeyTag,
    pub(super) cost: u64,
    pub(super) limit: u64,
}

/// The units that one process has in flight under one name, and its calls for them. Shared by a limiter and its heirs,
/// its permits and its tasks.
pub(super) struct Process<S> {
    store: Arc<S>,
    keys: LimiterKeys,
    /// Distinguishes it from the other processes.
    id: u64,
    /// An heir may have been set another, which has no effect.
    lease: Duration,
    pub(super) counts: LocalCounts,
    pub(super) renewers: Renewers,
    pub(super) lines: Arc<KeyLines>,
}

impl<S: InFlight> Process<S> {
    pub(super) fn new(store: Arc<S>, name: &str, lease: Duration) -> Self {
        // 52 bits, which a script reads exactly: among a thousand processes, two have the same once in 10^10 times.
        let id = identity() >> 12;
        Self {
            keys: LimiterKeys::new(store.secret(), name),
            store,
            id,
            lease,
            counts: LocalCounts::new(),
            renewers: Renewers::default(),
            lines: Arc::new(KeyLines::new()),
        }
    }

    pub(super) fn store(&self) -> &S {
        &self.store
    }

    pub(super) fn name(&self) -> &str {
        self.keys.limiter()
    }

    pub(super) fn lease(&self) -> Duration {
        self.lease
    }

    pub(super) fn tag(&self, key: &PartitionKey) -> KeyTag {
        self.keys.tag(key)
    }

    /// Returns the caller's runtime, on which its calls are made.
    pub(super) fn runtime(&self) -> Result<Handle, LimiterError> {
        Handle::try_current().map_err(|_| self.store.gave_up(GaveUp::NoRuntime))
    }

    /// Rejects a request without a call, if this process's units alone leave no room for it. These are in flight for
    /// certain, so no answer from the server could admit it.
    pub(super) fn rejection(&self, RemoteWanted { tag, cost, limit }: RemoteWanted) -> Option<Decision> {
        let here = self.counts.units(tag);
        let is_full = cost > 0 && cost <= limit && here.saturating_add(cost) > limit;
        is_full.then(|| rejected(limit, limit.saturating_sub(here)))
    }

    /// Takes a key's units, if the server has them. If this is dropped before the server has answered, the call goes on
    /// in the background, and the units that it took are released.
    pub(super) async fn take(self: &Arc<Self>, wanted: RemoteWanted) -> Result<Decision, LimiterError> {
        if let Some(rejection) = self.rejection(wanted) {
            return Ok(rejection);
        }
        let RemoteWanted { tag, cost, limit } = wanted;
        let runtime = self.runtime()?;
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
            return Ok(self.ask_server(tag, 0, cost, limit).await?);
        }
        let number = self.counts.begin(tag, Monotonic.now());
        // A call that is dropped before its end, because its runtime was shut down, may or may not have run.
        let under_way = OnDrop::new(|| self.counts.took_none(tag, number, CallEnd::Unknown));
        let answer = self.ask_server(tag, number, cost, limit).await;
        under_way.end();
        let is_renewed = match &answer {
            Ok(decision) if decision.is_allowed() => {
                self.counts.took(tag, number, cost);
                true
            }
            Ok(_) => {
                self.counts.took_none(tag, number, CallEnd::Ran);
                false
            }
            Err(Unchanged::NotWritten(_)) => {
                self.counts.took_none(tag, number, CallEnd::NotRun);
                false
            }
            Err(Unchanged::Unknown(_)) => {
                self.counts.took_none(tag, number, CallEnd::Unknown);
                true
            }
        };
        if is_renewed {
            self.start_renewing();
        }
        Ok(answer?)
    }

    /// Asks the server for units, if they can ever be had, and otherwise only reads.
    async fn ask_server(&self, tag: KeyTag, number: u64, cost: u64, limit: u64) -> Result<Decision, Unchanged> {
        let units = if cost > limit { 0 } else { cost };
        let (key, field, limits) = (self.key(tag), self.field(number), self.limits());
        let taken = self.store.take(&key, field, units, limit, self.lease, limits).await?;
        decision(taken, cost, limit).ok_or_else(|| Unchanged::Unknown(self.store.gave_up(GaveUp::Disagreement)))
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
            let (key, field, limits) = (process.key(tag), process.field(number), process.limits());
            let answer = process.store.release(&key, field, units, limits).await;
            under_way.end();
            let end = match answer {
                Ok(true) => CallEnd::Ran,
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

    /// Moves a key's units to a new field.
    pub(super) async fn renew(self: Arc<Self>, tag: KeyTag, renewal: Renewal) {
        let under_way = OnDrop::new(|| self.end_renewal(tag, renewal, CallEnd::Unknown));
        let (key, field, limits) = (self.key(tag), self.field(renewal.number), self.limits());
        let answer = self.store.renew(&key, field, renewal.units, self.lease, limits).await;
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

    /// The longest time that a call takes. It is at most the time that a renewal waits for earlier calls, so that each
    /// renewal is sent with their results.
    pub(super) fn call_timeout(&self) -> Duration {
        self.store.timeout().min(self.lease / PATIENCE_DIVISOR)
    }

    fn limits(&self) -> CallLimits {
        CallLimits::within(self.call_timeout())
    }

    fn key(&self, tag: KeyTag) -> RemoteKey<'_> {
        self.keys.key(tag)
    }

    const fn field(&self, number: u64) -> ProcessField {
        ProcessField { process: self.id, number }
    }
}

/// Returns the decision on a request, unless the server contradicts itself.
fn decision(TakenUnits { is_taken, before }: TakenUnits, cost: u64, limit: u64) -> Option<Decision> {
    let left = limit.saturating_sub(before);
    let (decision, is_charged) = match left.checked_sub(cost) {
        Some(left) => (Decision::allow(limit, left), cost > 0),
        None if cost > limit => (Decision::reject(limit, left, None), false),
        None => (rejected(limit, left), false),
    };
    (is_taken == is_charged).then_some(decision)
}
