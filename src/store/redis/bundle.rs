//! Calls of scripts, in bundles: those with the same script and the same arguments for different keys are made as one.
//!
//! As with Nagle's algorithm, a call that finds none in flight is made at once. One that does joins a bundle. The first
//! one begins it, with a task that lets the other tasks of the runtime run once, and then sends what has come together:
//! so a bundle is as large as the load makes it, and waits for no timer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use smallvec::SmallVec;
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::Instant;

use super::connection::{Fault, FaultKind, Redis};
use super::evalsha::{Script, ScriptCall};
use super::key::Key;
use super::script::ScriptReply;
use crate::store::remote::CallLimits;
use crate::util::lock::Lock;

/// The most keys of a bundle. A server does nothing else while it runs a script, and takes about 0.1 ms for so many, of one
/// request each.
const MOST: usize = 32;

/// How a limiter calls scripts. Clones share their bundles.
#[derive(Clone)]
pub(crate) struct ScriptCaller {
    redis: Redis,
    state: Arc<BundleState>,
}

#[derive(Default)]
struct BundleState {
    /// Calls that are in flight, and bundles that are, or that will be.
    in_flight: AtomicUsize,
    /// The bundles that were not sent yet, the oldest first: in most cases one, or none.
    open: Lock<Vec<Bundle>>,
}

struct Bundle {
    /// Its task runs there. Other runtimes have bundles of their own: one that is not driven delays its own calls only.
    runtime: Id,
    script: &'static Script,
    args: SmallVec<[u64; 8]>,
    /// That of the call that began it: no other ends earlier.
    deadline: Instant,
    members: Vec<BundleMember>,
}

/// A call in a bundle.
struct BundleMember {
    keys: Keys,
    requests: u32,
    answer: oneshot::Sender<BundleAnswer>,
}

/// Those of one call.
type Keys = SmallVec<[Key; 1]>;

enum BundleAnswer {
    Reply(ScriptReply),
    Failed(Fault),
    /// Nothing was charged. The call is to be made alone.
    Alone(Keys),
}

impl ScriptCaller {
    pub(crate) fn new(redis: &Redis) -> Self {
        Self { redis: redis.clone(), state: Arc::default() }
    }

    /// Makes a call for one request, within the timeout.
    pub(crate) async fn call_one(&self, call: ScriptCall) -> Result<ScriptReply, Fault> {
        self.call(call, CallLimits { deadline: self.redis.deadline(), requests: 1 }).await
    }

    /// Makes a call, in a bundle perhaps. What comes of it is what would come of the call by itself. If this is dropped, or if
    /// no answer came, the script may have run nevertheless; but not if this is dropped before its bundle was sent.
    pub(crate) async fn call(&self, mut call: ScriptCall, limits: CallLimits) -> Result<ScriptReply, Fault> {
        // A text is for one key.
        let is_bundled = call.script.is_bundled && call.texts.is_empty();
        if let Some(answer) = is_bundled.then(|| self.join(&mut call, limits)).flatten() {
            match answer.await {
                Ok(BundleAnswer::Reply(reply)) => return Ok(reply),
                Ok(BundleAnswer::Failed(fault)) => return Err(fault),
                Ok(BundleAnswer::Alone(keys)) => call.keys = keys,
                // The task of the bundle was dropped with its runtime.
                Err(_) => return Err(FaultKind::Cancelled.into()),
            }
        }
        let _in_flight = is_bundled.then(|| InFlight::new(&self.state));
        Ok(ScriptReply::read(self.redis.call_by(&call, limits).await?, call.keys.len())?)
    }

    /// Moves the keys of a call into a bundle, and returns where the answer will be; `None` if it is to be made at once.
    fn join(&self, call: &mut ScriptCall, limits: CallLimits) -> Option<oneshot::Receiver<BundleAnswer>> {
        // Relaxed: it decides nothing but which of two ways is quicker.
        if self.state.in_flight.load(Ordering::Relaxed) == 0 || !self.redis.has_one_node() {
            return None;
        }
        let runtime = Handle::try_current().ok()?;
        let mut open = self.state.open.lock();
        let joined = open.iter_mut().find(|bundle| bundle.takes(call, runtime.id()));
        // Otherwise it would be given up too late, or much too early.
        let has_time = |bundle: &Bundle| {
            let later = limits.deadline.checked_duration_since(bundle.deadline);
            later.is_some_and(|later| later <= self.redis.timeout() / 16)
        };
        if joined.as_ref().is_some_and(|bundle| !has_time(bundle)) {
            return None;
        }
        let (sender, answer) = oneshot::channel();
        let member = BundleMember { keys: std::mem::take(&mut call.keys), requests: limits.requests, answer: sender };
        if let Some(bundle) = joined {
            bundle.members.push(member);
            return Some(answer);
        }
        let mut members = Vec::with_capacity(MOST / member.keys.len().max(1));
        members.push(member);
        let (runtime_id, args) = (runtime.id(), call.args.clone());
        open.push(Bundle { runtime: runtime_id, script: call.script, args, deadline: limits.deadline, members });
        // Unlocked before the spawn: a runtime that shuts down drops the task on the spot, and that locks.
        drop(open);
        let begun = Begun { runtime: runtime_id, in_flight: InFlight::new(&self.state), has_taken: false };
        runtime.spawn(send(self.redis.clone(), begun));
        Some(answer)
    }
}

/// Counts a call, or a bundle, as in flight until it is dropped.
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
            && (self.members.len() + 1) * call.keys.len() <= MOST
    }
}

/// Runs as the task of a bundle.
async fn send(redis: Redis, mut begun: Begun) {
    // The tasks that are ready now run first, and join it.
    yield_now().await;
    let Some(Bundle { script, args, deadline, mut members, .. }) = begun.take() else { return };
    // Calls that were cancelled by now charge nothing.
    members.retain(|member| !member.answer.is_closed());
    let Some(first) = members.first() else { return };
    // If the server is failing, one call may probe it, and no other waits for that one.
    if members.len() == 1 || redis.is_failing(|| first.keys[0].slot()) {
        for BundleMember { keys, answer, .. } in members {
            let _ = answer.send(BundleAnswer::Alone(keys));
        }
        return;
    }
    let (size, requests) = (first.keys.len(), members.iter().map(|member| member.requests).sum());
    let mut keys = Keys::with_capacity(size * members.len());
    let answers: Vec<_> = members.into_iter().map(|member| (keys.extend(member.keys), member.answer).1).collect();
    let call = ScriptCall { script, keys, args, texts: Vec::new() };
    let value = redis.call_by(&call, CallLimits { deadline, requests }).await;
    let replies = value.and_then(|value| Ok(ScriptReply::read_each(&value, answers.len(), size)?));
    let mut replies = replies.map(SmallVec::into_iter);
    for (answer, keys) in answers.into_iter().zip(call.keys.chunks(size)) {
        let alone = || BundleAnswer::Alone(keys.into());
        let outcome = match &mut replies {
            Ok(replies) => replies.next().flatten().map_or_else(alone, BundleAnswer::Reply),
            // The script was not run: this is the one node of a cluster, which wants the keys of a call in one slot.
            Err(fault) if fault.wants_single_keys() => alone(),
            Err(fault) => BundleAnswer::Failed(fault.clone()),
        };
        // One that was cancelled meanwhile needs no answer.
        let _ = answer.send(outcome);
    }
}

/// The task of a bundle. When this is dropped before the bundle was taken, as by a runtime that shuts down, the bundle is
/// dropped with it, and its calls end.
struct Begun {
    runtime: Id,
    in_flight: InFlight,
    has_taken: bool,
}

impl Begun {
    /// Takes the oldest bundle of this runtime, which has a task for each: whichever task runs first, calls keep their order.
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
        // Its members are woken outside of the lock.
        drop(self.take());
    }
}
