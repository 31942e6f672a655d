//! The timer on which a driver sleeps.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use self::fine::FineTimer;

/// A timer for one driver: tokio's, and a finer one beside it where that is wanted and available.
///
/// The queue's clock is tokio's in any case, so that tests can pause it. A driver that wakes up reads that clock, and
/// trusts no timer.
pub(super) struct Alarm {
    /// Absent if it is not wanted or not available, and dropped once it has failed.
    fine: Option<FineTimer>,
    woke_early: bool,
}

/// The tick of tokio's timer.
const TICK: Duration = Duration::from_millis(1);

impl Alarm {
    /// Uses a finer timer if `is_precise` and the system has one left.
    pub(super) fn new(is_precise: bool) -> Self {
        let fine = if is_precise { FineTimer::new().ok() } else { None };
        Self { fine, woke_early: false }
    }

    /// Sleeps until `due`; rarely it wakes up to a millisecond early. Cancel safe.
    pub(super) async fn sleep_until(&mut self, due: Instant) {
        if let Some(fine) = &mut self.fine {
            let rung = tokio::select! {
                biased;
                () = sleep_until(due) => Ok(()),
                rung = fine.ring_at(due) => rung,
            };
            if rung.is_ok() {
                return;
            }
            self.fine = None;
        }
        let sleep = sleep_until(if self.woke_early { due } else { in_whole_ticks(Instant::now(), due) });
        self.woke_early = false;
        sleep.await;
        self.woke_early = Instant::now() < due;
    }
}

/// Returns the instant to ask tokio for at `now`, so that it wakes up as soon as possible after `due`.
///
/// Tokio's timer rounds a deadline up to a tick of its own. It then sleeps for the number of ticks until that one in
/// whole milliseconds, although the sleep may begin between two ticks. Asked for the deadline itself, it is late twice
/// over, and at 1,000 per second two requests depart together every two milliseconds. This function undoes the first
/// rounding: the sleep is the remaining time, rounded up to milliseconds. It may be too short if the runtime is woken
/// for something else on the way. Then the deadline itself is asked for, so that no version of tokio's timer can make
/// the task spin.
fn in_whole_ticks(now: Instant, due: Instant) -> Instant {
    let left = due.saturating_duration_since(now).as_nanos();
    let ticks = left.div_ceil(TICK.as_nanos()).saturating_sub(1);
    let earlier = u64::try_from(ticks).ok().and_then(|ticks| now.checked_add(Duration::from_millis(ticks)));
    earlier.unwrap_or(due)
}

#[cfg(all(feature = "precise-timer", any(target_os = "linux", target_os = "android")))]
mod fine {
    use std::future::{pending, poll_fn};
    use std::io;
    use std::pin::Pin;
    use std::thread;
    use std::time::Duration;

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
    };
    use tokio::io::{AsyncRead, ReadBuf};
    use tokio::net::unix::pipe::Receiver;
    use tokio::runtime::{Builder, Handle};
    use tokio::time::Instant;

    use crate::util::lock::Lock;

    /// A `timerfd` that the [`reactor`] watches.
    ///
    /// It is read as a pipe, because that is how tokio watches any descriptor without `unsafe` on our side and without
    /// deprecated functions.
    pub(super) struct FineTimer(Receiver);

    /// Returns the runtime that watches all the process's timers, from a thread that does nothing else. The caller's
    /// runtime may have no I/O driver, and tokio reports that by a panic only; this one has one. The first timer starts
    /// it, and it never stops: an idle one costs a parked thread and a few descriptors.
    fn reactor() -> io::Result<Handle> {
        static REACTOR: Lock<Option<Handle>> = Lock::new(None);
        let mut reactor = REACTOR.lock();
        if let Some(started) = &*reactor {
            return Ok(started.clone());
        }
        let runtime = Builder::new_current_thread().enable_io().build()?;
        let handle = runtime.handle().clone();
        thread::Builder::new().name("sluice-timer".into()).spawn(move || runtime.block_on(pending::<()>()))?;
        Ok(reactor.insert(handle).clone())
    }

    impl FineTimer {
        /// Fails if no descriptors or threads are left.
        pub(super) fn new() -> io::Result<Self> {
            let reactor = reactor()?;
            let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
            let _registers_there = reactor.enter();
            Receiver::from_owned_fd_unchecked(timer).map(Self)
        }

        /// Sleeps until `due`, or a little longer. Replaces any earlier setting.
        pub(super) async fn ring_at(&mut self, due: Instant) -> io::Result<()> {
            const ZERO: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
            // A zero duration would disarm it.
            let left = due.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
            let seconds = i64::try_from(left.as_secs()).unwrap_or(i64::MAX);
            let it_value = Timespec { tv_sec: seconds, tv_nsec: left.subsec_nanos().into() };
            let once = Itimerspec { it_interval: ZERO, it_value };
            timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once)?;
            // A `timerfd` yields eight bytes. With a larger buffer, tokio sees that it is empty without another system
            // call.
            let mut bytes = [0; 16];
            poll_fn(|context| Pin::new(&mut self.0).poll_read(context, &mut ReadBuf::new(&mut bytes))).await
        }
    }
}

#[cfg(not(all(feature = "precise-timer", any(target_os = "linux", target_os = "android"))))]
mod fine {
    use std::io;

    use tokio::time::Instant;

    /// This system has no such timer.
    pub(super) enum FineTimer {}

    impl FineTimer {
        pub(super) fn new() -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(super) async fn ring_at(&mut self, _: Instant) -> io::Result<()> {
            match *self {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const HOUR: u64 = 3_600_000 * MS;

    /// By less than a tick, and a whole number of ticks from now.
    #[test]
    fn the_asked_instant_precedes_the_deadline() {
        let now = Instant::now();
        for nanos in [1, 2, MS - 1, MS, MS + 1, 2 * MS - 1, 2 * MS, 1_000 * 24 * HOUR] {
            let due = now + Duration::from_nanos(nanos);
            let asked = in_whole_ticks(now, due);
            assert!(now <= asked && asked < due && due <= asked + TICK, "{nanos}");
            assert_eq!((asked - now).as_nanos() % TICK.as_nanos(), 0, "{nanos}");
        }
        assert_eq!([in_whole_ticks(now, now), in_whole_ticks(now + TICK, now)], [now, now + TICK]);
    }

    /// Where tokio time is paused, the timer always wakes up early, so that each sleep takes two.
    #[tokio::test(start_paused = true)]
    async fn two_sleeps_reach_the_deadline() {
        let mut alarm = Alarm::new(false);
        for nanos in [1, MS - 1, MS, MS + MS / 2, 10 * MS, HOUR] {
            let due = Instant::now() + Duration::from_nanos(nanos);
            alarm.sleep_until(due).await;
            assert!(Instant::now() + TICK >= due, "{nanos}");
            if Instant::now() < due {
                alarm.sleep_until(due).await;
            }
            assert!(Instant::now() >= due, "{nanos}");
        }
    }
}
