//! `Server-Timing`: how long a request waited in a queue.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::decimal::{Scratch, value_of};
use crate::http::head::append_field;

const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// Appends `Server-Timing: ratelimit;dur=1234.567` (W3C Server Timing; milliseconds).
pub(crate) fn append_server_timing(headers: &mut HeaderMap, waited: Duration) {
    // If the map is full, the field is left out, because that is not a reason to fail a response.
    append_field(headers, SERVER_TIMING, value(waited));
}

/// Rounds up to microseconds, which are written as thousandths of a millisecond.
fn value(waited: Duration) -> HeaderValue {
    let micros = u64::try_from(waited.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX);
    let mut out = Scratch::new();
    out.push(b"ratelimit;dur=");
    out.push_number(micros / 1_000);
    out.push(b".");
    out.push_padded(micros, 3);
    value_of(&out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They are in milliseconds.
    #[test]
    fn waits_are_written_to_the_microsecond() {
        for (waited, expected) in [
            (Duration::from_nanos(1), "ratelimit;dur=0.001"),
            (Duration::from_nanos(1_001), "ratelimit;dur=0.002"),
            (Duration::from_micros(1_500), "ratelimit;dur=1.500"),
            (Duration::from_secs(2), "ratelimit;dur=2000.000"),
            (Duration::MAX, "ratelimit;dur=18446744073709551.615"),
        ] {
            assert_eq!(value(waited), expected);
        }
    }
}
