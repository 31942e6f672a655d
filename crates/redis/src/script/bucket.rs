//! Buckets in whole microseconds, exactly.

use std::time::Duration;

use tower_sluice::Quota;
use tower_sluice::algorithm::{Algorithm, GcraState, TokenBucket};
use tower_sluice::internal::remote::{StateParts as _, paid_at};
use tower_sluice::limiter::Receipt;
use tower_sluice::time::Timestamp;

use super::sealed::Steps;
use super::{EXACT, Scripted, UnfitQuota, period_nanos, whole};

/// Converts a quota's times and prices to whole microseconds and a rest, exactly.
///
/// In 1/`limit` nanoseconds, where nothing is rounded (`src/algorithm/gcra.rs` of `tower-sluice`), a microsecond is
/// 1000 × `limit` units and a token `period` units. A bucket only adds microseconds and tokens, so all sums are
/// multiples of their greatest common divisor, the *grain*. A microsecond has `parts` grains. For most quotas `parts`
/// is 1, and the rest always zero. If the period is whole microseconds, `parts` is at most `limit`, and so below 2^50.
/// With other periods it is up to 1000 × `limit`, and [more than 2^52](UnfitQuota::TooManyParts) are refused.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub(crate) limit: u64,
    /// Units per token.
    period: u64,
    /// Units per microsecond.
    micro: u64,
    /// Units per part.
    grain: u64,
}

/// Whole microseconds, and the rest in parts of a microsecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MicrosSpan {
    pub(crate) micros: u64,
    pub(crate) rest: u64,
}

/// A bucket must fill in fewer microseconds than this. With times below 2^52, the sum of its TAT and one more price
/// then stays below 2^53.
const MAX_FILL_MICROS: u64 = 1 << 51;

/// A microsecond's maximum number of parts. With it, the sum of two rests stays below 2^53.
pub(crate) const MAX_PARTS: u64 = 1 << 52;

impl Grid {
    pub(crate) fn new(quota: &Quota) -> Self {
        let period = period_nanos(quota);
        let micro = 1_000 * quota.limit();
        Self { limit: quota.limit(), period, micro, grain: common_divisor(period, micro) }
    }

    /// Returns how many parts a microsecond has.
    pub(crate) const fn parts(&self) -> u64 {
        self.micro / self.grain
    }

    /// Converts units, rounded down to the grain. All a bucket's sums are multiples of the grain. Saturates below 2^53.
    pub(crate) fn span(&self, units: u128) -> MicrosSpan {
        let micros = units / u128::from(self.micro);
        let rest = units % u128::from(self.micro);
        match u64::try_from(micros) {
            Ok(micros) if micros < EXACT => {
                MicrosSpan { micros, rest: u64::try_from(rest).expect("a remainder of 64 bits") / self.grain }
            }
            _ => MicrosSpan { micros: EXACT - 1, rest: 0 },
        }
    }

    /// Converts back to units.
    pub(crate) fn units(&self, span: MicrosSpan) -> u128 {
        u128::from(span.micros) * u128::from(self.micro) + u128::from(span.rest) * u128::from(self.grain)
    }

    /// Returns a time in units.
    pub(crate) fn now(&self, now: Timestamp) -> u128 {
        u128::from(now.as_nanos()) * u128::from(self.limit)
    }

    /// Returns the time after which `cost` tokens are paid off, in units.
    pub(crate) fn price(&self, cost: u64) -> u128 {
        u128::from(cost) * u128::from(self.period)
    }

    /// Returns the script's arguments: price with the state's [mark](rate_mark), capacity, their rests, and parts. The
    /// script leaves no state to the caller: see [`LEAVES_OTHER_MARKS`].
    pub(crate) fn numbers(&self, price: MicrosSpan, capacity: MicrosSpan, mark: u64) -> [u64; 5] {
        let [price_and_mark, capacity_and_flag] = [(price.micros + 1) * 1_000 + mark, (capacity.micros + 1) * 10];
        match self.parts() {
            1 => [price_and_mark, capacity_and_flag, 0, 0, 0],
            parts => [price_and_mark, capacity_and_flag, price.rest, capacity.rest, parts],
        }
    }

    /// Checks whether a bucket that takes `units` to fill can be kept.
    pub(crate) fn check_fit(&self, units: u128) -> Result<(), UnfitQuota> {
        if self.parts() > MAX_PARTS {
            return Err(UnfitQuota::TooManyParts { parts: self.parts() });
        }
        if units < u128::from(MAX_FILL_MICROS) * u128::from(self.micro) {
            return Ok(());
        }
        let seconds = units / (u128::from(self.limit) * 1_000_000_000);
        Err(UnfitQuota::FillTooLong { fill: Duration::from_secs(u64::try_from(seconds).unwrap_or(u64::MAX)) })
    }

    /// Reads a stored TAT, `-<mark><micros>` or `-<mark><micros>+<rest>`, as at most `most` units. The mark may be
    /// missing. `None` for other text.
    pub(crate) fn read(&self, stored: &[u8], most: u128) -> Option<GcraState> {
        let text = digits_of(stored)?;
        let (micros, rest) = match text.iter().position(|byte| *byte == b'+') {
            Some(plus) => (whole(&text[..plus])?, whole(&text[plus + 1..])?),
            None => (whole(text)?, 0),
        };
        // The state may be from another quota with finer parts.
        let rest = rest.min(self.parts() - 1);
        Some(GcraState::from_parts(self.units(MicrosSpan { micros, rest }).min(most)))
    }

    /// Splits off the end of a state, `~<micros>`: the debt beyond a full bucket that the key may have.
    fn read_beyond<'a>(&self, stored: &'a [u8]) -> Option<(&'a [u8], u128)> {
        let Some(mark) = stored.iter().position(|byte| *byte == b'~') else { return Some((stored, 0)) };
        let micros = whole(&stored[mark + 1..]).filter(|micros| *micros < MAX_FILL_MICROS)?;
        Some((&stored[..mark], u128::from(micros) * u128::from(self.micro)))
    }

    /// Writes a state at `now` that may owe more than a full bucket with `capacity`. All numbers are in units.
    fn write(&self, state: &GcraState, now: u128, capacity: u128) -> String {
        // The debt is cut so that, even after it is rounded up, it stays below the longest time in which a bucket may
        // fill.
        let most = u128::from(MAX_FILL_MICROS - 2) * u128::from(self.micro);
        let debt = state.parts().saturating_sub(now).min(most);
        // `now` is a whole microsecond, so the sum is a multiple of the grain as well.
        let debt = debt.next_multiple_of(self.grain.into());
        let MicrosSpan { micros, rest } = self.span(now + debt);
        let mut text = format!("-{micros}");
        if rest > 0 {
            text.push_str(&format!("+{rest}"));
        }
        if debt > capacity {
            text.push_str(&format!("~{}", (debt - capacity).div_ceil(self.micro.into())));
        }
        text
    }

    /// Returns the time at which the charge is paid off: microseconds and rest.
    pub(crate) fn receipt_numbers(&self, receipt: Receipt) -> [u64; 2] {
        let MicrosSpan { micros, rest } = self.span(paid_at(receipt));
        [micros, rest]
    }
}

/// No state has this mark: in a call, it stands for states without one.
pub(crate) const NO_MARK: u64 = 999;

/// Added to the second argument of a bucket's script: a state with another mark is left as it is, and the caller
/// converts it. Otherwise its debt is kept as a time.
pub(crate) const LEAVES_OTHER_MARKS: u64 = 1;

/// The number of digits in a mark, and in the time behind it. With a sign, they fit into 64 bits, so that Redis keeps a
/// state without a rest as an integer.
const MARK_DIGITS: usize = 3;
const MARKED_DIGITS: usize = 16;

/// Returns a rate's mark: three digits, from 100 to 921, that two rates share with a probability of 1 in 822. A state
/// that another rate has written is then taken for one at the present rate, like states without a mark: its debt is
/// kept as a time.
pub(crate) fn rate_mark(quota: &Quota) -> u64 {
    let [limit, period] = [quota.limit(), period_nanos(quota)];
    let divisor = common_divisor(limit, period);
    let mixed = (limit / divisor).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (period / divisor).rotate_left(32);
    // The high half of a product depends on all bits.
    let high = (u128::from(mixed.wrapping_mul(0xd6e8_feb8_6659_fd93)) * 822) >> u64::BITS;
    100 + u64::try_from(high).expect("below 822")
}

/// Returns the number of digits behind a state's sign.
fn count_digits(text: &[u8]) -> usize {
    text.iter().take_while(|byte| byte.is_ascii_digit()).count()
}

/// Returns the mark in a bucket's state, if it has one.
pub(crate) fn mark_of(stored: &[u8]) -> Option<u64> {
    let text = stored.strip_prefix(b"-").filter(|text| count_digits(text) == MARK_DIGITS + MARKED_DIGITS)?;
    whole(&text[..MARK_DIGITS])
}

/// Returns a state's text behind its sign and its mark.
fn digits_of(stored: &[u8]) -> Option<&[u8]> {
    let text = stored.strip_prefix(b"-")?;
    Some(if mark_of(stored).is_some() { &text[MARK_DIGITS..] } else { text })
}

/// Adds a mark to a state's text without one.
pub(crate) fn marked(state: &str, mark: u64) -> String {
    let text = &state[1..];
    let digits = count_digits(text.as_bytes());
    format!("-{mark}{:0>width$}{}", &text[..digits], &text[digits..], width = MARKED_DIGITS)
}

const fn common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

macro_rules! bucket {
    ($name:ident) => {
        impl Scripted for $name {}

        impl Steps for $name {
            type Budget = TokenBucket;

            fn budget(quota: Quota) -> TokenBucket {
                TokenBucket::new(quota)
            }

            const NUMBER: u64 = 1;
            const KIND: char = 'b';

            fn mark(&self) -> Option<u64> {
                Some(rate_mark(&self.quota()))
            }

            fn check_fit(&self) -> Result<(), UnfitQuota> {
                let grid = Grid::new(&self.quota());
                grid.check_fit(grid.price(self.max_cost()))
            }

            fn numbers(&self, cost: u64, _: Timestamp) -> [u64; 5] {
                let grid = Grid::new(&self.quota());
                // A price above the capacity is never charged, so it is cut.
                let price = grid.span(grid.price(cost.min(self.max_cost())));
                grid.numbers(price, grid.span(grid.price(self.max_cost())), rate_mark(&self.quota()))
            }

            fn read(&self, stored: &[u8], now: Timestamp) -> Option<GcraState> {
                let grid = Grid::new(&self.quota());
                let (bucket, beyond) = grid.read_beyond(stored)?;
                grid.read(bucket, grid.now(now) + grid.price(self.max_cost()) + beyond)
            }

            fn write(&self, state: &GcraState, now: Timestamp) -> String {
                let grid = Grid::new(&self.quota());
                grid.write(state, grid.now(now), grid.price(self.max_cost()))
            }

            fn receipt_numbers(&self, receipt: Receipt) -> [u64; 2] {
                Grid::new(&self.quota()).receipt_numbers(receipt)
            }
        }
    };
}

bucket!(TokenBucket);
