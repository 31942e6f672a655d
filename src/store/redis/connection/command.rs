//! The commands that run a script.

use ::redis::Cmd;

use crate::store::redis::evalsha::Call;

/// For a server that has cached the script.
pub(super) fn by_hash(call: &Call) -> Cmd {
    command("EVALSHA", call.script.hash(), call)
}

/// For a server that has not, and caches it by this.
pub(super) fn in_full(call: &Call) -> Cmd {
    command("EVAL", call.script.source, call)
}

fn command(name: &str, script: &str, call: &Call) -> Cmd {
    let keys = call.keys.iter().map(|key| key.as_str().len()).sum::<usize>();
    let count = 3 + call.keys.len() + call.args.len();
    let mut command = Cmd::with_capacity(count, name.len() + script.len() + keys + 4 + 16 * call.args.len());
    command.arg(name).arg(script).arg(call.keys.len());
    for key in &call.keys {
        command.arg(key.as_str());
    }
    for number in &call.args {
        command.arg(*number);
    }
    command
}
