//! [`LimitSearch`]: finds the limit beyond which throughput does not grow.
//!
//! While requests wait, the limit alternates between a *base* and the base plus a *step*, for a window each. Each pair
//! of windows tells whether **throughput** rose with the limit: by how much of the step's proportion. Up to the
//! server's capacity, throughput is in proportion to the limit; beyond, it stays. The pairs are added up until they are
//! evidence, by a test of twice the standard error: a rise moves the base up, no rise moves it down. A second step in
//! the same direction is twice as wide, and a step back half as wide.
//!
//! No response time is measured. So the search cannot learn an incident as the normal response time, it does not drain
//! the server to measure one, and a slow route or a fast health check counts as any other request does. Requests that
//! failed or were abandoned do not count as throughput, because a server that times out serves nothing, however many
//! requests it has.
//!
//! While nobody waits, the limit does not bind and nothing is learned: an idle hour changes nothing.
//!
//! Alternating windows are the perturbation of Kiefer and Wolfowitz ("Stochastic Estimation of the Maximum of a
//! Regression Function", 1952). The idea to compare only throughput comes from Netflix's and failsafe-go's issues on
//! learned baselines, which the guide's page links.

use std::ops::RangeInclusive;

/// The searched limit. All times in nanoseconds.
#[derive(Debug)]
pub(super) struct LimitSearch {
    bounds: RangeInclusive<u64>,
    base: u64,
    /// Whether the limit in force is the base plus the step.
    is_raised: bool,
    /// The step is the base divided by this.
    divisor: u64,
    window: Option<Window>,
    /// The throughput in a pair's first window.
    first: Option<u64>,
    evidence: Evidence,
    /// The last step's direction.
    last: Option<Direction>,
    /// The units that ended per 1,000 seconds in the last whole window, served or not.
    drain: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

/// The counts under one limit.
#[derive(Debug)]
struct Window {
    /// The units whose end is not counted yet: they were in flight under the limit before.
    skipped: u64,
    since: u64,
    /// How many units end in it. In multiples of the limit: requests that were admitted together end together, and a
    /// window that cuts such a group in two counts half of it.
    needed: u64,
    ended: u64,
    served: u64,
    /// The units that ended while nobody waited.
    unbound: u64,
}

/// The evidence for a greater limit, summed over the pairs since the last step.
#[derive(Debug, Default)]
struct Evidence {
    pairs: u32,
    sum: i64,
    /// The sum of the squares.
    squares: i128,
}

/// The widest step is half the base, the narrowest an eighth.
const DIVISORS: RangeInclusive<u64> = 2..=8;

/// A window's least length. In a shorter one, the scheduler decides how many requests end.
const SHORTEST: u64 = 50_000_000;

/// The least number of units that end in a window.
const FEWEST: u64 = 32;

/// After this many pairs without evidence, a step of another width is tried.
const MOST_PAIRS: u32 = 48;

/// One, in fractions.
const ONE: u64 = 1 << 20;

/// The number of nanoseconds to which throughput refers, so that one unit in an hour is not zero.
const THROUGHPUT_SPAN: u128 = 1_000_000_000_000;

impl LimitSearch {
    /// A search that begins at `start`, between the bounds.
    pub(super) fn new(bounds: RangeInclusive<u64>, start: u64) -> Self {
        let base = start.clamp(*bounds.start(), *bounds.end());
        Self {
            bounds,
            base,
            is_raised: false,
            divisor: *DIVISORS.start(),
            window: None,
            first: None,
            evidence: Evidence::default(),
            last: None,
            drain: None,
        }
    }

    /// Searches between other bounds from now on.
    pub(super) fn set_bounds(&mut self, bounds: RangeInclusive<u64>) {
        self.base = self.base.clamp(*bounds.start(), *bounds.end());
        self.bounds = bounds;
        self.pause();
        self.evidence = Evidence::default();
    }

    /// The limit in force.
    pub(super) fn limit(&self) -> u64 {
        if self.is_raised { self.raised() } else { self.base }
    }

    /// The lower of the two limits between which it alternates.
    pub(super) const fn base(&self) -> u64 {
        self.base
    }

    /// Moves the base up to the limit that was in force before.
    pub(super) fn go_back_up(&mut self, now: u64) {
        if !self.is_raised {
            self.go(Direction::Up);
            self.first = None;
            self.open(now, self.limit());
        }
    }

    fn step(&self) -> u64 {
        (self.base / self.divisor).max(1)
    }

    fn raised(&self) -> u64 {
        (self.base + self.step()).min(*self.bounds.end())
    }

    /// Whether a window is open.
    pub(super) const fn is_counting(&self) -> bool {
        self.window.is_some()
    }

    /// The time, in nanoseconds, in which `units` end, if that was measured lately.
    pub(super) fn time_of(&self, units: u64) -> Option<u64> {
        let drain = self.drain.filter(|drain| *drain > 0)?;
        u64::try_from((u128::from(units) * THROUGHPUT_SPAN).div_ceil(u128::from(drain))).ok()
    }

    /// Ends the window that is open: it would compare a time when the limit did not bind.
    pub(super) fn pause(&mut self) {
        (self.window, self.first, self.is_raised, self.drain) = (None, None, false, None);
    }

    /// Counts `units` of a request that has ended. `is_binding`: others waited for them.
    pub(super) fn count(&mut self, now: u64, units: u64, is_served: bool, is_binding: bool) {
        let Some(window) = &mut self.window else {
            if is_binding {
                self.open(now, self.limit());
            }
            return;
        };
        if !is_binding {
            window.unbound += units;
            if window.unbound > window.needed / 4 {
                self.pause();
                return;
            }
        }
        if window.skipped > 0 {
            window.skipped = window.skipped.saturating_sub(units);
            window.since = now;
            return;
        }
        window.ended += units;
        if is_served {
            window.served += units;
        }
        if window.ended < window.needed {
            return;
        }
        let took = now.saturating_sub(window.since);
        if took < SHORTEST {
            let limit = self.limit();
            if let Some(window) = &mut self.window {
                window.needed += limit;
            }
            return;
        }
        let throughput =
            |units: u64| u64::try_from(u128::from(units) * THROUGHPUT_SPAN / u128::from(took)).unwrap_or(u64::MAX);
        let served = throughput(window.served);
        self.drain = Some(throughput(window.ended));
        self.close(now, served);
    }

    fn open(&mut self, now: u64, in_flight: u64) {
        let limit = self.limit();
        self.window = Some(Window {
            skipped: in_flight,
            since: now,
            needed: limit * FEWEST.div_ceil(limit).max(2),
            ended: 0,
            served: 0,
            unbound: 0,
        });
    }

    /// Closes a window. After the second of a pair, this may be evidence for a step.
    fn close(&mut self, now: u64, served: u64) {
        let before = self.limit();
        if let Some(first) = self.first.take() {
            // Pairs alternate: the second window of one has the limit of the first window of the next.
            let (low, high) = if self.is_raised { (first, served) } else { (served, first) };
            self.weigh(low, high);
            // A step moves the base; the limit stays on the same side.
        } else {
            self.first = Some(served);
            self.is_raised = !self.is_raised;
        }
        self.open(now, before.max(self.limit()));
    }

    /// Adds a pair to the evidence.
    fn weigh(&mut self, low: u64, high: u64) {
        // Nothing was served under either limit, or there is no room for a greater one.
        let Some(rise) = relative_rise(low, high) else { return };
        let Some(proportional) = relative_rise(self.base, self.raised()).filter(|rise| *rise > 0) else {
            // At the upper bound, a lower base is compared with it from now on.
            self.base = (self.base - self.step()).max(*self.bounds.start());
            return;
        };
        // A limit below the capacity costs throughput, and one above only time in the server's own queue. So a quarter
        // of the proportional rise is enough for a greater limit.
        let enough = proportional / 4;
        self.evidence.add(rise - enough);
        match self.evidence.direction() {
            Some(direction) => self.go(direction),
            None if self.evidence.pairs >= MOST_PAIRS => {
                self.evidence = Evidence::default();
                let narrower = self.divisor * 2;
                self.divisor = if DIVISORS.contains(&narrower) { narrower } else { *DIVISORS.start() };
            }
            None => {}
        }
    }

    fn go(&mut self, direction: Direction) {
        self.base = match direction {
            Direction::Up => self.raised(),
            // Half the step: the base itself was not tested from below.
            Direction::Down => self.base.saturating_sub((self.step() / 2).max(1)).max(*self.bounds.start()),
        };
        self.divisor = match self.last {
            None => self.divisor,
            Some(last) if last == direction => (self.divisor / 2).max(*DIVISORS.start()),
            Some(_) => (self.divisor * 2).min(*DIVISORS.end()),
        };
        self.last = Some(direction);
        self.evidence = Evidence::default();
    }
}

/// The difference, divided by the sum: zero if both are equal, and a third of [`ONE`] from one to two. Returns `None`
/// if both are zero.
fn relative_rise(low: u64, high: u64) -> Option<i64> {
    let sum = u128::from(low) + u128::from(high);
    let part = |of: u64| (u128::from(of) * u128::from(ONE)).checked_div(sum).and_then(|part| i64::try_from(part).ok());
    Some(part(high)? - part(low)?)
}

impl Evidence {
    fn add(&mut self, difference: i64) {
        self.pairs += 1;
        self.sum += difference;
        self.squares += i128::from(difference) * i128::from(difference);
    }

    /// The direction, if the sum is at least twice the root of the sum of squares. With four pairs or more, since three
    /// that agree by chance are not rare.
    fn direction(&self) -> Option<Direction> {
        let sum = i128::from(self.sum);
        if self.pairs < 4 || sum * sum < 4 * self.squares {
            return None;
        }
        Some(if sum > 0 { Direction::Up } else { Direction::Down })
    }
}
