//! `Retry-After` and related fields: the wait that a rejection states.

use std::time::SystemTime;

use http::{HeaderMap, HeaderName, HeaderValue, header};
use tower_sluice::internal::{date, seconds_in};

use super::values::{decimal, line, span};
use super::{MAX_BYTES, MAX_RESET, SECOND};

/// The wait in milliseconds. Some AI services and a cloud database send it, and round `Retry-After` from it.
const IN_MILLIS: [HeaderName; 2] =
    [HeaderName::from_static("retry-after-ms"), HeaderName::from_static("x-ms-retry-after-ms")];

/// Returns the wait in microseconds.
pub(super) fn stated(headers: &HeaderMap, now: SystemTime) -> Option<u64> {
    let in_millis = IN_MILLIS.iter().find_map(|name| decimal(line(headers, name)?, 1_000));
    let wait = in_millis.or_else(|| {
        let lines = headers.get_all(header::RETRY_AFTER).iter();
        lines.filter(|line| line.len() <= MAX_BYTES).filter_map(|line| retry_after(line, now)).max()
    })?;
    // Zero would mean to repeat the call at once.
    Some(if wait == 0 { SECOND } else { wait.min(MAX_RESET * SECOND) })
}

/// Reads the longest wait in a line. RFC 9110 allows whole seconds or a date. Partners and their proxies also send
/// decimals, units, and lists, which two lines become.
fn retry_after(line: &HeaderValue, now: SystemTime) -> Option<u64> {
    if let Some(seconds) = date(line).and_then(|_| seconds_in(line, || now)) {
        return Some(seconds.saturating_mul(SECOND));
    }
    let waits = line.as_bytes().split(|byte| *byte == b',').map(|wait| {
        let wait = wait.trim_ascii();
        decimal(wait, SECOND).or_else(|| span(wait))
    });
    waits.collect::<Option<Vec<_>>>()?.into_iter().max()
}
