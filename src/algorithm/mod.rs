//! Pure rate-limiting mathematics: no clock, no lock, no I/O.
//!
//! | algorithm | state | worst case in an interval of length *t* | use it when |
//! |---|---|---|---|
//! | [`TokenBucket`] | 16 bytes | `burst + rate × t` | a client may save up and spend at once: the default choice |
//! | [`LeakyBucket`] | 16 bytes | the same: it is the same machine, told from the other side | you think in levels, not tokens |
//! | [`SlidingWindow`] | 16 bytes | `limit + rate × t` | about *n* in any minute is wanted, without a jump at the full minute |
//! | [`FixedWindow`] | 16 bytes | `2 × limit + rate × t` | quotas that begin on the hour or at midnight |
//!
//! The leaky bucket *as a queue* makes requests wait instead of refusing them and is a limiter of its
//! own: [`LeakyQueue`](crate::LeakyQueue).

mod bucket;
mod fixed_window;
pub(crate) mod gcra;
mod kind;
mod sliding_window;

pub use self::bucket::{LeakyBucket, TokenBucket};
pub(crate) use self::fixed_window::ChargedIn;
pub use self::fixed_window::{FixedWindow, FixedWindowState};
pub use self::gcra::GcraState;
pub use self::kind::Kind;
pub use self::sliding_window::{SlidingWindow, SlidingWindowState};

use std::time::Duration;

use crate::values::time::Timestamp;
use crate::values::{Decision, Quota, Receipt, Terms};

/// A pure transition over a small state.
///
/// # Contract
///
/// `testing::algorithm` (feature `test-util`) checks these for any implementation:
///
/// 1. Total: no panic and no wrap-around, for any `now`, `cost` and state it returned itself.
/// 2. A refusal leaves the state as it was: [`decide`](Self::decide) returns no new state with one.
/// 3. Time running backwards never admits more.
/// 4. From [`expires_at`](Self::expires_at) on, forgetting the state cannot be observed.
/// 5. In every interval, the admitted cost is at most [`worst_burst`](Self::worst_burst) + rate ×
///    length.
/// 6. After waiting exactly `retry_after`, alone, the same cost is admitted; one nanosecond earlier
///    it is not. A refusal without one is for ever.
///
/// A cost of zero asks without taking: it is always admitted and changes nothing.
///
/// # Examples
///
/// A limiter that admits a single unit per key, for as long as the clock runs:
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
///     fn decide(&self, seen: Option<()>, _now: Timestamp, cost: u32) -> (Decision, Option<()>) {
///         match (seen, cost) {
///             (None, 1) => (Decision::allow(1, 0), Some(())),
///             (_, 0) => (Decision::allow(1, u32::from(seen.is_none())), None),
///             _ => (Decision::deny(1, u32::from(seen.is_none()), None), None),
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
    /// What is remembered of a key. Small, and without a destructor.
    type State: Copy + Send + 'static;

    /// The quota that is enforced, as announced to clients.
    fn quota(&self) -> Quota;

    /// Decides on `cost` units at `now`, given what is remembered (`None`: a key never seen).
    ///
    /// Returns the decision and the state to remember from now on, `None` for "as before".
    fn decide(&self, state: Option<Self::State>, now: Timestamp, cost: u32) -> (Decision, Option<Self::State>);

    /// The moment from which `state` equals "never seen"; [`Timestamp::MAX`] if none comes.
    fn expires_at(&self, state: &Self::State) -> Timestamp;

    /// The state after `cost` units, charged as `receipt` says, are given back at `now`.
    ///
    /// Gives back at most what is still owed for that charge: time may already have paid for it. By
    /// default nothing is given back.
    fn refund(&self, state: Self::State, now: Timestamp, cost: u32, receipt: Receipt) -> Self::State {
        let _ = (now, cost, receipt);
        state
    }

    /// How much would be forgiven if `state` were forgotten, for choosing which of several keys a
    /// full store forgets. Only compared among keys of one limiter. By default the time to expiry.
    fn owed(&self, state: &Self::State, now: Timestamp) -> u64 {
        self.expires_at(state).as_nanos().saturating_sub(now.as_nanos())
    }

    /// The most that one request can ever be granted; a greater cost is refused with no retry time.
    fn max_cost(&self) -> u32 {
        self.quota().max_burst()
    }

    /// Whether this algorithm can go on with states that one of the same type has written under the quota `from`: after a
    /// [live change](crate::Limiter::inherit). By default it cannot, and all keys start anew.
    ///
    /// Buckets go on in any case and are not asked, as long as the store keeps them in a form of its own.
    fn can_adopt(&self, from: &Quota) -> bool {
        let _ = from;
        false
    }

    /// What `state`, written under the quota `from`, reads under the quota of this algorithm, if the change was at `now`.
    ///
    /// Whatever counts against the key at `now` should go on to count, also if the clock was set back since. By default it
    /// stays as it is.
    fn adopt(&self, state: Self::State, from: &Quota, now: Timestamp) -> Self::State {
        let _ = (from, now);
        state
    }

    /// Which of the algorithms of this crate decides as this one does, if any: a store may then keep its keys in a form of its
    /// own, such as one word each. A wrapper that changes no decision returns that of what it wraps. By default
    /// [`Kind::Other`].
    fn kind(&self) -> Kind {
        Kind::Other
    }

    /// What a store adds to the clock's time, in all that it asks about a key for which it drew `draw` at random: so each key
    /// may have windows that begin at an instant of its own. By default nothing.
    ///
    /// The same for the same `draw`, and growing with it from zero to less than a period. A store that keeps no draw of its
    /// keys adds nothing.
    fn phase(&self, draw: u64) -> Duration {
        let _ = draw;
        Duration::ZERO
    }

    /// What is advertised to clients: by default, that of its [kind](Self::kind), and for others a sliding window, which
    /// promises the least.
    fn terms(&self) -> Terms {
        match self.kind() {
            Kind::Bucket { quota } => Terms::bucket(quota),
            Kind::FixedWindow { quota, .. } => Terms::fixed_window(quota),
            Kind::SlidingWindow { quota, .. } => Terms::sliding_window(quota),
            Kind::Other => Terms::sliding_window(self.quota()),
        }
    }

    /// The *B* of contract 5: the most admitted in an interval of length zero, in the worst case.
    fn worst_burst(&self) -> u64 {
        u64::from(self.quota().max_burst())
    }
}
