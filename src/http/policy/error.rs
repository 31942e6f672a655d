//! `PolicyError`: policies that cannot be enforced.

use std::error::Error;
use std::fmt;

use super::validate::{MAX_NAME, PUNCTUATION};

/// Why policies cannot be enforced as given.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyError {
    /// A layer without a policy would limit nothing.
    NoPolicy,
    /// Two policies of one layer have the same name.
    #[non_exhaustive]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// The name cannot be written into header fields, or has more than 64 bytes.
    #[non_exhaustive]
    InvalidName {
        /// The name.
        name: String,
    },
    /// Every request would cost nothing, so that the policy would never reject one.
    #[non_exhaustive]
    CostOfZero {
        /// The policy's name.
        name: String,
    },
    /// Every request would cost more than can ever be admitted.
    #[non_exhaustive]
    CostAboveBurst {
        /// The policy's name.
        name: String,
        /// The cost of a request.
        cost: u32,
        /// The most that is ever admitted at once.
        burst: u32,
    },
    /// The limiter has one quota for all keys: a queue, a limit of requests in flight, or a custom limiter that [takes no
    /// quotas](crate::Limiter::take_quotas), or advertises none for keys without one.
    #[non_exhaustive]
    QuotasNotTaken {
        /// The policy's name.
        name: String,
    },
    /// Units in flight are released when the request is over, so there is nothing to refund or to charge by its response.
    #[non_exhaustive]
    SettlementOfHeldUnits {
        /// The policy's name.
        name: String,
    },
    /// What a request costs is never more than what it is charged, so nothing could be owed.
    #[non_exhaustive]
    NothingOwed {
        /// The policy's name.
        name: String,
    },
    /// A ban is for retries before the advertised wait is over, and a limit of requests in flight advertises none.
    #[non_exhaustive]
    PenaltyWithoutWaits {
        /// The policy's name.
        name: String,
    },
    /// The requests of this limiter hold nothing that could be released at the head of the response.
    #[non_exhaustive]
    NothingHeld {
        /// The policy's name.
        name: String,
    },
    /// A ban on a key that clients share would let one of them lock out all others.
    #[non_exhaustive]
    PenaltyOnSharedKey {
        /// The policy's name.
        name: String,
    },
    /// No retry can be [free](crate::Policy::charge_once).
    #[non_exhaustive]
    ChargeOnce {
        /// The policy's name.
        name: String,
        /// Why not, and what to do about it.
        problem: &'static str,
    },
    /// A rejection must have a status of 4xx or 5xx.
    #[non_exhaustive]
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
                let (shown, rest) = beginning(name);
                write!(
                    f,
                    "{shown:?}{rest} cannot be a policy's name; begin with an ASCII letter or `*`, then write ASCII \
                     letters, digits and {PUNCTUATION} only, {MAX_NAME} bytes at most"
                )
            }
            Self::CostOfZero { name } => write!(
                f,
                "policy `{name}`: a cost of 0 limits nothing, even with `cost_after`; charge at least 1 for a request, \
                 or leave the policy out"
            ),
            Self::CostAboveBurst { name, cost, burst } => write!(
                f,
                "policy `{name}`: a cost of {cost} never fits, since {burst} is the most that is ever admitted at \
                 once; lower the cost, or raise the limit or its burst"
            ),
            Self::QuotasNotTaken { name } => write!(
                f,
                "policy `{name}`: its limiter has one quota for all keys, so `quota_fn` would have no effect; use a bucket \
                 or a window, in memory or on Redis, or remove `quota_fn`"
            ),
            Self::SettlementOfHeldUnits { name } => write!(
                f,
                "policy `{name}`: a limit of requests in flight cannot be charged by the response; remove `charge_when`, \
                 `cost_after`, `settle_by_handler` or `settle_by_content_bytes`"
            ),
            Self::NothingOwed { name } => write!(
                f,
                "policy `{name}`: no request costs more than it is charged, so nothing is owed; remove `owe_shortfalls`, \
                 or settle costs with `settle_by_handler`, `settle_by_content_bytes` or `cost_after`"
            ),
            Self::PenaltyWithoutWaits { name } => write!(
                f,
                "policy `{name}`: a penalty would ban nobody, since a limit of requests in flight advertises no wait to \
                 retry before; remove the penalty, or add it to a policy with a quota"
            ),
            Self::NothingHeld { name } => write!(
                f,
                "policy `{name}`: requests hold nothing that could be released at the head of the response; remove \
                 `release_at_head`, or limit what is in flight with `Concurrency`"
            ),
            Self::PenaltyOnSharedKey { name } => write!(
                f,
                "policy `{name}`: a penalty would let one client ban all that share its key; \
                 key the policy by client and reject or skip requests without a key, or remove the penalty"
            ),
            Self::ChargeOnce { name, problem } => write!(f, "policy `{name}` cannot charge a request once: {problem}"),
            Self::InvalidStatus { name, status } => {
                write!(f, "policy `{name}`: {status} is not the status of a rejection; choose one from 400 to 599")
            }
        }
    }
}

impl Error for PolicyError {}

/// The part of a name that a message shows, and an ellipsis if that is not all of it.
fn beginning(name: &str) -> (&str, &str) {
    if name.len() <= MAX_NAME {
        return (name, "");
    }
    let end = (0..=MAX_NAME).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
    (&name[..end], "…")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_names_the_mistake_and_the_cure() {
        let name = || "p".to_owned();
        for (error, text) in [
            (PolicyError::NoPolicy, "no policy is given; a layer needs at least one"),
            (PolicyError::DuplicateName { name: name() }, "two policies are named `p`; give each a name of its own"),
            (
                PolicyError::InvalidName { name: "two\nlines".to_owned() },
                "\"two\\nlines\" cannot be a policy's name; begin with an ASCII letter or `*`, then write ASCII \
                 letters, digits and !#$%&'*+-.^_`|~:/ only, 64 bytes at most",
            ),
            (
                PolicyError::CostOfZero { name: name() },
                "policy `p`: a cost of 0 limits nothing, even with `cost_after`; charge at least 1 for a request, or \
                 leave the policy out",
            ),
            (
                PolicyError::CostAboveBurst { name: name(), cost: 6, burst: 5 },
                "policy `p`: a cost of 6 never fits, since 5 is the most that is ever admitted at once; lower the \
                 cost, or raise the limit or its burst",
            ),
            (
                PolicyError::QuotasNotTaken { name: name() },
                "policy `p`: its limiter has one quota for all keys, so `quota_fn` would have no effect; use a bucket or \
                 a window, in memory or on Redis, or remove `quota_fn`",
            ),
            (
                PolicyError::SettlementOfHeldUnits { name: name() },
                "policy `p`: a limit of requests in flight cannot be charged by the response; remove `charge_when`, \
                 `cost_after`, `settle_by_handler` or `settle_by_content_bytes`",
            ),
            (
                PolicyError::NothingOwed { name: name() },
                "policy `p`: no request costs more than it is charged, so nothing is owed; remove `owe_shortfalls`, or \
                 settle costs with `settle_by_handler`, `settle_by_content_bytes` or `cost_after`",
            ),
            (
                PolicyError::PenaltyWithoutWaits { name: name() },
                "policy `p`: a penalty would ban nobody, since a limit of requests in flight advertises no wait to retry \
                 before; remove the penalty, or add it to a policy with a quota",
            ),
            (
                PolicyError::NothingHeld { name: name() },
                "policy `p`: requests hold nothing that could be released at the head of the response; remove \
                 `release_at_head`, or limit what is in flight with `Concurrency`",
            ),
            (
                PolicyError::PenaltyOnSharedKey { name: name() },
                "policy `p`: a penalty would let one client ban all that share its key; key the policy by client and \
                 reject or skip requests without a key, or remove the penalty",
            ),
            (
                PolicyError::ChargeOnce { name: name(), problem: "why; cure" },
                "policy `p` cannot charge a request once: why; cure",
            ),
            (
                PolicyError::InvalidStatus { name: name(), status: 302 },
                "policy `p`: 302 is not the status of a rejection; choose one from 400 to 599",
            ),
        ] {
            assert_eq!(error.to_string(), text);
        }
    }

    #[test]
    fn a_long_name_is_cut_off_at_64_bytes_between_characters() {
        let shown = |name: &str| {
            let text = PolicyError::InvalidName { name: name.to_owned() }.to_string();
            text.split(" cannot be").next().unwrap().to_owned()
        };
        let ascii = "n".repeat(64);
        assert_eq!(shown(&ascii), format!("\"{ascii}\""));
        assert_eq!(shown(&format!("{ascii}n")), format!("\"{ascii}\"…"));
        // 1 + 31 × 2 bytes: another character would end at byte 65.
        assert_eq!(shown(&format!("n{}", "é".repeat(99))), format!("\"n{}\"…", "é".repeat(31)));
    }
}
