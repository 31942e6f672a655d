//! `PolicyError`: policies that cannot be enforced.

use std::error::Error;
use std::fmt;

use crate::engine::policy::names::{MAX_NAME, PUNCTUATION};

/// The reason why policies cannot be enforced as given.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyError {
    /// A layer without a policy would limit nothing.
    NoPolicy,
    /// Two policies in one layer have the same name.
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
        cost: u64,
        /// The highest cost that is ever admitted at once.
        burst: u64,
    },
    /// Two options, or an option and the limiter, cannot be combined.
    #[non_exhaustive]
    Conflict {
        /// The policy's name.
        name: String,
        /// The option, by its method's name.
        option: &'static str,
        /// The other option, or a description of the limiter.
        other: &'static str,
        /// Why they exclude each other, and how to resolve it.
        problem: &'static str,
    },
    /// A rejection's status must be 4xx or 5xx.
    #[non_exhaustive]
    InvalidStatus {
        /// The policy's name.
        name: String,
        /// The status.
        status: u16,
    },
}

impl PolicyError {
    /// The error for a policy for which a request may have several keys, in a layer with alternatives.
    pub(crate) fn several_keys_among_alternatives(name: &str) -> Self {
        Self::Conflict {
            name: name.to_owned(),
            option: "several keys per request",
            other: "alternatives",
            problem: "an alternative has room or has none; return one key per request, or move the policy to a layer of its own",
        }
    }
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
            Self::Conflict { name, option, other, problem } => {
                write!(f, "policy `{name}`: {} cannot be combined with {}: {problem}", Shown(option), Shown(other))
            }
            Self::InvalidStatus { name, status } => {
                write!(f, "policy `{name}`: {status} is not the status of a rejection; choose one from 400 to 599")
            }
        }
    }
}

impl Error for PolicyError {}

/// An option, in backticks, or words.
struct Shown<'a>(&'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.contains(' ') { f.write_str(self.0) } else { write!(f, "`{}`", self.0) }
    }
}

/// The part of a name that a message shows, and an ellipsis if the name is longer.
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
    fn every_error_names_mistake_and_cure() {
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
                PolicyError::Conflict {
                    name: name(),
                    option: "penalty",
                    other: "a key that clients share",
                    problem: "why; cure",
                },
                "policy `p`: `penalty` cannot be combined with a key that clients share: why; cure",
            ),
            (
                PolicyError::Conflict { name: name(), option: "cost", other: "cost_fn", problem: "why; cure" },
                "policy `p`: `cost` cannot be combined with `cost_fn`: why; cure",
            ),
            (
                PolicyError::InvalidStatus { name: name(), status: 302 },
                "policy `p`: 302 is not the status of a rejection; choose one from 400 to 599",
            ),
        ] {
            assert_eq!(error.to_string(), text);
        }
    }

    /// The cut is between characters.
    #[test]
    fn long_names_are_cut_at_64_bytes() {
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
