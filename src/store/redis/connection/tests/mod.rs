//! Connections to real servers, through a proxy that breaks the network where that is the point.
//!
//! Where a call must succeed, its timeout is long, since the machine may be busy with something else.

#[path = "../../../../../tests/support/proxy.rs"]
#[allow(dead_code, unreachable_pub)]
mod proxy;

mod answers;
mod cluster;
mod failover;
mod lifecycle;
mod network;

use std::time::Duration;

use smallvec::smallvec;
use tokio::time::Instant;

use super::*;
use crate::store::redis::evalsha::Script;
use crate::store::redis::key::Names;
use crate::store::redis::servers::{self, RedisServer};
use crate::values::PartitionKey;

/// Charges, as the real scripts do, and returns how much was charged in all.
static ADD: Script = Script::new("return redis.call('INCRBY', KEYS[1], ARGV[1])");

/// A timeout for calls that must succeed.
const PLENTY: Duration = Duration::from_secs(5);

/// The longest that a node may go unasked after its recovery; a call, and a busy machine, come on top.
const RECOVERY: Duration = Duration::from_millis(5_500);

fn key(name: &str) -> Key {
    let names = Names::new("test", "connection", b"");
    names.key(names.tag(&PartitionKey::from(name)), 'b')
}

/// A call that adds 1 to that key.
fn add(name: &str) -> Call {
    Call { script: &ADD, keys: smallvec![key(name)], args: smallvec![1], texts: Vec::new() }
}

/// Opens a server with long timeouts.
fn patient(server: &RedisServer) -> Redis {
    Redis::single(server.url()).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap()
}

/// Adds 1 to that key, and returns the sum.
async fn charge(redis: &Redis, name: &str) -> Result<i64, FaultKind> {
    match redis.call(&add(name)).await {
        Ok(Value::Int(sum)) => Ok(sum),
        Ok(other) => panic!("{other:?}"),
        Err(fault) => Err(fault.kind()),
    }
}

/// Returns what was charged, as the server knows it.
fn charged(server: &RedisServer, name: &str) -> i64 {
    server.run::<Option<i64>>(&["GET", key(name).as_str()]).unwrap_or(0)
}

/// Returns the state of the breaker of the only node.
fn state(redis: &Redis) -> BreakerState {
    redis.health()[0].breaker()
}

/// Calls until it works again, and returns how long that took.
async fn recovers(redis: &Redis, name: &str) -> Duration {
    let start = Instant::now();
    while charge(redis, name).await.is_err() {
        assert!(start.elapsed() < RECOVERY * 3, "no recovery: {redis:?}");
        sleep(Duration::from_millis(2)).await;
    }
    start.elapsed()
}

/// Makes calls that fail until the breaker is open, and returns their reasons.
async fn fails_until_open(redis: &Redis, name: &str) -> Vec<FaultKind> {
    let mut reasons = Vec::new();
    while state(redis) == BreakerState::Closed {
        reasons.push(charge(redis, name).await.expect_err("it cannot work"));
        assert!(reasons.len() <= 20, "{reasons:?}");
    }
    reasons
}
