//! How the state of each algorithm lies in an item, and which write makes which transition.

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

/// An algorithm whose states can be kept on DynamoDB: all of `tower-sluice` are, `CalendarWindow` with the feature
/// `calendar`.
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

/// Above all numbers that DynamoDB keeps: it has 38 digits, and refuses to round.
const DIGITS: u128 = 10_u128.pow(38);

// `verify/proofs/dynamodb.py` proves for these units that no number of an item reaches `DIGITS`.
const _: () = assert!(Quota::MAX_UNITS < 1_000_000_000_000_000);

/// Returns how many of `count` requests fit, if so many would.
fn at_most(fitting: u64, count: u32) -> u32 {
    u32::try_from(fitting).map_or(count, |fitting| fitting.min(count))
}

/// How long after its clock was read a request may be carried out. None outlives its timeout by so much.
pub(crate) const LONGEST_WAY: Duration = Duration::from_secs(60);

/// When a decision is made, by a clock that may be wrong by so much.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    pub(crate) now: Timestamp,
    pub(crate) error: Duration,
}

impl Moment {
    /// The latest instant that another right clock may show when DynamoDB carries out a request of this moment: it may
    /// be on its way for some time.
    pub(crate) fn latest(self) -> Timestamp {
        self.now.saturating_add(self.error.saturating_mul(2)).saturating_add(LONGEST_WAY)
    }

    /// The moment that the state of an item with this standing is as of: the end of the debt, if there is one.
    pub(crate) fn with_debt(self, standing: Standing) -> Self {
        Self { now: self.now.max(standing.owing_until), ..self }
    }

    /// Until when, in seconds since 1970, an item is kept whose state expires at `end`. DynamoDB deletes by its own
    /// clock, so a minute is added.
    pub(crate) fn expiry(self, end: Timestamp) -> u64 {
        const MINUTE: u64 = 60;
        end.saturating_add(self.error.saturating_mul(2)).as_nanos().div_ceil(1_000_000_000) + MINUTE
    }
}

/// What to charge, and when.
#[derive(Clone, Copy, Debug)]
pub struct Charge {
    pub(crate) at: Moment,
    pub(crate) cost: u64,
    pub(crate) count: u32,
}

/// The next step of a charge.
#[derive(Debug, PartialEq)]
pub enum Plan {
    /// Write: if its condition holds, so many requests are charged, and no more would be.
    Charge(Write, u32),
    /// Read the item, since it probably has no room, or the write needs a number in it.
    Read,
    /// Nothing fits, by the item that was read.
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

/// Keeps other crates from implementing [`Kept`], whose writes must fit to the states.
pub(crate) mod sealed {
    use super::{BadItem, Charge, Hint, Item, Moment, Plan, Portable, Receipt, Timestamp, Unfit, Write};

    /// The items of one algorithm.
    pub trait Items: Portable + Clone {
        /// Checks whether this algorithm can be kept.
        fn check_fit(&self) -> Result<(), Unfit>;

        /// What the key of the item ends with: all that the condition of a write does not look at.
        fn suffix(&self, now: Timestamp) -> String;

        /// Reads the state that an item holds, as it counts at that moment.
        fn read(&self, item: Option<&Item>, at: Moment) -> Result<Option<Self::State>, BadItem>;

        /// When the key goes on in another item than at that moment. `None` if it never does.
        fn item_ends(&self, now: Timestamp) -> Option<Timestamp> {
            let _ = now;
            None
        }

        /// The write, without a condition, of the state that counts at that moment, `None` if nothing is owed.
        fn put(&self, state: Option<&Self::State>, at: Moment) -> Write;

        /// Plans a charge by what this process remembers of the key.
        fn guess(&self, hint: Option<Hint>, charge: Charge) -> Plan;

        /// Plans a charge by the item as it was read.
        fn plan(&self, item: Option<&Item>, charge: Charge) -> Result<Plan, BadItem>;

        /// What to remember of a key that had the one state, and has the other.
        fn hint(
            &self,
            before: Option<Hint>,
            old: Option<&Self::State>,
            new: Option<&Self::State>,
            at: Moment,
        ) -> Option<Hint>;

        /// The write of a refund, which holds for most items. `None` if nothing is owed any more for the charge.
        fn guess_refund(&self, cost: u64, receipt: Receipt, at: Moment) -> Option<Write>;

        /// The write of a refund to the item as it was read. `None` if there is nothing to refund.
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
