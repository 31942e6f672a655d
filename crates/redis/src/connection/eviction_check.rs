//! A warning about servers that may evict our keys.

use std::collections::HashMap;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{Cmd, FromRedisValue};
use tokio::time::timeout;

use super::log;

/// Warns if the server may evict keys when its memory is full: a client that can fill it could reset a limit. All
/// eviction policies in Redis except `noeviction` may evict our keys, since they expire. Without the permission to read
/// the settings, there is no warning.
pub(super) async fn warn_if_keys_may_be_evicted(mut connection: MultiplexedConnection, patience: Duration) {
    let mut question = Cmd::new();
    question.arg("CONFIG").arg("GET").arg("maxmemory*");
    let Ok(Ok(answer)) = timeout(patience, connection.send_packed_command(&question)).await else {
        return;
    };
    let Ok(settings) = HashMap::<String, String>::from_redis_value(answer) else {
        return;
    };
    let is_limited = settings.get("maxmemory").is_some_and(|limit| limit != "0");
    match settings.get("maxmemory-policy") {
        Some(policy) if is_limited && policy != "noeviction" => log::may_evict(policy),
        _ => {}
    }
}
