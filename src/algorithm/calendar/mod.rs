//! Calendar windows: a number of units per day, week or month, in a time zone.
//!
//! `schedule` knows when windows begin, and remembers the last window that it found; `period` is the date arithmetic;
//! `numbered` keeps the schedules for keys with their own windows.

mod numbered;
mod period;
mod schedule;
#[cfg(test)]
mod tests;
mod zone;

pub use self::period::Weekday;
pub use self::zone::UnknownZone;

use std::fmt;
use std::sync::Arc;

use self::period::Period;
use self::schedule::CalendarSchedule;
use super::Algorithm;
use super::window::ChargedIn;
use crate::values::time::Timestamp;
use crate::values::{Decision, Quota, Receipt, Terms};

/// Counts requests in windows that the calendar defines. They begin at midnight on every day, on one day per week, or
/// on one day per month, in a time zone.
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::algorithm::{Algorithm, CalendarWindow};
/// use tower_sluice::time::Timestamp;
///
/// // Billing months: from the 17th to the 17th, by Berlin's clocks.
/// let quota = CalendarWindow::monthly(10_000).anchor(17).zone("Europe/Berlin")?;
///
/// // Noon of 16 March 2026 in Berlin; the next window begins twelve hours later.
/// let now = Timestamp::from_nanos(1_773_658_800_000_000_000);
/// let (_, state) = quota.decide(None, now, 10_000);
/// let (rejected, _) = quota.decide(state, now, 1);
/// assert_eq!(rejected.retry_after(), Some(Duration::from_secs(12 * 3_600)));
/// # Ok::<_, tower_sluice::algorithm::UnknownZone>(())
/// ```
///
/// # When windows begin
///
/// At midnight of their first day, by the zone's clocks. So a day of 23 or 25 hours, when clocks are set forward or
/// back, is one window, and no length is assumed anywhere. Where clocks skip midnight, the day begins with the first
/// instant after the skip; where midnight comes twice, at the first. A day that a zone leaves out is no window.
///
/// A month with an [anchor](Self::anchor) on the 29th, 30th or 31st begins on its last day if it is shorter.
///
/// The time is the store's: the [wall clock](crate::time::Clock::wall) in memory, and the server's clock on Redis.
///
/// # When the clock is set
///
/// Set forward (after a suspend, or by a late NTP), it begins the window that it shows. Set back by less than a window,
/// a key that has used units in the next window stays in that until it ends; set back further, these units count in the
/// present window. They also do if the key gets another limit or another window while the clock shows that. So while
/// the store keeps a key's state, a window that has ended does not begin again with nothing used: twice the limit
/// passes around a step, as around any edge. Waits are true by the clock as it is set. On Redis, units in the next
/// window count in the present one as well: if the server's clock is set back over midnight, the limit may pass a third
/// time.
///
/// # Time zones
///
/// Rules come from the system's time zone database (`/usr/share/zoneinfo`). A name that this lacks, or a system without
/// one, is looked up in a copy that is compiled in. Rules are read when the zone is set: a process follows a database
/// update once it is restarted, or the limit is changed.
///
/// # Accuracy
///
/// As for a [`FixedWindow`](super::FixedWindow): exact within a window, and **twice the limit** may pass in an
/// arbitrarily short time around the edge between two. All clients are readmitted at one instant; calendar windows
/// cannot be staggered.
///
/// # What clients see
///
/// `RateLimit` and `Retry-After` report the true time to the next window, also for a key that has used nothing
/// ([`Decision::reset_after`]). (`Retry-After` is 24.8 days at most: see [`WaitFields`](crate::headers::WaitFields).)
/// `RateLimit-Policy` has `q` and no `w`: windows differ in length, and the field should be the same on all responses.
///
/// # Cost
///
/// The calendar is consulted once per window. A decision compares the time with the end of the key's window, and for a
/// new key with the last found window's bounds. In memory, a key takes 52 bytes, in the [table with
/// locks](crate::store::MemoryStore#memory).
///
/// # Windows of the keys' own
///
/// [`Policy::window_fn`](crate::Policy::window_fn) gives each key a window with its own limit, period, zone and anchor.
/// If a key comes with another window than before, it is as after a live change: the units used in the present window
/// count in the new calendar's present window. So a key gets a fresh limit when a window ends by the calendar that it
/// has then, and at no other time. A client that may choose its zone can move from one midnight to the next: [the
/// guide](crate::guide::billing_days#when-a-customer-moves) explains how to handle this.
///
/// # Live changes
///
/// The units used in the present window count in the present window under the new limit, period, zone or anchor. If the
/// period, the zone or the anchor changes, charges from before are not refunded any more.
#[derive(Clone)]
#[must_use]
#[doc(alias("month", "billing period", "time zone"))]
pub struct CalendarWindow {
    limit: u64,
    /// Shared by clones, so that they find each window once.
    schedule: Arc<CalendarSchedule>,
    /// The schedule's number, if this is a key's window and not a limiter's.
    own: Option<u32>,
}

/// The state that a [`CalendarWindow`] keeps for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CalendarWindowState {
    /// When the window ends, which is also its number: the state expires, and charges are refunded, without a calendar.
    pub(crate) ends: Timestamp,
    pub(crate) used: u64,
}

impl CalendarWindowState {
    /// Whether its window has not ended. The last window of all ends beyond the range of clocks.
    fn counts_at(&self, now: Timestamp) -> bool {
        now < self.ends || self.ends == Timestamp::MAX
    }
}

impl CalendarWindow {
    /// `limit` units per day, from midnight UTC.
    ///
    /// # Panics
    ///
    /// If `limit` is zero or above [`Quota::MAX_UNITS`].
    #[track_caller]
    pub fn daily(limit: u64) -> Self {
        Self::new(limit, Period::Day)
    }

    /// `limit` units per week, from Monday (ISO 8601), midnight UTC.
    ///
    /// # Panics
    ///
    /// If `limit` is zero or above [`Quota::MAX_UNITS`].
    #[track_caller]
    pub fn weekly(limit: u64) -> Self {
        Self::new(limit, Period::Week { first: Weekday::Monday })
    }

    /// `limit` units per month, from the first, midnight UTC.
    ///
    /// # Panics
    ///
    /// If `limit` is zero or above [`Quota::MAX_UNITS`].
    #[track_caller]
    pub fn monthly(limit: u64) -> Self {
        Self::new(limit, Period::Month { anchor: 1 })
    }

    #[track_caller]
    fn new(limit: u64, period: Period) -> Self {
        assert!(limit > 0, "a quota's limit must be at least 1");
        assert!(limit <= Quota::MAX_UNITS, "a quota's limit must not exceed 999,999,999,999,999");
        Self::of_limiter(limit, CalendarSchedule::new(period, zone::utc()))
    }

    /// Lets windows begin by a zone's clocks, named as in the IANA time zone database (`Europe/Berlin`, in any case).
    /// By default UTC.
    ///
    /// # Errors
    ///
    /// If there is no such zone.
    pub fn zone(self, name: &str) -> Result<Self, UnknownZone> {
        let schedule = CalendarSchedule::new(self.schedule.period(), zone::find(name)?);
        Ok(Self::of_limiter(self.limit, schedule))
    }

    /// Lets months begin on this day, from 1 to 31; in shorter months, on their last day.
    ///
    /// # Panics
    ///
    /// If windows are not [monthly](Self::monthly), or no month has such a day.
    #[track_caller]
    pub fn anchor(self, day: u8) -> Self {
        assert!(self.schedule.period().is_month(), "only months have an anchor day; a week begins on a weekday");
        assert!((1..=31).contains(&day), "a month has the days 1 to 31, and not {day}");
        self.with_period(Period::Month { anchor: day })
    }

    /// Lets weeks begin on this day.
    ///
    /// # Panics
    ///
    /// If windows are not [weekly](Self::weekly).
    #[track_caller]
    pub fn week_start(self, first: Weekday) -> Self {
        assert!(self.schedule.period().is_week(), "only weeks begin on a weekday; a month has an anchor day");
        self.with_period(Period::Week { first })
    }

    fn with_period(self, period: Period) -> Self {
        Self::of_limiter(self.limit, CalendarSchedule::new(period, self.schedule.zone().clone()))
    }

    fn of_limiter(limit: u64, schedule: CalendarSchedule) -> Self {
        Self { limit, schedule: Arc::new(schedule), own: None }
    }

    /// Returns this window as a key's quota, which [`under`](Algorithm::under) turns into the window again.
    pub(crate) fn own_quota(&self) -> Quota {
        let number = self.own.unwrap_or_else(|| numbered::number_of(&self.schedule));
        self.quota().in_calendar(number)
    }

    /// Returns when the window that holds `now` ends.
    pub(crate) fn end_of_window(&self, now: Timestamp) -> Timestamp {
        self.schedule.window(now).ends()
    }

    /// Whether a state belongs to the window after the present one, because the clock was set back.
    pub(super) fn is_of_next_window(&self, state: &CalendarWindowState, now: Timestamp) -> bool {
        let ends = self.end_of_window(now);
        state.ends > ends && state.ends == self.schedule.next_window(now).ends()
    }

    /// Returns the seconds at which three windows begin, one after the other, around `now`: the window that holds it,
    /// and its neighbours. The two windows between them extend from `now` by half a window at least on each side.
    #[doc(hidden)]
    #[must_use]
    pub fn edges(&self, now: Timestamp) -> [u64; 3] {
        self.schedule.edges(now)
    }
}

impl Algorithm for CalendarWindow {
    type State = CalendarWindowState;

    /// The period is 24 hours, seven days, or 28 days: a calendar's windows have no common length.
    fn quota(&self) -> Quota {
        let quota = Quota::per(self.limit, self.schedule.period().nominal());
        self.own.map_or(quota, |number| quota.in_calendar(number))
    }

    fn decide(
        &self,
        state: Option<CalendarWindowState>,
        now: Timestamp,
        cost: u64,
    ) -> (Decision, Option<CalendarWindowState>) {
        let limit = self.limit;
        // After a clock was set back, the window that it had reached still counts.
        let (ends, used) = match state {
            Some(state) if state.counts_at(now) => (state.ends, state.used),
            _ => (self.end_of_window(now), 0),
        };
        let until_next = ends.saturating_since(now);
        // More may have been used, if the limit was lowered.
        let free = limit.saturating_sub(used);
        let (decision, next) = if cost == 0 {
            let decision = Decision::admit(limit, free);
            let is_used_up = free == 0 && ends < Timestamp::MAX;
            (if is_used_up { decision.with_next_after(until_next) } else { decision }, None)
        } else if cost > limit {
            (Decision::never(limit, free), None)
        } else if cost <= free {
            let used = used + cost;
            let receipt = Receipt::from_proof(ChargedIn(ends.as_nanos()));
            (Decision::admit(limit, limit - used).with_receipt(receipt), Some(CalendarWindowState { ends, used }))
        } else {
            (Decision::reject(limit, free, Some(until_next).filter(|_| ends < Timestamp::MAX)), None)
        };
        // Even if nothing was used, the window ends.
        (decision.with_reset_after(until_next), next)
    }

    fn expires_at(&self, state: &CalendarWindowState) -> Timestamp {
        state.ends
    }

    fn follows_wall_clock(&self) -> bool {
        true
    }

    /// A state in the next window stays there. A state in a later window counts in the present one.
    fn after_step_back(&self, state: CalendarWindowState, now: Timestamp) -> CalendarWindowState {
        let ends = self.end_of_window(now);
        if state.ends <= ends || self.is_of_next_window(&state, now) {
            state
        } else {
            CalendarWindowState { ends, ..state }
        }
    }

    fn refund(&self, state: CalendarWindowState, _: Timestamp, cost: u64, receipt: Receipt) -> CalendarWindowState {
        let is_of_window = ChargedIn::read(receipt) == Some(state.ends.as_nanos());
        if is_of_window { CalendarWindowState { used: state.used.saturating_sub(cost), ..state } } else { state }
    }

    /// All keys in a window expire together, so the key with the smallest debt is the key that used least.
    fn owed(&self, state: &CalendarWindowState, now: Timestamp) -> u64 {
        if state.counts_at(now) { state.used } else { 0 }
    }

    fn can_inherit(&self, _: &Quota) -> bool {
        true
    }

    fn inherit(&self, state: CalendarWindowState, _: &Quota, now: Timestamp) -> CalendarWindowState {
        if !state.counts_at(now) {
            return state;
        }
        CalendarWindowState { ends: self.end_of_window(now), ..state }
    }

    /// With the quota's limit, in the windows of the quota's calendar, or otherwise of this one.
    fn under(&self, quota: Quota) -> Option<Self> {
        let limit = quota.limit();
        Some(match quota.calendar() {
            Some(number) if self.own != Some(number) => {
                Self { limit, schedule: numbered::schedule(number), own: Some(number) }
            }
            _ => Self { limit, schedule: Arc::clone(&self.schedule), own: self.own },
        })
    }

    fn schedule(&self) -> u64 {
        self.schedule.fingerprint()
    }

    fn terms(&self) -> Terms {
        Terms::calendar_window(self.quota())
    }

    /// Twice the limit around an edge. The third one covers the difference between the rate and a long interval: its
    /// windows may be shorter than the period, by 24 hours together, the largest amount by which a zone was ever moved.
    fn worst_burst(&self) -> u64 {
        3 * self.limit
    }
}

impl fmt::Debug for CalendarWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CalendarWindow")
            .field("limit", &self.limit)
            .field("period", &self.schedule.period())
            .field("zone", &self.schedule.zone_name())
            .finish()
    }
}
