//! [`Members`]: a call's body as JSON, and the values of its members.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Map, Value};

use super::problem::Problem;
use tower_sluice::Quota;
use tower_sluice::internal::span;
use tower_sluice::limiter::OverrideReason;

/// The members of a call's body, a JSON object. All of them must be taken.
pub(crate) struct Members {
    members: Map<String, Value>,
}

/// How long a ban or an allowance lasts, and why.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(crate) span: Duration,
    pub(crate) reason: String,
}

/// Units that are added or charged by hand.
#[derive(Debug)]
pub(crate) struct Units {
    pub(crate) units: u64,
    pub(crate) reference: String,
    pub(crate) expires_in: Option<Duration>,
}

fn unfit(detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
}

impl Members {
    pub(crate) fn parse(body: &[u8]) -> Result<Self, Problem> {
        let value = serde_json::from_slice(body)
            .map_err(|error| Problem::new(StatusCode::BAD_REQUEST, format!("the body is no JSON: {error}")))?;
        match value {
            Value::Object(members) => Ok(Self { members }),
            _ => Err(unfit("the body is no object; send one such as {\"key\": \"203.0.113.7\"}")),
        }
    }

    /// Takes a text that must be there.
    pub(crate) fn text(&mut self, member: &str) -> Result<String, Problem> {
        self.optional_text(member)?.ok_or_else(|| unfit(format!("`{member}` is missing; it is a text")))
    }

    /// Takes a text that may be absent or null.
    pub(crate) fn optional_text(&mut self, member: &str) -> Result<Option<String>, Problem> {
        match self.members.remove(member) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(unfit(format!("`{member}` is {other}; write a text"))),
        }
    }

    /// Takes a time that may be absent.
    fn optional_time(&mut self, member: &str) -> Result<Option<Duration>, Problem> {
        let no_time = || format!("`{member}` is no time; write 30s, 15min, 3h or 2days");
        let span = match self.members.remove(member) {
            None => return Ok(None),
            // Digits in quotation marks have no unit, so they are an error, too.
            Some(Value::String(text)) => span::parse(&text).map_err(|_| unfit(no_time()))?,
            Some(other) => {
                let seconds = other.as_u64().ok_or_else(|| unfit(format!("{}, or a number of seconds", no_time())))?;
                Duration::from_secs(seconds)
            }
        };
        // Limited like a quota's period: not zero, and less than a hundred years.
        let is_fit = Quota::try_per(1, span).is_ok();
        let problem = || unfit(format!("`{member}` is zero, or more than a hundred years"));
        is_fit.then_some(Some(span)).ok_or_else(problem)
    }

    /// Takes `units`, `reference`, and perhaps `expires_in`.
    pub(crate) fn units(&mut self, may_expire: bool) -> Result<Units, Problem> {
        let units = self.members.remove("units").ok_or_else(|| unfit("`units` is missing; write a number"))?;
        let most = Quota::MAX_UNITS;
        let is_fit = |units: &u64| (1..=most).contains(units);
        let problem = || unfit(format!("`units` is {units}; write a number from 1 to {most}"));
        let units = units.as_u64().filter(is_fit).ok_or_else(problem)?;
        // Required, because a call that is sent twice must not count twice.
        let reference = self.text("reference")?;
        let expires_in = if may_expire { self.optional_time("expires_in")? } else { None };
        Ok(Units { units, reference, expires_in })
    }

    /// Takes `for` and `reason`.
    pub(crate) fn terms(&mut self) -> Result<Terms, Problem> {
        let span = self.optional_time("for")?;
        let span = span.ok_or_else(|| unfit("`for` is missing; write for how long: 30s, 15min, 3h or 2days"))?;
        let reason = self.text("reason")?;
        // Checked before anything is looked up; the limiter checks it again.
        let _ = OverrideReason::new(&reason).map_err(|error| unfit(format!("`reason`: {error}")))?;
        Ok(Terms { span, reason })
    }

    /// Rejects a member that was not taken, because a misspelled one would otherwise be ignored.
    pub(crate) fn end(&self) -> Result<(), Problem> {
        match self.members.keys().next() {
            None => Ok(()),
            Some(member) => Err(unfit(format!("`{member}` is no member of this call; remove it, or see the spelling"))),
        }
    }
}
