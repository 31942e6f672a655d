//! Balances: [`Balance`] admits a key's requests while the key has units that were credited to it.
//!
//! `values::account` is one key's account: its lots, and its debt. `accounts` keeps all keys' accounts in memory, in
//! maps with locks; `shared` keeps them on a store that processes share. Both answer by the functions below.

mod accounts;
mod limiter;
mod shared;
#[cfg(all(test, not(sluice_loom)))]
#[allow(clippy::cast_possible_truncation, reason = "small numbers")]
mod tests;

pub use self::limiter::Balance;
pub use self::shared::SharedBalance;

use std::time::Duration;

use crate::values::time::Timestamp;
use crate::values::{Decision, Expiry, Paid, Receipt};

/// A key's units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnitsLeft {
    left: u64,
    /// The time until enough units expire that the rest no longer pays for the request. Zero if enough units never
    /// expire, or if they do not pay for it now.
    suffice_for: Duration,
}

impl UnitsLeft {
    /// A key's units, whose lots suffice until then.
    pub(crate) fn new(left: u64, suffice_until: Expiry, now: Timestamp) -> Self {
        let expires = suffice_until != Expiry::NEVER;
        Self { left, suffice_for: if expires { suffice_until.instant().saturating_since(now) } else { Duration::ZERO } }
    }
}

/// The decision on a request that was charged `units`. `rest` has the units that the key has afterwards, and how long
/// the units before would have sufficed.
pub(crate) fn admitted(units: u64, rest: UnitsLeft, paid: Option<Paid>) -> Decision {
    let decision = Decision::allow(rest.left.saturating_add(units), rest.left).with_reset_after(rest.suffice_for);
    paid.map_or(decision, |paid| decision.with_receipt(Receipt::from_proof(paid)))
}

/// The decision, without a charge, on a request if its key has these units. No wait helps, because nothing is restored.
pub(crate) fn judged(cost: u64, UnitsLeft { left, suffice_for }: UnitsLeft) -> Decision {
    match left.checked_sub(cost) {
        Some(rest) => Decision::allow(left, rest).with_reset_after(suffice_for),
        // A request with cost 0 is always admitted.
        None => Decision::reject(left, left, None),
    }
}
