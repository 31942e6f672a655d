//! Balances: [`Balance`] admits the requests of a key as long as it has units that were credited to it.
//!
//! `account` is the account of one key: its lots, and what it owes. `accounts` keeps those of all keys in memory, by
//! maps with locks; `redis` keeps them on a server, where a script does what `account` does. Both answer by the
//! functions below.

pub(crate) mod account;
mod accounts;
mod limiter;
#[cfg(all(test, not(sluice_loom)))]
#[allow(clippy::cast_possible_truncation, reason = "small numbers")]
mod tests;

pub use self::limiter::Balance;

use std::time::Duration;

use crate::values::time::Timestamp;
use crate::values::{Decision, Expiry, Issuer, LimiterError, Proof, Quota, Receipt};

/// The most lots of a key: the work of a decision is bounded.
const MOST_LOTS: usize = 64;

/// The charge of a request: the lots that have paid it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paid {
    /// The end of the lot that was charged first.
    pub first: Expiry,
    /// The end of the lot that was charged last.
    pub last: Expiry,
    /// The units that the last lot has paid; the largest number that a receipt holds if there are more.
    pub by_last: u64,
}

/// The bits of a receipt that two expiries leave for a number of units: 4 × 10^12.
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

/// The units of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnitsLeft {
    left: u64,
    /// The time until units expire, so that the others do not pay for the request any more: zero if enough of them
    /// never expire, or if they do not pay for it now.
    suffice_for: Duration,
}

impl UnitsLeft {
    /// The units of a key whose lots suffice until then.
    pub fn new(left: u64, suffice_until: Expiry, now: Timestamp) -> Self {
        let expires = suffice_until != Expiry::NEVER;
        Self { left, suffice_for: if expires { suffice_until.instant().saturating_since(now) } else { Duration::ZERO } }
    }
}

/// The decision on a request that was charged `units`. `rest` are the units that the key has afterwards, and for how
/// long those before would have sufficed.
pub fn admitted(units: u64, rest: UnitsLeft, paid: Option<Paid>) -> Decision {
    let decision = Decision::allow(rest.left.saturating_add(units), rest.left).with_reset_after(rest.suffice_for);
    paid.map_or(decision, |paid| decision.with_receipt(Receipt::from_proof(paid)))
}

/// The decision, without a charge, on a request of a key with these units. No wait helps: nothing is restored.
pub fn judged(cost: u64, UnitsLeft { left, suffice_for }: UnitsLeft) -> Decision {
    match left.checked_sub(cost) {
        Some(rest) => Decision::allow(left, rest).with_reset_after(suffice_for),
        // A request of cost 0 is always admitted.
        None => Decision::reject(left, left, None),
    }
}

/// Why units cannot be added or charged by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "each has a message")]
pub enum Unfit {
    /// The balance would be above, or the debt, [`Quota::MAX_UNITS`].
    TooManyUnits,
    /// The key has too many lots.
    TooManyLots,
    /// The lot has ended already.
    Expired,
}

impl Unfit {
    /// The error that says so.
    #[must_use]
    pub fn error(self) -> LimiterError {
        LimiterError::cannot(match self {
            Self::TooManyUnits => {
                format!("a key has, or owes, at most {} units; count in greater units, such as cents", Quota::MAX_UNITS)
            }
            Self::TooManyLots => format!(
                "the key has {MOST_LOTS} lots that expire at different times; let credits expire at the end of a day or \
                 of a month, so that they become one lot"
            ),
            Self::Expired => "the credit has expired already; choose a later time".to_owned(),
        })
    }
}
