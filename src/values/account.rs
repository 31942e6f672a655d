//! [`Account`]: one key's units.

use super::receipt::{Issuer, Proof};
use super::time::Timestamp;
use super::{Expiry, LimiterError, Quota};

/// A key's lots and its debt. It has a debt only if it has no lots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Account {
    /// In the order in which they are used: the lots that expire first are first. No lot is empty, and no two expire at
    /// the same time.
    lots: Vec<Lot>,
    owed: u64,
}

/// Units that expire at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lot {
    pub(crate) expiry: Expiry,
    pub(crate) units: u64,
}

/// The most lots per key, so that a decision's work is bounded.
pub(crate) const MOST_LOTS: usize = 64;

/// How much a charge takes if there are not enough units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "a store does one of these")]
pub enum Shortfall {
    /// Nothing.
    Rejected = 0,
    /// The units that are left.
    Forgiven = 1,
    /// The units that are left, and the key owes the rest.
    Owed = 2,
}

/// The lots that have paid a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "a store writes all of it")]
pub struct Paid {
    /// When the lot expires that was charged first.
    pub first: Expiry,
    /// When the lot expires that was charged last.
    pub last: Expiry,
    /// The units that the last lot has paid, at most the largest number that a receipt holds.
    pub by_last: u64,
}

/// The receipt's bits that two expiries leave for a number of units: 4 × 10^12.
const BITS_OF_UNITS: u32 = u128::BITS - 2 * Expiry::BITS;

impl Proof for Paid {
    const ISSUER: Issuer = Issuer::Balance;

    fn into_value(self) -> u128 {
        let by_last = self.by_last.min((1 << BITS_OF_UNITS) - 1);
        (u128::from(self.first.millis()) << Expiry::BITS | u128::from(self.last.millis())) << BITS_OF_UNITS
            | u128::from(by_last)
    }

    #[allow(clippy::cast_possible_truncation, reason = "each part is cut to its bits")]
    fn from_value(value: u128) -> Self {
        let bits = |value: u128, count: u32| value as u64 & ((1 << count) - 1);
        let expiries = value >> BITS_OF_UNITS;
        Self {
            first: Expiry::from_millis(bits(expiries >> Expiry::BITS, Expiry::BITS)),
            last: Expiry::from_millis(bits(expiries, Expiry::BITS)),
            by_last: bits(value, BITS_OF_UNITS),
        }
    }
}

/// Why units cannot be added or charged by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "a store says one of these")]
pub enum Unfit {
    /// The balance or the debt would be above [`Quota::MAX_UNITS`].
    TooManyUnits,
    /// The key has 64 lots, which all expire at other times than these units.
    TooManyLots,
    /// The units have expired already.
    Expired,
}

impl From<Unfit> for LimiterError {
    fn from(unfit: Unfit) -> Self {
        Self::cannot(match unfit {
            Unfit::TooManyUnits => {
                format!("a key has, or owes, at most {} units; count in greater units, such as cents", Quota::MAX_UNITS)
            }
            Unfit::TooManyLots => format!(
                "the key has {MOST_LOTS} lots that expire at different times; let credits expire at the end of a day or \
                 of a month, so that they become one lot"
            ),
            Unfit::Expired => "the credit has expired already; choose a later time".to_owned(),
        })
    }
}

impl Account {
    /// Makes an account from its parts; `None` if they are inconsistent.
    pub(crate) fn from_parts(lots: Vec<Lot>, owed: u64) -> Option<Self> {
        let is_ordered = lots.windows(2).all(|pair| pair[0].expiry < pair[1].expiry);
        let is_one = is_ordered && lots.iter().all(|lot| lot.units > 0) && (owed == 0 || lots.is_empty());
        is_one.then_some(Self { lots, owed })
    }

    /// The lots, in the order in which they are used.
    pub(crate) fn lots(&self) -> &[Lot] {
        &self.lots
    }

    pub(crate) const fn owed(&self) -> u64 {
        self.owed
    }

    /// Removes the lots that have expired. Called before any other step.
    pub(crate) fn expire(&mut self, now: Timestamp) {
        let expired = self.lots.iter().take_while(|lot| lot.expiry.is_over(now)).count();
        self.lots.drain(..expired);
    }

    /// Whether removing it loses nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.lots.is_empty() && self.owed == 0
    }

    /// The units that are left; zero if it owes something.
    pub(crate) fn left(&self) -> u64 {
        // At most a balance's maximum, and refunds beyond it.
        self.lots.iter().fold(0, |sum, lot| lot.units.saturating_add(sum))
    }

    /// Returns until when the lots suffice for `units`, if they do now. As lots expire, the later ones have to pay.
    pub(crate) fn suffices_until(&self, units: u64) -> Expiry {
        let mut later = 0_u64;
        let enough = self.lots.iter().rev().find(|lot| {
            later = later.saturating_add(lot.units);
            later >= units
        });
        enough.map_or(Expiry::NEVER, |lot| lot.expiry)
    }

    /// Takes units from the lots in their order. Returns how many were taken, and from where.
    pub(crate) fn take(&mut self, units: u64, shortfall: Shortfall) -> Result<(u64, Option<Paid>), Unfit> {
        let left = self.left();
        let rest = units.saturating_sub(left);
        match shortfall {
            Shortfall::Rejected if rest > 0 => return Ok((0, None)),
            Shortfall::Rejected | Shortfall::Forgiven => {}
            Shortfall::Owed => {
                let owed = self.owed.checked_add(rest).filter(|owed| *owed <= Quota::MAX_UNITS);
                self.owed = owed.ok_or(Unfit::TooManyUnits)?;
            }
        }
        let taken = units - rest;
        let mut due = taken;
        let mut paid: Option<Paid> = None;
        let mut used_up = 0;
        for lot in &mut self.lots {
            if due == 0 {
                break;
            }
            let by_last = lot.units.min(due);
            lot.units -= by_last;
            due -= by_last;
            used_up += usize::from(lot.units == 0);
            paid = Some(Paid { first: paid.map_or(lot.expiry, |paid| paid.first), last: lot.expiry, by_last });
        }
        self.lots.drain(..used_up);
        Ok((taken, paid))
    }

    /// Gives back a charge's units: first to the lot that was charged last, up to its payment, and the others to the
    /// lot that was charged first. Units from lots that have expired meanwhile are gone.
    pub(crate) fn give_back(&mut self, units: u64, paid: Paid, now: Timestamp) {
        let to_last = units.min(paid.by_last);
        for (units, expiry) in [(to_last, paid.last), (units - to_last, paid.first)] {
            if !expiry.is_over(now) {
                self.add(units, expiry);
            }
        }
    }

    /// Adds a lot. It pays the key's debt first.
    pub(crate) fn credit(&mut self, units: u64, expiry: Expiry, now: Timestamp) -> Result<(), Unfit> {
        if expiry.is_over(now) {
            return Err(Unfit::Expired);
        }
        if self.left().saturating_add(units) > Quota::MAX_UNITS {
            return Err(Unfit::TooManyUnits);
        }
        if self.lots.len() >= MOST_LOTS && self.lots.iter().all(|lot| lot.expiry != expiry) {
            return Err(Unfit::TooManyLots);
        }
        self.add(units, expiry);
        Ok(())
    }

    fn add(&mut self, units: u64, expiry: Expiry) {
        let paid = units.min(self.owed);
        self.owed -= paid;
        let units = units - paid;
        if units == 0 {
            return;
        }
        match self.lots.binary_search_by_key(&expiry, |lot| lot.expiry) {
            Ok(index) => self.lots[index].units = self.lots[index].units.saturating_add(units),
            Err(index) => {
                if self.lots.is_empty() {
                    // Most keys have one lot. A vector would grow to four at once.
                    self.lots.reserve_exact(1);
                }
                self.lots.insert(index, Lot { expiry, units });
            }
        }
    }

    /// Forgives the key's debt. Lots stay.
    pub(crate) fn forgive(&mut self) {
        self.owed = 0;
    }
}
