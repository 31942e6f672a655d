//! How a log's disorder affects the figures.

use super::units::{count, percentage, span};
use crate::counts::LogCounts;

const MINUTE: u64 = 60_000_000_000;

/// Windows that a warning may advise, as `--window` reads them.
const WINDOWS: [(u64, &str); 5] = [
    (15 * MINUTE, "15m"),
    (60 * MINUTE, "1h"),
    (6 * 60 * MINUTE, "6h"),
    (24 * 60 * MINUTE, "1d"),
    (48 * 60 * MINUTE, "2d"),
];

impl LogCounts {
    /// Says why the figures may be wrong, and how to correct them.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let disorder = &self.disorder;
        let share = |lines| percentage(lines, self.requests);
        let window = span(self.window / 1_000);
        let late = disorder.late;
        if late.lines > 0 {
            let (count, share) = (count(late.lines, "line is", "lines are"), share(late.lines));
            let furthest = span(late.furthest / 1_000);
            let fits = WINDOWS.iter().find(|(window, _)| *window >= late.furthest && *window > self.window);
            let wider = fits.map_or_else(String::new, |(_, wider)| format!(", or repeat this with --window {wider}"));
            warnings.push(format!(
                "{count} older than one before by more than the window of {window}, by up to {furthest}: {share} of the \
                 requests. They count at the time of that line, so the figures below show more requests at once, and more \
                 rejections, than there were. Name the files that the log was put together from: each is read in the order \
                 of its times{wider}"
            ));
        }
        let ahead = disorder.ahead;
        if ahead.lines > 0 {
            let (count, share) = (count(ahead.lines, "line is", "lines are"), share(ahead.lines));
            let furthest = span(ahead.furthest / 1_000);
            warnings.push(format!(
                "{count} newer than most lines behind by more than the window of {window}, by up to {furthest}, as if a \
                 clock were wrong: {share} of the requests. They count at times between those of the lines around them. If \
                 their times are true, write a wider --window"
            ));
        }
        if let Some(shortest) = self.shortest_window {
            let shortest = span(shortest / 1_000);
            warnings.push(format!(
                "the window was {shortest} in places in place of {window}, since more requests than memory is set aside for \
                 came within it. Lines that were out of order by more count as late ones"
            ));
        }
        warnings
    }
}
