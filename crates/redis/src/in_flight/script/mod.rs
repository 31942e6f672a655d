//! The scripts that count requests in flight on the server, and how to read their replies.

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "small numbers, short tests")]
mod tests;

use smallvec::smallvec;
use tower_sluice::{Decision, Quota};

use crate::script::{BadReply, Key, Script, ScriptCall, ScriptReply, whole};

macro_rules! in_flight_script {
    ($block:literal) => {
        Script::new(concat!(
            include_str!("lua/open.lua"),
            include_str!(concat!("lua/", $block, ".lua")),
            include_str!("lua/close.lua")
        ))
    };
}

static TAKE: Script = in_flight_script!("take");

static RENEW: Script = in_flight_script!("renew");

static RELEASE: Script = Script::new(include_str!("lua/release.lua"));

/// The units that one process has in flight are in one field of the key's hash. The process begins a field of a higher
/// number each time it [renews](renew).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProcessField {
    pub(super) process: u64,
    pub(super) number: u64,
}

/// The call that takes `cost` units, if at most `limit` are in flight afterwards, and lets the lease of the field end
/// `lease` microseconds from now. Only reads if the cost is zero, or can never be admitted.
pub(super) fn take(key: Key, field: ProcessField, cost: u64, limit: u64, lease: u64) -> ScriptCall {
    let units = if cost > limit { 0 } else { cost };
    let args = smallvec![field.process, field.number, units, lease, limit];
    ScriptCall { script: &TAKE, keys: smallvec![key], args, texts: Vec::new() }
}

/// Reads the answer to a [`take`] with the same arguments.
pub(super) fn decision(answer: &ScriptReply, cost: u64, limit: u64) -> Result<Decision, BadReply> {
    let before = answer.old(0)?.and_then(whole).ok_or(BadReply::Shape)?;
    let left = limit.saturating_sub(before);
    let (decision, is_charged) = match left.checked_sub(cost) {
        Some(left) => (Decision::allow(limit, left), cost > 0),
        None if cost > limit => (Decision::reject(limit, left, None), false),
        None => (Decision::reject_until_released(limit, left), false),
    };
    if answer.admitted == u32::from(is_charged) { Ok(decision) } else { Err(BadReply::Disagreement) }
}

/// The call that adds `units` to a field, and deletes all fields of the process with lower numbers. More units than any
/// limit are counted as [that many](Quota::MAX_UNITS): no other request fits beside them either.
pub(super) fn renew(key: Key, field: ProcessField, units: u64, lease: u64) -> ScriptCall {
    let args = smallvec![field.process, field.number, units.min(Quota::MAX_UNITS), lease];
    ScriptCall { script: &RENEW, keys: smallvec![key], args, texts: Vec::new() }
}

/// The call that releases units of a field. Its reply has `admitted` 0 if the field lacks them.
pub(super) fn release(key: Key, field: ProcessField, units: u64) -> ScriptCall {
    let args = smallvec![field.process, field.number, units];
    ScriptCall { script: &RELEASE, keys: smallvec![key], args, texts: Vec::new() }
}
