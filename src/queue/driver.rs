use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::lines::{LineId, Lines, Release};
use super::{no_runtime, no_time};
use crate::decision::{Decision, LimiterError, Receipt};
use crate::partition::PartitionKey;
use crate::time::{Timestamp, nanos_of};

/// How a waiter learns that its turn has come.
pub(super) type Grant = oneshot::Sender<Departure>;

/// The lines under their lock, and the task that releases them in time.
///
/// One task serves all lines. It is spawned by whoever joins a line while there is none, and ends
/// when nobody waits. `driven` says whether it lives, and changes only under the lock: an arrival
/// either sees it alive, and then the task will see the arrival, or spawns the next.
pub(super) struct Shared {
    state: Mutex<State>,
    /// Tells the task that a head may leave earlier than it thought.
    sooner: Notify,
    /// What tokio's clock showed when the queue was first used: the queue's time zero.
    zero: OnceLock<Instant>,
    hashers: [RandomState; 2],
}

pub(super) struct State {
    lines: Lines,
    driven: bool,
}

/// What became of an arrival: an answer at once, or a place in line.
pub(super) enum Arrival<T> {
    Decided(Decision),
    Joined(T),
}

impl Shared {
    pub(super) fn new(lines: Lines) -> Self {
        Self {
            state: Mutex::new(State { lines, driven: false }),
            sooner: Notify::new(),
            zero: OnceLock::new(),
            hashers: [RandomState::new(), RandomState::new()],
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn id(&self, key: &PartitionKey) -> LineId {
        let [high, low] = self.hashers.each_ref().map(|hasher| u128::from(hasher.hash_one(key.as_bytes())));
        LineId(high << 64 | low)
    }

    fn now(&self) -> Timestamp {
        let now = Instant::now();
        Timestamp::from_nanos(nanos_of(now.saturating_duration_since(*self.zero.get_or_init(|| now))))
    }

    fn instant(&self, at: Timestamp) -> Instant {
        let zero = *self.zero.get_or_init(Instant::now);
        // What lies beyond the range of `Instant` is not waited for in this life.
        let far = Duration::from_secs(86_400 * 365 * 30);
        zero.checked_add(Duration::from_nanos(at.as_nanos())).unwrap_or_else(|| Instant::now() + far)
    }

    pub(super) fn enqueue(
        self: &Arc<Self>,
        key: &PartitionKey,
        cost: u32,
        max_wait: u64,
    ) -> Result<Arrival<Turn>, LimiterError> {
        self.arrive(key, cost, max_wait, |state, id, now, _| {
            let (grant, granted) = oneshot::channel();
            let (number, rouse) = state.join(now, id, cost, Some(grant))?;
            Ok((Turn { granted, place: Standing { shared: Arc::clone(self), id, number } }, rouse))
        })
    }

    /// Takes a place in line that nobody waits in.
    pub(super) fn enqueue_nobody(
        self: &Arc<Self>,
        key: &PartitionKey,
        cost: u32,
        max_wait: u64,
    ) -> Result<Decision, LimiterError> {
        let arrival = self.arrive(key, cost, max_wait, |state, id, now, leaves| {
            let decision = state.lines.foretell(now, id, cost, leaves);
            let (_, rouse) = state.join(now, id, cost, None)?;
            Ok((decision, rouse))
        })?;
        let (Arrival::Decided(decision) | Arrival::Joined(decision)) = arrival;
        Ok(decision)
    }

    fn arrive<T>(
        self: &Arc<Self>,
        key: &PartitionKey,
        cost: u32,
        max_wait: u64,
        join: impl FnOnce(&mut State, LineId, Timestamp, Timestamp) -> Result<(T, Rouse), LimiterError>,
    ) -> Result<Arrival<T>, LimiterError> {
        let (id, mut released) = (self.id(key), Vec::new());
        let mut state = self.lock();
        // Read under the lock, so that arrivals are ordered as their times are.
        let now = self.now();
        state.catch_up(now, id, &mut released);
        let arrival = match state.lines.judge(now, id, cost, max_wait) {
            Err(refusal) => Ok((Arrival::Decided(refusal), Rouse::Nobody)),
            Ok(leaves) if leaves <= now => Ok((Arrival::Decided(state.lines.pass(now, id, cost)), Rouse::Nobody)),
            Ok(leaves) => join(&mut state, id, now, leaves).map(|(place, rouse)| (Arrival::Joined(place), rouse)),
        };
        drop(state);
        self.hand_over(released);
        let (arrival, rouse) = arrival?;
        self.rouse(rouse);
        Ok(arrival)
    }

    pub(super) fn peek(self: &Arc<Self>, key: &PartitionKey, cost: u32, max_wait: u64) -> Decision {
        let (id, mut released) = (self.id(key), Vec::new());
        let mut state = self.lock();
        let now = self.now();
        state.catch_up(now, id, &mut released);
        let decision = match state.lines.judge(now, id, cost, max_wait) {
            Err(refusal) => refusal,
            Ok(leaves) => state.lines.foretell(now, id, cost, leaves),
        };
        drop(state);
        self.hand_over(released);
        decision
    }

    pub(super) fn max_cost(&self) -> u32 {
        self.lock().lines.max_cost()
    }

    pub(super) fn limit(&self) -> u32 {
        self.lock().lines.limit()
    }

    pub(super) fn give_back(self: &Arc<Self>, key: &PartitionKey, cost: u32, receipt: Receipt) {
        self.give_back_to(self.id(key), cost, receipt);
    }

    fn give_back_to(self: &Arc<Self>, id: LineId, cost: u32, receipt: Receipt) {
        let mut released = Vec::new();
        let mut state = self.lock();
        let now = self.now();
        state.lines.give_back(now, id, cost, receipt);
        state.lines.release(now, id, &mut released);
        let rouse = if state.driven { Rouse::Sleeper } else { Rouse::Nobody };
        drop(state);
        self.rouse(rouse);
        self.hand_over(released);
    }

    /// Tells the released that they may go. Never under the lock: waking a task runs foreign code.
    fn hand_over(self: &Arc<Self>, released: Vec<Release>) {
        for Release { grant, id, cost, decision } in released {
            let departure = Departure { shared: Arc::clone(self), id, cost, decision, taken: false };
            // If the waiter is gone, the departure comes back and is dropped here, which gives the
            // turn back.
            drop(grant.send(departure));
        }
    }

    fn rouse(self: &Arc<Self>, rouse: Rouse) {
        match rouse {
            Rouse::Nobody => {}
            Rouse::Sleeper => self.sooner.notify_one(),
            // Not under the lock: a runtime that is going down drops the task on the spot.
            Rouse::New(runtime) => drop(runtime.spawn(drive(Driving { shared: Arc::clone(self), cut_short: true }))),
        }
    }

    /// Releases what is due; says when to come back, or that the task may end. Others get at the lock
    /// between two batches.
    fn tick(self: &Arc<Self>) -> Option<Instant> {
        loop {
            let mut released = Vec::new();
            let mut state = self.lock();
            let now = self.now();
            let is_all = state.lines.release_some(now, &mut released);
            let next = state.lines.next_due();
            state.driven = next.is_some();
            drop(state);
            self.hand_over(released);
            if is_all {
                return next.map(|due| self.instant(due));
            }
        }
    }
}

/// Keeps the time until nobody waits.
async fn drive(mut driving: Driving) {
    while let Some(due) = driving.shared.tick() {
        tokio::select! {
            () = tokio::time::sleep_until(due) => {}
            () = driving.shared.sooner.notified() => {}
        }
    }
    driving.cut_short = false;
}

/// What an arrival must do for the task, once the lock is released.
enum Rouse {
    Nobody,
    Sleeper,
    New(Handle),
}

impl State {
    pub(super) const fn waiting(&self) -> usize {
        self.lines.waiting()
    }

    /// Releases those before an arrival whose time has come: what is told to one that is refused ("a
    /// place is free at that time") must not depend on a timer's being on time.
    fn catch_up(&mut self, now: Timestamp, id: LineId, released: &mut Vec<Release>) {
        self.lines.release(now, id, released);
        if self.lines.is_full() {
            self.lines.release_some(now, released);
        }
    }

    fn join(
        &mut self,
        now: Timestamp,
        id: LineId,
        cost: u32,
        grant: Option<Grant>,
    ) -> Result<(u64, Rouse), LimiterError> {
        let before = self.lines.next_due();
        let rouse = self.driver()?;
        let number = self.lines.join(now, id, cost, grant);
        // The task may sleep towards a head that has left since, so it must be told of the first to
        // wait again, too, and not only of one that is due sooner.
        let is_next = before.is_none_or(|before| self.lines.next_due() < Some(before));
        Ok((number, if matches!(rouse, Rouse::Nobody) && is_next { Rouse::Sleeper } else { rouse }))
    }

    /// Sees to it that there is a task.
    fn driver(&mut self) -> Result<Rouse, LimiterError> {
        if self.driven {
            return Ok(Rouse::Nobody);
        }
        let runtime = Handle::try_current().map_err(|_| no_runtime())?;
        self.driven = true;
        Ok(Rouse::New(runtime))
    }
}

/// Held by the task from before it is spawned. If the task is dropped early, with its runtime, nobody
/// keeps the time any more. Then those who wait are woken, and whoever lives on another runtime
/// spawns the task there: see [`Turn::wait`].
struct Driving {
    shared: Arc<Shared>,
    cut_short: bool,
}

impl Drop for Driving {
    fn drop(&mut self) {
        // A task that ended by itself said so under the lock, and another may drive by now.
        if self.cut_short {
            let mut state = self.shared.lock();
            state.driven = false;
            let grants = state.lines.take_grants();
            drop(state);
            drop(grants);
        }
    }
}

/// A place in line, and the promise of a turn.
pub(super) struct Turn {
    granted: oneshot::Receiver<Departure>,
    place: Standing,
}

/// How often a waiter goes on with a task of its own after the one that kept the time was gone. A
/// runtime without a timer would have it go on for ever.
const REVIVALS: u32 = 3;

impl Turn {
    pub(super) async fn wait(self) -> Result<Decision, LimiterError> {
        // Dropped in reverse order: first the place is left, and then the channel, with the turn if
        // one came meanwhile.
        let Self { mut granted, place } = self;
        for _ in 0..REVIVALS {
            if let Ok(departure) = (&mut granted).await {
                drop(place);
                return Ok(departure.take());
            }
            granted = place.revive()?;
        }
        Err(no_time())
    }
}

/// A waiter in its line; leaves it when dropped.
struct Standing {
    shared: Arc<Shared>,
    id: LineId,
    number: u64,
}

impl Standing {
    /// Stays in line after the task that kept the time was gone.
    fn revive(&self) -> Result<oneshot::Receiver<Departure>, LimiterError> {
        let (grant, granted) = oneshot::channel();
        let mut state = self.shared.lock();
        if !state.lines.regrant(self.id, self.number, grant) {
            // Its time came while nobody could tell it.
            return Err(no_time());
        }
        let rouse = state.driver()?;
        drop(state);
        self.shared.rouse(rouse);
        Ok(granted)
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        let left = self.shared.lock().lines.leave(self.id, self.number);
        drop(left);
    }
}

/// A turn that has come. Whoever holds it may go, and says so by taking it; if it is dropped
/// instead, wherever it was on its way, the turn goes back to the line. That there is one owner at
/// every moment is what makes it neither lost nor used twice.
pub(super) struct Departure {
    shared: Arc<Shared>,
    id: LineId,
    cost: u32,
    decision: Decision,
    taken: bool,
}

impl Departure {
    fn take(mut self) -> Decision {
        self.taken = true;
        self.decision
    }
}

impl Drop for Departure {
    fn drop(&mut self) {
        if !self.taken {
            self.shared.give_back_to(self.id, self.cost, self.decision.receipt());
        }
    }
}
