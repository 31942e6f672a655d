//! Items that only the tests of `tower-sluice-redis` use (crate feature `test-util`). Each method calls this crate's
//! method with its name.

use std::time::Duration;

#[cfg(feature = "calendar")]
use crate::algorithm::CalendarWindow;
use crate::algorithm::gcra::Tat;
use crate::algorithm::{Algorithm, ChargedIn};
use crate::limiter::{Description, Override, OverrideReason, Receipt};
#[cfg(feature = "http")]
use crate::store::remote::BanGrowth;
use crate::store::remote::backend::Decisions;
use crate::store::remote::{Alternatives, Applied, GaveUp, Standing};
use crate::values::time::Timestamp;
use crate::values::{Decision, Quota};

pub use crate::values::{Batching, Claim, Formula, MemberDecision, Room};

pub use crate::queue::shared::terms::QueueTerms;

/// Makes `Applied::replay` public.
pub trait ReplayApplied<S> {
    /// Computes a charge's decisions.
    ///
    /// # Errors
    ///
    /// If the server has charged another number of requests.
    fn replay<A: Algorithm<State = S>>(
        &self,
        algorithm: &A,
        cost: u64,
        count: u32,
    ) -> Result<(Decisions, Option<S>), GaveUp>;
}

impl<S: Copy> ReplayApplied<S> for Applied<S> {
    fn replay<A: Algorithm<State = S>>(
        &self,
        algorithm: &A,
        cost: u64,
        count: u32,
    ) -> Result<(Decisions, Option<S>), GaveUp> {
        Self::replay(self, algorithm, cost, count)
    }
}

/// Calls `Alternatives::of`.
#[must_use]
pub fn alternatives_of(
    formula: &Formula,
    keys: usize,
    index: &impl Fn(usize) -> Option<usize>,
) -> Option<Alternatives> {
    Alternatives::of(formula, keys, index)
}

/// Makes methods of [`Standing`] public.
pub trait DecideStanding: Copy {
    /// Whether there is one.
    fn is_some(self) -> bool;

    /// Decides on a request while it is in force.
    fn decide<A: Algorithm>(
        self,
        algorithm: &A,
        state: Option<A::State>,
        now: Timestamp,
        cost: u64,
    ) -> Option<Decision>;
}

impl DecideStanding for Standing {
    fn is_some(self) -> bool {
        Self::is_some(self)
    }

    fn decide<A: Algorithm>(
        self,
        algorithm: &A,
        state: Option<A::State>,
        now: Timestamp,
        cost: u64,
    ) -> Option<Decision> {
        Self::decide(self, algorithm, state, now, cost)
    }
}

/// Makes methods of [`BanGrowth`] public.
#[cfg(feature = "http")]
pub trait NewBanGrowth: Sized {
    /// Makes a growth.
    fn new(first: Duration, factor: u32, most: Duration) -> Self;

    /// Sets when bans are forgotten.
    #[must_use]
    fn with_forgotten_after(self, forgotten_after: Duration) -> Self;
}

#[cfg(feature = "http")]
impl NewBanGrowth for BanGrowth {
    fn new(first: Duration, factor: u32, most: Duration) -> Self {
        Self::new(first, factor, most)
    }

    fn with_forgotten_after(self, forgotten_after: Duration) -> Self {
        Self::with_forgotten_after(self, forgotten_after)
    }
}

/// The receipt for a bucket's charge, which is paid at this time.
#[must_use]
pub fn bucket_receipt(paid: u128) -> Receipt {
    Receipt::from_proof(Tat(paid))
}

/// The receipt for a charge in this window: its number, or for a calendar, when it ends.
#[must_use]
pub fn window_receipt(window: u64) -> Receipt {
    Receipt::from_proof(ChargedIn(window))
}

/// Makes a method of [`Description`] public.
pub trait ReadDescription {
    /// Returns the trait by which it decides together with others.
    fn batches(&self) -> Option<&dyn Batching>;
}

impl ReadDescription for Description {
    fn batches(&self) -> Option<&dyn Batching> {
        Self::batches(self)
    }
}

/// Makes methods of [`Quota`] public.
pub trait ReadQuota {
    /// Returns the period.
    fn period_nanos(&self) -> u64;

    /// Returns the time that restores this number of units.
    fn time_of(&self, units: u64) -> Duration;
}

impl ReadQuota for Quota {
    fn period_nanos(&self) -> u64 {
        Self::period_nanos(self)
    }

    fn time_of(&self, units: u64) -> Duration {
        Self::time_of(self, units)
    }
}

/// Makes methods of [`CalendarWindow`] public.
#[cfg(feature = "calendar")]
pub trait ReadCalendar {
    /// Returns the window as a key's quota.
    fn own_quota(&self) -> Quota;

    /// Returns when the window that holds `now` ends.
    fn end_of_window(&self, now: Timestamp) -> Timestamp;
}

#[cfg(feature = "calendar")]
impl ReadCalendar for CalendarWindow {
    fn own_quota(&self) -> Quota {
        Self::own_quota(self)
    }

    fn end_of_window(&self, now: Timestamp) -> Timestamp {
        Self::end_of_window(self, now)
    }
}

/// A ban by hand.
#[must_use]
pub const fn banned_for(span: Duration, reason: OverrideReason) -> Override {
    Override::Ban { span, reason }
}

/// An allowance by hand.
#[must_use]
pub const fn allowed_for(span: Duration, reason: OverrideReason) -> Override {
    Override::Allow { span, reason }
}
