//! How a row stores each algorithm's state.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use tower_sluice::Quota;
use tower_sluice::algorithm::{FixedWindow, Portable, SlidingWindow, TokenBucket};
use tower_sluice::limiter::{OverrideReason, Receipt};
use tower_sluice::store::remote::Standing;
use tower_sluice::time::Timestamp;

use self::sealed::Rows;
use crate::fault::{FaultKind, PostgresFault};
use crate::pool::Value;
use crate::sql::Kind;

/// An algorithm whose states PostgreSQL can keep: all in `tower-sluice`, `CalendarWindow` with the feature `calendar`.
pub trait Kept: Rows {
    /// Checks whether PostgreSQL can keep this algorithm.
    ///
    /// # Errors
    ///
    /// [`Unfit`] if it cannot.
    fn fits(&self) -> Result<(), Unfit> {
        // The greatest draw has the latest phase, which is zero only without staggering.
        if self.phase(u64::MAX).is_zero() { Ok(()) } else { Err(Unfit::Staggered) }
    }
}

impl<A: Rows> Kept for A {}

/// Why PostgreSQL cannot keep an algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unfit {
    /// Its windows are staggered.
    Staggered,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Staggered => f.write_str("staggered windows are for a `MemoryStore` only; leave out `.staggered()`"),
        }
    }
}

impl Error for Unfit {}

/// Keeps other crates from implementing [`Kept`], whose statements must fit the states.
pub(crate) mod sealed {
    use super::{Kind, Portable, Receipt, Timestamp};

    /// One algorithm's rows.
    pub trait Rows: Portable + Clone {
        /// The algorithm.
        #[doc(hidden)]
        const KIND: Kind;

        /// The calendar windows around `asked`, if the algorithm has them: from the first time on, windows end at the
        /// two others.
        #[doc(hidden)]
        fn windows(&self, asked: Timestamp) -> [Timestamp; 3] {
            let _ = asked;
            [Timestamp::ZERO, Timestamp::MAX, Timestamp::MAX]
        }

        /// A state as the statements count it.
        #[doc(hidden)]
        fn as_counted(&self, state: Self::State, now: Timestamp) -> Self::State {
            let _ = now;
            state
        }

        /// The number in a receipt. `None` if nothing is owed for it any more, or if no window around `asked` has it.
        #[doc(hidden)]
        fn receipt_number(&self, receipt: Receipt, asked: Timestamp) -> Option<u128>;

        /// Whether the windows around `asked` are those around `now`.
        #[doc(hidden)]
        fn covers(&self, asked: Timestamp, now: Timestamp) -> bool {
            let [since, _, end] = self.windows(asked);
            (since..end).contains(&now)
        }
    }
}

/// The version of the state format in which units have 8 bytes.
const WIDE: u8 = 2;

/// Returns the length of a quota's period.
pub(crate) fn period_nanos(quota: &Quota) -> u64 {
    u64::try_from(quota.period().as_nanos()).expect("periods are kept as 64 bits of nanoseconds")
}

/// A quota's limit, burst and period, as states contain them.
pub(crate) fn terms(quota: &Quota) -> [u64; 3] {
    [quota.limit(), quota.max_burst(), period_nanos(quota)]
}

/// A state's numbers, and the quota under which they count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbers {
    pub(crate) limit: u64,
    pub(crate) burst: u64,
    pub(crate) period: u64,
    pub(crate) number: u128,
    pub(crate) previous: u64,
    pub(crate) used: u64,
}

impl Numbers {
    /// Makes a state from the numbers, as it counts at `now` under the algorithm's quota.
    pub(crate) fn state<A: Rows>(&self, algorithm: &A, now: Timestamp) -> Result<A::State, PostgresFault> {
        let mut bytes = vec![WIDE, A::KIND.letter()];
        for number in [self.limit, self.burst, self.period] {
            bytes.extend(number.to_be_bytes());
        }
        match A::KIND {
            Kind::Bucket => bytes.extend(self.number.to_be_bytes()),
            _ => bytes.extend(u64::try_from(self.number).map_err(|_| unreadable("number"))?.to_be_bytes()),
        }
        match A::KIND {
            Kind::Bucket => {}
            Kind::SlidingWindow => bytes.extend([self.previous, self.used].map(u64::to_be_bytes).as_flattened()),
            _ => bytes.extend(self.used.to_be_bytes()),
        }
        let state = algorithm.from_bytes(&bytes, now).map_err(|unknown| unreadable(&unknown.to_string()))?;
        Ok(algorithm.as_counted(state, now))
    }

    /// A state's numbers; a state of `None` owes nothing.
    pub(crate) fn of<A: Rows>(algorithm: &A, state: Option<&A::State>) -> Self {
        let [limit, burst, period] = terms(&algorithm.quota());
        let mut numbers = Self { limit, burst, period, number: 0, previous: 0, used: 0 };
        let Some(state) = state else { return numbers };
        let bytes = algorithm.to_bytes(state);
        // They follow the version, the kind, limit, burst and period.
        let width = if bytes[0] == WIDE { 8 } else { 4 };
        let (number, counts) = bytes[10 + 2 * width..].split_at(if A::KIND == Kind::Bucket { 16 } else { 8 });
        let whole = |bytes: &[u8]| bytes.iter().fold(0, |sum: u128, byte| sum << 8 | u128::from(*byte));
        let mut counts = counts.chunks(width).map(|count| clamped(whole(count)));
        numbers.number = whole(number);
        if A::KIND == Kind::SlidingWindow {
            numbers.previous = counts.next().unwrap_or(0);
        }
        numbers.used = counts.next().unwrap_or(0);
        numbers
    }

    /// The quota under which the numbers count, if it is not `own`.
    pub(crate) fn another_quota(&self, own: &Quota, kind: Kind) -> Option<Quota> {
        let [limit, burst, period] = terms(own);
        // Windows do not have a burst.
        let is_same = self.limit == limit && self.period == period && (self.burst == burst || kind != Kind::Bucket);
        let quota = Quota::try_per(self.limit, Duration::from_nanos(self.period)).ok().filter(|_| !is_same)?;
        if kind == Kind::Bucket { quota.try_burst(self.burst).ok() } else { Some(quota) }
    }

    /// Takes back the charge for `requests`, since which no time has passed.
    pub(crate) fn before(mut self, kind: Kind, requests: u32, cost: u64) -> Self {
        let units = u64::from(requests).saturating_mul(cost);
        match kind {
            Kind::Bucket => {
                self.number = self.number.saturating_sub(u128::from(units).saturating_mul(self.period.into()));
            }
            _ => self.used = self.used.saturating_sub(units),
        }
        self
    }

    /// Corrects numbers from the future, which now ends by `ahead` earlier.
    fn corrected(mut self, kind: Kind, ahead: u64, until: Timestamp) -> Self {
        match kind {
            Kind::Bucket => {
                let units = u128::from(ahead) * u128::from(self.limit);
                self.number = self.number.saturating_sub(units);
            }
            Kind::FixedWindow | Kind::SlidingWindow => {
                self.number = self.number.min(u128::from(until.as_nanos() / self.period.max(1)) + 1);
            }
            #[cfg(feature = "calendar")]
            Kind::CalendarWindow => {}
        }
        self
    }
}

/// A key's row.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) numbers: Numbers,
    pub(crate) standing: Standing,
}

impl Row {
    /// Reads the columns that `sql::ROW` names. `None` if there is no row.
    pub(crate) fn read(fields: &mut Fields) -> Result<Option<Self>, PostgresFault> {
        let Some(limit) = fields.int()? else { return Ok(None) };
        let [burst, period] = [fields.unsigned()?, fields.unsigned()?];
        let number = fields.number()?.ok_or_else(|| unreadable("number"))?;
        let [previous, used] = [fields.unsigned()?, fields.unsigned()?];
        let limit = u64::try_from(limit).map_err(|_| unreadable("quota_limit"))?;
        let mut until = || fields.number().map(|until| Timestamp::from_nanos(clamped(until.unwrap_or(0))));
        let [banned_until, owing_until, allowed_until] = [until()?, until()?, until()?];
        let reason = match fields.text()? {
            Some(reason) => OverrideReason::stored(&reason).map_err(|_| unreadable("reason"))?,
            None => OverrideReason::NONE,
        };
        let standing = Standing { banned_until, owing_until, allowed_until, reason };
        Ok(Some(Self { numbers: Numbers { limit, burst, period, number, previous, used }, standing }))
    }

    /// Reads the algorithm's columns that a plain charge under this quota returns.
    pub(crate) fn read_plain(fields: &mut Fields, kind: Kind, quota: [u64; 3]) -> Result<Self, PostgresFault> {
        let number = fields.number()?.ok_or_else(|| unreadable("number"))?;
        let previous = if kind == Kind::SlidingWindow { fields.unsigned()? } else { 0 };
        let used = if kind == Kind::Bucket { 0 } else { fields.unsigned()? };
        Ok(Self::plain(quota, number, previous, used))
    }

    fn plain([limit, burst, period]: [u64; 3], number: u128, previous: u64, used: u64) -> Self {
        Self { numbers: Numbers { limit, burst, period, number, previous, used }, standing: Standing::default() }
    }

    /// Reads the columns that `sql::BRIEF_ROW` names, from a row that a statement under this quota has written.
    pub(crate) fn read_brief(fields: &mut Fields, quota: [u64; 3]) -> Result<Self, PostgresFault> {
        let number = fields.number()?.ok_or_else(|| unreadable("number"))?;
        let plain = Self::plain(quota, number, fields.unsigned()?, fields.unsigned()?);
        let Some(kept) = fields.text()? else { return Ok(plain) };
        let mut parts = kept.splitn(7, ',');
        let mut next = || parts.next().ok_or_else(|| unreadable("the standing"));
        let unsigned = |text: &str| text.parse::<u128>().map(clamped).map_err(|_| unreadable("the standing"));
        let quota = [unsigned(next()?)?, unsigned(next()?)?, unsigned(next()?)?];
        let until = |text: &str| if text.is_empty() { Ok(0) } else { unsigned(text) }.map(Timestamp::from_nanos);
        let [banned_until, owing_until, allowed_until] = [until(next()?)?, until(next()?)?, until(next()?)?];
        let reason = match next()? {
            "" => OverrideReason::NONE,
            reason => OverrideReason::stored(reason).map_err(|_| unreadable("reason"))?,
        };
        let standing = Standing { banned_until, owing_until, allowed_until, reason };
        let [limit, burst, period] = quota;
        Ok(Self { numbers: Numbers { limit, burst, period, ..plain.numbers }, standing })
    }

    /// Corrects a row that was written by a clock which was ahead, like the statements do.
    pub(crate) fn corrected(mut self, kind: Kind, changed: Timestamp, now: Timestamp) -> Self {
        // `changed` has whole microseconds.
        let ahead = changed.as_nanos().saturating_sub(now.as_nanos() / 1_000 * 1_000);
        let earlier = |until: Timestamp| Timestamp::from_nanos(until.as_nanos().saturating_sub(ahead));
        let Standing { banned_until, owing_until, allowed_until, reason } = self.standing;
        let [banned_until, owing_until, allowed_until] = [banned_until, owing_until, allowed_until].map(earlier);
        self.standing = Standing { banned_until, owing_until, allowed_until, reason };
        self.numbers = self.numbers.corrected(kind, ahead, now.max(owing_until));
        self
    }

    /// The state while the standing is in force, under the algorithm's quota. It is not as of the end of a ban, since
    /// an operator may lift it.
    pub(crate) fn state_in_force<A: Rows>(&self, algorithm: &A, now: Timestamp) -> Result<A::State, PostgresFault> {
        self.numbers.state(algorithm, now.max(self.standing.owing_until))
    }
}

fn clamped(nanos: u128) -> u64 {
    u64::try_from(nanos).unwrap_or(u64::MAX)
}

/// A row's fields, in their order.
#[derive(Debug)]
pub(crate) struct Fields(std::vec::IntoIter<Value>);

impl Fields {
    pub(crate) fn new(row: Vec<Value>) -> Self {
        Self(row.into_iter())
    }

    pub(crate) fn int(&mut self) -> Result<Option<i64>, PostgresFault> {
        match self.0.next() {
            Some(Value::Int(number)) => Ok(number),
            _ => Err(unreadable("a number is missing")),
        }
    }

    pub(crate) fn unsigned(&mut self) -> Result<u64, PostgresFault> {
        self.int()?.and_then(|number| u64::try_from(number).ok()).ok_or_else(|| unreadable("a number is negative"))
    }

    /// Reads how many requests were charged.
    pub(crate) fn count(&mut self) -> Result<u32, PostgresFault> {
        u32::try_from(self.unsigned()?).map_err(|_| unreadable("a number of requests"))
    }

    pub(crate) fn time(&mut self) -> Result<Timestamp, PostgresFault> {
        self.unsigned().map(Timestamp::from_nanos)
    }

    pub(crate) fn text(&mut self) -> Result<Option<String>, PostgresFault> {
        match self.0.next() {
            Some(Value::Text(text)) => Ok(text),
            _ => Err(unreadable("a text is missing")),
        }
    }

    /// Reads a `numeric`, as text. A negative number is a time before 1970, and reads as `None`.
    fn number(&mut self) -> Result<Option<u128>, PostgresFault> {
        let Some(text) = self.text()? else { return Ok(None) };
        if text.starts_with('-') {
            return Ok(None);
        }
        text.parse().map(Some).map_err(|_| unreadable(&text))
    }
}

fn unreadable(what: &str) -> PostgresFault {
    PostgresFault::new(FaultKind::Unintelligible, what)
}

impl Rows for TokenBucket {
    const KIND: Kind = Kind::Bucket;

    /// When the charge is paid, in its quota's units. A refund takes the unpaid part from the greatest number. At the
    /// beginning of time, everything up to the payment is unpaid, if the price is above all such numbers.
    fn receipt_number(&self, receipt: Receipt, _: Timestamp) -> Option<u128> {
        use tower_sluice::algorithm::Algorithm;

        const MOST: u128 = (1 << 121) - 1;
        const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);
        let quota = Quota::per(1, CENTURY);
        let dear = Self::new(quota);
        let [limit, burst, period] = terms(&quota);
        let numbers = Numbers { limit, burst, period, number: MOST, previous: 0, used: 0 };
        let state = numbers.state(&dear, Timestamp::ZERO).ok()?;
        let left = dear.to_bytes(&dear.refund(state, Timestamp::ZERO, u64::MAX, receipt));
        // They follow two bytes and the quota, whose limit and burst have four.
        let left = u128::from_be_bytes(left[18..].try_into().ok()?);
        Some(MOST - left).filter(|paid_at| *paid_at > 0)
    }
}

/// Returns the window that a receipt names: a refund takes from no other window.
fn window_of<A: Rows>(algorithm: &A, receipt: Receipt, windows: impl IntoIterator<Item = u64>) -> Option<u128> {
    let [limit, burst, period] = terms(&algorithm.quota());
    let is_named = |window: &u64| {
        let numbers = Numbers { limit, burst, period, number: (*window).into(), previous: 0, used: 1 };
        let Ok(state) = numbers.state(algorithm, Timestamp::ZERO) else { return false };
        let refunded = algorithm.refund(state, Timestamp::ZERO, 1, receipt);
        algorithm.to_bytes(&refunded) != algorithm.to_bytes(&state)
    };
    windows.into_iter().find(is_named).map(u128::from)
}

/// The windows that may have been charged, if `asked` is within a period of the server's time: a charge counts to the
/// end of the next window.
fn windows_around(quota: &Quota, asked: Timestamp) -> impl Iterator<Item = u64> {
    let present = asked.as_nanos() / period_nanos(quota);
    present.saturating_sub(2)..=present.saturating_add(1)
}

impl Rows for FixedWindow {
    const KIND: Kind = Kind::FixedWindow;

    fn receipt_number(&self, receipt: Receipt, asked: Timestamp) -> Option<u128> {
        window_of(self, receipt, windows_around(&tower_sluice::algorithm::Algorithm::quota(self), asked))
    }
}

impl Rows for SlidingWindow {
    const KIND: Kind = Kind::SlidingWindow;

    fn receipt_number(&self, receipt: Receipt, asked: Timestamp) -> Option<u128> {
        window_of(self, receipt, windows_around(&tower_sluice::algorithm::Algorithm::quota(self), asked))
    }
}

#[cfg(feature = "calendar")]
impl Rows for tower_sluice::algorithm::CalendarWindow {
    const KIND: Kind = Kind::CalendarWindow;

    fn windows(&self, asked: Timestamp) -> [Timestamp; 3] {
        self.edges(asked).map(|second| Timestamp::from_nanos(second.saturating_mul(1_000_000_000)))
    }

    /// If the server's clock was set back, units of a later window count in the present one.
    fn as_counted(&self, state: Self::State, now: Timestamp) -> Self::State {
        use tower_sluice::algorithm::Algorithm;

        self.inherit(state, &self.quota(), now)
    }

    fn receipt_number(&self, receipt: Receipt, asked: Timestamp) -> Option<u128> {
        use tower_sluice::algorithm::Algorithm;

        let [_, first, second] = self.windows(asked);
        let [limit, burst, period] = terms(&self.quota());
        let is_named = |end: &Timestamp| {
            let end_nanos = end.as_nanos();
            let numbers = Numbers { limit, burst, period, number: end_nanos.into(), previous: 0, used: 1 };
            // If it is read at its end, a state stays in its window.
            let Ok(state) = numbers.state(self, *end) else { return false };
            let refunded = self.refund(state, *end, 1, receipt);
            self.to_bytes(&refunded) != self.to_bytes(&state)
        };
        [first, second].into_iter().find(is_named).map(|end| end.as_nanos().into())
    }
}
