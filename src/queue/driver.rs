use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::lines::{Lines, Place, Release};
use super::{no_runtime, runtime_gone};
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
}

pub(super) struct State {
    lines: Lines,
    driven: bool,
}

impl Shared {
    pub(super) const fn new(lines: Lines) -> Self {
        Self { state: Mutex::new(State { lines, driven: false }), sooner: Notify::const_new(), zero: OnceLock::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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

    pub(super) fn enqueue(self: &Arc<Self>, key: &PartitionKey, cost: u32) -> Result<Place, LimiterError> {
        self.arrive(key, cost, |state, now, _| {
            let (grant, granted) = oneshot::channel();
            let (number, rouse) = state.join(now, key, cost, Some(grant))?;
            let place = Standing { shared: Arc::clone(self), key: key.clone(), number };
            Ok((Place::InLine(Turn { granted, place }), rouse))
        })
    }

    pub(super) fn enqueue_nobody(self: &Arc<Self>, key: &PartitionKey, cost: u32) -> Result<Decision, LimiterError> {
        let place = self.arrive(key, cost, |state, now, leaves| {
            let decision = state.lines.describe_waiter(now, key, leaves);
            let (_, rouse) = state.join(now, key, cost, None)?;
            Ok((Place::Now(decision), rouse))
        })?;
        match place {
            Place::Now(decision) | Place::Refused(decision) => Ok(decision),
            Place::InLine(_) => unreachable!("nobody waits in this place"),
        }
    }

    /// Judges an arrival, after releasing those before it whose time has come: what is told to one
    /// that is refused ("a place is free at that time") must not depend on a timer's being on time.
    fn arrive(
        self: &Arc<Self>,
        key: &PartitionKey,
        cost: u32,
        join: impl FnOnce(&mut State, Timestamp, Timestamp) -> Result<(Place, Rouse), LimiterError>,
    ) -> Result<Place, LimiterError> {
        let mut released = Vec::new();
        let mut state = self.lock();
        // Read under the lock, so that arrivals are ordered as their times are.
        let now = self.now();
        state.lines.release(now, key, &mut released);
        let place = match state.lines.judge(now, key, cost) {
            Err(refusal) => Ok((Place::Refused(refusal), Rouse::Nobody)),
            Ok(leaves) if leaves <= now => Ok((Place::Now(state.lines.pass(now, key, cost)), Rouse::Nobody)),
            Ok(leaves) => join(&mut state, now, leaves),
        };
        drop(state);
        self.hand_over(released);
        let (place, rouse) = place?;
        match rouse {
            Rouse::Nobody => {}
            Rouse::Sleeper => self.sooner.notify_one(),
            // Not under the lock: a runtime that is going down drops the task on the spot.
            Rouse::New(runtime) => drop(runtime.spawn(drive(Driving { shared: Arc::clone(self), cut_short: true }))),
        }
        Ok(place)
    }

    pub(super) fn peek(self: &Arc<Self>, key: &PartitionKey, cost: u32) -> Decision {
        let mut released = Vec::new();
        let mut state = self.lock();
        let now = self.now();
        state.lines.release(now, key, &mut released);
        let decision = match state.lines.judge(now, key, cost) {
            Err(refusal) => refusal,
            Ok(leaves) => state.lines.describe_waiter(now, key, leaves),
        };
        drop(state);
        self.hand_over(released);
        decision
    }

    pub(super) fn give_back(self: &Arc<Self>, key: &PartitionKey, cost: u32, receipt: Receipt) {
        let mut released = Vec::new();
        let mut state = self.lock();
        let now = self.now();
        state.lines.give_back(now, key, cost, receipt);
        state.lines.release(now, key, &mut released);
        let wake = state.driven;
        drop(state);
        if wake {
            self.sooner.notify_one();
        }
        self.hand_over(released);
    }

    /// Tells the released that they may go. Never under the lock: waking a task runs foreign code.
    fn hand_over(self: &Arc<Self>, released: Vec<Release>) {
        for Release { grant, key, cost, decision } in released {
            let departure = Departure { shared: Arc::clone(self), key, cost, decision, taken: false };
            // If the waiter is gone, the departure comes back and is dropped here, which gives the
            // turn back.
            drop(grant.send(departure));
        }
    }

    /// Releases what is due; says when to come back, or that the task may end.
    fn tick(self: &Arc<Self>) -> Option<Instant> {
        let mut released = Vec::new();
        let mut state = self.lock();
        let now = self.now();
        state.lines.release_all(now, &mut released);
        let next = state.lines.next_due();
        state.driven = next.is_some();
        drop(state);
        self.hand_over(released);
        next.map(|due| self.instant(due))
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

    fn join(
        &mut self,
        now: Timestamp,
        key: &PartitionKey,
        cost: u32,
        grant: Option<Grant>,
    ) -> Result<(u64, Rouse), LimiterError> {
        let runtime = if self.driven { None } else { Some(Handle::try_current().map_err(|_| no_runtime())?) };
        let before = self.lines.next_due();
        let number = self.lines.join(now, key, cost, grant);
        self.driven = true;
        // The task may sleep towards a head that has left since, so it must be told of the first to
        // wait again, too, and not only of one that is due sooner.
        let is_next = before.is_none_or(|before| self.lines.next_due() < Some(before));
        let rouse = match runtime {
            Some(runtime) => Rouse::New(runtime),
            None if is_next => Rouse::Sleeper,
            None => Rouse::Nobody,
        };
        Ok((number, rouse))
    }
}

/// Held by the task from before it is spawned. If the task is dropped early, with its runtime, nobody
/// keeps the time any more, and those who wait are told so instead of waiting for ever.
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
            let dismissed = state.lines.dismiss_all();
            drop(state);
            drop(dismissed);
        }
    }
}

/// A place in line, and the promise of a turn.
pub(super) struct Turn {
    granted: oneshot::Receiver<Departure>,
    place: Standing,
}

impl Turn {
    pub(super) async fn wait(self) -> Result<Decision, LimiterError> {
        // Dropped in reverse order: first the place is left, and then the channel, with the turn if
        // one came meanwhile.
        let Self { mut granted, place } = self;
        let departure = (&mut granted).await.map_err(|_| runtime_gone());
        drop(place);
        departure.map(Departure::take)
    }
}

/// A waiter in its line; leaves it when dropped.
struct Standing {
    shared: Arc<Shared>,
    key: PartitionKey,
    number: u64,
}

impl Drop for Standing {
    fn drop(&mut self) {
        let left = self.shared.lock().lines.leave(&self.key, self.number);
        drop(left);
    }
}

/// A turn that has come. Whoever holds it may go, and says so by taking it; if it is dropped
/// instead, wherever it was on its way, the turn goes back to the line. That there is one owner at
/// every moment is what makes it neither lost nor used twice.
pub(super) struct Departure {
    shared: Arc<Shared>,
    key: PartitionKey,
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
            self.shared.give_back(&self.key, self.cost, self.decision.receipt());
        }
    }
}
