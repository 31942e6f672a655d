//! The log line of limits in flight.

#![cfg_attr(not(feature = "tracing"), allow(unused_imports, unused_variables))]

use crate::util::log::{event, page};

pub(crate) fn counts_are_full(keys: usize) {
    event!(warn: see = page!("more-keys-have-requests-in-flight-than-there-is-room-for"), keys, "more keys have requests in flight than a limiter has room for, and requests of new ones are rejected: raise its max_keys");
}
