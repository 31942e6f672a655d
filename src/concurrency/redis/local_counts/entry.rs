//! [`LocalEntry`]: what one process has in flight of one key, and what it knows of the server's count of it.
//!
//! Plain transitions, without locks and clocks: the model in the package `tower-sluice-protocols` explores this file as it
//! is. So it imports nothing else of the crate.

use std::time::Duration;

use crate::values::time::Timestamp;

/// What the process has in flight of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LocalEntry {
    /// The units of requests that are not over, whoever has admitted them.
    pub(super) units: u64,
    /// The number of the field that calls use.
    pub(super) number: u64,
    /// The units in that field, as far as the calls that have ended say. Units that the fallback has admitted are not in
    /// it before the next renewal.
    pub(super) counted: u64,
    /// The calls under way on that field, and on earlier ones.
    pub(super) calls: u32,
    pub(super) older_calls: u32,
    pub(super) renewal: Option<RenewalProgress>,
    /// When the field had exactly what was in flight: when it was begun.
    pub(super) exact: Timestamp,
    /// When the last call began with which the server may have begun a lease.
    pub(super) leased: Timestamp,
    /// Whether the server may have units that nobody holds, or lack some: a call has failed, and may have run.
    pub(super) is_unsure: bool,
}

/// A renewal under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RenewalProgress {
    /// When it began; once it is sent, when that was.
    pub(super) since: Timestamp,
    pub(super) is_sent: bool,
}

/// Units to release on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Release {
    pub(crate) number: u64,
    pub(crate) units: u64,
}

/// Units to move to a field on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Renewal {
    pub(crate) number: u64,
    pub(crate) units: u64,
    pub(super) sent: Timestamp,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallEnd {
    Ran,
    NotRun,
    /// It may have run, or has found something else than it should have.
    Unknown,
}

/// A renewal gives earlier calls, and its own, a quarter of a lease. Calls end by themselves within that time, unless
/// their runtime is blocked.
pub(crate) const PATIENCE_DIVISOR: u32 = 4;

impl LocalEntry {
    pub(super) const fn new(number: u64, now: Timestamp) -> Self {
        Self {
            units: 0,
            number,
            counted: 0,
            calls: 0,
            older_calls: 0,
            renewal: None,
            exact: now,
            leased: now,
            is_unsure: false,
        }
    }

    /// Begins a call that takes units, and returns the number of its field.
    pub(super) const fn begin(&mut self, now: Timestamp) -> u64 {
        self.calls += 1;
        self.leased = now;
        self.number
    }

    /// Ends a call that took these units.
    pub(super) const fn took(&mut self, number: u64, units: u64) {
        self.end_call(number);
        self.units = self.units.saturating_add(units);
        if self.number == number {
            self.counted = self.counted.saturating_add(units);
        } else {
            // The renewal may have left without them.
            self.is_unsure = true;
        }
    }

    /// Ends a call that took none.
    pub(super) fn took_none(&mut self, number: u64, end: CallEnd) {
        self.end_call(number);
        self.is_unsure |= end == CallEnd::Unknown;
    }

    /// Releases units of a request that is over. Returns what is to be released on the server, now.
    pub(super) fn release(&mut self, units: u64) -> Option<Release> {
        debug_assert!(self.units >= units, "{units} units are released, and {} are in flight", self.units);
        self.units = self.units.saturating_sub(units);
        self.next_release()
    }

    /// Ends a call that released units.
    pub(super) fn released(&mut self, number: u64, end: CallEnd) {
        self.end_call(number);
        self.is_unsure |= end != CallEnd::Ran;
    }

    /// Ends a renewal. Returns what is to be released on the server, since it was released here meanwhile.
    pub(super) fn renewed(&mut self, renewal: Renewal, end: CallEnd) -> Option<Release> {
        if self.number != renewal.number {
            // It took too long, and another has begun.
            return None;
        }
        self.renewal = None;
        if end == CallEnd::Ran {
            (self.counted, self.exact) = (self.counted.saturating_add(renewal.units), renewal.sent);
        } else {
            self.is_unsure = true;
        }
        self.next_release()
    }

    const fn end_call(&mut self, number: u64) {
        if self.number == number {
            self.calls -= 1;
        } else {
            self.older_calls -= 1;
        }
    }

    /// Begins a call that releases what the field has too much. Units that a renewal is moving there are not in it yet.
    fn next_release(&mut self) -> Option<Release> {
        let units = self.counted.saturating_sub(self.units);
        if units == 0 {
            return None;
        }
        self.counted -= units;
        self.calls += 1;
        Some(Release { number: self.number, units })
    }

    pub(super) fn is_due(&self, now: Timestamp, lease: Duration) -> bool {
        let has_passed = |since, part: u32| now.saturating_since(since) >= lease / part;
        match self.renewal {
            Some(RenewalProgress { since, is_sent: true }) => has_passed(since, PATIENCE_DIVISOR),
            Some(RenewalProgress { since, is_sent: false }) => {
                self.older_calls == 0 || has_passed(since, PATIENCE_DIVISOR)
            }
            None => self.is_unsure || (self.units > 0 && has_passed(self.exact, 2)),
        }
    }

    /// Begins or continues a renewal, if it is due. Returns what to send, once no call on an earlier field is under way.
    pub(super) fn renew(
        &mut self,
        next_number: impl FnOnce() -> u64,
        now: Timestamp,
        lease: Duration,
    ) -> Option<Renewal> {
        if !self.is_due(now, lease) {
            return None;
        }
        // One that was sent and is not back was lost, or its runtime is blocked: it is replaced by another.
        if self.renewal.is_none_or(|renewal| renewal.is_sent) {
            self.older_calls += self.calls;
            (self.number, self.counted, self.calls) = (next_number(), 0, 0);
            self.renewal = Some(RenewalProgress { since: now, is_sent: false });
            if !self.is_due(now, lease) {
                return None;
            }
        }
        self.renewal = Some(RenewalProgress { since: now, is_sent: true });
        (self.is_unsure, self.leased) = (false, now);
        Some(Renewal { number: self.number, units: self.units.saturating_sub(self.counted), sent: now })
    }

    /// Nothing has to be repaired of a key without units once the lease of the last call has ended.
    pub(super) fn forget_ended_lease(&mut self, now: Timestamp, lease: Duration) {
        if self.units == 0 && now.saturating_since(self.leased) > lease + lease / PATIENCE_DIVISOR {
            self.is_unsure = false;
        }
    }

    pub(super) const fn is_over(&self) -> bool {
        let has_units = self.units > 0 || self.counted > 0;
        let has_calls = self.calls > 0 || self.older_calls > 0 || self.renewal.is_some();
        !has_units && !has_calls && !self.is_unsure
    }
}
