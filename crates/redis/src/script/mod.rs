//! The algorithms, as the server runs them.
//!
//! **The server decides and stores; Rust computes the numbers.** A script reads the time and the stored state and does
//! the transition, in one atomic step: it admits and stores, or does nothing. Its reply is the time, the state
//! *before*, and the number of admitted requests. From these, [`Algorithm::decide`] computes the whole [`Decision`]
//! again, so that its numbers exist in one place only. If it disagrees with the script about the number of admitted
//! requests, that is an error.
//!
//! # Rules for all scripts
//!
//! - A rejection writes nothing, with one exception: a state from the future, or from another calendar, is corrected
//!   (see below). A call with a cost of zero, or with a cost that can never be admitted, only reads.
//! - A key expires when it owes nothing any more, rounded up to a millisecond.
//! - A state is text, and begins with `-`, which stands for the format's first version. A bucket's state without a rest
//!   is a number, which Redis stores in place of a pointer. A queue's state is a bucket's state, followed by the
//!   queue's holes. For other text in a key, the script replies with an error whose code is `SLUICE` (a queue's script
//!   checks the text before the holes, and Rust the rest); for another type, with `WRONGTYPE`.
//! - If a key is banned, or owes more units than it had left, this *standing* is before its state, see `text`.
//! - The record for a request whose retries are free is `-` and the number of free retries. It expires when they are no
//!   longer free.
//! - If a key has its own quota, that quota is behind its state. A call without a conversion does not change a state
//!   under another quota than its own. The reply shows that state, and `conversation` converts it.
//! - **A clock that was set back** leaves states from the future. A key counts as owing at most a full bucket, and a
//!   window at most as the next window, so the longest time that a client is locked out is the time that these take to
//!   pass. A calendar window counts as the present window.
//! - **The server knows no calendar.** A call has the bounds of two windows around the time on the caller's clock, and
//!   the server's clock chooses between them. If the server's time is in neither window, the script begins no window
//!   and charges nothing, and the caller makes the call again with the time in the reply.
//! - The sources are constant. A script only touches the keys that it is given.
//!
//! A 32-bit server is not supported: it would write wrong numbers, which are then rejected when they are read.
//!
//! [`Algorithm::decide`]: tower_sluice::algorithm::Algorithm::decide
//! [`Decision`]: tower_sluice::Decision

mod arguments;
mod bucket;
#[cfg(feature = "calendar")]
mod calendar;
mod evalsha;
mod key;
#[cfg(test)]
#[allow(clippy::cast_possible_truncation, clippy::needless_pass_by_value, reason = "small numbers, short tests")]
pub(crate) mod manual_server;
mod once;
#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "the high half of a product")]
pub(crate) mod random;
mod reply;
#[cfg(test)]
#[allow(clippy::cast_possible_truncation, clippy::needless_pass_by_value, reason = "small numbers, short tests")]
mod tests;
mod text;
mod unfit_quota;
#[cfg(test)]
pub(crate) mod variant;
mod window;

#[cfg(test)]
pub(crate) use self::arguments::decide;
pub(crate) use self::arguments::{
    Charging, OwnQuota, ScriptCharge, alone, ban, begin_record, decide_first, decide_once, growing_ban, raise_record,
    refund_budget, reset, swap, swap_once,
};
pub(crate) use self::bucket::rate_mark;
pub(crate) use self::bucket::{Grid, MicrosSpan, NO_MARK};
pub(crate) use self::evalsha::{Script, ScriptCall};
#[cfg(test)]
pub(crate) use self::key::crc16;
pub(crate) use self::key::{Key, KeyNames, SLOTS};
pub(crate) use self::reply::{BadReply, ScriptReply};
pub(crate) use self::text::{KeyText, Swap, TextUnder};
pub use self::unfit_quota::UnfitQuota;

use std::time::Duration;

use tower_sluice::Quota;
use tower_sluice::algorithm::Algorithm;

/// An algorithm that a Redis server runs: [`TokenBucket`], [`LeakyBucket`], [`FixedWindow`], [`SlidingWindow`], and
/// `CalendarWindow` (feature `calendar`).
///
/// Sealed, because each is written twice, in Rust and in Lua, and the two must agree in every case. A trait cannot
/// enforce that for an implementation from outside.
///
/// [`TokenBucket`]: tower_sluice::algorithm::TokenBucket
/// [`LeakyBucket`]: tower_sluice::algorithm::LeakyBucket
/// [`FixedWindow`]: tower_sluice::algorithm::FixedWindow
/// [`SlidingWindow`]: tower_sluice::algorithm::SlidingWindow
pub trait Scripted: Algorithm + Clone + sealed::Steps {
    /// Checks whether Redis, which counts whole microseconds in numbers below 2^53, can keep the algorithm's quota.
    ///
    /// # Errors
    ///
    /// If Redis cannot keep the quota. The error has the reason and the remedy.
    fn fits(&self) -> Result<(), UnfitQuota> {
        self.check_fit()
    }
}

/// Returns whole nanoseconds, cut at 584 years.
pub(crate) fn nanos_of(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns a quota's period, which is at most a hundred years.
fn period_nanos(quota: &Quota) -> u64 {
    nanos_of(quota.period())
}

/// The greatest count that a script reads, because no count is above its window's limit. The proofs of the scripts'
/// arithmetic (`proofs`) cover it.
const MOST_UNITS: u64 = Quota::MAX_UNITS;

pub(crate) mod sealed {
    use tower_sluice::Quota;
    use tower_sluice::algorithm::Algorithm;
    use tower_sluice::limiter::Receipt;
    use tower_sluice::time::Timestamp;

    use super::UnfitQuota;

    /// The exchange between Rust and the scripts. All numbers are below 2^53.
    pub trait Steps: Algorithm {
        /// The algorithm for the budget of free retries: the same algorithm, or a bucket if this is a calendar window.
        type Budget: super::Scripted;

        /// Returns the budget for free retries with this quota.
        fn budget(quota: Quota) -> Self::Budget;

        /// Identifies the algorithm in scripts that know several: 1 is a bucket, 2 a fixed window, 3 a sliding window,
        /// and 4 a calendar window. 0 is no algorithm: such a key is only read. 5 is a charge that no algorithm admits.
        const NUMBER: u64;

        /// The last letter in its keys' names: an algorithm cannot read another's states.
        const KIND: char;

        /// Returns its states' mark, if a state is a time at a rate: see [`rate_mark`](super::bucket::rate_mark).
        fn mark(&self) -> Option<u64> {
            None
        }

        /// Checks whether the quota can be kept in whole microseconds and numbers below 2^53.
        fn check_fit(&self) -> Result<(), UnfitQuota>;

        /// Returns the arguments for a charge of `cost`, by a caller whose clock shows `asked`. Zeros at the end are
        /// optional.
        fn numbers(&self, cost: u64, asked: Timestamp) -> [u64; 5];

        /// Returns whether these arguments are enough to decide at `now` on the server's clock.
        fn covers(&self, asked: Timestamp, now: Timestamp) -> bool {
            let _ = (asked, now);
            true
        }

        /// Reads a stored state without its quota, as it counts at `now`. `None` for other text.
        fn read(&self, stored: &[u8], now: Timestamp) -> Option<Self::State>;

        /// Writes a state that was converted at `now`, without its quota. A bucket's debt is rounded up by less than a
        /// microsecond, and cut at 71 years.
        fn write(&self, state: &Self::State, now: Timestamp) -> String;

        /// Returns a receipt as arguments.
        fn receipt_numbers(&self, receipt: Receipt) -> [u64; 2];
    }
}

macro_rules! lua {
    ($($block:literal),+) => {
        concat!($(include_str!(concat!("lua/", $block, ".lua"))),+)
    };
}

/// Continues an `if`: for each algorithm, reads the state and does the step.
macro_rules! by_algorithm {
    ($step:literal) => {
        concat!(
            "elseif algorithm == '1' then\n",
            include_str!("lua/bucket_read.lua"),
            include_str!(concat!("lua/bucket_", $step, ".lua")),
            "elseif algorithm == '2' then\n",
            include_str!("lua/fixed_window_read.lua"),
            include_str!(concat!("lua/fixed_window_", $step, ".lua")),
            "elseif algorithm == '3' then\n",
            include_str!("lua/sliding_window_read.lua"),
            include_str!(concat!("lua/sliding_window_", $step, ".lua")),
            "else\n",
            include_str!("lua/calendar_window_read.lua"),
            include_str!(concat!("lua/calendar_window_", $step, ".lua")),
        )
    };
}

/// One algorithm's script. It makes the same charge to any number of keys, each by itself.
macro_rules! each_key {
    ($read:literal, $take:literal) => {
        Script::bundled(lua!("open", "each_key", "standing", "own_quota", $read, $take, "close"))
    };
}

pub(super) static BUCKET: Script = each_key!("bucket_read", "bucket_take");

static FIXED_WINDOW: Script = each_key!("fixed_window_read", "fixed_window_take");

static SLIDING_WINDOW: Script = each_key!("sliding_window_read", "sliding_window_take");

#[cfg(feature = "calendar")]
static CALENDAR_WINDOW: Script = each_key!("calendar_window_read", "calendar_window_take");

fn script_of<A: Scripted>() -> &'static Script {
    match A::NUMBER {
        1 => &BUCKET,
        2 => &FIXED_WINDOW,
        3 => &SLIDING_WINDOW,
        #[cfg(feature = "calendar")]
        4 => &CALENDAR_WINDOW,
        other => unreachable!("{other} is the number of no algorithm"),
    }
}

pub(super) static SEVERAL: Script = Script::bundled(concat!(
    lua!("several_open", "standing", "own_quota"),
    "if algorithm == '0' then\n  admitted = 1\nelseif algorithm == '5' then\n",
    by_algorithm!("take"),
    // The call did not have the calendar window at the server's time.
    "if not ends then is_open = true end\n",
    lua!("several_close"),
));

pub(super) static REFUND: Script = Script::new(concat!(
    lua!("refund_open", "standing", "own_quota"),
    "if not old then\n",
    by_algorithm!("refund"),
    lua!("refund_close"),
));

static ONCE: Script = Script::new(concat!(
    lua!("once_open", "standing", "own_quota"),
    // A cost that can never be admitted.
    "if algorithm == '0' then\n",
    by_algorithm!("take"),
    lua!("once_close"),
));

static BEGIN_RECORD: Script = Script::new(include_str!("lua/begin_record.lua"));

static RAISE_RECORD: Script = Script::new(include_str!("lua/raise_record.lua"));

static RESET: Script = Script::new(include_str!("lua/reset.lua"));

static BAN: Script = Script::new(include_str!("lua/ban.lua"));

static SWAP: Script = Script::new(include_str!("lua/swap.lua"));

/// From this number on, a double cannot represent every whole number.
const EXACT: u64 = 1 << 53;

/// Parses the digits of a whole number below [`EXACT`].
pub(crate) fn whole(digits: &[u8]) -> Option<u64> {
    let are_digits = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(digits).ok().filter(|_| are_digits)?;
    text.parse().ok().filter(|number| *number < EXACT)
}
