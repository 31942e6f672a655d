//! [`Search`]: finds the limit, by [`Doubling`] while nothing is known, and then by a [`LimitSearch`] about it.

use std::ops::RangeInclusive;

use super::cohort::Followed;
use super::doubling::Doubling;
use super::limit_search::LimitSearch;

/// All times in nanoseconds.
#[derive(Debug)]
pub(super) struct Search {
    bounds: RangeInclusive<u64>,
    /// While it goes on, it has the limit.
    doubling: Option<Doubling>,
    exact: LimitSearch,
    /// Whether a limit was found. Before, a queue is no sign of overload.
    is_known: bool,
    /// How often the exact search has raised the limit, one time after the other.
    rises: u32,
    /// The requests that have filled the limit since it changed last, and when the first of them came.
    full: u64,
    full_since: u64,
    /// The number of the next cohort.
    next: u64,
    /// How long a request takes under this limit.
    time: u64,
}

/// After so many rises in a row, the limit is far away.
const FAR: u32 = 2;

/// If the limit is full, and the exact search has found nothing for so long, the times of requests may tell more.
const IDLE: u64 = 20_000_000_000;

/// How many requests must have filled the limit in that time.
const OFTEN: u64 = 64;

impl Search {
    pub(super) fn new(bounds: RangeInclusive<u64>, start: u64) -> Self {
        let mut search = Self {
            exact: LimitSearch::new(bounds.clone(), start),
            bounds,
            doubling: None,
            is_known: false,
            rises: 0,
            full: 0,
            full_since: 0,
            next: 1,
            time: 0,
        };
        search.begin(false);
        search
    }

    /// Compares the present limit with its half, or its double with it.
    fn begin(&mut self, is_upwards: bool) {
        (self.rises, self.full) = (0, 0);
        if self.bounds.start() == self.bounds.end() {
            self.is_known = true;
            return;
        }
        let base = self.exact.base();
        // That the present limit costs no throughput was found by more requests than are compared now.
        let (high, free) = if is_upwards { (base.saturating_mul(2).min(*self.bounds.end()), base) } else { (base, 0) };
        self.doubling = Some(Doubling::new(self.bounds.clone(), high, free, self.next));
    }

    pub(super) fn set_bounds(&mut self, bounds: RangeInclusive<u64>) {
        if let Some(doubling) = self.doubling.take() {
            self.next = doubling.number() + 1;
            self.exact = LimitSearch::new(self.bounds.clone(), doubling.limit());
        }
        self.exact.set_bounds(bounds.clone());
        self.bounds = bounds;
        if !self.is_known {
            self.begin(false);
        }
    }

    pub(super) fn limit(&self) -> u64 {
        self.doubling.as_ref().map_or_else(|| self.exact.limit(), Doubling::limit)
    }

    /// Whether each end of a request must be [counted](Self::count).
    pub(super) const fn is_counting(&self) -> bool {
        self.doubling.is_none() && self.exact.is_counting()
    }

    pub(super) const fn is_known(&self) -> bool {
        self.is_known
    }

    /// How long a request takes, if that was measured.
    pub(super) const fn time_of_one(&self) -> u64 {
        self.time
    }

    /// The time in which `units` end, if that was measured lately.
    pub(super) fn time_of(&self, units: u64) -> Option<u64> {
        self.exact.time_of(units)
    }

    /// A request was admitted, and has filled the limit. Returns whether it is followed.
    pub(super) fn follow(&mut self, now: u64) -> Option<Followed> {
        if self.full == 0 {
            self.full_since = now;
        }
        self.full += 1;
        self.doubling.as_mut()?.follow(now)
    }

    /// A request was withdrawn before it began.
    pub(super) fn forget(&mut self, followed: Followed) {
        if let Some(doubling) = &mut self.doubling {
            doubling.forget(followed);
        }
    }

    /// Counts a request that is over. `is_binding`: others waited for its units.
    pub(super) fn count(
        &mut self,
        now: u64,
        (units, followed): (u64, Option<Followed>),
        is_served: bool,
        is_binding: bool,
    ) {
        let Some(doubling) = &mut self.doubling else { return self.count_exactly(now, units, is_served, is_binding) };
        let Some(followed) = followed else { return };
        let found = doubling.end(now, followed, is_served);
        self.time = doubling.time().unwrap_or(self.time);
        if let Some(limit) = found {
            self.next = doubling.number() + 1;
            // If the double is no better, the exact search goes on where it was.
            let base = self.exact.base();
            if !(self.is_known && (base..=base + base / 4).contains(&limit)) {
                self.exact = LimitSearch::new(self.bounds.clone(), limit);
            }
            (self.doubling, self.is_known, self.full) = (None, true, 0);
        }
    }

    fn count_exactly(&mut self, now: u64, units: u64, is_served: bool, is_binding: bool) {
        let before = self.exact.base();
        self.exact.count(now, units, is_served, is_binding);
        let after = self.exact.base();
        if after != before {
            self.rises = if after > before { self.rises + 1 } else { 0 };
            self.full = 0;
        }
        let is_idle = self.full >= OFTEN && now.saturating_sub(self.full_since) > IDLE;
        if self.rises >= FAR || is_idle {
            self.begin(true);
        }
    }
}
