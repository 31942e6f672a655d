//! Buckets in whole microseconds, exactly.

use std::time::Duration;

use super::sealed::Steps;
use super::{EXACT, Scripted, UnfitQuota, whole};
use crate::algorithm::gcra::Tat;
use crate::algorithm::{Algorithm, GcraState, TokenBucket};
use crate::values::time::Timestamp;
use crate::values::{Quota, Receipt};

/// Converts the times and prices of a quota to whole microseconds and a rest, exactly.
///
/// In units of 1/`limit` nanosecond, where nothing is rounded (see [`Gcra`](crate::algorithm::gcra)), a microsecond is
/// 1000 × `limit` units and a token `period` units. A bucket only adds microseconds and tokens, so all sums are
/// multiples of the greatest common divisor of these two, the *grain*. A microsecond has `parts` grains. For most
/// quotas `parts` is 1, and the rest always zero. If the period is whole microseconds, `parts` is at most `limit`, and
/// so below 2^50. With other periods it is up to 1000 × `limit`, and [more than 2^52](UnfitQuota::TooManyParts) are
/// refused.
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

/// The most parts of a microsecond: the sum of two rests then stays below 2^53.
pub(crate) const MAX_PARTS: u64 = 1 << 52;

impl Grid {
    pub(crate) fn new(quota: &Quota) -> Self {
        let period = quota.period_nanos();
        let micro = 1_000 * quota.limit();
        Self { limit: quota.limit(), period, micro, grain: common_divisor(period, micro) }
    }

    /// Returns the number of parts of a microsecond.
    pub(crate) const fn parts(&self) -> u64 {
        self.micro / self.grain
    }

    /// Converts units, rounded down to the grain. All sums of a bucket are multiples of the grain. Saturates below
    /// 2^53.
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

    /// Returns the arguments of the script: price, capacity, their rests, and parts.
    pub(crate) fn numbers(&self, price: MicrosSpan, capacity: MicrosSpan) -> [u64; 5] {
        match self.parts() {
            1 => [price.micros, capacity.micros, 0, 0, 0],
            parts => [price.micros, capacity.micros, price.rest, capacity.rest, parts],
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

    /// Reads a stored TAT, `-<micros>` or `-<micros>+<rest>`, as at most `most` units. `None` for other text.
    pub(crate) fn read(&self, stored: &[u8], most: u128) -> Option<GcraState> {
        let text = stored.strip_prefix(b"-")?;
        let (micros, rest) = match text.iter().position(|byte| *byte == b'+') {
            Some(plus) => (whole(&text[..plus])?, whole(&text[plus + 1..])?),
            None => (whole(text)?, 0),
        };
        // The state may be from another quota with finer parts.
        let rest = rest.min(self.parts() - 1);
        Some(GcraState { tat: self.units(MicrosSpan { micros, rest }).min(most) })
    }

    /// Splits the end of a state, `~<micros>`, off: the debt beyond a full bucket that the key may have.
    fn read_beyond<'a>(&self, stored: &'a [u8]) -> Option<(&'a [u8], u128)> {
        let Some(mark) = stored.iter().position(|byte| *byte == b'~') else { return Some((stored, 0)) };
        let micros = whole(&stored[mark + 1..]).filter(|micros| *micros < MAX_FILL_MICROS)?;
        Some((&stored[..mark], u128::from(micros) * u128::from(self.micro)))
    }

    /// Writes a state at `now` that may owe more than a full bucket of `capacity`. All numbers are in units.
    fn write(&self, state: &GcraState, now: u128, capacity: u128) -> String {
        // The debt is cut so that, also after it is rounded up, it stays below the longest time in which a bucket may
        // fill.
        let most = u128::from(MAX_FILL_MICROS - 2) * u128::from(self.micro);
        let debt = state.tat.saturating_sub(now).min(most);
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
        let MicrosSpan { micros, rest } = self.span(Tat::read(receipt));
        [micros, rest]
    }
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

            fn check_fit(&self) -> Result<(), UnfitQuota> {
                let grid = Grid::new(&self.quota());
                grid.check_fit(grid.price(self.max_cost()))
            }

            fn numbers(&self, cost: u64, _: Timestamp) -> [u64; 5] {
                let grid = Grid::new(&self.quota());
                // A price above the capacity is never charged, so it is cut.
                let price = grid.span(grid.price(cost.min(self.max_cost())));
                grid.numbers(price, grid.span(grid.price(self.max_cost())))
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
