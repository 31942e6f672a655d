//! Connections to real servers, through a proxy that breaks the network where a test needs it.
//!
//! The machine may be busy with something else. So calls that must succeed have a long timeout, tests with timeouts
//! allow for more of them than they cause, and an outage lasts until its effect is seen.

#[path = "../../../../../tests/support/proxy.rs"]
#[allow(dead_code, unreachable_pub)]
mod proxy;

mod answers;
mod cluster;
mod failover;
mod lifecycle;
mod network;

use std::time::Duration;

use futures_util::future::join_all;
use smallvec::smallvec;
use tokio::time::Instant;
use tower_sluice::PartitionKey;
use tower_sluice::store::BreakerState;

use super::*;
use crate::script::{KeyNames, Script};
use crate::support::servers;
use crate::support::servers::RedisServer;
use crate::support::timing::{eventually, some_attempt_async};

/// Charges like the real scripts, and returns the sum of all charges.
static ADD: Script = Script::new("return redis.call('INCRBY', KEYS[1], ARGV[1])");

/// A timeout for calls that must succeed. Not longer, since a call waits for the whole timeout if its connection ends
/// just as it is sent: the channel within the `redis` crate may keep the call.
const PLENTY: Duration = Duration::from_secs(10);

/// The longest time that a node may get no call.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The time between two calls of a client that waits for a recovery.
const POLL: Duration = Duration::from_millis(2);

fn key(name: &str) -> Key {
    let names = KeyNames::new("test", "connection", b"");
    names.key(names.tag(&PartitionKey::from(name)), 'b')
}

/// Returns a call that adds 1 to this key.
fn add(name: &str) -> ScriptCall {
    ScriptCall { script: &ADD, keys: smallvec![key(name)], args: smallvec![1], texts: Vec::new() }
}

/// Opens a server with long timeouts.
fn patient(server: &RedisServer) -> Redis {
    Redis::single(server.url()).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap()
}

impl Redis {
    /// Makes a call for one request, within the timeout.
    pub(crate) async fn call(&self, call: &ScriptCall) -> Result<Value, Fault> {
        self.call_by(call, CallLimits::until(self.deadline())).await
    }
}

/// Adds 1 to this key, and returns the sum.
async fn charge(redis: &Redis, name: &str) -> Result<i64, FaultKind> {
    match redis.call(&add(name)).await {
        Ok(Value::Int(sum)) => Ok(sum),
        Ok(other) => panic!("{other:?}"),
        Err(fault) => Err(fault.kind()),
    }
}

/// Returns the units that the server has charged.
fn charged(server: &RedisServer, name: &str) -> i64 {
    server.run::<Option<i64>>(&["GET", key(name).as_str()]).unwrap_or(0)
}

/// Returns the only node's breaker state.
fn state(redis: &Redis) -> BreakerState {
    redis.health()[0].breaker()
}

/// Calls until it works again. The breaker lets a call pass at least once in [`LONGEST_PAUSE`].
async fn recovers(redis: &Redis, name: &str) {
    // A client sleeps after each rejected call, so on a slower machine, fewer calls fit into the pause.
    let most = LONGEST_PAUSE.as_millis() / POLL.as_millis() + 1;
    let mut rejected = 0;
    eventually("it works again", async || {
        match charge(redis, name).await {
            Ok(_) => return true,
            Err(FaultKind::BreakerOpen) => rejected += 1,
            Err(_) => rejected = 0,
        }
        assert!(rejected <= most, "the node is not asked: {redis:?}");
        sleep(POLL).await;
        false
    })
    .await;
}

/// Makes calls that fail until the breaker is open, and returns their reasons.
async fn fails_until_open(redis: &Redis, name: &str) -> Vec<FaultKind> {
    fail_until_open(redis, name, 1).await
}

/// Like [`fails_until_open`], with `at_a_time` calls at once.
async fn fail_until_open(redis: &Redis, name: &str, at_a_time: usize) -> Vec<FaultKind> {
    let mut reasons = Vec::new();
    while state(redis) == BreakerState::Closed {
        let calls = join_all((0..at_a_time).map(|_| charge(redis, name))).await;
        reasons.extend(calls.into_iter().map(|call| call.expect_err("it cannot work")));
        assert!(reasons.len() <= 100, "{reasons:?}");
    }
    reasons
}
