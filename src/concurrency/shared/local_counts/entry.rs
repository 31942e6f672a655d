//! [`LocalEntry`]: one key's units that one process has in flight, and its knowledge of the server's count.
//!
//! Plain transitions, without locks and clocks: the model in the package `tower-sluice-protocols` explores this file as
//! it is. So it imports only [`Timestamp`] from the crate.

use std::time::Duration;

use crate::values::time::Timestamp;

/// One key's units that the process has in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LocalEntry {
    /// The units of requests that are not over, admitted by the server or by the fallback.
    pub(super) units: u64,
    /// The number of the field that calls use.
    pub(super) number: u64,
    /// The units in that field, as far as the calls that have ended say. Units that the fallback has admitted are not
    /// in it before the next renewal.
    pub(super) counted: u64,
    /// The calls under way on that field, and on earlier ones.
    pub(super) calls: u32,
    pub(super) older_calls: u32,
    pub(super) renewal: Option<RenewalProgress>,
    /// When the field last had exactly the units in flight: when the entry was made, or when the last renewal was sent.
    pub(super) exact: Timestamp,
    /// When the last call began that may have started a lease on the server.
    pub(super) leased: Timestamp,
    /// Whether the server may count units that no request holds, or may lack some: a call has failed, and may have run.
    pub(super) is_unsure: bool,
}

/// A renewal under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RenewalProgress {
    /// When it began, or when it was sent, once it is.
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
    /// It may have run, or it has found another state than expected.
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
            // The renewal may have been sent without them.
            self.is_unsure = true;
        }
    }

    /// Ends a call that took no units.
    pub(super) fn took_none(&mut self, number: u64, end: CallEnd) {
        self.end_call(number);
        self.is_unsure |= end == CallEnd::Unknown;
    }

    /// Releases units of a request that is over. Returns the release to send to the server at once, if there is one.
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

    /// Ends a renewal. Returns the release to send to the server for units that were released here meanwhile.
    pub(super) fn renewed(&mut self, renewal: Renewal, end: CallEnd) -> Option<Release> {
        if self.number != renewal.number {
            // It took too long, and another has begun.
            return None;
        }
        self.renewal = None;
        if end == CallEnd::Ran {
            self.counted = self.counted.saturating_add(renewal.units);
            self.exact = renewal.sent;
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

    /// Begins a call that releases the field's surplus over the units in flight. Units that a renewal is moving there
    /// are not in it yet.
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

    /// Begins or continues a renewal, if it is due. Returns the renewal to send, once the calls on earlier fields have
    /// ended, or have taken a quarter of a lease.
    pub(super) fn renew(
        &mut self,
        next_number: impl FnOnce() -> u64,
        now: Timestamp,
        lease: Duration,
    ) -> Option<Renewal> {
        if !self.is_due(now, lease) {
            return None;
        }
        // A renewal that was sent and has no answer was lost, or its runtime is blocked: another replaces it.
        if self.renewal.is_none_or(|renewal| renewal.is_sent) {
            self.older_calls += self.calls;
            self.number = next_number();
            self.counted = 0;
            self.calls = 0;
            self.renewal = Some(RenewalProgress { since: now, is_sent: false });
            if !self.is_due(now, lease) {
                return None;
            }
        }
        self.renewal = Some(RenewalProgress { since: now, is_sent: true });
        self.is_unsure = false;
        self.leased = now;
        Some(Renewal { number: self.number, units: self.units.saturating_sub(self.counted), sent: now })
    }

    /// Once the lease of its last call has ended, a key without units needs no repair.
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
