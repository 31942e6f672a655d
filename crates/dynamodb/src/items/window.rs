//! Windows that forget their count when they end: one item per key and window, always one write.
//!
//! An item has `n`, the units used in the window, and `q`, the last charge's quota; the item's key names the window. A
//! charge adds to `n` if the sum stays within the limit. So a write does not have to find out whether a window has
//! begun.

#[cfg(feature = "calendar")]
use tower_sluice::algorithm::CalendarWindow;
use tower_sluice::algorithm::{Algorithm, FixedWindow, Portable};
use tower_sluice::limiter::Receipt;
use tower_sluice::time::Timestamp;

#[cfg(feature = "calendar")]
use super::bytes::CALENDAR_WINDOW;
use super::bytes::{self, FIXED_WINDOW};
use super::sealed::Items;
use super::{BadItem, Charge, Moment, Plan, Unfit, at_most, fitting, quota_name};
use crate::hints::Hint;
use crate::table::{Item, Write, number};

/// Reads the units used in the window.
fn used(item: &Item) -> Result<u64, BadItem> {
    number(item, "n").ok_or(BadItem)
}

/// A window and its count.
trait Window: Portable + Clone {
    /// The present window's state, with `used` units used.
    fn state(&self, used: u64, now: Timestamp) -> Self::State;

    /// The units used, by a state.
    fn used(&self, state: &Self::State) -> u64 {
        let (_, [used]) = bytes::numbers::<_, 8, 1>(self, state);
        used
    }

    /// When the present window ends.
    fn end(&self, now: Timestamp) -> Timestamp {
        self.expires_at(&self.state(0, now))
    }

    /// Charges `count` requests to a window, on the condition that they fit and, if one more request is waiting, that
    /// it does not fit.
    fn charge(&self, count: u32, charge: Charge) -> Write {
        // The count fits, so both differences are at least zero, unless a limit has been lowered.
        let (limit, all) = (self.quota().limit(), u64::from(count) * charge.cost);
        let most = limit - all;
        let (condition, least) = match most.checked_sub(charge.cost).filter(|_| count < charge.count) {
            Some(least) => ("n > :least AND n <= :most", Some(least)),
            None => ("attribute_not_exists(k) OR n <= :most", None),
        };
        let write = Write::new("ADD n :c SET q = :q, x = :x", condition).number(":c", all).number(":most", most);
        let write = write.text(":q", quota_name::of(&self.quota()));
        let write = write.number(":x", charge.at.expiry(self.end(charge.at.now)));
        least.into_iter().fold(write, |write, least| write.number(":least", least))
    }

    /// How many of a charge's units were charged to the present window.
    fn charged_now(&self, cost: u64, receipt: Receipt, now: Timestamp) -> u64 {
        cost - self.used(&self.refund(self.state(cost, now), now, cost, receipt))
    }
}

impl Window for FixedWindow {
    fn state(&self, used: u64, now: Timestamp) -> Self::State {
        let window = now.as_nanos() / bytes::period_nanos(&self.quota());
        bytes::state(self, FIXED_WINDOW, &self.quota(), (&window.to_be_bytes(), &[used]), now)
            .expect("the numbers of a state")
    }
}

#[cfg(feature = "calendar")]
impl Window for CalendarWindow {
    fn state(&self, used: u64, now: Timestamp) -> Self::State {
        // Without a state, the whole window is ahead until it ends.
        let ends = now.saturating_add(self.decide(None, now, 0).0.reset_after());
        bytes::state(self, CALENDAR_WINDOW, &self.quota(), (&ends.as_nanos().to_be_bytes(), &[used]), now)
            .expect("the numbers of a state")
    }
}

macro_rules! window {
    ($window:ty, $letter:literal) => {
        impl Items for $window {
            fn check_fit(&self) -> Result<(), Unfit> {
                // The greatest draw has the latest phase, which is zero only without staggering.
                if self.phase(u64::MAX).is_zero() { Ok(()) } else { Err(Unfit::Staggered) }
            }

            /// Contains the period, because windows of other lengths may end at the same instant.
            fn suffix(&self, now: Timestamp) -> String {
                format!("{}{}/{}", $letter, bytes::period_nanos(&self.quota()), self.end(now).as_nanos())
            }

            fn read(&self, item: Option<&Item>, at: Moment) -> Result<Option<Self::State>, BadItem> {
                item.map(|item| Ok(self.state(used(item)?, at.now))).transpose()
            }

            fn item_ends(&self, now: Timestamp) -> Option<Timestamp> {
                Some(self.end(now))
            }

            fn put(&self, state: Option<&Self::State>, at: Moment) -> Write {
                let end = self.end(at.now);
                // Units from an earlier window no longer count.
                let used = state.filter(|state| self.expires_at(state) == end).map_or(0, |state| self.used(state));
                let write = Write::new("SET n = :n, q = :q, x = :x", "").number(":n", used);
                write.text(":q", quota_name::of(&self.quota())).number(":x", at.expiry(end))
            }

            fn guess(&self, hint: Option<Hint>, charge: Charge) -> Plan {
                let window = self.end(charge.at.now).as_nanos();
                let used = match hint {
                    Some(Hint::Window { window: seen, used, .. }) if seen == window => used,
                    _ => 0,
                };
                match at_most(self.quota().limit().saturating_sub(used) / charge.cost, charge.count) {
                    // A read costs a fifth of a write that does nothing.
                    0 => Plan::Read,
                    count => Plan::Charge(self.charge(count, charge), count),
                }
            }

            fn plan(&self, item: Option<&Item>, charge: Charge) -> Result<Plan, BadItem> {
                Ok(match fitting(self, self.read(item, charge.at)?, charge).0 {
                    0 => Plan::Reject,
                    count => Plan::Charge(self.charge(count, charge), count),
                })
            }

            fn hint(
                &self,
                _: Option<Hint>,
                _: Option<&Self::State>,
                new: Option<&Self::State>,
                at: Moment,
            ) -> Option<Hint> {
                Some(Hint::Window { window: self.end(at.now).as_nanos(), previous: 0, used: self.used(new?) })
            }

            fn guess_refund(&self, cost: u64, receipt: Receipt, at: Moment) -> Option<Write> {
                let charged = self.charged_now(cost, receipt, at.now);
                (charged > 0).then(|| Write::new("SET n = n - :c", "n >= :c").number(":c", charged))
            }

            fn plan_refund(
                &self,
                item: Option<&Item>,
                cost: u64,
                receipt: Receipt,
                at: Moment,
            ) -> Result<Option<Write>, BadItem> {
                let Some(item) = item else { return Ok(None) };
                let (used, charged) = (used(item)?, self.charged_now(cost, receipt, at.now));
                let write = Write::new("SET n = :n", "n = :old").number(":old", used);
                Ok((used > 0 && charged > 0).then(|| write.number(":n", used.saturating_sub(charged))))
            }
        }
    };
}

window!(FixedWindow, 'f');
#[cfg(feature = "calendar")]
window!(CalendarWindow, 'c');
