//! When windows begin: dates in a time zone, with the window that was found last.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::civil::Date;
use jiff::tz::TimeZone;

use super::period::Period;
use crate::values::time::Timestamp;

/// A period's windows in a zone.
///
/// # Concurrency
///
/// A window that was found is remembered as one word, which is read and written whole. So no thread sees the beginning
/// of one window with the end of another. A window depends on the period and the zone alone, and these never change; so
/// every word that was ever stored is a true window, however old, and a reader only checks that it holds its own
/// instant. Nothing else is published by the store, so relaxed accesses are enough. Threads that find no match all
/// compute, and the last store wins: where two clocks differ, each may find the other's window and compute its own,
/// which takes a microsecond or two, and is never a wrong bound.
pub(super) struct CalendarSchedule {
    period: Period,
    zone: TimeZone,
    /// The window that was found last, packed.
    last: AtomicU64,
    /// A neighbour of such a window, packed.
    beside: AtomicU64,
    /// Its number among the keys' schedules, once it was asked for.
    number: OnceLock<u32>,
    /// How often the calendar was asked.
    #[cfg(test)]
    asked: AtomicU64,
}

/// A window, in whole seconds: clocks are moved by whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CalendarSpan {
    starts: u64,
    /// Below 2^24, which is half a year.
    length: u64,
}

const NANOS: u64 = 1_000_000_000;
const LENGTH_BITS: u32 = 24;

impl CalendarSpan {
    /// Packs a window into a word. The start takes 35 bits, since clocks reach to 2^64 nanoseconds.
    const fn pack(self) -> u64 {
        self.starts << LENGTH_BITS | self.length
    }

    /// Unpacks a word. Zero, which is stored at first, is a window without length.
    const fn unpack(word: u64) -> Self {
        Self { starts: word >> LENGTH_BITS, length: word & ((1 << LENGTH_BITS) - 1) }
    }

    fn holds(self, now: Timestamp) -> bool {
        // The start is no later than some instant of a clock, so the product fits.
        self.starts * NANOS <= now.as_nanos() && now < self.ends()
    }

    /// Returns when the window ends; [`Timestamp::MAX`] if that is beyond the range of clocks.
    pub(super) const fn ends(self) -> Timestamp {
        Timestamp::from_nanos((self.starts + self.length).saturating_mul(NANOS))
    }
}

impl CalendarSchedule {
    pub(super) const fn new(period: Period, zone: TimeZone) -> Self {
        Self {
            period,
            zone,
            last: AtomicU64::new(0),
            beside: AtomicU64::new(0),
            number: OnceLock::new(),
            #[cfg(test)]
            asked: AtomicU64::new(0),
        }
    }

    pub(super) const fn period(&self) -> Period {
        self.period
    }

    pub(super) const fn zone(&self) -> &TimeZone {
        &self.zone
    }

    pub(super) fn zone_name(&self) -> &str {
        self.zone.iana_name().unwrap_or("UTC")
    }

    /// Returns a number that two schedules share if their windows begin at the same instants, and otherwise only by
    /// chance.
    pub(super) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.period, self.zone_name()).hash(&mut hasher);
        hasher.finish()
    }

    /// Whether windows begin at the same instants, by the same zone rules.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.period == other.period && self.zone == other.zone
    }

    /// Returns the number that was assigned first.
    pub(super) fn number_or_assign(&self, assign: impl FnOnce() -> u32) -> u32 {
        *self.number.get_or_init(assign)
    }

    /// Returns the window that holds `now`.
    #[inline]
    pub(super) fn window(&self, now: Timestamp) -> CalendarSpan {
        self.look_up(&self.last, now)
    }

    /// Returns the window after the window that holds `now`.
    pub(super) fn next_window(&self, now: Timestamp) -> CalendarSpan {
        self.look_up(&self.beside, self.window(now).ends())
    }

    /// Returns three seconds at which windows begin: see [`CalendarWindow::edges`](super::CalendarWindow::edges).
    pub(super) fn edges(&self, now: Timestamp) -> [u64; 3] {
        let window = self.window(now);
        let (starts, ends) = (window.starts, window.starts + window.length);
        let elapsed = now.as_nanos() / NANOS - starts;
        if elapsed < window.length / 2 {
            let before = Timestamp::from_nanos((starts * NANOS).saturating_sub(1));
            [self.look_up(&self.beside, before).starts, starts, ends]
        } else {
            let after = self.look_up(&self.beside, window.ends());
            [starts, ends, after.starts + after.length]
        }
    }

    #[inline]
    fn look_up(&self, kept: &AtomicU64, now: Timestamp) -> CalendarSpan {
        let window = CalendarSpan::unpack(kept.load(Ordering::Relaxed));
        if window.holds(now) {
            return window;
        }
        let window = self.find(now);
        kept.store(window.pack(), Ordering::Relaxed);
        window
    }

    /// Asks the calendar.
    #[cold]
    fn find(&self, now: Timestamp) -> CalendarSpan {
        #[cfg(test)]
        self.asked.fetch_add(1, Ordering::Relaxed);
        let now = i64::try_from(now.as_nanos() / NANOS).expect("below 2^35");
        let today = self.zone.to_datetime(jiff::Timestamp::from_second(now).expect("a year before 2555")).date();
        let mut first = self.period.first_date(today);
        // A date is no instant: where clocks are set back over midnight, it is yesterday once more after the window of
        // today has begun. And a window of dates that the zone leaves out has no length.
        while self.begins(self.period.next(first)) <= now {
            first = self.period.next(first);
        }
        while self.begins(first) > now {
            first = self.period.previous(first);
        }
        // The first window of all time begins before clocks do.
        let starts = u64::try_from(self.begins(first)).unwrap_or(0);
        let ends = u64::try_from(self.begins(self.period.next(first))).expect("later than now");
        CalendarSpan { starts, length: ends - starts }
    }

    #[cfg(test)]
    pub(super) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// Returns the seconds at which the window that holds `now` begins and ends.
    #[cfg(test)]
    pub(super) fn bounds(&self, now: Timestamp) -> [u64; 2] {
        let window = self.window(now);
        [window.starts, window.starts + window.length]
    }

    /// Returns the second at which a date begins.
    fn begins(&self, date: Date) -> i64 {
        let midnight = self.zone.to_timestamp(date.at(0, 0, 0, 0));
        midnight.expect("a year before 2555").as_second()
    }
}
