//! The scripts against the algorithms in Rust, on a server.

mod each_key;
mod hostile;
mod lives;
mod model;
mod once;
mod own_quotas;
mod proofs;
mod standings;
mod stored;
mod traces;
mod variants;

use ::redis::{Connection, cmd};

use super::variant::{hash_of, source_of};
use super::{
    BAN, BEGIN_RECORD, BUCKET, BadReply, CALENDAR_WINDOW, FIXED_WINDOW, ONCE, RAISE_RECORD, REFUND, RESET, SEVERAL,
    SLIDING_WINDOW, SWAP, ScriptReply, Scripted,
};
use crate::store::redis::connection::evalsha;
use crate::store::redis::evalsha::{Call, Script};
use crate::store::redis::servers::RedisServer;
use crate::store::remote::{Decisions, GaveUp};
use crate::values::time::Timestamp;

static ALL: [&Script; 12] = [
    &BUCKET,
    &FIXED_WINDOW,
    &SLIDING_WINDOW,
    &CALENDAR_WINDOW,
    &SEVERAL,
    &REFUND,
    &RESET,
    &ONCE,
    &BEGIN_RECORD,
    &RAISE_RECORD,
    &BAN,
    &SWAP,
];

/// What the caller's clock shows, where that does not matter.
const NOW: Timestamp = Timestamp::ZERO;

/// What doubles make of the weight of a sliding window's previous count, rounded down: in Rust what it is in Lua.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::float_arithmetic,
    reason = "the rounding is meant"
)]
fn estimate(previous: u64, left: u64, period: u64) -> u64 {
    (previous as f64 * left as f64 / period as f64) as u64
}

/// Starts a server that has cached all scripts.
fn start() -> (RedisServer, Connection) {
    let server = RedisServer::start();
    let mut connection = server.connection();
    for script in ALL {
        let hash: String = cmd("SCRIPT").arg("LOAD").arg(source_of(script)).query(&mut connection).unwrap();
        assert_eq!(hash, hash_of(script), "{}", script.source);
    }
    (server, connection)
}

fn run(connection: &mut Connection, call: &Call) -> ScriptReply {
    ScriptReply::read(evalsha(call, &hash_of(call.script)).query(connection).unwrap()).unwrap()
}

impl ScriptReply {
    /// Returns the decisions on the requests of a charge with the same arguments, and the state after them.
    fn replay<A: Scripted>(
        &self,
        algorithm: &A,
        cost: u64,
        count: u32,
    ) -> Result<(Decisions, Option<A::State>), BadReply> {
        let disagrees = |_: GaveUp| BadReply::Disagreement;
        self.applied(algorithm)?.replay(algorithm, cost, count).map_err(disagrees)
    }
}
