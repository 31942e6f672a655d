//! [`ControlledDelay`]: whether the requests of a class have waited for too long for too long.
//!
//! Controlled delay (RFC 8289) on the waits in our own queue, in the form that Facebook's servers use (Maurer, "Fail at
//! Scale", ACM Queue 2015): a burst may wait, a queue that does not drain may not. A class is overloaded once there
//! was a request that had waited for longer than the target **at every instant** of an interval. While it is, the
//! newest is served first.
//!
//! Those that are left behind may still have their turn when the burst is over, so they go on waiting. They are shed
//! once that is unlikely: the class has been overloaded for the longest wait, and more requests come than are served.
//! From then on, all that have waited for twice the target are shed, and their clients need not wait for an answer.
//!
//! RFC 8289 looks at the waits of those that are served. With shares, these say nothing: a request
//! of a light key hardly waits although hundreds do. So this looks at the oldest request that waits.

/// All times in nanoseconds.
#[derive(Debug)]
pub(super) struct ControlledDelay {
    target: u64,
    longest_wait: u64,
    /// Since when, or from when on, some request has waited for longer than the target.
    above_since: Option<u64>,
    flow: Flow,
}

/// Whether more requests come than are served, in a quarter of the longest wait.
#[derive(Debug, Default)]
struct Flow {
    since: u64,
    joined: u64,
    served: u64,
    is_growing: bool,
}

/// For how long a queue may be too long: RFC 8289, 4.2.
pub(super) const INTERVAL: u64 = 100_000_000;

impl ControlledDelay {
    pub(super) fn new(target: u64, longest_wait: u64) -> Self {
        Self { target, longest_wait, above_since: None, flow: Flow::default() }
    }

    pub(super) const fn set_target(&mut self, target: u64) {
        self.target = target;
    }

    pub(super) const fn set_longest_wait(&mut self, longest_wait: u64) {
        self.longest_wait = longest_wait;
    }

    /// A request begins to wait.
    pub(super) const fn join(&mut self) {
        self.flow.joined += 1;
    }

    /// A request leaves on its own. If it has not waited for too long by then, the queue is no longer for it.
    pub(super) const fn withdraw(&mut self, now: u64, arrived: u64) {
        if now < arrived.saturating_add(self.target) {
            self.flow.joined = self.flow.joined.saturating_sub(1);
        }
    }

    /// A request that has waited is served.
    pub(super) const fn serve(&mut self) {
        self.flow.served += 1;
    }

    /// To be called after each change of the queue, with the arrival of its oldest request.
    pub(super) fn observe(&mut self, now: u64, oldest: Option<u64>) {
        self.above_since = match (oldest, self.above_since) {
            (None, _) => None,
            // The older ones have left, and this one has not waited for too long yet: the interval begins anew.
            (Some(arrived), _) if arrived.saturating_add(self.target) > now => {
                Some(arrived.saturating_add(self.target))
            }
            (Some(arrived), None) => Some(arrived.saturating_add(self.target)),
            (Some(_), since) => since,
        };
        let flow = &mut self.flow;
        if now.saturating_sub(flow.since) >= (self.longest_wait / 4).max(INTERVAL) {
            *flow = Flow { since: now, joined: 0, served: 0, is_growing: flow.joined > flow.served };
        }
    }

    /// Whether the class is overloaded.
    pub(super) const fn is_overloaded(&self, now: u64) -> bool {
        self.is_above_for(now, INTERVAL)
    }

    const fn is_above_for(&self, now: u64, time: u64) -> bool {
        match self.above_since {
            Some(since) => now >= since.saturating_add(time),
            None => false,
        }
    }

    /// The arrival before which requests are shed, if any are.
    pub(super) fn shed_before(&self, now: u64) -> Option<u64> {
        let is_lasting = self.is_above_for(now, self.longest_wait.max(INTERVAL));
        (is_lasting && self.flow.is_growing).then(|| now.saturating_sub(self.target.saturating_mul(2)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: u64 = 20;
    const LONGEST: u64 = 4 * INTERVAL;

    #[test]
    fn a_burst_that_drains_is_no_overload() {
        let mut delay = ControlledDelay::new(TARGET, LONGEST);
        for start in (0..10).map(|burst| burst * INTERVAL) {
            delay.observe(start, Some(start));
            assert!(!delay.is_overloaded(start + INTERVAL - 1));
            delay.observe(start + INTERVAL - 1, None);
        }
    }

    #[test]
    fn a_queue_that_is_too_long_at_every_instant_of_an_interval_is() {
        let mut delay = ControlledDelay::new(TARGET, LONGEST);
        delay.observe(0, Some(0));
        let since = TARGET + INTERVAL;
        assert!(!delay.is_overloaded(since - 1) && delay.is_overloaded(since));
        // The oldest leaves, and the next one has waited for too long as well.
        delay.observe(since, Some(since - TARGET));
        assert!(delay.is_overloaded(since));
        // The next one has not: it was too long, but not at every instant.
        delay.observe(since, Some(since - TARGET + 1));
        assert!(!delay.is_overloaded(since + INTERVAL) && delay.is_overloaded(since + 1 + INTERVAL));
    }

    #[test]
    fn requests_are_shed_if_more_come_than_are_served_for_the_longest_wait() {
        for (served, sheds) in [(1, true), (2, false)] {
            let mut delay = ControlledDelay::new(TARGET, LONGEST);
            let mut now = 0;
            while now < TARGET + LONGEST {
                assert_eq!(delay.shed_before(now), None);
                (0..2).for_each(|_| delay.join());
                (0..served).for_each(|_| delay.serve());
                delay.observe(now, Some(0));
                now += INTERVAL / 100;
            }
            delay.observe(now, Some(0));
            assert_eq!(delay.shed_before(now), sheds.then_some(now - 2 * TARGET), "{served}");
        }
    }
}
