//! How items store each algorithm's state, and which write makes which transition.

mod bucket;
mod bytes;
pub(crate) mod quota_name;
mod sliding_window;
pub(crate) mod standing;
mod window;

use std::error::Error;
use std::fmt;
use std::time::Duration;

use tower_sluice::Quota;
use tower_sluice::algorithm::Portable;
use tower_sluice::limiter::Receipt;
use tower_sluice::store::remote::Standing;
use tower_sluice::time::Timestamp;

use self::sealed::Items;
use crate::hints::Hint;
use crate::table::{Item, Write};

/// An algorithm whose states DynamoDB can keep: all in `tower-sluice`, `CalendarWindow` with the feature `calendar`.
pub trait Kept: Items {
    /// Checks whether DynamoDB can keep this algorithm.
    ///
    /// # Errors
    ///
    /// [`Unfit`] if it cannot.
    fn fits(&self) -> Result<(), Unfit> {
        self.check_fit()
    }
}

impl<A: Items> Kept for A {}

/// Why DynamoDB cannot keep an algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unfit {
    /// Its windows are staggered.
    Staggered,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Staggered => f.write_str("staggered windows are for a `MemoryStore` only; leave out `.staggered()`"),
        }
    }
}

impl Error for Unfit {}

/// Above every number that we keep in DynamoDB, which has 38 digits and refuses to round.
const DIGITS: u128 = 10_u128.pow(38);

// `verify/proofs/dynamodb.py` proves for these units that no number in an item reaches `DIGITS`.
const _: () = assert!(Quota::MAX_UNITS < 1_000_000_000_000_000);

/// Returns how many requests fit, at most `count`.
fn at_most(fitting: u64, count: u32) -> u32 {
    u32::try_from(fitting).map_or(count, |fitting| fitting.min(count))
}

/// How long after its clock was read a request may be carried out. Every request's timeout is shorter.
pub(crate) const LONGEST_WAY: Duration = Duration::from_secs(60);

/// When a decision is made, by a clock that may be wrong by `error`.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    pub(crate) now: Timestamp,
    pub(crate) error: Duration,
}

impl Moment {
    /// The latest time that another right clock may show when DynamoDB carries out this moment's request, which may be
    /// on its way for some time.
    pub(crate) fn latest(self) -> Timestamp {
        self.now.saturating_add(self.error.saturating_mul(2)).saturating_add(LONGEST_WAY)
    }

    /// The moment for which an item with this standing stores its state: the end of the debt, if the key owes
    /// something.
    pub(crate) fn with_debt(self, standing: Standing) -> Self {
        Self { now: self.now.max(standing.owing_until), ..self }
    }

    /// Until when, in seconds since 1970, we keep an item whose state expires at `end`. DynamoDB deletes by its own
    /// clock, so a minute is added.
    pub(crate) fn expiry(self, end: Timestamp) -> u64 {
        const MINUTE: u64 = 60;
        end.saturating_add(self.error.saturating_mul(2)).as_nanos().div_ceil(1_000_000_000) + MINUTE
    }
}

/// The units to charge, and the time.
#[derive(Clone, Copy, Debug)]
pub struct Charge {
    pub(crate) at: Moment,
    pub(crate) cost: u64,
    pub(crate) count: u32,
}

/// A charge's next step.
#[derive(Debug, PartialEq)]
pub enum Plan {
    /// Write: if the condition holds, this number of requests is charged, and one more would not fit.
    Charge(Write, u32),
    /// Read the item, since it probably has no room, or the write needs a number from it.
    Read,
    /// Nothing fits into the item that was read.
    Reject,
}

/// An item that another program or another version has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadItem;

impl fmt::Display for BadItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("delete it, or give the limiter another name or another table")
    }
}

/// Keeps other crates from implementing [`Kept`], whose writes must fit the states.
pub(crate) mod sealed {
    use super::{BadItem, Charge, Hint, Item, Moment, Plan, Portable, Receipt, Timestamp, Unfit, Write};

    /// One algorithm's items.
    pub trait Items: Portable + Clone {
        /// Checks whether this algorithm can be kept.
        fn check_fit(&self) -> Result<(), Unfit>;

        /// The end of the item's key: every property that a write's condition does not check.
        fn suffix(&self, now: Timestamp) -> String;

        /// Reads an item's state, as it counts at that moment.
        fn read(&self, item: Option<&Item>, at: Moment) -> Result<Option<Self::State>, BadItem>;

        /// When the key continues in another item. `None` if it never does.
        fn item_ends(&self, now: Timestamp) -> Option<Timestamp> {
            let _ = now;
            None
        }

        /// Writes the state that counts at that moment, without a condition; a `state` of `None` owes nothing.
        fn put(&self, state: Option<&Self::State>, at: Moment) -> Write;

        /// Plans a charge by this process's hint for the key.
        fn guess(&self, hint: Option<Hint>, charge: Charge) -> Plan;

        /// Plans a charge by the item as it was read.
        fn plan(&self, item: Option<&Item>, charge: Charge) -> Result<Plan, BadItem>;

        /// The hint to remember for a key whose state changed from the first to the second.
        fn hint(
            &self,
            before: Option<Hint>,
            old: Option<&Self::State>,
            new: Option<&Self::State>,
            at: Moment,
        ) -> Option<Hint>;

        /// Plans a refund by a write that suits most items. `None` if nothing is owed any more for the charge.
        fn guess_refund(&self, cost: u64, receipt: Receipt, at: Moment) -> Option<Write>;

        /// Plans a refund to the item as it was read. `None` if there is nothing to refund.
        fn plan_refund(
            &self,
            item: Option<&Item>,
            cost: u64,
            receipt: Receipt,
            at: Moment,
        ) -> Result<Option<Write>, BadItem>;
    }
}

/// Returns how many requests of a charge fit, and the state after them.
fn fitting<A: Portable>(algorithm: &A, state: Option<A::State>, charge: Charge) -> (u32, Option<A::State>) {
    let Charge { at, cost, count } = charge;
    let mut after = state;
    for fitting in 0..count {
        match algorithm.decide(after, at.now, cost).1 {
            Some(next) => after = Some(next),
            None => return (fitting, after),
        }
    }
    (count, after)
}
