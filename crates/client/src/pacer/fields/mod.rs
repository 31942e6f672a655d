//! The partner's limits, as a response reports them. Reading cannot fail: a field that is malformed, too long or absurd
//! is ignored, as if it were missing.
//!
//! `wait` reads the wait that a rejection states, `budget` the remaining units in quotas, and `values` the numbers in
//! both.

mod budget;
#[cfg(test)]
mod tests;
mod values;
mod wait;

use std::time::SystemTime;

use http::{HeaderMap, HeaderName, StatusCode, header};
use tower_sluice::internal::{date, parse_digits};

use self::budget::{lone_reset, quotas, tightest};
use self::values::{line, number};
use super::meter::CallResult;
use super::pace::{CallAnswer, CallReport};
use super::statuses::{WaitRule, WaitStatuses};

/// A field with more bytes than this, over all its lines, is ignored.
const MAX_BYTES: usize = 2_048;

/// The longest window, in seconds: the longest month. Longer windows are cut to this.
const MAX_RESET: u64 = 31 * 86_400;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_RETRY_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// Microseconds in a second.
const SECOND: u64 = 1_000_000;

/// A response's meaning for its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ResponseReading {
    /// Whether the partner accepted the call, rejected it because of a limit, or failed.
    pub(super) result: CallResult,
    pub(super) report: CallReport,
}

/// Reads the head of a response that came at `received`.
///
/// The status decides by `statuses` whether it is a rejection: in any case, or if it states a wait or reports that a
/// quota is used up. On other responses, `Retry-After` is about something else and pauses nothing. A gRPC response
/// without messages has its status in the head: RESOURCE_EXHAUSTED is treated as a 429, and UNAVAILABLE as a 503, with
/// the pushback in place of `Retry-After`.
pub(super) fn read(
    status: StatusCode,
    headers: &HeaderMap,
    received: SystemTime,
    statuses: &WaitStatuses,
) -> ResponseReading {
    // Instants are compared with the partner's own clock, if the response has its time.
    let now = headers.get(header::DATE).and_then(date).unwrap_or(received);
    // A cache repeats the state from when it stored the response, so we read no budget from it.
    let is_stored = number(headers, &header::AGE).is_some_and(|age| age > 0);
    let budget = if is_stored { None } else { tightest(quotas(headers, now)) };
    let (rule, pushback) = match in_grpc(headers) {
        Some(in_grpc) => in_grpc,
        None => (statuses.rule(status), Pushback::Unset),
    };
    let stated = || if let Pushback::Wait(micros) = pushback { Some(micros) } else { wait::stated(headers, now) };
    let is_used_up = || budget.is_some_and(|budget| budget.left == 0);
    let is_rejection = match rule {
        WaitRule::Always => true,
        WaitRule::IfStated => stated().is_some() || is_used_up(),
        WaitRule::Never => false,
    };
    if !is_rejection {
        let result = if is_failure(status, headers) { CallResult::Failed } else { CallResult::Accepted };
        return ResponseReading { result, report: CallReport { answer: CallAnswer::Taken, wait: 0, budget } };
    }
    let wait = stated().or_else(|| if budget.is_none() { lone_reset(headers, now) } else { None });
    let report = CallReport { answer: CallAnswer::Rejected, wait: wait.unwrap_or(0), budget };
    ResponseReading { result: CallResult::Rejected, report }
}

/// Whether the partner did not carry the call out, for its own reasons. Other 4xx are about the request.
fn is_failure(status: StatusCode, headers: &HeaderMap) -> bool {
    match number(headers, &GRPC_STATUS) {
        // DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, INTERNAL, UNAVAILABLE.
        Some(status) => matches!(status, 4 | 8 | 13 | 14),
        None => status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error(),
    }
}

/// A server's instruction about repeating a call in gRPC (gRFC A6).
enum Pushback {
    Unset,
    /// In microseconds.
    Wait(u64),
    /// Not at all.
    Forbidden,
}

/// Reads a gRPC status in a head: whether it is a rejection, as the corresponding HTTP status, and the pushback.
fn in_grpc(headers: &HeaderMap) -> Option<(WaitRule, Pushback)> {
    let status = number(headers, &GRPC_STATUS)?;
    let pushback = match line(headers, &GRPC_RETRY_PUSHBACK) {
        None => Pushback::Unset,
        Some(text) => match parse_digits(text) {
            // At least a millisecond, because zero would mean to repeat the call at once.
            Some(millis) => Pushback::Wait(millis.clamp(1, MAX_RESET * 1_000) * 1_000),
            // A negative number, or anything else.
            None => Pushback::Forbidden,
        },
    };
    let rule = match (status, &pushback) {
        (_, Pushback::Forbidden) => WaitRule::Never,
        (8, _) => WaitRule::Always,
        (14, _) => WaitRule::IfStated,
        _ => WaitRule::Never,
    };
    Some((rule, pushback))
}
