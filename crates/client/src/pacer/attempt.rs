//! One attempt of a call: whether it may be made, and its result.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tower_sluice::internal::{KeyHash, random};

use super::error::LineRejection;
use super::health::{SentMark, ThrottleChange};
use super::line::PartnerLine;
use super::meter::CallResult;
use super::partners::PartnerKey;

/// An attempt that waits in line, or is under way. It is counted once. If it is dropped before its end, it counts as
/// cancelled, and if it was sent, the partner has not accepted it.
pub(super) struct Attempt {
    line: Arc<PartnerLine>,
    sent: Option<SentMark>,
    is_counted: bool,
}

/// After a logged pause, a line logs no other for this long, in microseconds.
const QUIET: u64 = 60_000_000;

impl PartnerLine {
    /// Lets a call try, unless the partner keeps failing and the dice say so. It does not touch the line or the
    /// network.
    pub(super) fn admit(&self) -> Result<(), LineRejection> {
        let Some((throttle, health)) = self.health.as_deref() else { return Ok(()) };
        let now = self.common.micros(Instant::now());
        let admission = health.lock().admit(now, throttle, random);
        let sums = admission.sums;
        match admission.change {
            Some(ThrottleChange::Began) => {
                self.common.meter.throttles(true);
                self.common.meter.log_throttled(&self.partner(), sums.accepted, sums.sent, now);
            }
            Some(ThrottleChange::Ended) => {
                self.common.meter.throttles(false);
                self.common.meter.log_recovered(&self.partner(), now);
            }
            None => {}
        }
        if admission.is_sent {
            return Ok(());
        }
        self.common.meter.count(CallResult::Throttled);
        Err(LineRejection::Throttled { accepted: sums.accepted, sent: sums.sent })
    }

    pub(super) fn attempt(self: &Arc<Self>) -> Attempt {
        Attempt { line: Arc::clone(self), sent: None, is_counted: false }
    }

    /// Logs that the partner has paused the line, once a minute at most.
    pub(super) fn log_pause(&self) {
        let now = self.common.micros(Instant::now());
        let pause = {
            let mut state = self.lock();
            let is_quiet = state.pause_logged.is_some_and(|logged| now.saturating_sub(logged) < QUIET);
            if is_quiet || state.pace.paused <= now {
                return;
            }
            state.pause_logged = Some(now);
            state.pace.paused - now
        };
        self.common.meter.log_paused(&self.partner(), Duration::from_micros(pause), now);
    }

    /// The partner as log lines name it: the host, or the hash of a key that the program makes, because that may be a
    /// secret.
    fn partner(&self) -> PartnerName<'_> {
        PartnerName(self)
    }
}

struct PartnerName<'a>(&'a PartnerLine);

impl fmt::Display for PartnerName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.key {
            PartnerKey::Service(number) => write!(f, "service {number}"),
            PartnerKey::Named(key) if self.0.common.has_own_key => KeyHash::new(key).fmt(f),
            PartnerKey::Named(key) => key.as_bytes().escape_ascii().fmt(f),
        }
    }
}

impl Attempt {
    /// Counts the call as sent, before it is.
    pub(super) fn sent(&mut self) {
        let now = self.line.common.micros(Instant::now());
        self.sent = self.line.health.as_deref().map(|(throttle, health)| health.lock().send(now, throttle));
    }

    /// Moves the call to another partner, to which the called one has redirected it. The called one has accepted the
    /// call, which succeeds or fails at the other one.
    pub(super) fn redirected(&mut self, other: &Arc<PartnerLine>) {
        self.end(CallResult::Accepted);
        self.line = Arc::clone(other);
        self.sent();
    }

    pub(super) fn ended(&mut self, result: CallResult) {
        self.count(result);
    }

    fn count(&mut self, result: CallResult) {
        self.is_counted = true;
        self.line.common.meter.count(result);
        self.end(result);
    }

    fn end(&mut self, result: CallResult) {
        if let (Some(mark), Some((_, health))) = (self.sent.take(), self.line.health.as_deref()) {
            let now = self.line.common.micros(Instant::now());
            health.lock().end(mark, now, result == CallResult::Accepted);
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.is_counted {
            self.count(CallResult::Cancelled);
        }
    }
}

/// A forgotten partner is no longer throttled.
impl Drop for PartnerLine {
    fn drop(&mut self) {
        if self.health.as_deref().is_some_and(|(_, health)| health.lock().is_throttled()) {
            self.common.meter.throttles(false);
        }
    }
}
