//! Timestamps and clocks.

#[cfg(feature = "fast-clock")]
mod counter;

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Rounds `span` up to whole seconds.
#[inline]
pub(crate) fn seconds_ceil(span: Duration) -> u64 {
    span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0))
}

/// An instant on a store's clock, in nanoseconds.
///
/// Two timestamps may be compared only when they come from the same clock. The range is 584 years; arithmetic
/// saturates at its ends, and [`Timestamp::MAX`] means "not within this clock's range".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The first instant of every clock.
    pub const ZERO: Self = Self(0);
    /// The last instant; as an expiry, "never".
    pub const MAX: Self = Self(u64::MAX);

    /// The instant `nanos` nanoseconds after [`Timestamp::ZERO`].
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since [`Timestamp::ZERO`].
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The instant `span` later, or [`Timestamp::MAX`].
    #[must_use]
    pub fn saturating_add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(nanos_of(span)))
    }

    /// The time from `earlier` to `self`, or zero when `earlier` is later.
    #[must_use]
    pub fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Timestamp({:?})", Duration::from_nanos(self.0))
    }
}

/// The whole nanoseconds of `span`, at most `u64::MAX`.
pub(crate) const fn nanos_of(span: Duration) -> u64 {
    // Adds up seconds and the rest, because in constants no integer conversion checks its range.
    span.as_secs().saturating_mul(1_000_000_000).saturating_add(span.subsec_nanos() as u64)
}

/// Converts `nanos` to a `Duration`, even beyond 64 bits.
pub(crate) fn duration_from_nanos(nanos: u128) -> Duration {
    const NANOS_PER_SECOND: u128 = 1_000_000_000;
    match u64::try_from(nanos) {
        Ok(nanos) => Duration::from_nanos(nanos),
        Err(_) => {
            let seconds = u64::try_from(nanos / NANOS_PER_SECOND).unwrap_or(u64::MAX);
            let rest = u32::try_from(nanos % NANOS_PER_SECOND).expect("below one billion");
            Duration::new(seconds, rest)
        }
    }
}

/// A store's source of time.
///
/// # Contract
///
/// A clock should never run backwards. If it does, no key gains by it: a key is admitted its burst, and the units that
/// are restored while the clock goes forward. Keys wait until the clock has caught up with their spent units, and the
/// advertised waits include that. Time that passes twice counts twice.
///
/// A clock should not jump ahead and back, either. In a [`MemoryStore`](crate::store::MemoryStore), one reading far
/// ahead blocks not only the key that it was made for, but all keys in the same two pages of the table, 1,024 at most,
/// until the clock catches up.
pub trait Clock: Send + Sync + 'static {
    /// The present instant.
    fn now(&self) -> Timestamp;

    /// The wall clock's time, since the Unix epoch. Windows that are named by the wall clock begin when it says so:
    /// calendar windows, and [fixed windows](crate::algorithm::FixedWindow) that are not staggered. By default
    /// [`now`](Self::now).
    ///
    /// The wall clock may be set. Set forward, it begins the window that it shows, as after a night; set back, it ends
    /// no window a second time: see [`Algorithm::after_step_back`](crate::algorithm::Algorithm::after_step_back).
    fn wall(&self) -> Timestamp {
        self.now()
    }

    /// Identifies the clock: clocks with equal ids show the same time. By default its address in memory, which clones
    /// do not share; `None` for a clock without fields, which has no address of its own.
    fn id(&self) -> Option<NonZeroUsize> {
        if size_of_val(self) == 0 { None } else { NonZeroUsize::new(std::ptr::from_ref(self).cast::<()>().addr()) }
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    #[inline(always)]
    fn now(&self) -> Timestamp {
        (**self).now()
    }

    #[inline(always)]
    fn wall(&self) -> Timestamp {
        (**self).wall()
    }

    #[inline]
    fn id(&self) -> Option<NonZeroUsize> {
        (**self).id()
    }
}

/// The operating system's monotonic clock; never set back, never stepped.
///
/// It is anchored once per process to the wall clock, so timestamps count from the Unix epoch *as it was known at the
/// first reading*, and later corrections of the wall clock grant nothing. Time during which the machine is suspended
/// may not count (on Linux it does not).
///
/// Windows that begin on the hour or at midnight follow [`wall`](Clock::wall), which reads the wall clock each time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Monotonic;

impl Clock for Monotonic {
    #[inline(always)]
    fn now(&self) -> Timestamp {
        #[cfg(feature = "test-util")]
        if let Some(clock) = SIMULATED.get() {
            return clock();
        }
        #[cfg(feature = "fast-clock")]
        return counter::now();
        #[cfg(not(feature = "fast-clock"))]
        system_now()
    }

    #[inline]
    fn wall(&self) -> Timestamp {
        #[cfg(feature = "test-util")]
        if let Some(clock) = SIMULATED.get() {
            return clock();
        }
        Wall.now()
    }

    /// Lower than any address.
    #[inline]
    fn id(&self) -> Option<NonZeroUsize> {
        Some(NonZeroUsize::MIN)
    }
}

#[cfg(feature = "test-util")]
std::thread_local! {
    /// The clock that [`Monotonic`] reads on this thread in place of the system's, because a simulation has its own
    /// time.
    pub(crate) static SIMULATED: std::cell::Cell<Option<fn() -> Timestamp>> = const { std::cell::Cell::new(None) };
}

/// Reads the system's monotonic clock, as nanoseconds since the Unix epoch.
fn system_now() -> Timestamp {
    static ANCHOR: OnceLock<(Instant, u64)> = OnceLock::new();
    let (start, epoch_nanos) = ANCHOR.get_or_init(|| {
        // A wall clock set before 1970 only moves the windows' edges: zero does as well.
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        (Instant::now(), nanos_of(wall))
    });
    Timestamp(epoch_nanos.saturating_add(nanos_of(start.elapsed())))
}

/// The operating system's wall clock: the time that processes on several machines share, as far as their clocks are
/// synchronised. It may be set back, and may be stepped.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wall;

impl Clock for Wall {
    fn now(&self) -> Timestamp {
        Timestamp(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, nanos_of))
    }

    /// Lower than any address, and different from [`Monotonic`]'s.
    fn id(&self) -> Option<NonZeroUsize> {
        NonZeroUsize::new(2)
    }
}

/// A clock that moves only by [`advance`](Self::advance), [`set`](Self::set) and [`set_wall`](Self::set_wall), for
/// tests. Clones share the time.
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::time::{Clock, ManualClock};
///
/// let clock = ManualClock::new();
/// let before = clock.now();
/// clock.advance(Duration::from_millis(250));
/// assert_eq!(clock.now().saturating_since(before), Duration::from_millis(250));
/// ```
#[derive(Clone, Debug, Default)]
#[doc(alias("fake clock", "mock clock"))]
pub struct ManualClock(Arc<ManualTime>);

#[derive(Debug, Default)]
struct ManualTime {
    now: AtomicU64,
    /// The nanoseconds that the wall clock is ahead of `now`, modulo 2^64.
    wall_ahead: AtomicU64,
}

impl ManualClock {
    /// A clock that stands at [`Timestamp::ZERO`].
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A clock that stands at `now`.
    #[must_use]
    pub fn starting_at(now: Timestamp) -> Self {
        let clock = Self::new();
        clock.set(now);
        clock
    }

    /// Moves the clock forward; it stops at [`Timestamp::MAX`].
    pub fn advance(&self, span: Duration) {
        let step = nanos_of(span);
        // The closure never declines, so there is no error to look at.
        let _ = self.0.now.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |now| Some(now.saturating_add(step)));
    }

    /// Sets the clock, also backwards, to rehearse a fault.
    pub fn set(&self, now: Timestamp) {
        self.0.now.store(now.0, Ordering::SeqCst);
    }

    /// Sets the wall clock alone, to rehearse a suspend, a late correction or a step back. From then on, both clocks
    /// move together again. Before the first call, they show the same time.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sluice::algorithm::FixedWindow;
    /// use tower_sluice::store::MemoryStore;
    /// use tower_sluice::time::{Clock, ManualClock};
    /// use tower_sluice::{PartitionKey, Quota, RateLimiter};
    ///
    /// let clock = ManualClock::new();
    /// let store = MemoryStore::with_capacity(8).with_clock(clock.clone());
    /// let daily = RateLimiter::new(FixedWindow::new(Quota::per_day(1)), store);
    /// let key = PartitionKey::from("alice");
    /// assert!(daily.check(&key).is_allowed() && !daily.check(&key).is_allowed());
    /// // The laptop sleeps until the next day.
    /// clock.set_wall(clock.wall().saturating_add(Duration::from_secs(24 * 3_600)));
    /// assert!(daily.check(&key).is_allowed());
    /// ```
    pub fn set_wall(&self, wall: Timestamp) {
        self.0.wall_ahead.store(wall.0.wrapping_sub(self.now().0), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.now.load(Ordering::SeqCst))
    }

    fn wall(&self) -> Timestamp {
        Timestamp(self.now().0.wrapping_add(self.0.wall_ahead.load(Ordering::SeqCst)))
    }

    /// Equal for all clones, which share the time.
    #[inline]
    fn id(&self) -> Option<NonZeroUsize> {
        NonZeroUsize::new(Arc::as_ptr(&self.0).addr())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It never goes back.
    #[test]
    fn monotonic_time_counts_from_the_epoch() {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let first = Monotonic.now();
        let second = Monotonic.now();
        assert!(second >= first);
        let apart = Duration::from_nanos(first.as_nanos()).abs_diff(wall);
        assert!(apart < Duration::from_secs(60), "anchored {apart:?} away from the wall clock");
    }

    #[test]
    fn long_spans_saturate() {
        assert_eq!(Timestamp::ZERO.saturating_add(Duration::MAX), Timestamp::MAX);
        let longest = Duration::from_nanos(u64::MAX);
        assert_eq!(nanos_of(longest), u64::MAX);
        assert_eq!(nanos_of(longest - Duration::from_nanos(1)), u64::MAX - 1);
        assert_eq!(nanos_of(longest + Duration::from_nanos(1)), u64::MAX);
        assert_eq!(duration_from_nanos(u128::from(u64::MAX) + 1), Duration::new(18_446_744_073, 709_551_616));
        assert_eq!(duration_from_nanos(u128::MAX).as_secs(), u64::MAX);
    }
}
