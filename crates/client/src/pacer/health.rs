//! The calls that a partner has accepted lately, and whether the next call is sent. Pure: instants are microseconds,
//! and the caller draws the random number.

use super::throttle::{AdaptiveThrottle, BUCKETS};

/// How many calls in a window may fail before we reject any here.
pub(super) const FREE_FAILURES: u64 = 10;

/// The longest time between calls that are sent in any case, in microseconds.
pub(super) const PROBE: u64 = 1_000_000;

/// The calls to a partner in the latest window, by when they were sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PartnerHealth {
    buckets: [Bucket; BUCKETS],
    /// When a call was last let go.
    admitted: u64,
    /// How many calls the partner has accepted since its last failure.
    streak: u32,
    /// When it accepted the first call in this streak.
    streak_began: u64,
    /// When a call was last rejected here. Not set if the partner is not throttled.
    throttled: Option<u64>,
}

/// The calls in a twelfth of the window.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// Which twelfth it is, since the clock began.
    number: u64,
    sent: u64,
    accepted: u64,
    failed: u64,
    throttled: u64,
}

/// When a call was sent: the number of its bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SentMark(u64);

/// The sums over a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WindowSums {
    /// The calls that the program wanted to make, without those that may still be answered.
    pub(super) wanted: u64,
    /// The calls that were sent.
    pub(super) sent: u64,
    pub(super) accepted: u64,
}

/// Whether a call is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Admission {
    pub(super) is_sent: bool,
    /// Whether throttling begins with this call, or has ended.
    pub(super) change: Option<ThrottleChange>,
    pub(super) sums: WindowSums,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ThrottleChange {
    Began,
    Ended,
}

impl PartnerHealth {
    /// Decides on a call. `draw` returns a uniformly distributed number with 64 bits.
    pub(super) fn admit(&mut self, now: u64, throttle: &AdaptiveThrottle, draw: impl FnOnce() -> u64) -> Admission {
        let sums = self.sums(now, throttle);
        let excess = sums.excess(throttle);
        // The clock may go back, so the next probe is counted from now at the latest.
        self.admitted = self.admitted.min(now);
        let interval = self.probe_interval(now);
        let is_sent = excess == 0 || now - self.admitted >= interval || !sums.is_hit(excess, throttle, draw());
        let was_throttled = self.throttled;
        if is_sent {
            self.admitted = now;
            // Throttling does not end at once, because a partner at the edge would alternate between the two.
            let is_over = self.throttled.is_some_and(|last| now.saturating_sub(last) > throttle.width || now < last);
            if is_over && excess == 0 {
                self.throttled = None;
            }
        } else {
            self.bucket(now, throttle).throttled += 1;
            self.throttled = Some(now);
        }
        let change = match (was_throttled, self.throttled) {
            (None, Some(_)) => Some(ThrottleChange::Began),
            (Some(_), None) => Some(ThrottleChange::Ended),
            _ => None,
        };
        Admission { is_sent, change, sums }
    }

    /// Counts a call, before it is sent.
    pub(super) fn send(&mut self, now: u64, throttle: &AdaptiveThrottle) -> SentMark {
        let bucket = self.bucket(now, throttle);
        bucket.sent += 1;
        SentMark(bucket.number)
    }

    /// Returns the time between calls that are sent in any case. It halves each second while the partner accepts, so
    /// that a recovering partner is not overrun. It halves at most once per call, because a second without calls shows
    /// nothing.
    fn probe_interval(&self, now: u64) -> u64 {
        let seconds = now.saturating_sub(self.streak_began) / PROBE;
        let halvings = u32::try_from(seconds).unwrap_or(u32::MAX).min(self.streak);
        PROBE.checked_shr(halvings).unwrap_or(0)
    }

    /// Counts the end of a call that was sent, at the time when it was sent.
    pub(super) fn end(&mut self, mark: SentMark, now: u64, is_accepted: bool) {
        let bucket = &mut self.buckets[slot(mark.0)];
        // Otherwise it has left the window.
        if bucket.number == mark.0 && bucket.accepted + bucket.failed < bucket.sent {
            *(if is_accepted { &mut bucket.accepted } else { &mut bucket.failed }) += 1;
        }
        if self.streak == 0 {
            self.streak_began = now;
        }
        self.streak = if is_accepted { self.streak.saturating_add(1) } else { 0 };
    }

    pub(super) const fn is_throttled(&self) -> bool {
        self.throttled.is_some()
    }

    pub(super) fn sums(&self, now: u64, throttle: &AdaptiveThrottle) -> WindowSums {
        let current = now / throttle.width;
        let mut sums = WindowSums::default();
        for bucket in &self.buckets {
            // A bucket from later than now is from before the clock went back.
            let Some(age) = current.checked_sub(bucket.number).filter(|age| *age < BUCKETS as u64) else { continue };
            // The calls in the present bucket and in the one before may still be answered.
            let sent = if age < 2 { bucket.accepted + bucket.failed } else { bucket.sent };
            sums.wanted += sent + bucket.throttled;
            sums.sent += sent;
            sums.accepted += bucket.accepted;
        }
        sums
    }

    fn bucket(&mut self, now: u64, throttle: &AdaptiveThrottle) -> &mut Bucket {
        let number = now / throttle.width;
        let bucket = &mut self.buckets[slot(number)];
        if bucket.number != number {
            *bucket = Bucket { number, ..Bucket::default() };
        }
        bucket
    }
}

fn slot(number: u64) -> usize {
    usize::try_from(number % BUCKETS as u64).expect("less than twelve")
}

impl WindowSums {
    /// Returns the numerator of the probability; the denominator is [`whole`](Self::whole).
    fn excess(&self, throttle: &AdaptiveThrottle) -> u64 {
        let tolerated = 100 * self.accepted + FREE_FAILURES * throttle.success_percent;
        (self.wanted * throttle.success_percent).saturating_sub(tolerated)
    }

    const fn whole(&self, throttle: &AdaptiveThrottle) -> u64 {
        (self.wanted + 1) * throttle.success_percent
    }

    /// Whether a draw falls into the share of calls that is rejected.
    fn is_hit(&self, excess: u64, throttle: &AdaptiveThrottle, draw: u64) -> bool {
        let whole = u128::from(self.whole(throttle));
        let share = u128::from(excess).min(whole * u128::from(throttle.max_percent) / 100);
        (u128::from(draw) * whole) >> u64::BITS < share
    }
}
