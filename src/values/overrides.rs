//! Overrides: bans and allowances that an operator makes by hand.

use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A decision about a key that an operator makes by hand. Until it ends, it takes the place of the limit. A key has one
/// at a time: a later one replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Override {
    /// All the key's requests are rejected.
    #[non_exhaustive]
    Ban {
        /// For how long.
        span: Duration,
        /// Why.
        reason: OverrideReason,
    },
    /// All the key's requests are admitted, and not charged.
    #[non_exhaustive]
    Allow {
        /// For how long.
        span: Duration,
        /// Why.
        reason: OverrideReason,
    },
    /// Ends an allowance, and any ban.
    Lift,
}

impl Override {
    /// The ban or the allowance as it begins; `None` if it ends one.
    pub(crate) const fn exception(self) -> Option<Exception> {
        match self {
            Self::Ban { span, reason } => Some(Exception { is_ban: true, left: span, reason }),
            Self::Allow { span, reason } => Some(Exception { is_ban: false, left: span, reason }),
            Self::Lift => None,
        }
    }
}

/// Why an operator has banned or allowed a key: for the log, for the verdict, and for the next operator. No client sees
/// it.
///
/// Copied as a number: the process keeps each reason's text once, and never forgets it. So write the same words for the
/// same reason. After 1,024 different ones, further reasons are replaced by a text that says so.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct OverrideReason(u16);

impl OverrideReason {
    /// No reason: the ban of a [penalty](crate::Penalty), for example.
    pub const NONE: Self = Self(0);

    /// A reason's greatest length, in bytes.
    pub const LONGEST: usize = 200;

    /// A reason. White space around it is dropped.
    ///
    /// # Errors
    ///
    /// If it is empty, longer than [200 bytes](Self::LONGEST), or has control characters, such as the end of a line.
    pub fn new(text: &str) -> Result<Self, OverrideReasonError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(OverrideReasonError::Empty);
        }
        if text.len() > Self::LONGEST {
            return Err(OverrideReasonError::TooLong);
        }
        if text.chars().any(char::is_control) {
            return Err(OverrideReasonError::ControlCharacter);
        }
        Ok(reasons().number(text))
    }

    /// Reads a reason as a server keeps it: [`NONE`](Self::NONE) is empty.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
    pub fn stored(text: &str) -> Result<Self, OverrideReasonError> {
        if text.is_empty() { Ok(Self::NONE) } else { Self::new(text) }
    }

    /// The text; empty if there is no reason.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        reasons().texts.get(usize::from(self.0)).copied().unwrap_or_default()
    }

    /// Whether there is no reason.
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    pub(crate) const fn number(self) -> u16 {
        self.0
    }

    /// The reason with a number that [`number`](Self::number) returned.
    pub(crate) const fn from_number(number: u16) -> Self {
        Self(number)
    }
}

impl fmt::Display for OverrideReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for OverrideReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OverrideReason({:?})", self.as_str())
    }
}

/// Why a text is no [`OverrideReason`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OverrideReasonError {
    /// It is empty.
    Empty,
    /// It is longer than 200 bytes.
    TooLong,
    /// It has a control character, such as the end of a line.
    ControlCharacter,
}

impl fmt::Display for OverrideReasonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "a ban or an allowance by hand needs a reason; write a few words",
            Self::TooLong => "the reason is longer than 200 bytes; write a few words",
            Self::ControlCharacter => "the reason has a control character; write one line of text",
        })
    }
}

impl Error for OverrideReasonError {}

/// A ban or an allowance in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exception {
    pub(crate) is_ban: bool,
    pub(crate) left: Duration,
    pub(crate) reason: OverrideReason,
}

impl Exception {
    /// A ban due to a penalty.
    pub(crate) const fn of_penalty(left: Duration) -> Self {
        Self { is_ban: true, left, reason: OverrideReason::NONE }
    }

    /// Whether it is a ban. Otherwise, it is an allowance.
    #[must_use]
    pub const fn is_ban(&self) -> bool {
        self.is_ban
    }

    /// The time until it ends.
    #[must_use]
    pub const fn left(&self) -> Duration {
        self.left
    }

    /// Whether an operator made it. Otherwise, it is a ban that is due to a [penalty](crate::Penalty).
    #[must_use]
    pub const fn is_by_hand(&self) -> bool {
        !self.reason.is_none()
    }

    /// Why the operator made it. [`NONE`](OverrideReason::NONE) if the ban is due to a [penalty](crate::Penalty).
    #[must_use]
    pub const fn reason(&self) -> OverrideReason {
        self.reason
    }
}

/// The texts of all reasons in this process.
static REASONS: LazyLock<Mutex<Reasons>> = LazyLock::new(|| Mutex::new(Reasons::new()));

/// Locks the reasons. No holder leaves anything half done, so we ignore that a panic has poisoned the lock.
fn reasons() -> MutexGuard<'static, Reasons> {
    REASONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of different reasons that are kept.
const MOST: u16 = 1_024;

/// The text in place of further reasons.
const TOO_MANY: &str = "(more than 1,024 different reasons: this one was not kept)";

/// Texts are leaked, because they are never forgotten: at most 1,024 texts with 200 bytes each.
struct Reasons {
    texts: Vec<&'static str>,
    numbers: HashMap<&'static str, u16>,
}

impl Reasons {
    fn new() -> Self {
        Self { texts: vec!["", TOO_MANY], numbers: HashMap::from([("", 0), (TOO_MANY, 1)]) }
    }

    fn number(&mut self, text: &str) -> OverrideReason {
        if let Some(number) = self.numbers.get(text) {
            return OverrideReason(*number);
        }
        let number = u16::try_from(self.texts.len()).unwrap_or(MOST);
        if number >= MOST {
            return OverrideReason(1);
        }
        let text: &'static str = Box::leak(text.into());
        self.texts.push(text);
        self.numbers.insert(text, number);
        OverrideReason(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_lines_up_to_200_bytes() {
        assert_eq!(OverrideReason::new("  scrapes the catalogue ").unwrap().as_str(), "scrapes the catalogue");
        assert_eq!(OverrideReason::new("scrapes the catalogue"), OverrideReason::new(" scrapes the catalogue"));
        assert_eq!(OverrideReason::new(" "), Err(OverrideReasonError::Empty));
        assert!(OverrideReason::NONE.is_none() && OverrideReason::NONE.as_str().is_empty());
        assert!(OverrideReason::new(&"a".repeat(200)).is_ok());
        assert_eq!(OverrideReason::new(&"a".repeat(201)), Err(OverrideReasonError::TooLong));
        assert_eq!(OverrideReason::new("a\nb"), Err(OverrideReasonError::ControlCharacter));
    }

    #[test]
    fn further_reasons_share_one_text() {
        let mut reasons = Reasons::new();
        let numbers: Vec<_> = (0..2_000).map(|number| reasons.number(&number.to_string()).0).collect();
        assert!(numbers[..1_022].iter().copied().eq(2..1_024));
        assert!(numbers[1_022..].iter().all(|number| *number == 1));
        assert_eq!((reasons.number("1021").0, reasons.texts.len()), (1_023, 1_024));
    }
}
