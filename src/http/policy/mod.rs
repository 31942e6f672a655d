//! `Policy`: a named limiter with its options, its record and its metrics.
//!
//! - `definition` has the policy and the setters of its options. Most of its fields are in four groups: `who` it is
//!   for, `how_much` a request is charged, the settings for the time `after` the decision, and the `heritage`: the
//!   state that it takes over from the policy of the same name that it replaces in a live change.
//! - `combined` has several policies, all of which or any of which have to admit a request.
//! - `rules` rejects policies with options that exclude each other (`facts`), or with an invalid name (`names`); the
//!   result is a `PolicyError` (`error`).
//! - `asks` has the calls to the limiter, `owed` the costs above the charge, `adjust` the credits and charges by hand,
//!   `inherit` the policy's part of a live change, `reports` the metrics and logs, `transitions` the events for
//!   operators, and `offenders` the keys that are rejected most.
//! - `crossings` reports that the use of a key has passed a share of its limit (`shares`).
//! - `extras` finds out whether one call of the limiter is all that a policy does for a request, for the shorter paths.
//! - `precedence` finds the class and the weight of a request, for limiters that shed.
//! - `expiring` is the table that bans, debts and records of retries have in common. `named` is a macro for enums whose
//!   variants have names.

mod adjust;
mod after;
mod asks;
mod combined;
mod crossings;
mod definition;
mod error;
mod expiring;
mod extras;
mod facts;
mod heritage;
mod how_much;
mod inherit;
mod log;
mod named;
mod names;
mod offenders;
mod owed;
mod precedence;
mod reports;
mod rules;
mod shares;
mod snapshot;
#[cfg(test)]
mod tests;
mod transitions;
mod who;

pub use self::after::ChargeOnce;
pub(crate) use self::after::{Attempt, DebtCharge};
pub use self::combined::{IntoPolicies, Policies};
pub use self::definition::Policy;
pub use self::error::PolicyError;
pub(crate) use self::heritage::{Fate, Scheduled};
pub use self::heritage::{Penalty, ShowKey};
pub use self::inherit::Replaced;
pub(crate) use self::log::has_decisions;
pub use self::offenders::{Offender, Offenders};
pub(crate) use self::owed::NoteCharge;
pub(crate) use self::precedence::Precedence;
pub(crate) use self::rules::validate_name;
pub use self::shares::Crossing;
pub(crate) use self::shares::Share;
pub(crate) use self::snapshot::{PolicySink, SavedPolicy};
pub(crate) use self::transitions::Hook;
pub use self::transitions::{Event, Transition};
pub use self::who::{ExemptionError, Exemptions, MissingKey};
