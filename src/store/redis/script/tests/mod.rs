//! The scripts against the algorithms in Rust, on a server.

mod hostile;
mod lives;
mod model;
mod own_quotas;
mod traces;

use ::redis::{Connection, cmd};

use super::{BUCKET, CALENDAR_WINDOW, FIXED_WINDOW, REFUND, RESET, SEVERAL, SLIDING_WINDOW, ScriptReply};
use crate::store::redis::connection::evalsha;
use crate::store::redis::evalsha::{Call, Script};
use crate::store::redis::servers::RedisServer;
use crate::values::time::Timestamp;

const ALL: [&Script; 7] = [&BUCKET, &FIXED_WINDOW, &SLIDING_WINDOW, &CALENDAR_WINDOW, &SEVERAL, &REFUND, &RESET];

/// What the caller's clock shows, where that does not matter.
const NOW: Timestamp = Timestamp::ZERO;

/// Starts a server that has cached all scripts.
fn start() -> (RedisServer, Connection) {
    let server = RedisServer::start();
    let mut connection = server.connection();
    for script in ALL {
        let hash: String = cmd("SCRIPT").arg("LOAD").arg(script.source).query(&mut connection).unwrap();
        assert_eq!(hash, script.hash(), "{}", script.source);
    }
    (server, connection)
}

fn run(connection: &mut Connection, call: &Call) -> ScriptReply {
    ScriptReply::read(evalsha(call, call.script.hash()).query(connection).unwrap()).unwrap()
}
