//! `Policy`: a named limiter with its options, its record and its metrics.
//!
//! - `definition` has the policy and its setters, and `charges` the setters for costs and quotas. Most fields are in
//!   four groups: the `selector` chooses the requests and their keys, `costs` has the charge when a request comes,
//!   `billing` the final cost, and the `lineage` the state that policies with one name share through every live change.
//! - `combined` has several policies, where all or any have to admit a request.
//! - `rules` rejects policies with options that exclude each other (`facts`), or with an invalid name (`names`), with a
//!   `PolicyError` (`error`).
//! - `asks` has the calls to the limiter, `owed` the costs above the charge, `adjust` the credits and charges by hand,
//!   `inherit` the policy's part of a live change, `reports` the metrics and logs, `transitions` the events for
//!   operators.
//! - `bans` has the penalty for keys that come too early, `overrides` the bans and allowances by hand, `debts` the
//!   units that keys owe, `open_charges` the charges whose responses are awaited, `retries` the requests that are
//!   charged once, `limited_keys` the keys that are limited now, and `record` a policy's counts.
//! - `offender_record` counts the keys that are rejected most, and `offenders` shows them.
//! - `crossings` reports that a key's use has passed a share of its limit (`shares`).
//! - `extras` finds out whether one limiter call is all that a policy does for a request, for the fast paths.
//! - `precedence` finds a request's class and weight, for limiters that shed.
//! - `expiring` is the table that bans, debts and retry records share. `named` is a macro for enums whose variants have
//!   names.

mod adjust;
mod asks;
mod bans;
mod billing;
mod charges;
mod combined;
mod costs;
mod crossings;
mod debts;
mod definition;
mod error;
mod expiring;
mod extras;
mod facts;
mod inherit;
mod limited_keys;
mod lineage;
pub(crate) mod log;
mod metrics;
mod named;
mod names;
mod offender_record;
mod offenders;
mod open_charges;
mod overrides;
mod owed;
mod precedence;
mod record;
mod reports;
mod retries;
mod rules;
mod selector;
mod shares;
mod snapshot;
#[cfg(test)]
mod tests;
mod transitions;

pub use self::bans::Penalty;
pub use self::combined::{IntoPolicies, Policies};
pub(crate) use self::debts::DebtCharge;
pub use self::definition::Policy;
pub use self::error::PolicyError;
pub use self::inherit::Replaced;
pub(crate) use self::log::has_decisions;
pub(crate) use self::metrics::Fate;
pub(crate) use self::offender_record::Scheduled;
pub use self::offender_record::ShowKey;
pub use self::offenders::{Offender, Offenders};
pub(crate) use self::owed::NoteCharge;
pub(crate) use self::precedence::Precedence;
pub(crate) use self::retries::Attempt;
pub use self::retries::ChargeOnce;
pub(crate) use self::rules::validate_name;
pub use self::selector::MissingKey;
pub use self::shares::Crossing;
pub(crate) use self::shares::Share;
pub(crate) use self::snapshot::{PolicySink, SavedPolicy};
pub(crate) use self::transitions::Hook;
pub use self::transitions::{Event, Transition};
