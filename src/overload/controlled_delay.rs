//! [`ControlledDelay`]: whether the requests of a class have waited for too long for too long.
//!
//! Controlled delay (RFC 8289) on the waits in our own queue, in the form that Facebook's servers use (Maurer, "Fail at
//! Scale", ACM Queue 2015): a burst may wait, a queue that does not drain may not. A class is overloaded once there
//! was a request that had waited for longer than the target **at every instant** of an interval. While it is, requests
//! that have waited for twice the target are shed, and the newest is served first.
//!
//! RFC 8289 looks at the waits of those that are served. With shares, these say nothing: a request
//! of a light key hardly waits although hundreds do. So this looks at the oldest request that waits.

/// All times in nanoseconds.
#[derive(Debug)]
pub(super) struct ControlledDelay {
    target: u64,
    /// Since when, or from when on, some request has waited for longer than the target.
    above_since: Option<u64>,
}

/// For how long a queue may be too long: RFC 8289, 4.2.
pub(super) const INTERVAL: u64 = 100_000_000;

impl ControlledDelay {
    pub(super) const fn new(target: u64) -> Self {
        Self { target, above_since: None }
    }

    pub(super) const fn set_target(&mut self, target: u64) {
        self.target = target;
    }

    /// To be called after each change of the queue, with the arrival of its oldest request.
    pub(super) const fn observe(&mut self, now: u64, oldest: Option<u64>) {
        self.above_since = match (oldest, self.above_since) {
            (None, _) => None,
            // The others before it have left, and this one is in time yet: whatever was before is over.
            (Some(arrived), _) if arrived.saturating_add(self.target) > now => {
                Some(arrived.saturating_add(self.target))
            }
            (Some(arrived), None) => Some(arrived.saturating_add(self.target)),
            (Some(_), since) => since,
        };
    }

    /// Whether the class is overloaded.
    pub(super) const fn is_overloaded(&self, now: u64) -> bool {
        match self.above_since {
            Some(since) => now >= since.saturating_add(INTERVAL),
            None => false,
        }
    }

    /// The arrival before which requests are shed, if any are.
    pub(super) const fn shed_before(&self, now: u64) -> Option<u64> {
        if self.is_overloaded(now) { Some(now.saturating_sub(self.target.saturating_mul(2))) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: u64 = 20;

    #[test]
    fn a_burst_that_drains_is_no_overload() {
        let mut delay = ControlledDelay::new(TARGET);
        for start in (0..10).map(|burst| burst * INTERVAL) {
            delay.observe(start, Some(start));
            assert!(!delay.is_overloaded(start + INTERVAL - 1));
            delay.observe(start + INTERVAL - 1, None);
        }
    }

    #[test]
    fn a_queue_that_is_too_long_at_every_instant_of_an_interval_is() {
        let mut delay = ControlledDelay::new(TARGET);
        delay.observe(0, Some(0));
        let since = TARGET + INTERVAL;
        assert!(!delay.is_overloaded(since - 1) && delay.is_overloaded(since));
        // The oldest leaves, and the next one has waited for too long as well.
        delay.observe(since, Some(since - TARGET));
        assert_eq!(delay.shed_before(since), Some(since - 2 * TARGET));
        // The next one has not: it was too long, but not at every instant.
        delay.observe(since, Some(since - TARGET + 1));
        assert_eq!(delay.shed_before(since + INTERVAL), None);
        assert!(delay.is_overloaded(since + 1 + INTERVAL));
    }
}
