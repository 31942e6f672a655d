//! Admitted and rejected requests over time, in bounded memory.

use std::ops::Range;

const SECOND: u64 = 1_000_000_000;

/// A timeline has at most twice this number of bins.
const BINS: usize = 120;

/// Counts over time, in bins with one width. As time goes on, the bins become wider.
pub(crate) struct Timeline {
    /// The number of the first bin: its start, in widths since the epoch.
    first: u64,
    /// In seconds.
    width: u64,
    bins: Vec<Bin>,
    /// The bin that was used last: its index, and its range in nanoseconds. Most times are in the same bin as the one
    /// before, and divisions are slow.
    last: usize,
    span: Range<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bin {
    pub(crate) admitted: u64,
    pub(crate) rejected: u64,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { first: 0, width: 1, bins: Vec::new(), last: 0, span: 0..0 }
    }
}

impl Timeline {
    /// Returns the bin for a time, which must not be before the first call's.
    pub(crate) fn bin(&mut self, nanos: u64) -> &mut Bin {
        if !self.span.contains(&nanos) {
            self.seek(nanos / SECOND);
        }
        &mut self.bins[self.last]
    }

    fn seek(&mut self, second: u64) {
        if self.bins.is_empty() {
            self.first = second / self.width;
        }
        while (second / self.width).saturating_sub(self.first) >= 2 * BINS as u64 {
            self.widen();
        }
        let number = (second / self.width).max(self.first);
        self.last = usize::try_from(number - self.first).unwrap_or(0);
        if self.last >= self.bins.len() {
            self.bins.resize(self.last + 1, Bin::default());
        }
        let begin = |number: u64| number.saturating_mul(self.width).saturating_mul(SECOND);
        self.span = begin(number)..begin(number + 1);
    }

    fn widen(&mut self) {
        let is_odd = self.first % 2 == 1;
        let mut wide = Vec::with_capacity(self.bins.len() / 2 + 1);
        for (index, bin) in self.bins.iter().enumerate() {
            let index = (index + usize::from(is_odd)) / 2;
            if index >= wide.len() {
                wide.resize(index + 1, Bin::default());
            }
            wide[index].admitted += bin.admitted;
            wide[index].rejected += bin.rejected;
        }
        self.first /= 2;
        self.width *= 2;
        self.bins = wide;
    }

    /// Returns the width of a bin, in seconds.
    pub(crate) const fn width(&self) -> u64 {
        self.width
    }

    /// The start of the first bin, in seconds since the epoch.
    pub(crate) const fn start(&self) -> u64 {
        self.first * self.width
    }

    pub(crate) fn bins(&self) -> &[Bin] {
        &self.bins
    }

    /// Returns the counts on an axis that includes this timeline.
    pub(crate) fn bins_on(&self, axis: &Axis) -> Vec<Bin> {
        let mut bins = vec![Bin::default(); axis.bins];
        for (number, bin) in (self.first..).zip(&self.bins) {
            // Widths are powers of two, so each bin is within one bin on the axis.
            let index = (number * self.width / axis.width).saturating_sub(axis.first);
            if let Some(sum) = usize::try_from(index).ok().and_then(|index| bins.get_mut(index)) {
                sum.admitted += bin.admitted;
                sum.rejected += bin.rejected;
            }
        }
        bins
    }
}

/// The time axis that several policies' plots share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Axis {
    /// The number of the first bin.
    first: u64,
    /// In seconds.
    pub(crate) width: u64,
    bins: usize,
}

impl Axis {
    /// Returns an axis for all timelines, with at most the bins that each timeline may have.
    pub(crate) fn of<'a>(timelines: impl Iterator<Item = &'a Timeline> + Clone) -> Self {
        let used = timelines.filter(|timeline| !timeline.bins.is_empty());
        let mut width = used.clone().map(|timeline| timeline.width).max().unwrap_or(1);
        let start = used.clone().map(Timeline::start).min().unwrap_or(0);
        let last = used.map(|timeline| timeline.start() + timeline.width * (timeline.bins.len() as u64 - 1));
        let last = last.max().unwrap_or(0);
        while last / width - start / width >= 2 * BINS as u64 {
            width *= 2;
        }
        let first = start / width;
        Self { first, width, bins: usize::try_from(last / width - first + 1).unwrap_or(1) }
    }

    /// The start of the first bin, in seconds since the epoch.
    pub(crate) const fn start(&self) -> u64 {
        self.first * self.width
    }

    /// The end of the last bin, in seconds since the epoch.
    pub(crate) const fn end(&self) -> u64 {
        self.start() + self.width * self.bins as u64
    }
}

/// The minutes with the most rejections. Time only goes forward.
#[derive(Default)]
pub(crate) struct WorstMinutes {
    current: Minute,
    worst: Vec<Minute>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Minute {
    /// In minutes since the epoch.
    pub(crate) minute: u64,
    pub(crate) rejected: u64,
}

impl WorstMinutes {
    pub(crate) fn note(&mut self, nanos: u64) {
        let minute = nanos / 60_000_000_000;
        if minute != self.current.minute {
            self.worst = self.worst();
            self.current = Minute { minute, rejected: 0 };
        }
        self.current.rejected += 1;
    }

    /// Returns the worst minutes first. Ties: the earlier one first.
    pub(crate) fn worst(&self) -> Vec<Minute> {
        let mut worst = self.worst.clone();
        if self.current.rejected > 0 {
            worst.push(self.current);
        }
        worst.sort_by_key(|minute| (std::cmp::Reverse(minute.rejected), minute.minute));
        worst.truncate(5);
        worst
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wider_bins_lose_no_request() {
        let mut timeline = Timeline::default();
        for second in 0..100_000 {
            timeline.bin((1_001 + second) * SECOND).admitted += 1;
        }
        assert_eq!(timeline.bins().iter().map(|bin| bin.admitted).sum::<u64>(), 100_000);
        assert!(timeline.bins().len() <= 2 * BINS && timeline.bins().len() >= BINS - 1);
        let whole = &timeline.bins()[1..timeline.bins().len() - 1];
        assert!(whole.iter().all(|bin| bin.admitted == timeline.width()));
    }

    #[test]
    fn a_time_far_away_needs_no_memory() {
        let mut timeline = Timeline::default();
        timeline.bin(0).admitted += 1;
        timeline.bin(u64::MAX).rejected += 1;
        assert!(timeline.bins().len() <= 2 * BINS);
    }

    #[test]
    fn an_axis_keeps_counts_and_times() {
        let [mut early, mut late, mut long] = std::array::from_fn(|_| Timeline::default());
        for second in 0..10 {
            early.bin((1_000 + second) * SECOND).admitted += 1;
            late.bin((9_000 + second) * SECOND).rejected += 1;
        }
        for second in 0..5_000 {
            long.bin((1_001 + second) * SECOND).admitted += 1;
        }
        let timelines = [&early, &late, &long, &Timeline::default()];
        let axis = Axis::of(timelines.into_iter());
        assert!(axis.start() <= 1_000 && axis.end() > 9_009 && axis.bins <= 2 * BINS, "{axis:?}");
        for (timeline, first, admitted, rejected) in
            [(&early, 1_000, 10, 0), (&late, 9_000, 0, 10), (&long, 1_001, 5_000, 0)]
        {
            let bins = timeline.bins_on(&axis);
            assert_eq!(bins.len(), axis.bins);
            assert_eq!(bins.iter().map(|bin| bin.admitted).sum::<u64>(), admitted);
            assert_eq!(bins.iter().map(|bin| bin.rejected).sum::<u64>(), rejected);
            let index = bins.iter().position(|bin| *bin != Bin::default()).unwrap();
            assert_eq!(axis.start() / axis.width + index as u64, first / axis.width);
        }
    }

    #[test]
    fn the_worst_minutes_are_kept() {
        let mut minutes = WorstMinutes::default();
        for minute in 0..100 {
            for _ in 0..(minute * 7) % 100 {
                minutes.note(minute * 60 * SECOND);
            }
        }
        let worst: Vec<_> = minutes.worst().iter().map(|minute| minute.rejected).collect();
        assert_eq!(worst, [99, 98, 97, 96, 95]);
    }
}
