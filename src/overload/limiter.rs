//! [`Overload`], the limiter.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::limiter::{IntoLimiter, Limiter};
use crate::store::{OverloadStats, Stats};
use crate::values::{Answer, Ask, Backlog, Decision, Description, LimiterError, Mode, Receipt};

/// Protects a server from overload.
#[must_use]
#[derive(Debug)]
pub struct Overload {
    limits: RangeInclusive<u64>,
    start: u64,
    queue_target: Duration,
    max_wait: Duration,
    max_queue: usize,
    in_flight: AtomicU64,
}

impl Overload {
    /// Creates a limiter whose limit is between 4 and 1,024 units, and begins at 20.
    pub const fn new() -> Self {
        Self {
            limits: 4..=1_024,
            start: 20,
            queue_target: Duration::from_millis(5),
            max_wait: Duration::from_millis(500),
            max_queue: 1_024,
            in_flight: AtomicU64::new(0),
        }
    }

    /// Sets the bounds of the limit.
    #[track_caller]
    pub fn limits(self, limits: RangeInclusive<u64>) -> Self {
        assert!(*limits.start() > 0 && !limits.is_empty(), "bounds");
        Self { limits, ..self }
    }

    /// Sets the limit at first.
    pub fn starting_at(self, limit: u64) -> Self {
        Self { start: limit, ..self }
    }

    /// Sets the wait of requests from which on the server counts as overloaded.
    pub fn queue_target(self, target: Duration) -> Self {
        Self { queue_target: target, ..self }
    }

    /// Sets the longest wait of a request.
    pub fn max_wait(self, max_wait: Duration) -> Self {
        Self { max_wait, ..self }
    }

    /// Sets how many requests wait at most.
    pub fn max_queue(self, waiters: usize) -> Self {
        Self { max_queue: waiters, ..self }
    }
}

impl Default for Overload {
    fn default() -> Self {
        Self::new()
    }
}

impl Limiter for Overload {
    fn decide(&self, ask: &Ask<'_>) -> Answer {
        match ask.mode() {
            Mode::Peek | Mode::Charge | Mode::Shadow => {}
            mode => return LimiterError::unsupported(mode).into(),
        }
        let before = self.in_flight.load(Ordering::Relaxed);
        if before + ask.cost() > self.start {
            return Decision::reject_until_released(self.start, 0).into();
        }
        if ask.mode() != Mode::Peek {
            self.in_flight.fetch_add(ask.cost(), Ordering::Relaxed);
        }
        Decision::allow(self.start, 0).with_receipt(Receipt::new(1)).into()
    }

    fn refund(&self, _: &Ask<'_>, _: Receipt, units: u64) {
        self.in_flight.fetch_sub(units, Ordering::Relaxed);
    }

    fn describe(&self) -> Description {
        Description::new().holding().delaying().shedding().answering(Mode::Peek).answering(Mode::Shadow)
    }

    fn stats(&self) -> Stats {
        Stats {
            in_flight: Some(self.in_flight.load(Ordering::Relaxed)),
            backlog: Some(Backlog::new(0, None)),
            overload: Some(OverloadStats { limit: self.start, ..OverloadStats::default() }),
            ..Stats::default()
        }
    }
}

impl IntoLimiter for Overload {
    fn into_limiter(self) -> Arc<dyn Limiter> {
        Arc::new(self)
    }
}
