//! Log lines for partners' transitions, one function each. The callers bound their rate. `partner` is the host that the
//! program calls, escaped, or the hash of the program's own key.

use std::fmt::Display;
use std::time::Duration;

pub(super) fn partner_throttled(pacer: Option<&str>, partner: &dyn Display, accepted: u64, sent: u64, left_out: u64) {
    tracing::warn!(target: "tower_sluice", pacer, %partner, accepted, sent, left_out, "a partner keeps failing: calls to it are rejected here, without being sent, except for one per second and as many as it accepts");
}

pub(super) fn partner_recovered(pacer: Option<&str>, partner: &dyn Display, left_out: u64) {
    tracing::warn!(target: "tower_sluice", pacer, %partner, left_out, "a partner accepts calls again: all are sent");
}

pub(super) fn partner_paused(pacer: Option<&str>, partner: &dyn Display, pause: Duration, left_out: u64) {
    tracing::info!(target: "tower_sluice", pacer, %partner, pause = ?pause, left_out, "a partner has rejected a call because of its limit: its line pauses");
}
