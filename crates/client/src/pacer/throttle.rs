//! `AdaptiveThrottle`: the settings by which a client stops calling a partner that keeps failing.

use std::time::Duration;

use super::pace::micros;

/// When calls to a partner that keeps failing are rejected here, for [`PacerLayer::throttle`].
///
/// The rule is adaptive throttling from Google's SRE book (chapter 21, "Handling Overload"). If the program wanted to
/// make *n* calls within the window, and the partner has accepted *a*, the next call is rejected here with the
/// probability
///
/// ```text
/// (n - K a - 10) / (n + 1)        K = 100 / success_percent
/// ```
///
/// or 0 if that is negative. So nothing is rejected while the partner accepts more than `success_percent` of the calls,
/// or while ten calls fail in a window. A partner that accepts less gets about *K* times as many calls as it accepts:
/// enough to notice that it can take more. The ten are for programs with few calls, where one failure in two calls says
/// little.
///
/// # What counts
///
/// | event | counts as |
/// |---|---|
/// | a response: 1xx to 4xx, without those below | accepted |
/// | a rejection ([`WaitStatuses`](crate::WaitStatuses)), 5xx; in gRPC, the status DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, INTERNAL or UNAVAILABLE in the head | failed |
/// | an error of the inner service: no connection, its timeout | failed |
/// | the future is dropped after the call was sent: a timeout around the layer | failed |
/// | no answer yet | nothing for a twelfth of the window at least, and two at most; from then on, failed |
/// | the call is rejected here | failed |
/// | the call leaves the line before it is sent | nothing |
///
/// A call is counted before it is sent, and its answer counts at that time. So a partner that accepts connections and
/// never answers is throttled, too, however long your timeout is. Other 4xx are accepted, because the partner has
/// looked at the request, and the next one may be right. An error in the body, or in trailers, is not seen.
///
/// # Recovery
///
/// One call per second is sent in any case (if there is one), so that a recovery is noticed within a second. While the
/// partner accepts, these probes double every second, up to all calls: a thousand per second after ten seconds. The
/// next failure makes it one per second again.
///
/// # Cost
///
/// 500 bytes per partner, one more lock per call, and a random number per call while the probability is above 0.
///
/// [`PacerLayer::throttle`]: crate::PacerLayer::throttle
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct AdaptiveThrottle {
    pub(super) success_percent: u64,
    pub(super) max_percent: u64,
    /// The width of a bucket, in microseconds.
    pub(super) width: u64,
}

/// How many buckets a window has.
pub(super) const BUCKETS: usize = 12;

/// The default of [`AdaptiveThrottle::window`].
const WINDOW: Duration = Duration::from_secs(120);

/// The default of [`AdaptiveThrottle::success_percent`]: K = 2.
const SUCCESS_PERCENT: u64 = 50;

impl AdaptiveThrottle {
    /// Creates the settings in the SRE book: half of the calls must succeed (K = 2), over two minutes.
    pub fn new() -> Self {
        Self { success_percent: SUCCESS_PERCENT, max_percent: 100, width: width(WINDOW) }
    }

    /// Sets the share of calls, in percent, that the partner must accept; 50 unless set. If it accepts less, calls are
    /// rejected here. It is 100 / *K* in the SRE book's terms: 90 throttles earlier, and sends a partner that fails
    /// about a ninth more than it accepts.
    ///
    /// # Panics
    ///
    /// If it is 0 or above 100.
    #[track_caller]
    pub fn success_percent(self, percent: u32) -> Self {
        Self { success_percent: checked(percent), ..self }
    }

    /// Sets how long calls count; two minutes unless set, in twelve buckets. Set it to several times your calls'
    /// timeout, because a call that takes longer than the window counts as failed, even if it succeeds.
    ///
    /// # Panics
    ///
    /// If it is below a second.
    #[track_caller]
    pub fn window(self, window: Duration) -> Self {
        assert!(window >= Duration::from_secs(1), "a window of a second at least: it must be longer than a call takes");
        Self { width: width(window), ..self }
    }

    /// Sets the greatest share of calls, in percent, that is rejected here; 100 unless set, since a probe per second is
    /// sent in any case. With 80, a dead partner still gets a fifth of the calls.
    ///
    /// # Panics
    ///
    /// If it is 0 or above 100.
    #[track_caller]
    pub fn max_percent(self, percent: u32) -> Self {
        Self { max_percent: checked(percent), ..self }
    }
}

impl Default for AdaptiveThrottle {
    fn default() -> Self {
        Self::new()
    }
}

/// Rounded up, so a window is never shorter than you asked for.
fn width(window: Duration) -> u64 {
    micros(window).div_ceil(BUCKETS as u64)
}

#[track_caller]
fn checked(percent: u32) -> u64 {
    assert!((1..=100).contains(&percent), "a share of calls is 1 to 100 percent, and not {percent}");
    u64::from(percent)
}
