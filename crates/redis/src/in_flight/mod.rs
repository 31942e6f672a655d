//! The scripts that count requests in flight on the server, and how to read their replies: the steps in
//! [`InFlight`](tower_sluice::store::remote::InFlight), which `steps` calls.

mod steps;
#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "small numbers, short tests")]
mod tests;

use smallvec::smallvec;
use tower_sluice::Quota;
use tower_sluice::store::remote::{ProcessField, TakenUnits};

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

/// The call that takes units, if at most `limit` are in flight afterwards, and lets the field's lease end `lease`
/// microseconds from now. Zero units only read.
fn take(key: Key, field: ProcessField, units: u64, limit: u64, lease: u64) -> ScriptCall {
    let args = smallvec![field.process, field.number, units, lease, limit];
    ScriptCall { script: &TAKE, keys: smallvec![key], args, texts: Vec::new() }
}

/// Reads the answer to a [`take`].
fn taken(answer: &ScriptReply) -> Result<TakenUnits, BadReply> {
    let before = answer.old(0)?.and_then(whole).ok_or(BadReply::Shape)?;
    Ok(TakenUnits { is_taken: answer.admitted == 1, before })
}

/// The call that adds `units` to a field, and deletes all the process's fields with lower numbers. More units than any
/// limit are counted as [`Quota::MAX_UNITS`], because no other request fits beside them either.
fn renew(key: Key, field: ProcessField, units: u64, lease: u64) -> ScriptCall {
    let args = smallvec![field.process, field.number, units.min(Quota::MAX_UNITS), lease];
    ScriptCall { script: &RENEW, keys: smallvec![key], args, texts: Vec::new() }
}

/// The call that releases a field's units. Its reply has `admitted` 0 if the field lacks them.
fn release(key: Key, field: ProcessField, units: u64) -> ScriptCall {
    let args = smallvec![field.process, field.number, units];
    ScriptCall { script: &RELEASE, keys: smallvec![key], args, texts: Vec::new() }
}
