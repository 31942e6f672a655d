//! Pure rate-limiting mathematics: no clock, no lock, no I/O.
//!
//! | algorithm | state | worst case in an interval of length *t* | use it when |
//! |---|---|---|---|
//! | [`TokenBucket`] | 16 bytes | `burst + rate × t` | a client may save up and spend at once: the default choice |
//! | [`LeakyBucket`] | 16 bytes | the same: it makes the same decisions | you think in levels, not tokens |
//! | [`SlidingWindow`] | 24 bytes | `limit + rate × t` | about *n* in any minute is wanted, without a jump at the full minute |
//! | [`FixedWindow`] | 16 bytes | `2 × limit + rate × t` | quotas that begin on the hour or at midnight UTC |
//! | `CalendarWindow` (feature `calendar`) | 16 bytes | `2 × limit` around an edge | quotas per day, week or month of a time zone |
//!
//! The leaky bucket *as a queue* makes requests wait instead of rejecting them and is its own limiter:
//! [`LeakyQueue`](crate::LeakyQueue).

mod bucket;
#[cfg(feature = "calendar")]
mod calendar;
mod fixed_window;
pub(crate) mod gcra;
mod kind;
mod portable;
mod saved;
mod sliding_window;
#[cfg(test)]
mod tests;
mod window;

pub use self::bucket::{LeakyBucket, TokenBucket};
#[cfg(feature = "calendar")]
pub use self::calendar::{CalendarWindow, CalendarWindowState, UnknownZone, Weekday};
pub use self::fixed_window::{FixedWindow, FixedWindowState};
pub use self::gcra::GcraState;
pub use self::kind::Kind;
pub(crate) use self::portable::written_under;
pub use self::portable::{Portable, UnknownState};
pub(crate) use self::saved::{SavedState, letter_of};
pub use self::sliding_window::{SlidingWindow, SlidingWindowState};
pub(crate) use self::window::ChargedIn;

use std::time::Duration;

use crate::values::time::Timestamp;
use crate::values::{Decision, Quota, Receipt, Terms};

/// A pure transition over a small state.
///
/// # Contract
///
/// `testing::check_algorithm` (feature `test-util`) checks these for any implementation:
///
/// 1. Total: no panic and no wrap-around, for any `now`, any `cost` and any state that it has returned.
/// 2. A rejection leaves the state as it was: [`decide`](Self::decide) returns no new state with one.
/// 3. Time running backwards never admits more.
/// 4. From [`expires_at`](Self::expires_at) on, forgetting the state cannot be observed.
/// 5. In every interval, the admitted cost is at most [`worst_burst`](Self::worst_burst) + rate × length.
/// 6. After exactly `retry_after`, if no other request charges the key, the same cost is admitted; one nanosecond
///    earlier it is not. A rejection without `retry_after` is for ever.
///
/// A cost of zero is always admitted and changes nothing.
///
/// # Examples
///
/// A limiter that admits a single unit per key, until the clock stops:
///
/// ```
/// use tower_sluice::algorithm::Algorithm;
/// use tower_sluice::time::Timestamp;
/// use tower_sluice::{Decision, Quota};
///
/// #[derive(Debug)]
/// struct Once;
///
/// impl Algorithm for Once {
///     type State = ();
///
///     fn quota(&self) -> Quota {
///         Quota::per_day(1)
///     }
///
///     fn decide(&self, seen: Option<()>, _now: Timestamp, cost: u64) -> (Decision, Option<()>) {
///         match (seen, cost) {
///             (None, 1) => (Decision::allow(1, 0), Some(())),
///             (_, 0) => (Decision::allow(1, u64::from(seen.is_none())), None),
///             _ => (Decision::reject(1, u64::from(seen.is_none()), None), None),
///         }
///     }
///
///     fn expires_at(&self, _state: &()) -> Timestamp {
///         Timestamp::MAX
///     }
/// }
/// # #[cfg(feature = "test-util")]
/// tower_sluice::testing::check_algorithm(&Once, 1);
/// ```
pub trait Algorithm: Send + Sync + 'static {
    /// The state that is kept for a key. Small, and without a destructor.
    type State: Copy + Send + 'static;

    /// Returns the quota that is enforced, as advertised to clients.
    fn quota(&self) -> Quota;

    /// Decides on `cost` units at `now`, given the key's state (`None`: no state).
    ///
    /// Returns the decision and the state to keep from now on, `None` for "as before".
    fn decide(&self, state: Option<Self::State>, now: Timestamp, cost: u64) -> (Decision, Option<Self::State>);

    /// Returns the time from which decisions are the same as without `state`, so that the key can be forgotten;
    /// [`Timestamp::MAX`] if there is no such time.
    fn expires_at(&self, state: &Self::State) -> Timestamp;

    /// Returns the state after `cost` units are refunded at `now`, from the charge that `receipt` is for.
    ///
    /// Refunds at most the unpaid part of that charge: time may already have paid for it. By default, nothing is
    /// refunded.
    fn refund(&self, state: Self::State, now: Timestamp, cost: u64, receipt: Receipt) -> Self::State {
        let _ = (now, cost, receipt);
        state
    }

    /// Returns how much would be forgiven if `state` were forgotten. By it, a full store chooses the key that it
    /// forgets; it is only compared among keys of one limiter. By default the time to expiry.
    fn owed(&self, state: &Self::State, now: Timestamp) -> u64 {
        self.expires_at(state).as_nanos().saturating_sub(now.as_nanos())
    }

    /// Returns the most that one request can ever be granted; a greater cost is rejected with no retry time.
    fn max_cost(&self) -> u64 {
        self.quota().max_burst()
    }

    /// Returns whether this algorithm can inherit states that an algorithm of the same type has written under the quota
    /// `from`, after a [live change](crate::Limiter::inherit), or when a key gets [another
    /// quota](crate::limiter::Ask::under). By default it cannot, and the keys start without a state.
    ///
    /// Not called for buckets that the store keeps in its own form, because they always inherit.
    fn can_inherit(&self, from: &Quota) -> bool {
        let _ = from;
        false
    }

    /// Converts `state` from the quota `from` to this algorithm's quota, for a change at `now`.
    ///
    /// Units that count against the key at `now` should continue to count, even if the clock was set back since. By
    /// default the state stays as it is.
    fn inherit(&self, state: Self::State, from: &Quota, now: Timestamp) -> Self::State {
        let _ = (from, now);
        state
    }

    /// Identifies the instants at which its windows begin. Receipts name windows; so if this differs after a
    /// [live change](crate::Limiter::inherit), charges from before it are not refunded any more. By default the quota's
    /// period.
    fn schedule(&self) -> u64 {
        self.quota().period_nanos()
    }

    /// Returns the same algorithm with another quota, so that each key can [have its own](crate::limiter::Ask::under):
    /// `None`, the default, if it cannot have another. Whether it can must not depend on the quota.
    ///
    /// [`inherit`](Self::inherit) then converts a key's state if its quota has changed.
    fn under(&self, quota: Quota) -> Option<Self>
    where
        Self: Sized,
    {
        let _ = quota;
        None
    }

    /// Returns which of this crate's algorithms makes the same decisions, if any. A store may then keep its keys in its
    /// own form, such as one word each. A wrapper that changes no decision returns the wrapped algorithm's kind. By
    /// default [`Kind::Other`].
    fn kind(&self) -> Kind {
        Kind::Other
    }

    /// Returns by how much a key's clock is ahead, so that its windows begin at its own instant. By default zero.
    ///
    /// A store that supports this draws a random number for each key, passes it as `draw`, and adds the result to the
    /// time in all calls for that key. The result depends on `draw` alone, and grows with it from zero to less than a
    /// period.
    fn phase(&self, draw: u64) -> Duration {
        let _ = draw;
        Duration::ZERO
    }

    /// Returns whether its windows are named by the wall clock, such as days. A store then passes it the [wall clock's
    /// time](crate::time::Clock::wall), which may be set, in place of a time that never is. By default true only for a
    /// fixed window that is not staggered, by its [kind](Self::kind).
    fn follows_wall_clock(&self) -> bool {
        matches!(self.kind(), Kind::FixedWindow { staggered: false, .. })
    }

    /// Returns `state` as it counts at `now` if the clock was set back since it was written; otherwise `state`. By
    /// default always `state`.
    ///
    /// A store in memory keeps the returned state before it decides. Then a key stays locked for two windows at most,
    /// and not for the time by which the clock was wrong. No window that has ended may begin again with nothing used:
    /// around a step of the clock, twice the limit passes at most.
    fn after_step_back(&self, state: Self::State, now: Timestamp) -> Self::State {
        let _ = now;
        state
    }

    /// Returns the terms that are advertised to clients. By default the terms that follow from its [kind](Self::kind),
    /// and for [`Kind::Other`] a sliding window, which promises the average rate, and no burst.
    fn terms(&self) -> Terms {
        match self.kind() {
            Kind::Bucket { quota } => Terms::bucket(quota),
            Kind::FixedWindow { quota, .. } => Terms::fixed_window(quota),
            Kind::SlidingWindow { quota, .. } => Terms::sliding_window(quota),
            Kind::Other => Terms::sliding_window(self.quota()),
        }
    }

    /// Returns the most that is admitted in an arbitrarily short interval, in the worst case (contract 5).
    fn worst_burst(&self) -> u64 {
        self.quota().max_burst()
    }
}
