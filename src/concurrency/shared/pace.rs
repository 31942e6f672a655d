//! [`AskingPace`]: when the first waiter in a line asks the server.
//!
//! A process that releases units asks before all others, so that a line which never empties would keep all units in its
//! process. So once per [`YIELD_EVERY`], a line leaves the released units to others for their longest interval, in
//! which each line in another process asks.

use std::time::Duration;

use crate::util::random::random;
use tokio::time::Instant;

/// When a line asks next: at once if the last answer left enough units, and otherwise after an interval, which grows
/// while nothing changes.
///
/// It belongs to the line and not to its first waiter, so that waiters which come and leave again cause no calls.
#[derive(Debug)]
pub(super) struct AskingPace {
    /// A cost up to this may fit.
    left: u64,
    /// Greater costs are asked for at this time, since other processes may have released units.
    next: Instant,
    /// The longest time from that question to the one after it.
    interval: Duration,
    /// From this time on, the next release is left to others.
    yields_at: Instant,
    /// Until this time, the line asks only for units that this process releases meanwhile.
    yields_until: Instant,
}

/// Short compared to requests that are worth a limit on units in flight.
const FIRST: Duration = Duration::from_millis(10);

/// Units that another process releases are noticed after this time at the latest.
const LONGEST: Duration = Duration::from_millis(250);

/// Often enough for a waiter in another process to be served in its `max_wait`, and rarely enough: if no other process
/// waits, one unit is idle for a twentieth of the time.
const YIELD_EVERY: Duration = Duration::from_secs(5);

impl AskingPace {
    /// The pace for a line about which nothing is known: its first waiter asks at once.
    pub(super) fn unknown(now: Instant) -> Self {
        Self { left: u64::MAX, next: now, interval: FIRST, yields_at: now + YIELD_EVERY, yields_until: now }
    }

    /// The pace for a line whose first request was rejected, with `left` units free.
    pub(super) fn rejected(left: u64, now: Instant) -> Self {
        let mut pace = Self::unknown(now);
        pace.ask(now);
        pace.answered(left, now);
        pace
    }

    /// Whether a request with this cost asks now.
    pub(super) fn is_due(&self, cost: u64, now: Instant) -> bool {
        cost <= self.left || self.next <= now
    }

    /// Whether the first waiter should have asked for a second and for a call's time, and has not: its runtime is
    /// blocked, or does not poll it.
    pub(super) fn is_overdue(&self, call: Duration, now: Instant) -> bool {
        self.next + OVERDUE + call <= now
    }

    /// When any request may ask.
    pub(super) const fn next(&self) -> Instant {
        self.next
    }

    /// Notes that a request asks now. Before the answer, so that a request which is dropped meanwhile has asked, too.
    pub(super) fn ask(&mut self, now: Instant) {
        self.left = 0;
        self.next = (now + between_half_and(self.interval)).max(self.yields_until);
        self.interval = (self.interval * 2).min(LONGEST);
    }

    /// Notes that a request was rejected, with `left` units free.
    pub(super) fn answered(&mut self, left: u64, now: Instant) {
        self.left = if now < self.yields_until { 0 } else { left };
    }

    /// Notes that a request has its units, with `left` units still free. Units are being released, so the intervals
    /// start again.
    pub(super) fn served(&mut self, left: u64, now: Instant) {
        self.interval = FIRST;
        self.ask(now);
        self.answered(left, now);
    }

    /// Notes that units were released by this process: the next question is asked at once, unless it is left to others.
    pub(super) fn released(&mut self, now: Instant) {
        if now < self.yields_at {
            return self.hurry();
        }
        self.yields_until = now + LONGEST;
        self.yields_at = self.yields_until + YIELD_EVERY;
        self.left = 0;
        self.next = self.next.max(self.yields_until);
    }

    /// Lets the next question be asked at once: the limit has changed, or a call has failed.
    pub(super) const fn hurry(&mut self) {
        self.left = u64::MAX;
    }
}

/// A first waiter that is polled asks far more often than this.
pub(super) const OVERDUE: Duration = Duration::from_secs(1);

/// Draws a time from the upper half, so that processes which began together do not ask together.
fn between_half_and(interval: Duration) -> Duration {
    let half = u64::try_from(interval.as_nanos() / 2).expect("an eighth of a second at the most");
    Duration::from_nanos(half + random() % (half + 1))
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// A line that waits for other processes asks at most twelve times in its first second, and eight times in each
    /// further one.
    #[test]
    fn lines_ask_at_a_bounded_rate() {
        let start = Instant::now();
        let mut most = [0; 4];
        let mut least = [usize::MAX; 4];
        for _ in 0..1_000 {
            // With the call that was rejected before there was a line.
            let mut pace = AskingPace::rejected(0, start);
            let mut calls = [1, 0, 0, 0];
            while let Some(second) = calls.get_mut(usize::try_from((pace.next() - start).as_secs()).unwrap()) {
                let now = pace.next();
                *second += 1;
                assert!(!pace.is_due(1, now - ms(1)) && pace.is_due(1, now));
                pace.ask(now);
                pace.answered(0, now);
            }
            for second in 0..4 {
                most[second] = calls[second].max(most[second]);
                least[second] = calls[second].min(least[second]);
            }
        }
        println!("from {least:?} to {most:?}");
        assert!(most[0] <= 12 && most[1..].iter().all(|calls| *calls <= 8), "{most:?}");
        assert!(least.iter().all(|calls| *calls >= 4), "{least:?}");
    }

    #[test]
    fn units_left_decide_on_smaller_costs() {
        let now = Instant::now();
        let mut pace = AskingPace::rejected(2, now);
        assert!(pace.is_due(2, now) && !pace.is_due(3, now));
        pace.ask(now);
        // Dropped before the answer.
        assert!(!pace.is_due(1, now));
        pace.hurry();
        assert!(pace.is_due(u64::MAX, now));
        pace.served(1, now);
        assert!(pace.is_due(1, now) && !pace.is_due(2, now));
        assert!(!pace.is_overdue(ms(50), pace.next() + ms(1_049)) && pace.is_overdue(ms(50), pace.next() + ms(1_050)));
    }

    /// They grow to a quarter of a second.
    #[test]
    fn intervals_grow_until_a_request_is_served() {
        let now = Instant::now();
        let mut pace = AskingPace::rejected(0, now);
        for longest in [10, 20, 40, 80, 160, 250, 250] {
            let wait = pace.next() - now;
            assert!(ms(longest) / 2 <= wait && wait <= ms(longest), "{wait:?} of {longest}");
            pace.ask(now);
        }
        pace.served(0, now);
        assert!(pace.next() - now <= ms(10));
    }

    /// A line leaves one in five seconds.
    #[test]
    fn lines_leave_some_releases_to_others() {
        let start = Instant::now();
        let mut pace = AskingPace::rejected(0, start);
        let mut yielded = Vec::new();
        for now in (1..20_000).step_by(20).map(|passed| start + ms(passed)) {
            pace.released(now);
            if pace.is_due(1, now) {
                // Its answer says that others have left something, too.
                pace.ask(now);
                pace.served(1, now);
            } else {
                yielded.push(now);
                assert!(!pace.is_due(1, now + LONGEST - ms(1)) && pace.is_due(1, now + LONGEST));
                // The line asks at once for the units released next, and for others only at the end of the interval.
                pace.released(now + ms(1));
                assert!(pace.is_due(1, now + ms(1)));
                pace.ask(now + ms(1));
                pace.served(1, now + ms(2));
                assert!(!pace.is_due(1, now + LONGEST - ms(1)) && pace.is_due(1, now + LONGEST));
            }
        }
        assert_eq!(yielded.len(), 3);
        assert!(yielded.windows(2).all(|pair| pair[1] - pair[0] >= YIELD_EVERY));
    }
}
