//! A key's text: `[!<banned>:<owing>:<allowed>:<reason>!]<state>[@<limit>:<burst>:<period>]`, the standing, the state
//! and the quota. A bucket's state without a quota has its rate's mark.

use std::time::Duration;

use tower_sluice::Quota;
use tower_sluice::limiter::{Override, OverrideReason};
use tower_sluice::store::remote::{Applied, Standing, Target};
use tower_sluice::time::Timestamp;

use super::bucket::{mark_of, marked};
use super::{BadReply, EXACT, Scripted, period_nanos, whole};

/// A key's text in its parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyText<'a> {
    /// Scripts that read the state remove the standing once it is over.
    pub(crate) standing: Standing,
    /// `None` if the key owes nothing.
    state: Option<&'a [u8]>,
    /// `None` stands for the limiter's quota.
    pub(crate) quota: Option<Quota>,
}

/// The replacement for a key's text, unless that has changed meanwhile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Swap {
    /// The text that was read from the key.
    pub(super) read: String,
    /// The new text. For a conversion, empty if the key owes nothing any more.
    pub(super) written: String,
    /// The millisecond from which the new text owes nothing.
    pub(super) expires: u64,
}

impl Swap {
    /// Returns `None` if the text is not UTF-8. Our texts are ASCII.
    fn new(read: Option<&[u8]>, written: String, expires: Timestamp) -> Option<Self> {
        // A bucket's debt was rounded up to a microsecond, so add a millisecond.
        let expires = expires.as_nanos() / 1_000_000 + 2;
        let read = String::from_utf8(read.unwrap_or_default().to_vec()).ok()?;
        Some(Self { read, written, expires })
    }
}

impl<'a> KeyText<'a> {
    /// Reads a key's text, if it has one.
    pub(crate) fn read(stored: Option<&'a [u8]>) -> Result<Self, BadReply> {
        let Some(stored) = stored else { return Ok(Self::default()) };
        let (standing, rest) = match stored.strip_prefix(b"!") {
            Some(rest) => read_standing(rest).ok_or(BadReply::State)?,
            None => (Standing::default(), stored),
        };
        if standing != Standing::default() && rest.is_empty() {
            return Ok(Self { standing, ..Self::default() });
        }
        let (state, quota) = read_quota(rest).ok_or(BadReply::State)?;
        Ok(Self { standing, state: Some(state), quota })
    }

    /// Whether there is no state, or the state is kept under this quota, as a script compares them. `mark` is the mark
    /// of a state that the call does not leave to the caller; without one, it leaves none.
    pub(crate) fn is_under(&self, quota: Option<Quota>, mark: Option<u64>) -> bool {
        let has_mark = quota.is_some() || mark.is_none() || self.mark().is_none_or(|own| Some(own) == mark);
        self.state.is_none() || (self.quota.map(parts) == quota.map(parts) && has_mark)
    }

    /// Returns the mark of a bucket's state.
    fn mark(&self) -> Option<u64> {
        self.state.filter(|_| self.quota.is_none()).and_then(mark_of)
    }

    /// Returns the state as it counts at `now`, for an algorithm under this text's quota.
    pub(crate) fn state<A: Scripted>(&self, kept: &A, now: Timestamp) -> Result<Option<A::State>, BadReply> {
        self.state.map(|state| kept.read(state, now).ok_or(BadReply::State)).transpose()
    }
}

/// An algorithm under the caller's quota, and the limiter's quota. Reads states that are kept under other quotas.
pub(crate) struct TextUnder<'a, A> {
    /// The algorithm with the caller's quota.
    pub(crate) algorithm: &'a A,
    /// The limiter's quota, which holds for states without a quota.
    pub(crate) limiter: Quota,
    /// The quota by whose mark a state is read.
    pub(crate) of_mark: &'a (dyn Fn(u64) -> Option<Quota> + Sync),
}

impl<'a, A: Scripted> TextUnder<'a, A> {
    pub(crate) const fn new(target: &Target<'a, A>, of_mark: &'a (dyn Fn(u64) -> Option<Quota> + Sync)) -> Self {
        Self { algorithm: target.algorithm(), limiter: target.limiter_quota(), of_mark }
    }

    /// Returns the algorithm under the quota that was stored with a state, or whose mark the state has. An unknown mark
    /// stands for the limiter's quota: the debt is kept as a time.
    pub(crate) fn kept(&self, text: &KeyText<'_>) -> Result<A, BadReply> {
        let quota = text.quota.or_else(|| text.mark().and_then(self.of_mark));
        let kept = self.algorithm.under(quota.unwrap_or(self.limiter)).ok_or(BadReply::State)?;
        kept.check_fit().map(|()| kept).map_err(|_| BadReply::State)
    }

    /// Writes a state, with its quota or its mark.
    fn write(&self, state: &A::State, at: Timestamp, quota: Option<Quota>) -> String {
        let written = self.algorithm.write(state, at);
        match (quota, self.algorithm.mark()) {
            (Some(quota), _) => written + &quota_text(quota),
            (None, Some(mark)) => marked(&written, mark),
            (None, None) => written,
        }
    }

    /// Returns a state as it counts at `at` under the caller's quota.
    pub(crate) fn state_at(&self, text: &KeyText<'_>, at: Timestamp) -> Result<Option<A::State>, BadReply> {
        let kept = self.kept(text)?;
        let state = text.state(&kept, at)?;
        if kept.quota() == self.algorithm.quota() {
            return Ok(state);
        }
        Ok(state.and_then(|state| {
            let from = kept.quota();
            self.algorithm.can_inherit(&from).then(|| self.algorithm.inherit(state, &from, at))
        }))
    }

    /// Returns the conversion of a key's text (`holds`) to the caller's quota, and the state after it as the scripts
    /// read it, with a bucket's debt rounded up. `quota` is written behind the state, if the process carries quotas.
    pub(crate) fn convert(
        &self,
        holds: Option<&[u8]>,
        now: Timestamp,
        quota: Option<Quota>,
    ) -> Result<(Swap, Option<A::State>), BadReply> {
        let state = self.state_at(&KeyText::read(holds)?, now)?.filter(|state| self.algorithm.owed(state, now) > 0);
        let Some(state) = state else {
            let nothing = Swap { expires: 0, ..Swap::new(holds, String::new(), now).ok_or(BadReply::State)? };
            return Ok((nothing, None));
        };
        let written = self.algorithm.write(&state, now);
        let rounded = self.algorithm.read(written.as_bytes(), now).ok_or(BadReply::State)?;
        let swap = Swap::new(holds, self.write(&state, now, quota), self.algorithm.expires_at(&state));
        Ok((swap.ok_or(BadReply::State)?, Some(rounded)))
    }

    /// Adds these units to a key's debt, like [`Standing::charge`]. `quota` is written behind the state, if the process
    /// carries quotas. Returns the outcome, and the replacement of the key's text (`holds`) if that changes.
    pub(crate) fn owing(
        &self,
        holds: Option<&[u8]>,
        now: Timestamp,
        quota: Option<Quota>,
        units: u64,
    ) -> Result<(Applied<A::State>, Option<Swap>), BadReply> {
        let text = KeyText::read(holds)?;
        let old = self.state_at(&text, now.max(text.standing.owing_until))?;
        let (standing, state) = text.standing.charge(self.algorithm, old, now, units);
        let applied = Applied { now, old: state, standing, kept: None, charged: 0 };
        let is_charged = units > 0 && !text.standing.is_allowed(now);
        let Some(state) = state.filter(|_| is_charged) else { return Ok((applied, None)) };
        Ok((applied, Some(self.replacing(holds, now, quota, (standing, &state))?)))
    }

    /// Replaces a key's text (`holds`) by this standing and this state, which is as of the end of the debt. `quota` is
    /// written behind the state, if the process carries quotas.
    pub(crate) fn replacing(
        &self,
        holds: Option<&[u8]>,
        now: Timestamp,
        quota: Option<Quota>,
        (standing, state): (Standing, &A::State),
    ) -> Result<Swap, BadReply> {
        let end = Timestamp::from_nanos(to_micros(standing.owing_until, now) * 1_000).max(now);
        let written = standing_text(standing, now) + &self.write(state, end, quota);
        let expires = self.algorithm.expires_at(state).max(standing.expires());
        Swap::new(holds, written, expires).ok_or(BadReply::State)
    }

    /// Bans or allows a key (`holds`) as an operator says, like [`Standing::overridden`]. Its state stays as it is,
    /// under its quota. Returns the outcome, and the replacement for the key's text.
    pub(crate) fn overriding(
        &self,
        holds: Option<&[u8]>,
        now: Timestamp,
        by_hand: Override,
    ) -> Result<(Applied<A::State>, Option<Swap>), BadReply> {
        let text = KeyText::read(holds)?;
        let standing = text.standing.overridden(now, by_hand);
        let old = self.state_at(&text, now.max(standing.until()))?;
        let applied = Applied { now, old, standing, kept: None, charged: 0 };
        let kept = self.kept(&text)?;
        // As it is written: a key may have a window that ends later than the limiter's.
        let state = text.state(&kept, Timestamp::from_nanos(MAX_MICROS * 1_000))?;
        let expires = state.map_or(Timestamp::ZERO, |state| kept.expires_at(&state)).max(standing.expires());
        let state_text = text
            .state
            .map(|state| String::from_utf8_lossy(state).into_owned() + &text.quota.map(quota_text).unwrap_or_default());
        let written = standing_text(standing, now) + &state_text.unwrap_or_default();
        if written.is_empty() && holds.is_none() {
            return Ok((applied, None));
        }
        Ok((applied, Some(Swap::new(holds, written, expires.max(now)).ok_or(BadReply::State)?)))
    }
}

/// Lua's whole numbers are exact up to this one.
const MAX_MICROS: u64 = EXACT - 1;

/// Converts a time to microseconds, rounded up, and a time that has passed to zero.
fn to_micros(until: Timestamp, now: Timestamp) -> u64 {
    if until > now { until.as_nanos().div_ceil(1_000).min(MAX_MICROS) } else { 0 }
}

/// Returns a standing's text, in front of a state. Empty if it is over.
fn standing_text(standing: Standing, now: Timestamp) -> String {
    if !standing.is_in_force(now) {
        return String::new();
    }
    let times = [standing.banned_until, standing.owing_until, standing.allowed_until];
    let [banned, owing, allowed] = times.map(|until| to_micros(until, now));
    format!("!{banned}:{owing}:{allowed}:{}!", encoded(standing.reason))
}

/// Splits `<banned>:<owing>:<allowed>:<reason>!<rest>`, in microseconds.
fn read_standing(stored: &[u8]) -> Option<(Standing, &[u8])> {
    let end = stored.iter().position(|byte| *byte == b'!')?;
    let mut parts = stored[..end].split(|byte| *byte == b':');
    let mut time = || parts.next().and_then(whole).map(|micros| Timestamp::from_nanos(micros * 1_000));
    let [banned_until, owing_until, allowed_until] = [time()?, time()?, time()?];
    let reason = parts.next().and_then(decoded)?;
    parts.next().is_none().then_some(())?;
    Some((Standing { banned_until, owing_until, allowed_until, reason }, &stored[end + 1..]))
}

/// Writes a reason without the marks that separate the parts in a text and in a reply: all but letters, digits, spaces
/// and `-._` are written as `%` and two hexadecimal digits.
fn encoded(reason: OverrideReason) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b" -._".contains(&byte);
    let encode = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02x}") };
    reason.as_str().bytes().map(encode).collect()
}

/// Reverses [`encoded`].
fn decoded(text: &[u8]) -> Option<OverrideReason> {
    let mut bytes = text.iter().copied();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            byte => byte,
        });
    }
    OverrideReason::stored(std::str::from_utf8(&decoded).ok()?).ok()
}

/// Returns a quota's text behind a state.
fn quota_text(quota: Quota) -> String {
    let [limit, burst, period] = parts(quota);
    format!("@{limit}:{burst}:{period}")
}

/// Returns the numbers in a quota's text.
pub(super) fn parts(quota: Quota) -> [u64; 3] {
    [quota.limit(), quota.max_burst(), period_nanos(&quota)]
}

/// Splits `<state>@<limit>:<burst>:<period>` into the state and the quota. `None` if that is not a quota, or not
/// spelled like a script's: the server compares spellings, and two spellings of one quota would never be equal.
fn read_quota(stored: &[u8]) -> Option<(&[u8], Option<Quota>)> {
    let Some(at) = stored.iter().position(|byte| *byte == b'@') else { return Some((stored, None)) };
    let mut parts = stored[at + 1..].split(|byte| *byte == b':').map(canonical);
    let limit = parts.next()??;
    let burst = parts.next()??;
    let period = parts.next()??;
    let quota = Quota::try_per(limit, Duration::from_nanos(period)).ok().filter(|_| parts.next().is_none())?;
    let quota = if burst == limit { quota } else { quota.try_burst(burst).ok()? };
    Some((&stored[..at], Some(quota)))
}

/// Parses a whole number above zero without leading zeros.
fn canonical(digits: &[u8]) -> Option<u64> {
    let is_canonical = digits.iter().all(u8::is_ascii_digit) && digits.first() != Some(&b'0');
    std::str::from_utf8(digits).ok().filter(|_| is_canonical)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standing_is_read_or_an_error() {
        let standing = |banned, owing| {
            let [banned_until, owing_until] = [banned, owing].map(|micros: u64| Timestamp::from_nanos(micros * 1_000));
            Standing { banned_until, owing_until, ..Standing::default() }
        };
        let quota = Some(Quota::per(1, Duration::from_nanos(3)).burst(2));
        let both = KeyText { standing: standing(5, 0), state: Some(b"-7"), quota };
        assert_eq!(KeyText::read(Some(b"!5:0:0:!-7@1:2:3")), Ok(both));
        let alone = KeyText { standing: standing(0, MAX_MICROS), state: None, quota: None };
        assert_eq!(KeyText::read(Some(b"!0:9007199254740991:0:!")), Ok(alone));
        let foreign = [
            "!",
            "!5!",
            "!5:6!",
            "!5:6:7!",
            "!5:6::!",
            "!:5:0:!",
            "!5:6:0:",
            "!5:6:7:8:9!",
            "!-5:6:0:!",
            "!0:9007199254740992:0:!",
            "!5:6:7:%4!",
            "!5:6:7:%zz!",
            "!5:6:7:%ff!",
            "!5:6:7:%0a!",
        ];
        for foreign in foreign {
            assert_eq!(KeyText::read(Some(foreign.as_bytes())), Err(BadReply::State), "{foreign:?}");
        }
    }

    #[test]
    fn a_reason_is_written_without_separators() {
        for text in ["", "scrapes the catalogue", "a,b:c!d@e%f\u{e9}", &"!".repeat(200)] {
            let reason = OverrideReason::stored(text).unwrap();
            let standing = Standing { allowed_until: Timestamp::from_nanos(9_000), reason, ..Standing::default() };
            let written = standing_text(standing, Timestamp::ZERO);
            assert_eq!(written.matches([',', '@']).count() + written.matches('!').count(), 2, "{written}");
            assert_eq!(KeyText::read(Some(written.as_bytes())).unwrap().standing, standing);
        }
    }
}
