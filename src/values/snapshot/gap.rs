//! The time between writing a snapshot and restoring it.

use crate::values::time::Timestamp;

/// One instant, on a table's clock and on the wall clock (in nanoseconds since the Unix epoch).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) clock: Timestamp,
    pub(crate) wall: u64,
}

/// The time between two moments, on the clocks of two processes, which may have begun at different instants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gap {
    /// When the snapshot was written, by its table's clock.
    pub(crate) then: Timestamp,
    /// The nanoseconds since then, by the wall clock. Zero if that was set back, so that nothing is forgiven.
    pub(crate) elapsed: u64,
    /// When the snapshot is restored, by the inheriting table's clock.
    pub(crate) now: Timestamp,
    /// Whether the `now` clock shows wall-clock time, and the wall clock was not set back.
    shows_wall: bool,
    /// Whether both clocks show wall-clock time, even if the wall clock was set in between.
    show_wall: bool,
}

/// Two clocks that differ by at most this many nanoseconds show the same time. Two readings of the wall clock are no
/// further from two processes' clocks, unless the wall clock was set.
const SAME_TIME: u64 = 1_000_000_000;

impl Gap {
    pub(crate) fn new(then: Moment, now: Moment) -> Self {
        let shows_wall = |at: Moment| at.clock.as_nanos().abs_diff(at.wall) <= SAME_TIME;
        Self {
            then: then.clock,
            elapsed: now.wall.saturating_sub(then.wall),
            now: now.clock,
            shows_wall: now.wall >= then.wall && shows_wall(now),
            show_wall: shows_wall(then) && shows_wall(now),
        }
    }

    /// A gap in which no time passes.
    pub(crate) const fn nothing(now: Timestamp) -> Self {
        Self { then: now, elapsed: 0, now, shows_wall: false, show_wall: false }
    }

    /// The gap on clocks that are `nanos` ahead.
    pub(crate) const fn ahead_by(self, nanos: u64) -> Self {
        Self {
            then: Timestamp::from_nanos(self.then.as_nanos().saturating_add(nanos)),
            now: Timestamp::from_nanos(self.now.as_nanos().saturating_add(nanos)),
            ..self
        }
    }

    /// Whether windows with this length, counted from the clock's beginning, are the same by both clocks.
    ///
    /// They are if both clocks show the same time. They also are if the later clock shows wall-clock time, and the
    /// earlier one was wrong by at most half a window, as is a clock that stops while the machine is suspended, or that
    /// began before the wall clock was corrected.
    pub(crate) const fn has_same_windows(self, period: u64) -> bool {
        let apart = self.now.as_nanos().abs_diff(self.then.as_nanos().saturating_add(self.elapsed));
        apart <= SAME_TIME || (self.shows_wall && apart <= period / 2)
    }

    /// Whether windows with this length are the same by both clocks, if the wall clock names them. They are even if the
    /// wall clock was set.
    pub(crate) const fn has_windows_of_same_name(self, period: u64) -> bool {
        self.show_wall || self.has_same_windows(period)
    }

    /// Returns the nanoseconds until a time on the earlier clock.
    pub(crate) const fn left_until(self, end: u64) -> u64 {
        end.saturating_sub(self.then.as_nanos()).saturating_sub(self.elapsed)
    }

    /// Converts a deadline to the later clock, if it has not passed.
    pub(crate) fn deadline(self, end: Timestamp) -> Option<Timestamp> {
        let left = self.left_until(end.as_nanos());
        (left > 0).then(|| Timestamp::from_nanos(self.now.as_nanos().saturating_add(left)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gap(clocks: [u64; 2], walls: [u64; 2]) -> Gap {
        let moment = |index: usize| Moment { clock: Timestamp::from_nanos(clocks[index]), wall: walls[index] };
        Gap::new(moment(0), moment(1))
    }

    #[test]
    fn deadlines_go_by_the_wall_clock() {
        let end = Timestamp::from_nanos(150);
        // A clock that begins with its process, and a clock that shows the wall clock's time.
        assert_eq!(gap([100, 3], [1_000, 1_020]).deadline(end), Some(Timestamp::from_nanos(33)));
        assert_eq!(gap([100, 120], [100, 120]).deadline(end), Some(end));
        assert_eq!(gap([100, 150], [100, 150]).deadline(end), None);
        // The wall clock was set back: nothing is forgiven, and nothing is added.
        assert_eq!(gap([100, 40], [1_000, 7]).deadline(end), Some(Timestamp::from_nanos(90)));
    }

    #[test]
    fn clocks_within_a_second_show_one_time() {
        assert!(gap([5, 30], [1_000, 1_025]).has_same_windows(2));
        assert!(gap([0, SAME_TIME], [0, 0]).has_same_windows(2));
        assert!(!gap([0, SAME_TIME + 1], [0, 0]).has_same_windows(2));
        assert!(!gap([SAME_TIME + 1, 0], [9, 2]).has_same_windows(2));
    }

    /// "Small" is less than half a window.
    #[test]
    fn windows_survive_a_small_clock_error() {
        const HOUR: u64 = 3_600 * SECOND;
        const SECOND: u64 = 1_000_000_000;
        let wall = 500_000 * HOUR;
        // A minute late, or early, until the process is started again.
        for then in [wall - 60 * SECOND, wall + 60 * SECOND] {
            let corrected = gap([then, wall + SECOND], [wall, wall + SECOND]);
            assert!(corrected.has_same_windows(HOUR) && !corrected.has_same_windows(60 * SECOND));
            // The wall clock was set back meanwhile.
            assert!(!gap([then, wall - SECOND], [wall, wall - SECOND]).has_same_windows(HOUR));
        }
        // The later clock is the wrong one.
        assert!(!gap([wall, wall + 60 * SECOND], [wall, wall]).has_same_windows(HOUR));
    }
}
