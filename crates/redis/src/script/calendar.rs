//! Calendar windows, in whole seconds.

use tower_sluice::Quota;
use tower_sluice::algorithm::{Algorithm, CalendarWindow, CalendarWindowState, TokenBucket};
use tower_sluice::internal::remote::{StateParts as _, end_of_window, window_of};
use tower_sluice::limiter::Receipt;
use tower_sluice::time::Timestamp;

use super::sealed::Steps;
use super::{MOST_UNITS, Scripted, UnfitQuota, whole};

const NANOS: u64 = 1_000_000_000;

/// The latest second that the script can convert to microseconds exactly.
const LAST_SECOND: u64 = 9_007_199_254;

impl Scripted for CalendarWindow {}

impl Steps for CalendarWindow {
    type Budget = TokenBucket;

    fn budget(quota: Quota) -> TokenBucket {
        TokenBucket::new(quota)
    }

    const NUMBER: u64 = 4;
    const KIND: char = 'c';

    /// All calendar windows fit: the server's time is a hundred years before `LAST_SECOND`.
    fn check_fit(&self) -> Result<(), UnfitQuota> {
        Ok(())
    }

    fn numbers(&self, cost: u64, asked: Timestamp) -> [u64; 5] {
        let [first, second, third] = self.edges(asked);
        [cost.min(MOST_UNITS), self.quota().limit(), first, second, third]
    }

    fn covers(&self, asked: Timestamp, now: Timestamp) -> bool {
        let [first, _, third] = self.edges(asked);
        (first..third).contains(&(now.as_nanos() / NANOS))
    }

    fn read(&self, stored: &[u8], now: Timestamp) -> Option<CalendarWindowState> {
        let mut fields = stored.strip_prefix(b"-")?.split(|byte| *byte == b':').map(whole);
        let ends = fields.next()??;
        let used = fields.next()??;
        if used > MOST_UNITS || ends > LAST_SECOND || fields.next().is_some() {
            return None;
        }
        let ends = Timestamp::from_nanos(ends * NANOS);
        // Units that still count are counted in the present window, even if they were charged under another calendar.
        let ends = if ends > now { end_of_window(self, now) } else { ends };
        Some(CalendarWindowState::from_parts((ends, used)))
    }

    fn write(&self, state: &CalendarWindowState, _: Timestamp) -> String {
        let (ends, used) = state.parts();
        format!("-{}:{}", ends.as_nanos() / NANOS, used.min(MOST_UNITS))
    }

    fn receipt_numbers(&self, receipt: Receipt) -> [u64; 2] {
        // No window ends in the first second.
        [window_of(receipt).map_or(0, |ends| ends / NANOS), 0]
    }
}
