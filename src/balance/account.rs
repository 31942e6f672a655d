//! [`Account`]: the units of one key.

use super::{MOST_LOTS, Paid, Unfit};
use crate::values::time::Timestamp;
use crate::values::{Expiry, Quota};

/// The lots of a key, and what it owes. It owes something only if it has no lots.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Account {
    /// None is empty. In the order in which they are used: those that expire first are first, and no two expire at the
    /// same time.
    lots: Vec<Lot>,
    owed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lot {
    expiry: Expiry,
    units: u64,
}

/// What a charge takes if there are not enough units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "a script knows each by its number")]
pub enum Shortfall {
    /// Nothing.
    Rejected = 0,
    /// What is left.
    Forgiven = 1,
    /// What is left, and the key owes the rest.
    Owed = 2,
}

impl Account {
    /// Removes the lots that have expired. Called before any other step.
    pub(super) fn expire(&mut self, now: Timestamp) {
        let expired = self.lots.iter().take_while(|lot| lot.expiry.is_over(now)).count();
        self.lots.drain(..expired);
    }

    /// Whether nothing is lost if it is removed.
    pub(super) fn is_empty(&self) -> bool {
        self.lots.is_empty() && self.owed == 0
    }

    /// The units that are left; zero if it owes something.
    pub(super) fn left(&self) -> u64 {
        // At most the maximum of a balance, and what is refunded beyond it.
        self.lots.iter().fold(0, |sum, lot| lot.units.saturating_add(sum))
    }

    /// Returns the end of the time for which the lots suffice for `units`, if they do now. Later lots pay for those
    /// that expire before.
    pub(super) fn suffices_until(&self, units: u64) -> Expiry {
        let mut later = 0_u64;
        let enough = self.lots.iter().rev().find(|lot| {
            later = later.saturating_add(lot.units);
            later >= units
        });
        enough.map_or(Expiry::NEVER, |lot| lot.expiry)
    }

    /// Takes units from the lots in their order. Returns how many were taken, and from where.
    pub(super) fn take(&mut self, units: u64, shortfall: Shortfall) -> Result<(u64, Option<Paid>), Unfit> {
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

    /// Gives back units of a charge: first to the lot that was charged last, up to what it has paid, and the others to
    /// the lot that was charged first. The units of lots that have expired meanwhile are gone.
    pub(super) fn give_back(&mut self, units: u64, paid: Paid, now: Timestamp) {
        let to_last = units.min(paid.by_last);
        for (units, expiry) in [(to_last, paid.last), (units - to_last, paid.first)] {
            if !expiry.is_over(now) {
                self.add(units, expiry);
            }
        }
    }

    /// Adds a lot. What the key owes is paid by it first.
    pub(super) fn credit(&mut self, units: u64, expiry: Expiry, now: Timestamp) -> Result<(), Unfit> {
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

    /// Forgives what the key owes. Lots stay.
    pub(super) fn forgive(&mut self) {
        self.owed = 0;
    }
}
