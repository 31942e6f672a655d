//! The log lines about Redis, one function each: changes of the topology, and the eviction policy, which is checked
//! once.

#![cfg_attr(not(feature = "tracing"), allow(unused_imports, unused_variables))]

use crate::util::log::{event, page};

pub(crate) fn topology_changed(topology: &str) {
    event!(info: topology, "redis: topology changed");
}

pub(crate) fn may_evict(maxmemory_policy: &str) {
    event!(warn: see = page!("redis-may-evict-budgets"), maxmemory_policy, "redis: when its memory is full, the server may evict budgets in use, which resets them: set maxmemory-policy to noeviction, or use a dedicated server");
}
