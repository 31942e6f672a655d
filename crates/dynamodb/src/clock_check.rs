//! Compares this machine's clock with the `Date` of answers.
//!
//! DynamoDB's expressions cannot read a clock, so each process decides by its own. A clock that is wrong by an hour
//! would spend an hour's units. So once an answer has shown a clock to be wrong, it decides nothing until an answer
//! shows it to be right again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use aws_sdk_dynamodb::config::interceptors::BeforeDeserializationInterceptorContextRef;
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::error::BoxError;
use aws_sdk_dynamodb::primitives::{DateTime, DateTimeFormat};
use tower_sluice::time::Timestamp;

use crate::fault::{DynamoFault, FaultKind};

/// `Date` counts whole seconds, so the answer was made within one second from it on.
const GRAIN: Duration = Duration::from_secs(1);

/// Whether this machine's clock may be trusted.
#[derive(Debug, Default)]
pub(crate) struct ClockCheck {
    is_right: AtomicBool,
}

impl ClockCheck {
    /// Whether the last answer showed the clock to be right. Before the first answer we do not know.
    pub(crate) fn is_right(&self) -> bool {
        // Relaxed suffices: a decision that reads an older value is like a decision that came earlier.
        self.is_right.load(Ordering::Relaxed)
    }

    /// Judges the clock by an answer: its `Date`, and our clock's readings when the request was sent and when the
    /// answer had come.
    ///
    /// # Errors
    ///
    /// [`FaultKind::WrongClock`] if the clock differs by more than the round trip, the whole seconds of `Date` and the
    /// permitted clock error explain.
    pub(crate) fn judge(
        &self,
        date: Option<Timestamp>,
        (sent, answered): (Timestamp, Timestamp),
        error: Duration,
    ) -> Result<(), DynamoFault> {
        // We cannot tell without a date. AWS always sends one.
        let (behind, ahead) = date.map_or_else(Default::default, |date| {
            (date.saturating_since(answered), sent.saturating_since(date.saturating_add(GRAIN)))
        });
        let is_right = behind.max(ahead) <= error;
        self.is_right.store(is_right, Ordering::Relaxed);
        if is_right {
            return Ok(());
        }
        let (by, which) = if behind > ahead { (behind, "behind") } else { (ahead, "ahead of") };
        let detail = format!("it is at least {by:?} {which} the `Date` of DynamoDB's answer");
        Err(DynamoFault::new(FaultKind::WrongClock, detail))
    }
}

/// Keeps one answer's `Date`.
#[derive(Clone, Debug, Default)]
pub(crate) struct AnswerDate(Arc<OnceLock<Timestamp>>);

impl AnswerDate {
    pub(crate) fn get(&self) -> Option<Timestamp> {
        self.0.get().copied()
    }
}

impl Intercept for AnswerDate {
    fn name(&self) -> &'static str {
        "AnswerDate"
    }

    fn read_after_transmit(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        if let Some(date) = context.response().headers().get("date").and_then(parse) {
            // Set once: there are no retries.
            let _ = self.0.set(date);
        }
        Ok(())
    }
}

/// Parses an HTTP date.
fn parse(date: &str) -> Option<Timestamp> {
    let seconds = DateTime::from_str(date, DateTimeFormat::HttpDate).ok()?.secs();
    Some(Timestamp::ZERO.saturating_add(Duration::from_secs(u64::try_from(seconds).ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    fn at_ms(ms: u64) -> Timestamp {
        Timestamp::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn dates_are_read() {
        assert_eq!(parse("Thu, 01 Jan 1970 00:01:40 GMT"), Some(at_ms(100_000)));
        assert_eq!(parse("yesterday"), None);
    }

    /// For every true time: a right clock is never called wrong, and a clock that is off by more than a second, the
    /// round trip and the error is never called right.
    #[test]
    fn a_date_shows_whether_clocks_are_wrong() {
        let error = 5 * MILLI;
        for truth in (100_000..101_000).step_by(37) {
            let date = at_ms(truth / 1_000 * 1_000);
            for round_trip in [0, 1, 40, 300] {
                let is_right = |skew: i64| {
                    let sent = truth.saturating_sub(round_trip / 2).checked_add_signed(skew).unwrap();
                    let check = ClockCheck::default();
                    let judged = check.judge(Some(date), (at_ms(sent), at_ms(sent + round_trip)), error);
                    assert_eq!(judged.is_ok(), check.is_right());
                    judged.is_ok()
                };
                let most = i64::try_from(1_000 + round_trip + 6).unwrap();
                assert!(is_right(0) && is_right(5) && is_right(-5), "{truth} {round_trip}");
                assert!(!is_right(most) && !is_right(-most), "{truth} {round_trip}");
            }
        }
    }

    #[test]
    fn a_right_answer_restores_trust() {
        let check = ClockCheck::default();
        assert!(!check.is_right());
        let wrong = check.judge(Some(at_ms(50_000)), (at_ms(90_000), at_ms(90_010)), MILLI).unwrap_err();
        assert_eq!(wrong.kind(), FaultKind::WrongClock);
        assert!(wrong.to_string().contains("at least 39s ahead of"), "{wrong}");
        assert!(!check.is_right());
        check.judge(Some(at_ms(90_000)), (at_ms(90_000), at_ms(90_010)), MILLI).unwrap();
        assert!(check.is_right());
    }
}
