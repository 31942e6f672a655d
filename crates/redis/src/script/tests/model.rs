//! The scripts' additions to the algorithm: they clamp states from the future, and delete paid states.

use std::fmt::Debug;

use tower_sluice::algorithm::{
    Algorithm, CalendarWindow, CalendarWindowState, FixedWindow, GcraState, SlidingWindow, TokenBucket,
};
use tower_sluice::internal::remote::StateParts;
use tower_sluice::internal::remote::testing::{ReadCalendar as _, ReadQuota as _};
use tower_sluice::time::Timestamp;

/// An algorithm whose states a test keeps in a plain map, as the scripts keep them on the server.
pub(super) trait Model: Algorithm<State: PartialEq + Debug> {
    /// Whether a refund corrects a state from the future, too.
    const REFUND_CORRECTS: bool = true;

    /// Corrects a state from the future.
    fn clamped(&self, state: Self::State, now: Timestamp) -> Self::State;

    /// Whether the state owes nothing, so that a refund that leaves it deletes the key.
    fn is_nothing(&self, state: &Self::State, now: Timestamp) -> bool;

    /// Whether the window has ended. Then its charges are paid off, and a clock that is set back does not revive them.
    fn is_over(&self, state: &Self::State, now: Timestamp) -> bool;
}

macro_rules! bucket_model {
    ($name:ident) => {
        impl Model for $name {
            fn clamped(&self, state: GcraState, now: Timestamp) -> GcraState {
                let quota = self.quota();
                let full = u128::from(quota.max_burst()) * u128::from(quota.period_nanos());
                let most = u128::from(now.as_nanos()) * u128::from(quota.limit()) + full;
                GcraState::from_parts(state.parts().min(most))
            }

            fn is_nothing(&self, state: &GcraState, now: Timestamp) -> bool {
                state.parts() <= u128::from(now.as_nanos()) * u128::from(self.quota().limit())
            }

            fn is_over(&self, _: &GcraState, _: Timestamp) -> bool {
                false
            }
        }
    };
}

bucket_model!(TokenBucket);

macro_rules! window_model {
    ($name:ident) => {
        impl Model for $name {
            fn clamped(&self, state: Self::State, now: Timestamp) -> Self::State {
                let next = now.as_nanos() / self.quota().period_nanos() + 1;
                let mut parts = state.parts();
                parts[0] = parts[0].min(next);
                Self::State::from_parts(parts)
            }

            fn is_nothing(&self, state: &Self::State, _: Timestamp) -> bool {
                state.parts()[1..].iter().all(|used| *used == 0)
            }

            fn is_over(&self, state: &Self::State, now: Timestamp) -> bool {
                self.expires_at(state) <= now
            }
        }
    };
}

window_model!(FixedWindow);
window_model!(SlidingWindow);

impl Model for CalendarWindow {
    const REFUND_CORRECTS: bool = false;

    /// Units that still count are counted in the present window.
    fn clamped(&self, state: CalendarWindowState, now: Timestamp) -> CalendarWindowState {
        let (ends, used) = state.parts();
        if ends > now { CalendarWindowState::from_parts((self.end_of_window(now), used)) } else { state }
    }

    fn is_nothing(&self, state: &CalendarWindowState, _: Timestamp) -> bool {
        state.parts().1 == 0
    }

    fn is_over(&self, state: &CalendarWindowState, now: Timestamp) -> bool {
        self.expires_at(state) <= now
    }
}
