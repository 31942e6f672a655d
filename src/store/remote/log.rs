//! The log lines about a server's nodes, one function each. Each transition is logged.

#![cfg_attr(not(feature = "tracing"), allow(unused_imports, unused_variables))]

use std::fmt::Display;

use crate::util::log::event;

pub(crate) fn breaker_opened(node: &str, reason: &dyn Display) {
    event!(warn: node, %reason, "store: a node keeps failing: its circuit breaker is open, and it is not called for a while");
}

pub(crate) fn breaker_closed(node: &str) {
    event!(warn: node, "store: a node is back: its circuit breaker is closed");
}
