//! [`Accounts`]: units that were bought, on a server.
//!
//! The trait has one method, which does an [`AccountStep`] on a key's account. A server that runs scripts does it in
//! one call. Over [`Records`](super::Records), which can only be swapped, `over_records` does it, by the bytes that
//! `record` defines.

mod over_records;
mod record;
#[cfg(all(test, not(sluice_loom)))]
mod tests;

use std::future::Future;
use std::sync::Arc;

use super::any_records::AnyRecords;
use super::backend::CallLimits;
use super::limiter_keys::{LimiterKeys, RemoteKey};
use super::server::Server;
use super::tag::{KeyTag, Tags};
use crate::values::time::Timestamp;
use crate::values::{LimiterError, PartitionKey};

pub use crate::values::{CreditExpiry, Expiry, Paid, Shortfall, Unfit};

/// A server that keeps accounts: each key's lots, and the units that it owes.
///
/// [`SharedBalance`](crate::SharedBalance) is a limiter over any such server. All [`Records`](super::Records) are
/// accounts, so implement this only for a server that can do a whole step by itself, as a script does.
///
/// # Contract
///
/// - [`apply`](Self::apply) does one step atomically over all processes, as [`Balance`](crate::Balance) describes lots,
///   their order, debts and refunds. Before it, lots that have [expired](Expiry) by the server's clock are removed.
/// - A step with a [`Reference`] is idempotent while the reference is known, even if it is repeated with other units. A
///   reference is known for seven days, and for a credit as long as its units can be used. A step that is not done
///   leaves no reference.
/// - A key has at most 64 lots after a credit, and has or owes at most [`Quota::MAX_UNITS`](crate::Quota::MAX_UNITS).
/// - A failure is an error. A step that failed may have been done, and is not sent again.
/// - It returns before the deadline, even if the server does not answer.
///
/// `testing::check_accounts` (feature `test-util`) tests yours.
pub trait Accounts: Server {
    /// Does a step on a key's account.
    ///
    /// # Errors
    ///
    /// If the server does not answer, or keeps something else under the name. Then the step may have been done.
    fn apply(
        &self,
        key: &RemoteKey<'_>,
        step: AccountStep,
        limits: CallLimits,
    ) -> impl Future<Output = Result<AccountReply, LimiterError>> + Send;

    /// Returns the records in which processes share their rejections and reports. By default `None`, and each process
    /// has its own.
    fn shared_records(self: &Arc<Self>) -> Option<AnyRecords> {
        None
    }
}

/// A change to a key's account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AccountStep {
    /// Charges the key. Zero units only read.
    Take {
        /// The units.
        units: u64,
        /// How to proceed if the key has fewer.
        shortfall: Shortfall,
        /// The purpose for which the units were used. Only with [`Shortfall::Owed`].
        reference: Option<Reference>,
    },
    /// Gives back units from a charge: to the lot that was charged last, up to the amount that it has paid, and the
    /// others to the lot that was charged first. Units from a lot that has expired meanwhile are gone.
    GiveBack {
        /// The units, at most the number that was charged.
        units: u64,
        /// The lots that have paid the charge.
        paid: Paid,
    },
    /// Adds a lot, after the key's debt is paid.
    Credit {
        /// The units.
        units: u64,
        /// When they expire.
        expiry: CreditExpiry,
        /// The purpose of the units.
        reference: Option<Reference>,
    },
    /// Forgives the key's debt. Its lots stay.
    Forgive,
}

impl AccountStep {
    pub(crate) const fn reference(self) -> Option<Reference> {
        match self {
            Self::Take { reference, .. } | Self::Credit { reference, .. } => reference,
            Self::GiveBack { .. } | Self::Forgive => None,
        }
    }
}

/// The outcome of an [`AccountStep`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "a server writes all of it")]
pub struct AccountReply {
    /// The action that was done.
    pub done: AccountDone,
    /// The units that the key has afterwards, zero if it owes something.
    pub left: u64,
    /// The units that a [`Take`](AccountStep::Take) has taken. Excludes the part that the key owes for it.
    pub taken: u64,
    /// The lots that paid for them, if any were taken.
    pub paid: Option<Paid>,
    /// How long the lots before a [`Take`](AccountStep::Take) would have sufficed for its units, if later lots pay for
    /// those that expire before. [`Expiry::NEVER`] if they do not suffice, and after other steps.
    pub suffices_until: Expiry,
    /// The server's time.
    pub now: Timestamp,
}

/// The result of an [`AccountStep`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "a server says one of these")]
pub enum AccountDone {
    /// Nothing was taken, since the key has fewer units, or since there were none to take.
    Nothing,
    /// The step was done.
    Step,
    /// Nothing was done, since the reference is known.
    Repeated,
    /// Nothing was done, since the account would exceed its bounds.
    Unfit(Unfit),
}

/// The reference for a credit or for a charge by hand: a hash, which differs for credits and charges, and which is
/// known for one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reference(KeyTag);

impl Reference {
    /// The reference for a charge by hand.
    pub(crate) fn of_charge(tags: &Tags, reference: &str) -> Self {
        Self::new(tags, "charge", reference)
    }

    fn new(tags: &Tags, kind: &str, reference: &str) -> Self {
        Self(tags.of(&PartitionKey::from_parts([kind, reference])))
    }

    /// Returns its hash, like a [key's](RemoteKey::tag).
    #[must_use]
    pub const fn tag(&self) -> KeyTag {
        self.0
    }
}

impl LimiterKeys {
    /// The reference for a credit.
    pub(crate) fn credited(&self, reference: &str) -> Reference {
        Reference::new(self.tags(), "credit", reference)
    }

    /// The reference for a charge by hand.
    pub(crate) fn charged(&self, reference: &str) -> Reference {
        Reference::of_charge(self.tags(), reference)
    }
}
