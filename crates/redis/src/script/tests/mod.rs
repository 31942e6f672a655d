//! The scripts against the algorithms in Rust, on a server.

mod alternatives;
mod each_key;
mod hostile;
mod lives;
mod marks;
mod model;
mod once;
mod own_quotas;
mod proofs;
mod standings;
mod stored;
mod traces;
mod variants;

use ::redis::{Connection, cmd};
use smallvec::SmallVec;
use tower_sluice::internal::remote::testing::ReplayApplied as _;
use tower_sluice::limiter::Receipt;
use tower_sluice::store::remote::KeyTag;
use tower_sluice::store::remote::{Alternatives, Applied, GaveUp, Standing, Target};
use tower_sluice::time::Timestamp;
use tower_sluice::{Decision, Quota};

use super::manual_server::{ManualServer, at};
use super::variant::{hash_of, source_of};
use super::{
    BAN, BEGIN_RECORD, BUCKET, BadReply, CALENDAR_WINDOW, Charging, FIXED_WINDOW, ONCE, RAISE_RECORD, REFUND, RESET,
    SEVERAL, SLIDING_WINDOW, SWAP, ScriptCharge, ScriptReply, Scripted, decide_first,
};
use crate::connection::evalsha;
use crate::script::{Key, Script, ScriptCall};
use crate::store::conversation::{ConversationPart, KeyPart, Subject};
use crate::support::servers::RedisServer;

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

/// The time on the caller's clock, in tests that do not depend on it.
const NOW: Timestamp = Timestamp::ZERO;

/// The weight of a sliding window's previous count, computed with doubles and rounded down: the same in Rust as in Lua.
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

fn run(connection: &mut Connection, call: &ScriptCall) -> ScriptReply {
    let reply = evalsha(call, &hash_of(call.script)).query(connection).unwrap();
    ScriptReply::read(reply, call.keys.len()).unwrap()
}

/// Charges all keys, or no key.
fn decide_all(charges: impl IntoIterator<Item = ScriptCharge>) -> ScriptCall {
    decide_first(charges, Some(&Alternatives::ALL))
}

/// The outcome of a request that may be a retry.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Once<S> {
    /// A free retry: the key's numbers without a charge, the budget's receipt, and the key's state.
    Free(Decision, Receipt, Option<S>),
    /// An ordinary charge or rejection: the decision, and the key's state after it.
    Ordinary(Decision, Option<S>),
}

/// Refunds a charge under the quota of `algorithm` to a state under the quota of `kept`. `None` without a charge.
fn refund<A: Scripted>(
    algorithm: &A,
    kept: &A,
    key: Key,
    cost: u64,
    receipt: Receipt,
    asked: Timestamp,
) -> Option<ScriptCall> {
    (!receipt.is_none() && cost > 0)
        .then(|| ScriptCharge::new(kept, key, cost, asked).refunding(algorithm, cost, receipt, asked).alone())
}

/// Holds a conversation about one key at `micros`, and returns how many calls it took.
fn talk<A: Scripted, S: Subject<A>>(server: &mut ManualServer, part: &mut KeyPart<A, S>, micros: u64) -> u64 {
    for calls in 1..4 {
        let call = part.charge(at(micros)).alone();
        let answer = server.run(micros, &call);
        if part.hear(&answer, 0, &Charging::of(&call)).unwrap() {
            return calls;
        }
        answer.charged(0).unwrap();
    }
    panic!("the state is not converted");
}

/// A target with any key.
fn target<'a, A: Scripted>(algorithm: &'a A, quota: Option<Quota>, limiter: Quota) -> Target<'a, A> {
    Target::new(algorithm, quota, limiter, KeyTag::from_bits(0))
}

impl ScriptReply {
    /// Returns the outcome for one key.
    fn applied<A: Scripted>(&self, algorithm: &A) -> Result<Applied<A::State>, BadReply> {
        let old = self.text(0)?.state(algorithm, self.now)?;
        Ok(Applied { now: self.now, old, standing: Standing::default(), kept: None, charged: self.admitted })
    }

    /// Returns the decision on the key at `index` in a `decide_all`, by itself.
    fn decision<A: Scripted>(&self, algorithm: &A, index: usize, cost: u64) -> Result<Decision, BadReply> {
        Ok(algorithm.decide(self.state(algorithm, index)?, self.now, cost).0)
    }

    /// Whether a call that was made for `asked` did not have the window at the server's time.
    fn is_uncovered<A: Scripted>(&self, algorithm: &A, asked: Timestamp) -> bool {
        self.admitted == 0 && !algorithm.covers(asked, self.now)
    }

    /// Returns the outcome of a `decide_once` with the same algorithms and cost.
    fn once<A: Scripted>(&self, algorithm: &A, budget: &A::Budget, cost: u64) -> Result<Once<A::State>, BadReply> {
        if let Some(receipt) = self.free_retry(budget, cost, false)? {
            let old = self.state(algorithm, 0)?;
            return Ok(Once::Free(algorithm.decide(old, self.now, 0).0, receipt, old));
        }
        let (decisions, state) = self.replay(algorithm, cost, 1)?;
        Ok(Once::Ordinary(decisions[0], state))
    }

    /// Returns the decisions on the requests in a charge with the same arguments, and the state after them.
    #[allow(clippy::type_complexity, reason = "no name would say more")]
    fn replay<A: Scripted>(
        &self,
        algorithm: &A,
        cost: u64,
        count: u32,
    ) -> Result<(SmallVec<[Decision; 1]>, Option<A::State>), BadReply> {
        self.applied(algorithm)?.replay(algorithm, cost, count).map_err(|_: GaveUp| BadReply::Disagreement)
    }
}
