//! `PolicyError`: policies that cannot be enforced.

use std::error::Error;
use std::fmt;

use super::validate::MAX_NAME;

/// Why policies cannot be enforced as given.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyError {
    /// A layer without a policy would limit nothing.
    NoPolicy,
    /// Two policies of one layer have the same name.
    DuplicateName {
        /// The name.
        name: String,
    },
    /// The name cannot be written into header fields, or has more than 64 bytes.
    InvalidName {
        /// The name.
        name: String,
    },
    /// Every request would cost nothing, so that the policy would never reject one.
    CostOfZero {
        /// The policy's name.
        name: String,
    },
    /// Every request would cost more than can ever be admitted.
    CostAboveBurst {
        /// The policy's name.
        name: String,
        /// The cost of a request.
        cost: u32,
        /// The most that is ever admitted at once.
        burst: u32,
    },
    /// A ban on a key that clients share would let one of them lock out all others.
    PenaltyOnSharedKey {
        /// The policy's name.
        name: String,
    },
    /// A rejection must have a status of 4xx or 5xx.
    InvalidStatus {
        /// The policy's name.
        name: String,
        /// The status.
        status: u16,
    },
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPolicy => f.write_str("no policy is given; a layer needs at least one"),
            Self::DuplicateName { name } => {
                write!(f, "two policies are named `{name}`; give each a name of its own")
            }
            Self::InvalidName { name } => {
                let shown = name.char_indices().nth(MAX_NAME).map_or(&**name, |(end, _)| &name[..end]);
                let rest = if shown.len() < name.len() { "…" } else { "" };
                write!(
                    f,
                    "`{shown}{rest}` cannot be a policy's name; begin with a letter and write letters, digits and -_.:/ \
                     only, {MAX_NAME} at most"
                )
            }
            Self::CostOfZero { name } => write!(
                f,
                "policy `{name}`: a cost of 0 limits nothing, whatever the response adds; charge at least 1 for a request, \
                 or leave the policy out"
            ),
            Self::CostAboveBurst { name, cost, burst } => write!(
                f,
                "policy `{name}`: a cost of {cost} never fits in a burst of {burst}; \
                 lower the cost or raise the burst"
            ),
            Self::PenaltyOnSharedKey { name } => write!(
                f,
                "policy `{name}`: a penalty would let one client ban all that share its key; \
                 key the policy by client and reject or skip requests without a key, or remove the penalty"
            ),
            Self::InvalidStatus { name, status } => {
                write!(f, "policy `{name}`: {status} is not the status of a rejection; choose one from 400 to 599")
            }
        }
    }
}

impl Error for PolicyError {}
