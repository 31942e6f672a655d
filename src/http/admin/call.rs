//! The bodies of calls: a search for a key, and an act on it.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Map, Value};

use super::problem::Problem;
use crate::values::{OverrideReason, Quota};

/// A body: a JSON object whose members all are read.
pub(super) struct Call {
    members: Map<String, Value>,
}

/// How long a ban or an allowance lasts, and why.
#[derive(Debug)]
pub(super) struct Terms {
    pub(super) span: Duration,
    pub(super) reason: String,
}

fn unfit(detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
}

impl Call {
    pub(super) fn parse(body: &[u8]) -> Result<Self, Problem> {
        let value = serde_json::from_slice(body)
            .map_err(|error| Problem::new(StatusCode::BAD_REQUEST, format!("the body is no JSON: {error}")))?;
        match value {
            Value::Object(members) => Ok(Self { members }),
            _ => Err(unfit("the body is no object; send one such as {\"key\": \"203.0.113.7\"}")),
        }
    }

    /// Takes a text that must be there.
    pub(super) fn text(&mut self, member: &str) -> Result<String, Problem> {
        self.optional_text(member)?.ok_or_else(|| unfit(format!("`{member}` is missing; it is a text")))
    }

    /// Takes a text that may be absent or null.
    pub(super) fn optional_text(&mut self, member: &str) -> Result<Option<String>, Problem> {
        match self.members.remove(member) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(unfit(format!("`{member}` is {other}; write a text"))),
        }
    }

    /// Takes `for` and `reason`.
    pub(super) fn terms(&mut self) -> Result<Terms, Problem> {
        const NO_TIME: &str = "`for` is no time; write 30s, 15min, 3h or 2days";
        let span = match self.members.remove("for") {
            None => return Err(unfit("`for` is missing; write for how long: 30s, 15min, 3h or 2days")),
            // A text of digits has no unit, so it is an error, too.
            Some(Value::String(text)) => humantime::parse_duration(&text).map_err(|_| unfit(NO_TIME))?,
            Some(other) => {
                let seconds = other.as_u64().ok_or_else(|| unfit(format!("{NO_TIME}, or a number of seconds")))?;
                Duration::from_secs(seconds)
            }
        };
        // As for the period of a quota: not zero, and less than a hundred years.
        let _ = Quota::try_per(1, span).map_err(|_| unfit("`for` is zero, or more than a hundred years"))?;
        let reason = self.text("reason")?;
        // Checked before anything is looked up; the limiter checks it again.
        let _ = OverrideReason::new(&reason).map_err(|error| unfit(format!("`reason`: {error}")))?;
        Ok(Terms { span, reason })
    }

    /// Rejects a member that was not taken: a misspelled one would otherwise be ignored.
    pub(super) fn end(&self) -> Result<(), Problem> {
        match self.members.keys().next() {
            None => Ok(()),
            Some(member) => Err(unfit(format!("`{member}` is no member of this call; remove it, or see the spelling"))),
        }
    }
}
