//! The command that runs a script.

use ::redis::Cmd;

use crate::script::ScriptCall;

/// An argument's maximum number of digits. Nearly all are below 2^53.
const ARGUMENT_DIGITS: usize = 16;

/// The maximum number of digits in the number of keys. A call has at most one for each policy in a layer: never 10,000.
const KEY_COUNT_DIGITS: usize = 4;

/// Builds `EVALSHA` with the hash that tests give to a script, such as one with another clock.
#[cfg(test)]
pub(crate) fn evalsha(call: &ScriptCall, hash: &str) -> Cmd {
    command("EVALSHA", hash, call)
}

/// Builds a command in two allocations with the right size: one for its bytes, one for the ends of its arguments.
pub(super) fn command(name: &str, script: &str, call: &ScriptCall) -> Cmd {
    let keys = call.keys.iter().map(|key| key.as_str().len()).sum::<usize>();
    let numbers = KEY_COUNT_DIGITS + ARGUMENT_DIGITS * call.args.len();
    // The name, the script and the number of keys come before them.
    let count = 3 + call.keys.len() + call.args.len() + call.texts.len();
    let texts = call.texts.iter().map(Vec::len).sum::<usize>();
    let mut command = Cmd::with_capacity(count, name.len() + script.len() + keys + numbers + texts);
    command.arg(name).arg(script).arg(call.keys.len());
    for key in &call.keys {
        command.arg(key.as_str());
    }
    for number in &call.args {
        command.arg(*number);
    }
    for text in &call.texts {
        command.arg(&text[..]);
    }
    command
}
