//! A prototype: what a timer of nanoseconds would bring. One dispatcher, as in our queue, but asleep on a
//! `timerfd` that tokio's reactor watches, instead of on tokio's timer of milliseconds.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::net::unix::pipe::Receiver;
use tokio::sync::{Notify, oneshot};

use super::Plan;
use super::subject::Pacer;

/// Sleeps until an instant, to some tens of microseconds.
///
/// Read as if it were a pipe: that is the one way to have tokio watch a descriptor that needs neither
/// `unsafe` nor what is deprecated (`AsyncFd`'s safe constructors are, since tokio 1.54).
struct Timer(Receiver);

impl Timer {
    fn new() -> std::io::Result<Self> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        Receiver::from_owned_fd_unchecked(timer).map(Self)
    }

    async fn sleep_until(&self, due: Instant) -> std::io::Result<()> {
        // Nothing at all would disarm it.
        let left = due.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        let it_value = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once)?;
        loop {
            self.0.readable().await?;
            match self.0.try_read(&mut [0; 8]) {
                // It was set anew since it became ready.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read.map(|_| ()),
            }
        }
    }
}

pub struct Precise(Arc<Shared>);

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

impl Pacer for Precise {
    type Waiter = ();

    fn new(plan: &Plan<'_>) -> Result<Self, String> {
        let line = Mutex::new(Line { due: Instant::now(), waiters: VecDeque::new() });
        let shared = Arc::new(Shared { line, interval: plan.interval(), somebody: Notify::new() });
        let timer = Timer::new().map_err(|error| format!("no timer: {error}"))?;
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
        Ok(Self(shared))
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
