//! Quotas of the keys' own: how they are written behind states, and what becomes of a state when its key's quota changes.

use std::time::Duration;

use super::{BadReply, ScriptReply, Scripted};
use crate::store::quota_change;
use crate::store::redis::evalsha::Call;
use crate::store::remote::Target;
use crate::values::Quota;
use crate::values::time::Timestamp;

/// An algorithm under the quota of a question, and what is needed to read states that are kept under other quotas.
pub(crate) struct Under<'a, A> {
    /// With the quota of the question.
    pub(crate) algorithm: &'a A,
    /// The quota of the limiter, which is that of states without one.
    pub(crate) limiter: Quota,
}

/// What a call carries of one key's quota.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnQuota {
    /// The quota of the question, which is then written behind the state. `None` if the limiter has one quota for all keys.
    pub(crate) quota: Option<Quota>,
    /// Only with a quota.
    pub(crate) conversion: Option<Conversion>,
}

/// A state that is to be replaced by itself under another quota, unless it has changed meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conversion {
    /// What the key held.
    read: String,
    /// What it is to hold. Empty if nothing is owed any more.
    written: String,
    /// From when on that owes nothing, in milliseconds.
    expires: u64,
}

impl<'a, A: Scripted> Under<'a, A> {
    pub(crate) const fn of(target: &Target<'a, A>) -> Self {
        Self { algorithm: target.algorithm(), limiter: target.limiter_quota() }
    }

    /// Leaves in the answer to a call that carried `asked` the state of the key at `index` as it counts under the quota of
    /// the question, without any quota behind it. Returns how to replace it on the server if it is kept under another
    /// quota: then the call has charged nothing.
    pub(crate) fn convert(
        &self,
        answer: &mut ScriptReply,
        index: usize,
        asked: Option<Quota>,
    ) -> Result<Option<Conversion>, BadReply> {
        let Some(stored) = answer.old(index)? else { return Ok(None) };
        let (state, quota) = split(stored).ok_or(BadReply::State)?;
        let own = self.algorithm.quota();
        if quota.map(parts) == asked.map(parts) {
            let length = state.len();
            answer.truncate(index, length);
            return Ok(None);
        }
        let now = answer.now;
        let kept = self.kept_under(quota.as_ref())?;
        let state = kept.read(state, now).ok_or(BadReply::State)?;
        let state = quota_change::converted(self.algorithm, state, &kept.quota(), now);
        let state = state.filter(|state| self.algorithm.owed(state, now) > 0);
        let converted = state.map(|state| (self.algorithm.write(&state, now), self.algorithm.expires_at(&state)));
        // A parsed state is ASCII.
        let read = String::from_utf8(stored.to_vec()).map_err(|_| BadReply::State)?;
        let conversion = match &converted {
            Some((state, expires)) => {
                let written = format!("{state}{}", behind(own));
                // What a bucket owes was rounded up, so a millisecond more.
                Conversion { read, written, expires: expires.as_nanos() / 1_000_000 + 2 }
            }
            None => Conversion { read, written: String::new(), expires: 0 },
        };
        answer.put(index, converted.map(|(state, _)| state.into_bytes()));
        Ok(Some(conversion))
    }

    /// Returns the quota under which the key at `index` is kept (`None`: that of the limiter), and the algorithm under it, if
    /// that is not the quota that the call carried: then the call has charged nothing. For a request whose conversion was
    /// lost to another one's charge: on a hot key it would be lost again and again, and a charge under the quota that the
    /// key has is not. `None` also if `cost` can never be admitted under that quota.
    pub(crate) fn other(
        &self,
        answer: &ScriptReply,
        index: usize,
        asked: Option<Quota>,
        cost: u64,
    ) -> Result<Option<(Option<Quota>, A)>, BadReply> {
        let Some(stored) = answer.old(index)? else { return Ok(None) };
        let (_, quota) = split(stored).ok_or(BadReply::State)?;
        if quota.map(parts) == asked.map(parts) {
            return Ok(None);
        }
        let kept = self.kept_under(quota.as_ref())?;
        Ok((cost <= kept.max_cost()).then_some((quota, kept)))
    }

    /// Leaves in the answer the state of the key at `index` without its quota, and returns the algorithm under that quota:
    /// the limiter's own if it has none.
    pub(crate) fn keep(&self, answer: &mut ScriptReply, index: usize) -> Result<A, BadReply> {
        let Some(stored) = answer.old(index)? else { return self.kept_under(None) };
        let (state, quota) = split(stored).ok_or(BadReply::State)?;
        let length = state.len();
        answer.truncate(index, length);
        self.kept_under(quota.as_ref())
    }

    /// Returns the state of the key at `index` as it counts at `at` under the quota of the question.
    pub(crate) fn state_at(
        &self,
        answer: &ScriptReply,
        index: usize,
        at: Timestamp,
    ) -> Result<Option<A::State>, BadReply> {
        let Some(stored) = answer.old(index)? else { return Ok(None) };
        let (state, quota) = split(stored).ok_or(BadReply::State)?;
        let kept = self.kept_under(quota.as_ref())?;
        let state = kept.read(state, at).ok_or(BadReply::State)?;
        if kept.quota() == self.algorithm.quota() {
            return Ok(Some(state));
        }
        Ok(quota_change::converted(self.algorithm, state, &kept.quota(), at))
    }

    /// Returns the quota under which the key of a refund is kept, `None` for that of the limiter, if the refund was not
    /// made since it is not the one that the call had, and if it can be made under that quota.
    pub(crate) fn kept_quota(&self, answer: &ScriptReply, asked: Option<Quota>) -> Option<Option<Quota>> {
        let (_, quota) = split(answer.old(0).ok()??)?;
        let is_another = quota.map(parts) != asked.map(parts);
        let kept = quota.unwrap_or(self.limiter);
        (is_another && quota_change::has_units_of(self.algorithm, &kept)).then_some(quota)
    }

    /// Returns the algorithm under the quota that was stored with a state.
    pub(crate) fn kept_under(&self, quota: Option<&Quota>) -> Result<A, BadReply> {
        let kept = self.algorithm.under(*quota.unwrap_or(&self.limiter)).ok_or(BadReply::State)?;
        kept.check_fit().map(|()| kept).map_err(|_| BadReply::State)
    }
}

/// The count, five numbers of the algorithm, and `beyond`: a decision may leave zeros at the end out. A refund has one more.
const NUMBERS: usize = 7;

/// Adds to a call on one key what it carries of the quota, if anything.
pub(crate) fn add_one(call: &mut Call, own: OwnQuota) {
    if own.quota.is_some() {
        call.args.resize(call.args.len().max(NUMBERS), 0);
        add(call, [own]);
    }
}

/// Adds to a call what it carries of the quotas of its keys, one for each key, if anything.
pub(super) fn add(call: &mut Call, quotas: impl AsRef<[OwnQuota]> + IntoIterator<Item = OwnQuota>) {
    let all = quotas.as_ref();
    let are_converted = all.iter().any(|own| own.conversion.is_some());
    if !are_converted && all.iter().all(|own| own.quota.is_none()) {
        return;
    }
    for OwnQuota { quota, conversion } in quotas {
        call.args.extend(quota.map_or([0; 3], parts));
        call.args.push(conversion.as_ref().map_or(0, |conversion| conversion.expires));
        if are_converted {
            let texts = conversion.map_or_else(Default::default, |Conversion { read, written, .. }| [read, written]);
            call.texts.extend(texts);
        }
    }
}

/// Returns what stands behind the states of a quota.
pub(super) fn behind(quota: Quota) -> String {
    let [limit, burst, period] = parts(quota);
    format!("@{limit}:{burst}:{period}")
}

/// Returns the numbers by which a quota is written.
fn parts(quota: Quota) -> [u64; 3] {
    [quota.limit(), quota.max_burst(), quota.period_nanos()]
}

/// Splits `<state>@<limit>:<burst>:<period>` into the state and the quota. `None` if that is no quota, or not spelled as by
/// a script: else the server would compare two spellings, and never find them equal.
fn split(stored: &[u8]) -> Option<(&[u8], Option<Quota>)> {
    let Some(at) = stored.iter().position(|byte| *byte == b'@') else { return Some((stored, None)) };
    let mut parts = stored[at + 1..].split(|byte| *byte == b':').map(canonical);
    let (limit, burst, period) = (parts.next()??, parts.next()??, parts.next()??);
    let quota = Quota::try_per(limit, Duration::from_nanos(period)).ok().filter(|_| parts.next().is_none())?;
    let quota = if burst == limit { quota } else { quota.try_burst(burst).ok()? };
    Some((&stored[..at], Some(quota)))
}

/// Parses a whole number above zero without leading zeros.
fn canonical(digits: &[u8]) -> Option<u64> {
    let is_canonical = digits.iter().all(u8::is_ascii_digit) && digits.first() != Some(&b'0');
    std::str::from_utf8(digits).ok().filter(|_| is_canonical)?.parse().ok()
}
