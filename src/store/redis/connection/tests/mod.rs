//! Connections to real servers, through a proxy that breaks the network where that is the point.
//!
//! Where a call must succeed, it is given plenty of time, since the machine may be busy with something else.

#[path = "../../../../../tests/support/proxy.rs"]
#[allow(dead_code, unreachable_pub)]
mod proxy;

mod answers;
mod cluster;
mod failover;
mod network;
mod overhead;
mod upkeep;

use std::time::Duration;

use smallvec::smallvec;
use tokio::time::Instant;

use super::*;
use crate::store::redis::evalsha::Script;
use crate::store::redis::key::{Key, Names};
use crate::store::redis::servers::{self, RedisServer};
use crate::values::PartitionKey;

/// Charges, as the real scripts do, and returns how much was charged in all.
static ADD: Script = Script::new("return redis.call('INCRBY', KEYS[1], ARGV[1])");

const PLENTY: Duration = Duration::from_secs(5);

/// The longest that a node may go unasked after its recovery; a call, and a busy machine, come on top.
const RECOVERY: Duration = Duration::from_millis(5_500);

fn key(name: &str) -> Key {
    let names = Names::new("test", "link", b"");
    names.key(names.tag(&PartitionKey::from(name)), 'b')
}

/// Adds 1 to that key.
fn add(name: &str) -> Call {
    Call { script: &ADD, keys: smallvec![key(name)], args: smallvec![1] }
}

fn patient(server: &RedisServer) -> Redis {
    Redis::single(server.url()).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap()
}

async fn charge(redis: &Redis, name: &str) -> Result<i64, Reason> {
    match redis.call(&add(name)).await {
        Ok(Value::Int(sum)) => Ok(sum),
        Ok(other) => panic!("{other:?}"),
        Err(fault) => Err(fault.reason()),
    }
}

/// Returns what was charged, as the server knows it.
fn charged(server: &RedisServer, name: &str) -> i64 {
    server.run::<Option<i64>>(&["GET", key(name).as_str()]).unwrap_or(0)
}

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
async fn fails_until_open(redis: &Redis, name: &str) -> Vec<Reason> {
    let mut reasons = Vec::new();
    while state(redis) == BreakerState::Closed {
        reasons.push(charge(redis, name).await.expect_err("it cannot work"));
        assert!(reasons.len() <= 20, "{reasons:?}");
    }
    reasons
}
