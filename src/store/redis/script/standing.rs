//! Bans and debts, which stand before the states of keys, and the scripts that change them.

use std::time::Duration;

use smallvec::{SmallVec, smallvec};

use super::own_quota::Under;
use super::{BAN, BadReply, EXACT, SWAP, ScriptReply, Scripted, whole};
use crate::store::redis::evalsha::Call;
use crate::store::redis::key::Key;
use crate::store::remote::{Applied, Standing};
use crate::values::Quota;
use crate::values::time::Timestamp;

/// Bans a key for this time, rounded up to a microsecond. The reply has the text of the banned key.
pub(crate) fn ban(key: Key, span: Duration) -> Call {
    // Its sum with any time of a server is exact.
    let micros = u64::try_from(span.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX).min(EXACT / 2 - 1);
    Call { script: &BAN, keys: smallvec![key], args: smallvec![micros], texts: Vec::new() }
}

/// The replacement of a key's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Swap {
    read: String,
    written: String,
    /// When the key expires, in milliseconds.
    expires: u64,
}

/// Replaces the text of a key, unless it has changed: then the reply has the new one. With `None`, the script only reads.
pub(crate) fn swap(key: Key, swap: Option<Swap>) -> Call {
    let (mut args, mut texts): (SmallVec<_>, _) = (smallvec![0], Vec::new());
    if let Some(Swap { read, written, expires }) = swap {
        (args[0], texts) = (expires, vec![read, written]);
    }
    Call { script: &SWAP, keys: smallvec![key], args, texts }
}

/// Lua's numbers are exact up to here.
const MAX_MICROS: u64 = EXACT - 1;

fn from_micros(digits: &[u8]) -> Option<Timestamp> {
    whole(digits).map(|micros| Timestamp::from_nanos(micros * 1_000))
}

/// In microseconds, rounded up; zero if it has passed.
fn to_micros(until: Timestamp, now: Timestamp) -> u64 {
    if until > now { until.as_nanos().div_ceil(1_000).min(MAX_MICROS) } else { 0 }
}

/// Splits `!<banned>:<owing>!<state>` into the standing and the state.
fn split(stored: &[u8]) -> Option<(Standing, &[u8])> {
    let rest = stored.strip_prefix(b"!")?;
    let end = rest.iter().position(|byte| *byte == b'!')?;
    let colon = rest[..end].iter().position(|byte| *byte == b':')?;
    let (banned_until, owing_until) = (from_micros(&rest[..colon])?, from_micros(&rest[colon + 1..end])?);
    Some((Standing { banned_until, owing_until }, &rest[end + 1..]))
}

impl ScriptReply {
    /// Takes the standing off the text of the key at `index`. Scripts take it off themselves once it is over, if they look at
    /// the state.
    pub(crate) fn take_standing(&mut self, index: usize) -> Result<Standing, BadReply> {
        let Some(stored) = self.old(index)?.filter(|stored| stored.starts_with(b"!")) else {
            return Ok(Standing::default());
        };
        let (standing, state) = split(stored).ok_or(BadReply::State)?;
        let state = (!state.is_empty()).then(|| state.to_vec());
        self.put(index, state);
        Ok(standing)
    }
}

impl<A: Scripted> Under<'_, A> {
    /// Takes the standing off the text of a call's only key. If it is in force, the call has charged nothing, and this
    /// returns its outcome.
    pub(crate) fn in_force(&self, answer: &mut ScriptReply) -> Result<Option<Applied<A::State>>, BadReply> {
        let standing = answer.take_standing(0)?;
        if !standing.is_in_force(answer.now) {
            return Ok(None);
        }
        answer.charged_nothing()?;
        let old = self.state_at(answer, 0, standing.until())?;
        Ok(Some(Applied { now: answer.now, old, standing, kept: None, charged: 0 }))
    }

    /// Lets a key owe these units, as [`Standing::charge`] does. `quota` is written behind the state if the process
    /// [carries](super::OwnQuota) one. Returns the outcome, and the replacement of the key's text if that changes.
    pub(crate) fn owing(
        &self,
        answer: &mut ScriptReply,
        quota: Option<Quota>,
        units: u64,
    ) -> Result<(Applied<A::State>, Option<Swap>), BadReply> {
        let now = answer.now;
        let read = String::from_utf8(answer.old(0)?.unwrap_or_default().to_vec()).map_err(|_| BadReply::State)?;
        let standing = answer.take_standing(0)?;
        let old = self.state_at(answer, 0, now.max(standing.owing_until))?;
        let (standing, state) = standing.charge(self.algorithm, old, now, units);
        let applied = Applied { now, old: state, standing, kept: None, charged: 0 };
        let Some(state) = state.filter(|_| units > 0) else { return Ok((applied, None)) };
        let [banned, owing] = [standing.banned_until, standing.owing_until].map(|until| to_micros(until, now));
        let end = Timestamp::from_nanos(owing * 1_000).max(now);
        let state_text = self.algorithm.write(&state, end) + &quota.map(super::own_quota::behind).unwrap_or_default();
        let written = if standing.is_in_force(now) { format!("!{banned}:{owing}!{state_text}") } else { state_text };
        // The debt of a bucket was rounded up to a microsecond, so a millisecond more.
        let expires = self.algorithm.expires_at(&state).max(standing.until()).as_nanos() / 1_000_000 + 2;
        Ok((applied, Some(Swap { read, written, expires })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standing_is_read_or_an_error() {
        let standing = |banned, owing| {
            let [banned_until, owing_until] = [banned, owing].map(|micros: u64| Timestamp::from_nanos(micros * 1_000));
            Standing { banned_until, owing_until }
        };
        assert_eq!(split(b"!5:0!-7@1:2:3"), Some((standing(5, 0), &b"-7@1:2:3"[..])));
        assert_eq!(split(b"!0:9007199254740991!"), Some((standing(0, MAX_MICROS), &b""[..])));
        for foreign in ["", "-7", "!", "!5!", "!5:!", "!:5!", "!5:6", "!5:6:7!", "!-5:6!", "!0:9007199254740992!"] {
            assert_eq!(split(foreign.as_bytes()), None, "{foreign:?}");
        }
    }
}
