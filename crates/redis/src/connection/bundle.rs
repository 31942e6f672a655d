//! Script calls in bundles: calls with the same script and the same arguments for different keys are made as one.
//!
//! As with Nagle's algorithm, a call that finds no other in flight is made at once. Otherwise it joins a bundle. A
//! bundle's first call spawns a task that lets the runtime's other tasks run once, and then sends all calls that have
//! joined. So a bundle is as large as the load makes it, and waits for no timer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use smallvec::SmallVec;
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::Instant;
use tower_sluice::internal::Lock;
use tower_sluice::store::remote::CallLimits;

use super::{Fault, FaultKind, Redis, RedisFault as _};
use crate::script::{Key, Script, ScriptCall, ScriptReply};

/// A bundle's maximum number of keys. A server does nothing else while it runs a script, and takes about 0.1 ms for 32
/// keys with one request each.
const MAX_KEYS: usize = 32;

/// Calls a limiter's scripts. Clones share their bundles.
#[allow(missing_debug_implementations, reason = "no public function returns it")]
#[derive(Clone)]
pub struct ScriptCaller {
    redis: Redis,
    state: Arc<BundleState>,
}

/// The calls by the limiters that share bundles.
#[derive(Default)]
pub(crate) struct BundleState {
    /// The number of calls in flight, and of bundles that are in flight or not sent yet.
    in_flight: AtomicUsize,
    /// The bundles that were not sent yet, the oldest first: in most cases at most one.
    open: Lock<Vec<Bundle>>,
}

struct Bundle {
    /// The runtime of its task. Other runtimes have separate bundles, because a runtime that is not driven delays only
    /// its own calls.
    runtime: Id,
    script: &'static Script,
    args: SmallVec<[u64; 8]>,
    /// Its first call's deadline: no other member's ends earlier.
    deadline: Instant,
    members: Vec<BundleMember>,
}

/// A call in a bundle.
struct BundleMember {
    keys: Keys,
    requests: u32,
    answer: oneshot::Sender<BundleAnswer>,
}

/// The keys of one call.
type Keys = SmallVec<[Key; 1]>;

enum BundleAnswer {
    Reply(ScriptReply),
    Failed(Fault),
    /// Nothing was charged. The caller makes the call alone.
    Alone(Keys),
}

impl ScriptCaller {
    pub(crate) fn new(redis: &Redis) -> Self {
        Self { redis: redis.clone(), state: Arc::default() }
    }

    /// The caller for the scripts of all queues.
    pub(crate) fn of_queues(redis: &Redis) -> Self {
        Self { redis: redis.clone(), state: Arc::clone(&redis.0.queue_bundles) }
    }

    /// Makes a call for one request, within the timeout.
    #[cfg(feature = "internal")]
    pub(crate) async fn call_one(&self, call: ScriptCall) -> Result<ScriptReply, Fault> {
        self.call(call, CallLimits::until(self.redis.deadline())).await
    }

    /// Makes a call, perhaps in a bundle. The outcome is the same as for a single call. If the future is dropped, or if
    /// no answer came, the script may have run nevertheless, unless the future was dropped before its bundle was sent.
    pub(crate) async fn call(&self, mut call: ScriptCall, limits: CallLimits) -> Result<ScriptReply, Fault> {
        // A text is for one key.
        let is_bundled = call.script.is_bundled && call.texts.is_empty();
        if let Some(answer) = is_bundled.then(|| self.join(&mut call, limits)).flatten() {
            match answer.await {
                Ok(BundleAnswer::Reply(reply)) => return Ok(reply),
                Ok(BundleAnswer::Failed(fault)) => return Err(fault),
                Ok(BundleAnswer::Alone(keys)) => call.keys = keys,
                // The bundle's task was dropped with its runtime.
                Err(_) => return Err(FaultKind::Cancelled.into()),
            }
        }
        let _in_flight = is_bundled.then(|| InFlight::new(&self.state));
        Ok(ScriptReply::read(self.redis.call_by(&call, limits).await?, call.keys.len())?)
    }

    /// Moves a call's keys into a bundle, and returns the receiver for its answer; `None` if the caller makes the call
    /// at once.
    fn join(&self, call: &mut ScriptCall, limits: CallLimits) -> Option<oneshot::Receiver<BundleAnswer>> {
        // Relaxed: a stale count only costs time.
        if self.state.in_flight.load(Ordering::Relaxed) == 0 || !self.redis.has_one_node() {
            return None;
        }
        let runtime = Handle::try_current().ok()?;
        let mut open = self.state.open.lock();
        let joined = open.iter_mut().find(|bundle| bundle.takes(call, runtime.id()));
        // Otherwise the call would be given up too late, or much too early.
        let has_time = joined.as_ref().is_none_or(|bundle| {
            let later = limits.deadline.checked_duration_since(bundle.deadline);
            later.is_some_and(|later| later <= self.redis.timeout() / 16)
        });
        if !has_time {
            return None;
        }
        let (sender, answer) = oneshot::channel();
        let member = BundleMember { keys: std::mem::take(&mut call.keys), requests: limits.requests, answer: sender };
        if let Some(bundle) = joined {
            bundle.members.push(member);
            return Some(answer);
        }
        let mut members = Vec::with_capacity(MAX_KEYS / member.keys.len().max(1));
        members.push(member);
        let runtime_id = runtime.id();
        let args = call.args.clone();
        open.push(Bundle { runtime: runtime_id, script: call.script, args, deadline: limits.deadline, members });
        // Unlocked before the spawn, because a runtime that shuts down drops the task on the spot, which takes the
        // lock.
        drop(open);
        let begun = Begun { runtime: runtime_id, in_flight: InFlight::new(&self.state), has_taken: false };
        runtime.spawn(send(self.redis.clone(), begun));
        Some(answer)
    }
}

/// Counts a call, or a bundle, as in flight until this is dropped.
struct InFlight(Arc<BundleState>);

impl InFlight {
    fn new(state: &Arc<BundleState>) -> Self {
        state.in_flight.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(state))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Bundle {
    fn takes(&self, call: &ScriptCall, runtime: Id) -> bool {
        self.runtime == runtime
            && std::ptr::eq(self.script, call.script)
            && self.args == call.args
            && (self.members.len() + 1) * call.keys.len() <= MAX_KEYS
    }
}

/// Runs as a bundle's task.
async fn send(redis: Redis, mut begun: Begun) {
    // The tasks that are ready now run first, and join it.
    yield_now().await;
    let Some(Bundle { script, args, deadline, mut members, .. }) = begun.take() else { return };
    // Calls that were cancelled by now charge nothing.
    members.retain(|member| !member.answer.is_closed());
    let Some(first) = members.first() else { return };
    // If the server is failing, one call may probe it, and no other call waits for the probe.
    if members.len() == 1 || redis.is_failing(|| first.keys[0].slot()) {
        for BundleMember { keys, answer, .. } in members {
            let _ = answer.send(BundleAnswer::Alone(keys));
        }
        return;
    }
    let size = first.keys.len();
    let requests = members.iter().map(|member| member.requests).sum();
    let mut keys = Keys::with_capacity(size * members.len());
    let answers: Vec<_> = members.into_iter().map(|member| (keys.extend(member.keys), member.answer).1).collect();
    let call = ScriptCall { script, keys, args, texts: Vec::new() };
    let mut limits = CallLimits::until(deadline);
    limits.requests = requests;
    let value = redis.call_by(&call, limits).await;
    let replies = value.and_then(|value| Ok(ScriptReply::read_each(&value, answers.len(), size)?));
    let mut replies = replies.map(SmallVec::into_iter);
    for (answer, keys) in answers.into_iter().zip(call.keys.chunks(size)) {
        let alone = || BundleAnswer::Alone(keys.into());
        let outcome = match &mut replies {
            Ok(replies) => replies.next().flatten().map_or_else(alone, BundleAnswer::Reply),
            // The script was not run: this is a cluster's only node, which wants a call's keys in one slot.
            Err(fault) if fault.wants_single_keys() => alone(),
            Err(fault) => BundleAnswer::Failed(fault.clone()),
        };
        // A call that was cancelled meanwhile needs no answer.
        let _ = answer.send(outcome);
    }
}

/// A bundle's task. If this is dropped before the bundle was taken, as when a runtime shuts down, the bundle is dropped
/// with it, and its calls end.
struct Begun {
    runtime: Id,
    in_flight: InFlight,
    has_taken: bool,
}

impl Begun {
    /// Takes this runtime's oldest bundle. There is one task per bundle, so calls keep their order in any order of the
    /// tasks.
    fn take(&mut self) -> Option<Bundle> {
        if std::mem::replace(&mut self.has_taken, true) {
            return None;
        }
        let bundles = &mut self.in_flight.0.open.lock();
        let index = bundles.iter().position(|bundle| bundle.runtime == self.runtime)?;
        Some(bundles.remove(index))
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        // Its members are woken outside the lock.
        drop(self.take());
    }
}
