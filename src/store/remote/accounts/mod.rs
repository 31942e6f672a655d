//! [`Accounts`]: units that were bought, on a server.
//!
//! The trait has one method, which does an [`AccountStep`] on the account of a key. A server that runs scripts does it
//! in one call. Over [`Records`](super::Records), which are only swapped, `over_records` does it, by the bytes of
//! `record`.

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

/// A server that keeps accounts: the lots of each key, and what it owes.
///
/// [`SharedBalance`](crate::SharedBalance) is a limiter over any of them. All [`Records`](super::Records) are accounts,
/// so implement this only for a server that can do a whole step by itself, as a script does.
///
/// # Contract
///
/// - [`apply`](Self::apply) does one step, whichever process asks for it: as [`Balance`](crate::Balance) describes
///   lots, their order, debts and refunds. Before it, lots that have [expired](Expiry) by the server's clock are
///   removed.
/// - A step with a [`Reference`] is done once while the reference is known, however often it is asked for, and whatever
///   its units are: for seven days, and for a credit as long as its units can be used. A step that is not done leaves
///   no reference.
/// - A key has at most 64 lots after a credit, and has or owes at most [`Quota::MAX_UNITS`](crate::Quota::MAX_UNITS).
/// - A failure is an error. A step that failed may have been done, and is not sent again.
/// - It returns before the deadline, also if the server does not answer.
///
/// `testing::check_accounts` (feature `test-util`) tests yours.
pub trait Accounts: Server {
    /// Does a step on the account of a key.
    ///
    /// # Errors
    ///
    /// If the server gives no answer, or keeps something else under the name. Then the step may have been done.
    fn apply(
        &self,
        key: &RemoteKey<'_>,
        step: AccountStep,
        limits: CallLimits,
    ) -> impl Future<Output = Result<AccountReply, LimiterError>> + Send;

    /// Returns the records in which processes pass on to each other what they have rejected and reported. By default
    /// none, and each process has its own.
    fn shared_records(self: &Arc<Self>) -> Option<AnyRecords> {
        None
    }
}

/// A change of the account of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AccountStep {
    /// Charges the key. Zero units only read.
    Take {
        /// The units.
        units: u64,
        /// What to do if the key has fewer.
        shortfall: Shortfall,
        /// What the units were used for. Only with [`Shortfall::Owed`].
        reference: Option<Reference>,
    },
    /// Gives back units of a charge: to the lot that was charged last, up to what it has paid, and the others to the
    /// lot that was charged first. Units of a lot that has expired meanwhile are gone.
    GiveBack {
        /// The units; as many as were charged at most.
        units: u64,
        /// The lots that have paid the charge.
        paid: Paid,
    },
    /// Adds a lot, after what the key owes is paid.
    Credit {
        /// The units.
        units: u64,
        /// When they expire.
        expiry: CreditExpiry,
        /// What the units are for.
        reference: Option<Reference>,
    },
    /// Forgives what the key owes. Its lots stay.
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
    /// What was done.
    pub done: AccountDone,
    /// The units that the key has afterwards; zero if it owes something.
    pub left: u64,
    /// The units that a [`Take`](AccountStep::Take) has taken. Without what the key owes for it.
    pub taken: u64,
    /// The lots that they came from, if any were taken.
    pub paid: Option<Paid>,
    /// The end of the time for which the lots before a [`Take`](AccountStep::Take) would have sufficed for its units:
    /// later lots pay for those that expire before. [`Expiry::NEVER`] if they do not suffice, and after other steps.
    pub suffices_until: Expiry,
    /// The time of the server.
    pub now: Timestamp,
}

/// What became of an [`AccountStep`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "a server says one of these")]
pub enum AccountDone {
    /// Nothing was taken, since the key has fewer units, or since there were none to take.
    Nothing,
    /// The step.
    Step,
    /// Nothing, since the reference is known.
    Repeated,
    /// Nothing, since no account may be so.
    Unfit(Unfit),
}

/// The reference of a credit or of a charge by hand: a hash, which differs for credits and charges, and which is known
/// for one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reference(KeyTag);

impl Reference {
    /// The reference of a charge by hand.
    pub(crate) fn of_charge(tags: &Tags, reference: &str) -> Self {
        Self::new(tags, "charge", reference)
    }

    fn new(tags: &Tags, kind: &str, reference: &str) -> Self {
        Self(tags.of(&PartitionKey::from_parts([kind, reference])))
    }

    /// Returns its hash, as of a [key](RemoteKey::tag).
    #[must_use]
    pub const fn tag(&self) -> KeyTag {
        self.0
    }
}

impl LimiterKeys {
    /// The reference of a credit.
    pub(crate) fn credited(&self, reference: &str) -> Reference {
        Reference::new(self.tags(), "credit", reference)
    }

    /// The reference of a charge by hand.
    pub(crate) fn charged(&self, reference: &str) -> Reference {
        Reference::of_charge(self.tags(), reference)
    }
}
