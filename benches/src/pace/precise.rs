//! Prototypes: what a timer of nanoseconds would bring. One dispatcher, as in our queue, but not asleep on tokio's
//! timer of milliseconds.

use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

#[cfg(target_os = "linux")]
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
#[cfg(target_os = "linux")]
use tokio::net::unix::pipe::Receiver;
use tokio::sync::{Notify, oneshot};

use super::Plan;
use super::subject::Pacer;

/// Sleeps until an instant, to some tens of microseconds. Only the dispatcher does.
pub trait Timer: Sized + Send + Sync + 'static {
    fn new() -> io::Result<Self>;
    fn sleep_until(&self, due: Instant) -> impl Future<Output = io::Result<()>> + Send;
}

/// A `timerfd` that tokio's reactor watches.
///
/// Read as if it were a pipe: that is the one way to have tokio watch a descriptor that needs neither
/// `unsafe` nor what is deprecated (`AsyncFd`'s safe constructors are, since tokio 1.54).
#[cfg(target_os = "linux")]
pub struct TimerFd(Receiver);

#[cfg(target_os = "linux")]
impl Timer for TimerFd {
    fn new() -> io::Result<Self> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        Receiver::from_owned_fd_unchecked(timer).map(Self)
    }

    async fn sleep_until(&self, due: Instant) -> io::Result<()> {
        // Nothing at all would disarm it.
        let left = due.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        let it_value = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once)?;
        loop {
            self.0.readable().await?;
            match self.0.try_read(&mut [0; 8]) {
                // It was set anew since it became ready.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read.map(|_| ()),
            }
        }
    }
}

/// A thread that sleeps, and wakes the dispatcher. It needs nothing but the standard library.
pub struct Thread {
    alarm: Arc<Alarm>,
    rung: Arc<Notify>,
}

struct Alarm {
    set: Mutex<Set>,
    changed: Condvar,
}

enum Set {
    Off,
    For(Instant),
    Never,
}

impl Alarm {
    fn set(&self, to: Set) {
        *self.set.lock().unwrap_or_else(PoisonError::into_inner) = to;
        self.changed.notify_one();
    }

    fn ring(&self, rung: &Notify) {
        let mut set = self.set.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            set = match *set {
                Set::Never => return,
                Set::Off => self.changed.wait(set).unwrap_or_else(PoisonError::into_inner),
                Set::For(due) => match due.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
                    Some(left) => self.changed.wait_timeout(set, left).unwrap_or_else(PoisonError::into_inner).0,
                    None => {
                        *set = Set::Off;
                        rung.notify_one();
                        set
                    }
                },
            };
        }
    }
}

impl Timer for Thread {
    fn new() -> io::Result<Self> {
        let alarm = Arc::new(Alarm { set: Mutex::new(Set::Off), changed: Condvar::new() });
        let rung = Arc::new(Notify::new());
        let (ringing, notify) = (Arc::clone(&alarm), Arc::clone(&rung));
        std::thread::Builder::new().spawn(move || ringing.ring(&notify))?;
        Ok(Self { alarm, rung })
    }

    async fn sleep_until(&self, due: Instant) -> io::Result<()> {
        self.alarm.set(Set::For(due));
        self.rung.notified().await;
        Ok(())
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.alarm.set(Set::Never);
    }
}

pub struct Precise<T>(Arc<Shared>, PhantomData<fn() -> T>);

struct Shared {
    line: Mutex<Line>,
    interval: Duration,
    somebody: Notify,
}

struct Line {
    /// When the next may leave.
    due: Instant,
    waiters: VecDeque<oneshot::Sender<()>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases who is due; says when to come back, if anybody waits.
    fn release(&self) -> Option<Instant> {
        let mut line = self.lock();
        while line.due <= Instant::now() {
            // Whoever is gone takes no slot.
            if line.waiters.pop_front()?.send(()).is_ok() {
                line.due += self.interval;
            }
        }
        (!line.waiters.is_empty()).then_some(line.due)
    }
}

impl<T: Timer> Pacer for Precise<T> {
    type Waiter = ();

    fn new(plan: &Plan<'_>) -> Result<Self, String> {
        let line = Mutex::new(Line { due: Instant::now(), waiters: VecDeque::new() });
        let shared = Arc::new(Shared { line, interval: plan.interval(), somebody: Notify::new() });
        let timer = T::new().map_err(|error| format!("no timer: {error}"))?;
        // Ends with the runtime.
        tokio::spawn({
            let shared = Arc::clone(&shared);
            async move {
                loop {
                    match shared.release() {
                        Some(due) => timer.sleep_until(due).await.expect("a timer that can be set"),
                        None => shared.somebody.notified().await,
                    }
                }
            }
        });
        Ok(Self(shared, PhantomData))
    }

    async fn waiter(&self) -> Result<(), String> {
        Ok(())
    }

    async fn turn(&self, (): &mut ()) -> Result<(), String> {
        let (sender, turn) = oneshot::channel();
        {
            let (mut line, now) = (self.0.lock(), Instant::now());
            if line.waiters.is_empty() && line.due <= now {
                line.due = now + self.0.interval;
                return Ok(());
            }
            line.waiters.push_back(sender);
        }
        self.0.somebody.notify_one();
        turn.await.map_err(|_| "the dispatcher is gone".to_owned())
    }
}
