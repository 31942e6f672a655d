//! The time between the writing and the restoring of a snapshot.

use crate::values::time::Timestamp;

/// One instant, on a table's clock and on the wall clock (in nanoseconds since the Unix epoch).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) clock: Timestamp,
    pub(crate) wall: u64,
}

/// The time between two moments, on clocks of two processes, which may have begun at different instants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gap {
    /// When the snapshot was written, by the clock of its table.
    pub(crate) then: Timestamp,
    /// The nanoseconds since then, by the wall clock. Zero if that was set back: then nothing is forgiven.
    pub(crate) elapsed: u64,
    /// When it is restored, by the clock of the table that inherits from it.
    pub(crate) now: Timestamp,
}

/// Two clocks that differ by no more than this, in nanoseconds, show the same time: so far are two readings of the wall
/// clock apart from what the clocks of two processes show, if it was not set.
const SAME_TIME: u64 = 1_000_000_000;

impl Gap {
    pub(crate) const fn new(then: Moment, now: Moment) -> Self {
        Self { then: then.clock, elapsed: now.wall.saturating_sub(then.wall), now: now.clock }
    }

    /// The gap by clocks that are ahead by this time.
    pub(crate) const fn ahead_by(self, nanos: u64) -> Self {
        Self {
            then: Timestamp::from_nanos(self.then.as_nanos().saturating_add(nanos)),
            now: Timestamp::from_nanos(self.now.as_nanos().saturating_add(nanos)),
            ..self
        }
    }

    /// Whether both clocks show the same time: then windows, which are counted from the clock's beginning, are the
    /// same.
    pub(crate) const fn is_one_clock(self) -> bool {
        let now = self.now.as_nanos();
        now.abs_diff(self.then.as_nanos().saturating_add(self.elapsed)) <= SAME_TIME
    }

    /// Returns the nanoseconds until a time of the earlier clock.
    pub(crate) const fn left_until(self, end: u64) -> u64 {
        end.saturating_sub(self.then.as_nanos()).saturating_sub(self.elapsed)
    }

    /// Returns a deadline by the later clock, if it has not passed.
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
        // A clock that begins with its process, and one that shows the wall clock's time.
        assert_eq!(gap([100, 3], [1_000, 1_020]).deadline(end), Some(Timestamp::from_nanos(33)));
        assert_eq!(gap([100, 120], [100, 120]).deadline(end), Some(end));
        assert_eq!(gap([100, 150], [100, 150]).deadline(end), None);
        // The wall clock was set back: nothing is forgiven, and nothing is added.
        assert_eq!(gap([100, 40], [1_000, 7]).deadline(end), Some(Timestamp::from_nanos(90)));
    }

    #[test]
    fn clocks_that_are_a_second_apart_at_most_show_one_time() {
        assert!(gap([5, 30], [1_000, 1_025]).is_one_clock());
        assert!(gap([0, SAME_TIME], [0, 0]).is_one_clock());
        assert!(!gap([0, SAME_TIME + 1], [0, 0]).is_one_clock());
        assert!(!gap([SAME_TIME + 1, 0], [9, 2]).is_one_clock());
    }
}
