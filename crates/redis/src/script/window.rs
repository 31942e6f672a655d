//! Windows in whole microseconds.

use tower_sluice::Quota;
use tower_sluice::algorithm::{Algorithm, FixedWindow, FixedWindowState, SlidingWindow, SlidingWindowState};
use tower_sluice::internal::remote::{StateParts as _, window_of};
use tower_sluice::limiter::Receipt;
use tower_sluice::time::Timestamp;

use super::sealed::Steps;
use super::{EXACT, MOST_UNITS, Scripted, UnfitQuota, period_nanos, whole};

/// With times below 2^52, the end of the window after the next stays below 2^53.
const MAX_PERIOD_MICROS: u64 = 1 << 50;

fn check_fit(quota: &Quota) -> Result<(), UnfitQuota> {
    let micros = period_nanos(quota) / 1_000;
    let over = period_nanos(quota) % 1_000;
    if over > 0 {
        Err(UnfitQuota::PeriodNotWhole { period: quota.period() })
    } else if micros >= MAX_PERIOD_MICROS {
        Err(UnfitQuota::PeriodTooLong { period: quota.period() })
    } else {
        Ok(())
    }
}

fn numbers(quota: &Quota, cost: u64) -> [u64; 5] {
    // No count is greater than `MOST_UNITS`, so the refund of a greater cost takes the same units.
    [cost.min(MOST_UNITS), quota.limit(), period_nanos(quota) / 1_000, 0, 0]
}

/// Parses the window and the counts in `-<window>:<count>…`. A window from the future counts as the next window.
fn fields<const FIELDS: usize>(quota: &Quota, stored: &[u8], now: Timestamp) -> Option<[u64; FIELDS]> {
    let mut fields = stored.strip_prefix(b"-")?.split(|byte| *byte == b':').map(whole);
    let window = fields.next()??;
    let next = now.as_nanos() / period_nanos(quota) + 1;
    let mut parts = [window.min(next); FIELDS];
    for count in &mut parts[1..] {
        *count = fields.next()?.filter(|count| *count <= MOST_UNITS)?;
    }
    fields.next().is_none().then_some(parts)
}

/// Returns the number of the window that was charged. Without a charge, returns a number that no window has.
fn receipt_numbers(receipt: Receipt) -> [u64; 2] {
    [window_of(receipt).unwrap_or(u64::MAX).min(EXACT - 1), 0]
}

macro_rules! window {
    ($name:ident, $state:ident, $number:literal, $kind:literal, $write:expr) => {
        impl Scripted for $name {}

        impl Steps for $name {
            type Budget = Self;

            fn budget(quota: Quota) -> Self {
                Self::new(quota)
            }

            const NUMBER: u64 = $number;
            const KIND: char = $kind;

            fn check_fit(&self) -> Result<(), UnfitQuota> {
                // The greatest draw has the latest phase. It is zero only without staggering.
                if self.phase(u64::MAX).is_zero() { check_fit(&self.quota()) } else { Err(UnfitQuota::Staggered) }
            }

            fn numbers(&self, cost: u64, _: Timestamp) -> [u64; 5] {
                numbers(&self.quota(), cost)
            }

            fn read(&self, stored: &[u8], now: Timestamp) -> Option<$state> {
                fields(&self.quota(), stored, now).map($state::from_parts)
            }

            fn write(&self, state: &$state, _: Timestamp) -> String {
                $write(state.parts())
            }

            fn receipt_numbers(&self, receipt: Receipt) -> [u64; 2] {
                receipt_numbers(receipt)
            }
        }
    };
}

window!(FixedWindow, FixedWindowState, 2, 'f', |[window, used]: [u64; 2]| format!(
    "-{window}:{}",
    used.min(MOST_UNITS)
));

window!(SlidingWindow, SlidingWindowState, 3, 's', |[window, previous, current]: [u64; 3]| {
    format!("-{window}:{}:{}", previous.min(MOST_UNITS), current.min(MOST_UNITS))
});
