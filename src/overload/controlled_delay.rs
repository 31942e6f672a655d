//! [`ControlledDelay`]: whether a class's requests have waited for too long for too long.
//!
//! Controlled delay (RFC 8289) on the waits in our own queue, in the form that Facebook's servers use (Maurer, "Fail at
//! Scale", ACM Queue 2015): a burst may wait, a queue that does not drain may not. A class is overloaded once there was
//! a request that had waited for longer than the target **at every instant** in an interval. While it is, the newest is
//! served first.
//!
//! Requests that are left behind may still have their turn when the burst is over, so they go on waiting. When hardly
//! any more come, the oldest is served first, because the newest can wait for longest. Requests are shed once a turn is
//! unlikely: the class has been overloaded for the longest wait, and more requests come than are served. From then on,
//! all that have waited for twice the target are shed, and their clients need not wait for an answer.
//!
//! A load may come and go in periods of seconds. If the queue was empty not long ago, the requests that the server can
//! serve in the longest wait go on waiting: they are its work for the next pause.
//!
//! RFC 8289 looks at the waits before requests are served. With shares, these say nothing, because a light key's
//! request hardly waits although hundreds do. So we look at the oldest request that waits.

/// All times in nanoseconds.
#[derive(Debug)]
pub(super) struct ControlledDelay {
    target: u64,
    longest_wait: u64,
    /// Since when, or from when on, some request has waited for longer than the target.
    above_since: Option<u64>,
    /// When the queue was last empty.
    empty_at: u64,
    flow: Flow,
}

/// Whether more requests come than are served, in a quarter of the longest wait.
#[derive(Debug, Default)]
struct Flow {
    since: u64,
    joined: u64,
    served: u64,
    is_growing: bool,
    /// How many were served in the time before.
    served_before: u64,
    /// Grows by two with each request that joins, and falls by one with each that is served; between zero and
    /// [`PRESSED`].
    pressure: u64,
}

/// The greatest pressure. A queue drains once this number of requests was served, and no request has joined meanwhile.
const PRESSED: u64 = 16;

/// For how long a queue may be too long: RFC 8289, 4.2.
pub(super) const INTERVAL: u64 = 100_000_000;

impl ControlledDelay {
    pub(super) fn new(target: u64, longest_wait: u64) -> Self {
        Self { target, longest_wait, above_since: None, empty_at: 0, flow: Flow::default() }
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
        self.flow.pressure = if self.flow.pressure + 2 < PRESSED { self.flow.pressure + 2 } else { PRESSED };
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
        self.flow.pressure = self.flow.pressure.saturating_sub(1);
    }

    /// Call this after each change to the queue, with its oldest request's arrival.
    pub(super) fn observe(&mut self, now: u64, oldest: Option<u64>) {
        self.above_since = match (oldest, self.above_since) {
            (None, _) => None,
            // The older ones have left, and this one has not waited for too long yet: the interval starts over.
            (Some(arrived), _) if arrived.saturating_add(self.target) > now => {
                Some(arrived.saturating_add(self.target))
            }
            (Some(arrived), None) => Some(arrived.saturating_add(self.target)),
            (Some(_), since) => since,
        };
        if oldest.is_none() {
            self.empty_at = now;
        }
        let flow = &mut self.flow;
        if now.saturating_sub(flow.since) >= (self.longest_wait / 4).max(INTERVAL) {
            *flow = Flow {
                since: now,
                joined: 0,
                served: 0,
                is_growing: flow.joined > flow.served,
                served_before: flow.served,
                ..*flow
            };
        }
    }

    /// Whether hardly any requests join, while others are served: the burst is over, and those that have waited for
    /// longest have their turn.
    pub(super) fn is_draining(&self, now: u64) -> bool {
        self.flow.pressure == 0 && self.comes_and_goes(now)
    }

    /// Whether the load comes and goes: the queue was empty not long ago.
    fn comes_and_goes(&self, now: u64) -> bool {
        now.saturating_sub(self.empty_at) < self.longest_wait.saturating_mul(RECENT)
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

    /// How many requests in the class are served in the longest wait, by its last quarter.
    pub(super) const fn served_in_longest_wait(&self) -> u64 {
        4 * self.flow.served_before
    }

    /// The arrival before which requests are shed, if any are. `is_hopeful`: all waiting requests would be served in
    /// the longest wait if no more came.
    pub(super) fn shed_before(&self, now: u64, is_hopeful: bool) -> Option<u64> {
        let is_lasting = self.is_above_for(now, self.longest_wait.max(INTERVAL));
        if !is_lasting || !self.flow.is_growing || is_hopeful && self.comes_and_goes(now) {
            return None;
        }
        Some(now.saturating_sub(self.target.saturating_mul(2)))
    }
}

/// If the queue was empty within this number of longest waits, the load comes and goes.
const RECENT: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: u64 = 20;
    const LONGEST: u64 = 4 * INTERVAL;

    #[test]
    fn a_draining_burst_is_no_overload() {
        let mut delay = ControlledDelay::new(TARGET, LONGEST);
        for start in (0..10).map(|burst| burst * INTERVAL) {
            delay.observe(start, Some(start));
            assert!(!delay.is_overloaded(start + INTERVAL - 1));
            delay.observe(start + INTERVAL - 1, None);
        }
    }

    /// It must be too long at every instant in an interval.
    #[test]
    fn a_lastingly_long_queue_is_overloaded() {
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

    /// More must come than are served, for the longest wait.
    #[test]
    fn lasting_growth_sheds_old_requests() {
        for (served, sheds) in [(1, true), (2, false)] {
            let mut delay = ControlledDelay::new(TARGET, LONGEST);
            let mut now = 0;
            while now < TARGET + LONGEST {
                assert_eq!(delay.shed_before(now, false), None);
                (0..2).for_each(|_| delay.join());
                (0..served).for_each(|_| delay.serve());
                delay.observe(now, Some(0));
                now += INTERVAL / 100;
            }
            delay.observe(now, Some(0));
            assert_eq!(delay.shed_before(now, false), sheds.then_some(now - 2 * TARGET), "{served}");
            // If the queue was empty lately, requests that can be served when no more come go on waiting.
            assert_eq!(delay.shed_before(now, true), None, "{served}");
            let later = now + RECENT * LONGEST;
            assert_eq!(delay.shed_before(later, true).is_some(), sheds, "{served}");
        }
    }

    #[test]
    fn a_queue_without_arrivals_drains() {
        let mut delay = ControlledDelay::new(TARGET, LONGEST);
        assert!(delay.is_draining(0), "none has come");
        (0..100).for_each(|_| delay.join());
        for served in 0..PRESSED {
            assert!(!delay.is_draining(0), "{served}");
            delay.serve();
        }
        assert!(delay.is_draining(0) && !delay.is_draining(RECENT * LONGEST), "the load has come and stays");
        // Arrivals equal departures.
        for _ in 0..100 {
            delay.join();
            delay.serve();
            assert!(!delay.is_draining(0));
        }
    }
}
