//! A table's time, if its windows follow the wall clock: the wall clock's time, without its steps back.
//!
//! Words tell the times of two windows apart only if the clock does not go far back (`table/mod.rs`). So a step back by
//! more than a window is made up for by whole windows: a table's time has the wall clock's phase, and is at most one
//! window, and a sixteenth, behind the latest time that it has shown. All waits are spans, and the same by both. A key
//! that was charged before the step stays in its window, which is then the next one at most.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::values::time::Timestamp;

/// How far a table's time is ahead of the wall clock.
///
/// # Concurrency
///
/// `skew` only grows. A wall-clock reading belongs to the skew that is found before and after it, if these are equal:
/// otherwise a reading from before a step back would be moved by the skew from after it, to far ahead. A step back is
/// certain: the latest time is loaded *before* the clock is read, so the clock has shown more than it shows. If two
/// threads see the same step, one exchanges the skew, and the other starts over. (Not exchanged for loom's atomics:
/// models have clocks that are never set back.)
#[derive(Debug, Default)]
pub(super) struct WallTime {
    /// The table's latest time, up to a sixteenth of a window late, so that it is seldom written.
    latest: AtomicU64,
    /// A multiple of the period.
    skew: AtomicU64,
}

impl WallTime {
    /// Reads the clock, for windows with this period.
    #[inline(always)]
    pub(super) fn read(&self, period: u64, wall: impl Fn() -> Timestamp) -> Timestamp {
        let skew = self.skew.load(Ordering::SeqCst);
        let now = nanos(wall()).saturating_add(skew);
        let latest = self.latest.load(Ordering::SeqCst);
        // One comparison covers two cases: ahead by a sixteenth of a window, or behind by a window.
        let is_near = now.wrapping_sub(latest).wrapping_add(period) < period.saturating_add(period >> 4);
        if is_near && self.skew.load(Ordering::SeqCst) == skew {
            return Timestamp::from_nanos(now);
        }
        self.read_far(period, &wall)
    }

    #[cold]
    #[inline(never)]
    fn read_far(&self, period: u64, wall: &impl Fn() -> Timestamp) -> Timestamp {
        loop {
            let skew = self.skew.load(Ordering::SeqCst);
            let latest = self.latest.load(Ordering::SeqCst);
            let now = nanos(wall()).saturating_add(skew);
            if self.skew.load(Ordering::SeqCst) != skew {
                continue;
            }
            let behind = latest.saturating_sub(now);
            if behind <= period {
                self.latest.fetch_max(now, Ordering::SeqCst);
                return Timestamp::from_nanos(now);
            }
            let windows = behind / period;
            // If it fails, another thread has made up for the step.
            let _ = self.skew.compare_exchange(skew, skew + windows * period, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// Returns the table's time at a wall-clock time.
    #[inline]
    pub(super) fn at(&self, wall: Timestamp) -> Timestamp {
        Timestamp::from_nanos(nanos(wall).saturating_add(self.skew()))
    }

    /// Returns how far the table's time is ahead, a multiple of the period.
    #[inline]
    pub(super) fn skew(&self) -> u64 {
        self.skew.load(Ordering::SeqCst)
    }
}

/// A wall-clock reading. A reading that is 292 years ahead by mistake leaves room for the skew when the clock is set
/// back.
#[inline(always)]
fn nanos(wall: Timestamp) -> u64 {
    wall.as_nanos().min(u64::MAX / 2)
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    const PERIOD: u64 = 1_600;

    #[test]
    fn a_step_back_moves_by_whole_windows() {
        let time = WallTime::default();
        let read = |wall| time.read(PERIOD, || Timestamp::from_nanos(wall)).as_nanos();
        // Forward by any step, and back by less than a window.
        assert_eq!([0, 10, 5 * PERIOD, 4 * PERIOD + 1].map(read), [0, 10, 5 * PERIOD, 4 * PERIOD + 1]);
        // Back by more, and forward from there.
        assert_eq!(read(PERIOD + 7), 4 * PERIOD + 7);
        assert_eq!(read(2 * PERIOD), 5 * PERIOD);
        assert_eq!(read(3 * PERIOD), 6 * PERIOD);
        assert_eq!(time.skew(), 3 * PERIOD);
        assert_eq!(time.at(Timestamp::from_nanos(3 * PERIOD)), Timestamp::from_nanos(6 * PERIOD));
        assert_eq!(read(0), 6 * PERIOD, "by whole windows, to less than one behind");
    }

    /// The clock is set to and fro while threads read it. No reading is further ahead of the wall clock than all its
    /// steps back together.
    #[test]
    fn threads_agree_on_each_step() {
        const STEP: u64 = 100 * PERIOD;
        const STEPS: u64 = 2_000;
        let (time, wall, is_over) = (WallTime::default(), AtomicU64::new(STEP), AtomicBool::new(false));
        let clock = || Timestamp::from_nanos(wall.load(Ordering::SeqCst));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::SeqCst) {
                        let read = time.read(PERIOD, clock).as_nanos();
                        assert!(read <= STEP * (STEPS + 2), "{read}");
                    }
                });
            }
            for _ in 0..STEPS {
                wall.fetch_sub(STEP, Ordering::SeqCst);
                let _ = time.read(PERIOD, clock);
                wall.fetch_add(STEP, Ordering::SeqCst);
                let _ = time.read(PERIOD, clock);
            }
            is_over.store(true, Ordering::SeqCst);
        });
        assert_eq!(time.skew() % PERIOD, 0);
        assert!(time.skew() <= STEP * STEPS, "each step is made up for once");
    }
}
