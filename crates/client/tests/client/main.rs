//! Tests of outgoing calls.

#[path = "../../../../tests/support/log.rs"]
mod log;
#[path = "../../../../tests/support/metrics.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with other tests")]
mod metrics;
mod pacer;
mod pacer_throttle;
mod pacer_wave;
#[path = "../../../redis/tests/support/redis.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with other tests")]
mod redis;
mod reqwest;
mod shared;
mod throttle;
#[path = "../../../../tests/support/timing.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with other tests")]
mod timing;
