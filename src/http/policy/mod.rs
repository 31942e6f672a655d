//! `Policy`: a named limiter, with all that a layer knows of it.
//!
//! - `definition` has the policy, with its options in four groups: `who` it is for, `how_much` a request is charged, what
//!   happens `after` the response, and the `heritage` that a policy takes over from the one that it replaces.
//! - `rules` rejects options that exclude each other (`facts`).
//! - `asks` is how a policy asks its limiter, `owed` what happens to costs above the charge, `inherit` a live change, and
//!   `reports` what is counted and logged.
//! - `expiring` is the table that bans, debts and records of retries have in common.

mod after;
mod asks;
mod definition;
mod error;
mod expiring;
mod facts;
mod heritage;
mod how_much;
mod inherit;
mod named;
mod names;
mod owed;
mod reports;
mod rules;
#[cfg(test)]
mod tests;
mod who;

pub use self::after::ChargeOnce;
pub(crate) use self::after::{Attempt, DebtCharge};
pub use self::definition::{IntoPolicies, Policy};
pub use self::error::PolicyError;
pub(crate) use self::heritage::Fate;
pub use self::heritage::Penalty;
pub use self::inherit::Replaced;
pub(crate) use self::rules::validate_name;
pub use self::who::{ExemptionError, Exemptions, MissingKey};
