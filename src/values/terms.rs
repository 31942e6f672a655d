//! The terms that a limiter advertises to its clients.

use crate::values::Quota;

/// The quota that a limiter enforces, and how it is restored over time: the limit as clients learn it in advance.
///
/// ```
/// use tower_sluice::limiter::{Shape, Terms};
/// use tower_sluice::Quota;
///
/// let terms = Terms::fixed_window(Quota::per_hour(5_000));
/// assert_eq!(terms.quota().map(|quota| quota.limit()), Some(5_000));
/// assert_eq!(terms.shape(), Some(Shape::FixedWindow));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Terms {
    limit: u64,
    /// `None` for units in flight, which no time restores.
    restored: Option<(Quota, Shape)>,
    /// The bounds of a queue.
    line: Option<Line>,
}

/// How many requests per key may wait in a queue, and how long, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line {
    room: u64,
    max_wait: u64,
}

/// How consumed quota is restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shape {
    /// Steadily, one unit per `period / limit`, up to the burst.
    Bucket,
    /// All at once, when a window of one period ends.
    FixedWindow,
    /// All at once, when a calendar window ends. Windows differ in length.
    CalendarWindow,
    /// Gradually, within one or two periods.
    SlidingWindow,
}

impl Terms {
    /// The terms for a bucket that holds the quota's [burst](Quota::max_burst).
    pub const fn bucket(quota: Quota) -> Self {
        Self::restored_over_time(quota, Shape::Bucket)
    }

    /// The terms for a window that resets after each period.
    pub const fn fixed_window(quota: Quota) -> Self {
        Self::restored_over_time(quota, Shape::FixedWindow)
    }

    /// The terms for a calendar window. The quota's period is not advertised, because the windows differ in length.
    pub const fn calendar_window(quota: Quota) -> Self {
        Self::restored_over_time(quota, Shape::CalendarWindow)
    }

    /// The terms for a window that slides with time. They promise the average rate, and no burst, and so suit any other
    /// limiter.
    ///
    /// A limiter sets its terms with [`Description::advertising`](crate::limiter::Description::advertising), an
    /// algorithm with [`Algorithm::terms`](crate::algorithm::Algorithm::terms).
    pub const fn sliding_window(quota: Quota) -> Self {
        Self::restored_over_time(quota, Shape::SlidingWindow)
    }

    /// The terms for a limit on units in flight.
    pub const fn concurrency(limit: u64) -> Self {
        Self { limit, restored: None, line: None }
    }

    const fn restored_over_time(quota: Quota, shape: Shape) -> Self {
        // Time does not restore a suspended quota.
        let restored = if quota.is_suspended() { None } else { Some((quota, shape)) };
        Self { limit: quota.limit(), restored, line: None }
    }

    /// The terms for a queue in which up to `room` requests per key wait, each for at most `max_wait` nanoseconds: a
    /// bucket whose burst is the number of requests that may depart or wait at once.
    pub(crate) fn queue(quota: Quota, room: u64, max_wait: u64) -> Self {
        let line = Line { room, max_wait };
        Self { line: Some(line), ..Self::restored_over_time(line.advertised(quota), Shape::Bucket) }
    }

    /// The terms for a limiter with this shape and another quota.
    pub(crate) fn under(self, quota: Quota) -> Self {
        if let Some(line) = self.line.filter(|_| !quota.is_suspended()) {
            let terms = Self::restored_over_time(line.advertised(quota), Shape::Bucket);
            return Self { line: Some(line), ..terms };
        }
        match self.restored {
            Some((_, shape)) => Self::restored_over_time(quota, shape),
            None => Self::concurrency(quota.limit()),
        }
    }

    /// The units per quota period, or in flight at once.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// The quota; `None` for a limit on units in flight, which no time restores.
    #[must_use]
    pub const fn quota(&self) -> Option<Quota> {
        match self.restored {
            Some((quota, _)) => Some(quota),
            None => None,
        }
    }

    /// How consumed quota is restored; `None` for a limit on units in flight, which come back when their requests end.
    #[must_use]
    pub const fn shape(&self) -> Option<Shape> {
        match self.restored {
            Some((_, shape)) => Some(shape),
            None => None,
        }
    }
}

impl Line {
    /// Returns a queue's quota with the burst that its clients see: the requests that depart at once, and those that
    /// find room and depart in time.
    fn advertised(self, quota: Quota) -> Quota {
        let burst = quota.explicit_burst_or(1);
        let in_time = u128::from(self.max_wait) * u128::from(quota.limit()) / u128::from(quota.period_nanos());
        let waiting = u64::try_from(in_time).map_or(self.room, |in_time| in_time.min(self.room));
        quota.burst(burst.saturating_add(waiting).min(Quota::MAX_UNITS))
    }
}
