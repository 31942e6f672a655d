use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::alarm::Alarm;
use super::lines::{LineId, Lines};
use super::room::{Arrival, Errand, Progress, Request, Room, Rouse};
use super::seats::SeatNo;
use super::{no_runtime, no_time};
use crate::backlog::Backlog;
use crate::decision::{Decision, LimiterError, Receipt};
use crate::partition::PartitionKey;
use crate::time::{Timestamp, nanos_of};

/// The lines, and the task that releases them in time.
///
/// One task serves all lines. It is spawned by whoever joins a line while there is none, and ends
/// when nobody waits.
pub(super) struct Shared {
    pub(super) room: Room,
    /// Tells the task that a head may leave earlier than it thought, or that nobody waits any more.
    sooner: Notify,
    /// What tokio's clock showed when the queue was first used: the queue's time zero.
    zero: OnceLock<Instant>,
    /// Whether tokio's timer is not enough, and a better one may be had.
    is_precise: AtomicBool,
    hashers: [RandomState; 2],
}

impl Shared {
    pub(super) fn new(lines: Lines, is_precise: bool) -> Self {
        Self {
            room: Room::new(lines),
            sooner: Notify::new(),
            zero: OnceLock::new(),
            is_precise: AtomicBool::new(is_precise),
            hashers: [RandomState::new(), RandomState::new()],
        }
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

    fn request(&self, key: &PartitionKey, cost: u32, max_wait: u64) -> Request {
        Request { id: self.id(key), cost, max_wait }
    }

    pub(super) fn enqueue(
        self: &Arc<Self>,
        key: &PartitionKey,
        cost: u32,
        max_wait: u64,
    ) -> Result<Result<Decision, Place>, LimiterError> {
        let request = self.request(key, cost, max_wait);
        let (arrival, errand) = self.room.enqueue(|| self.now(), &request, runtime);
        // Made before anything foreign runs, so that the place is given up whatever happens there.
        let arrival = arrival.map(|arrival| match arrival {
            Arrival::Decided(decision) => Ok(decision),
            Arrival::Joined(seat) => Err(Place { shared: Arc::clone(self), seat, revivals: REVIVALS }),
        });
        self.run(errand);
        arrival
    }

    /// Takes a place in line that nobody waits in.
    pub(super) fn enqueue_nobody(
        self: &Arc<Self>,
        key: &PartitionKey,
        cost: u32,
        max_wait: u64,
    ) -> Result<Decision, LimiterError> {
        let request = self.request(key, cost, max_wait);
        let (arrival, errand) = self.room.enqueue_nobody(|| self.now(), &request, runtime);
        self.run(errand);
        arrival.map(|arrival| match arrival {
            Arrival::Decided(decision) => decision,
            Arrival::Joined(_) => unreachable!("nobody has joined"),
        })
    }

    pub(super) fn peek(self: &Arc<Self>, key: &PartitionKey, cost: u32, max_wait: u64) -> Option<Decision> {
        let (decision, errand) = self.room.peek(|| self.now(), &self.request(key, cost, max_wait));
        self.run(errand);
        decision
    }

    pub(super) fn give_back(self: &Arc<Self>, key: &PartitionKey, cost: u32, receipt: Receipt) {
        self.run(self.room.give_back(|| self.now(), self.id(key), cost, receipt));
    }

    pub(super) fn backlog(&self) -> Backlog {
        self.room.backlog(|| self.now())
    }

    /// From the next task on, with a better timer, or without.
    pub(super) fn change(self: &Arc<Self>, rules: &Lines, is_precise: bool) {
        self.is_precise.store(is_precise, Ordering::Relaxed);
        self.run(self.room.change(|| self.now(), rules));
    }

    pub(super) fn close(self: &Arc<Self>) {
        self.run(self.room.close());
    }

    /// Never under the lock: waking a task runs foreign code, and a runtime that is going down drops a
    /// new one on the spot.
    fn run(self: &Arc<Self>, errand: Errand<Handle>) {
        match errand.rouse {
            Rouse::Nobody => {}
            Rouse::Sleeper => self.sooner.notify_one(),
            Rouse::New(runtime) => drop(runtime.spawn(drive(Driving { shared: Arc::clone(self), cut_short: true }))),
        }
        errand.wake.into_iter().for_each(std::task::Waker::wake);
    }

    /// Does what is due; says when to come back, or that the task may end. Others get at the lock
    /// between two batches.
    fn tick(&self) -> Option<Instant> {
        loop {
            let mut wake = Vec::new();
            let (is_all, next) = self.room.tick(|| self.now(), &mut wake);
            wake.into_iter().for_each(std::task::Waker::wake);
            if is_all {
                return next.map(|due| self.instant(due));
            }
        }
    }
}

/// Where the task that keeps the time is to live.
fn runtime() -> Result<Handle, LimiterError> {
    Handle::try_current().map_err(|_| no_runtime())
}

/// Keeps the time until nobody waits.
///
/// No change is slept through. Whatever makes the next turn come sooner, or the task end, is changed under the lock of
/// the room, and `sooner` told after it. `tick` reads under that lock. So either it has seen the change; or the change
/// comes after it, and is told while the task looks for a word or before. A `Notify` keeps one that nobody waits for
/// until somebody does, and the next `notified` is done at once. A word too many costs one look, and no branch
/// of the `select` loses anything when another wins, for all is read anew.
///
/// Nor does it end beside one who waits: `tick` says under the lock that the task is gone, only when nobody waits, and
/// whoever joins sees that under the same lock and spawns the next. `models.rs` has that part, and this is why
/// it may take the word and the timer for granted.
async fn drive(mut driving: Driving) {
    let mut alarm = Alarm::new(&driving.shared.is_precise);
    while let Some(due) = driving.shared.tick() {
        tokio::select! {
            () = alarm.sleep_until(due) => {}
            () = driving.shared.sooner.notified() => {}
        }
    }
    driving.cut_short = false;
}

/// Held by the task from before it is spawned. If the task is dropped early, with its runtime, nobody
/// keeps the time any more. Then those who wait are woken, and whoever lives on another runtime
/// spawns the task there: see [`Place::poll`].
struct Driving {
    shared: Arc<Shared>,
    cut_short: bool,
}

impl Drop for Driving {
    fn drop(&mut self) {
        // A task that ended by itself said so under the lock, and another may drive by now.
        if self.cut_short {
            self.shared.room.undrive().into_iter().for_each(std::task::Waker::wake);
        }
    }
}

/// A place in line, and the promise of a turn. Dropped, it leaves the line; if the turn has come by
/// then, it goes back. What becomes of a place is decided under the one lock, so that a turn is
/// neither lost nor used twice.
pub(super) struct Place {
    shared: Arc<Shared>,
    /// None once the answer is out.
    seat: SeatNo,
    revivals: u8,
}

/// How often a waiter goes on with a task of its own after the one that kept the time was gone. A
/// runtime without a timer would have it go on for ever.
const REVIVALS: u8 = 2;

impl Future for Place {
    type Output = Result<Decision, LimiterError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(self.seat != SeatNo::NONE, "polled after it was ready");
        loop {
            let shared = &self.shared;
            match shared.room.poll(|| shared.now(), self.seat, context.waker()) {
                Progress::Done(answer) => {
                    self.seat = SeatNo::NONE;
                    return Poll::Ready(answer);
                }
                Progress::Waiting { is_driven: true } => return Poll::Pending,
                Progress::Waiting { is_driven: false } => {}
            }
            let revived = match self.revivals.checked_sub(1) {
                Some(left) => {
                    self.revivals = left;
                    self.shared.room.revive(runtime)
                }
                None => Err(no_time()),
            };
            match revived {
                Ok(rouse) => self.shared.run(Errand { wake: Vec::new(), rouse }),
                Err(error) => {
                    self.leave();
                    return Poll::Ready(Err(error));
                }
            }
        }
    }
}

impl Place {
    fn leave(&mut self) {
        let seat = std::mem::replace(&mut self.seat, SeatNo::NONE);
        if seat != SeatNo::NONE {
            self.shared.run(self.shared.room.leave(|| self.shared.now(), seat));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave();
    }
}
