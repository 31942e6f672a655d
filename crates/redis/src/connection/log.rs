//! The log lines about Redis, one function each: changes to the topology, and the eviction policy, which is checked
//! once.

/// The address of a section on the guide's page about mistakes.
macro_rules! page {
    ($section:literal) => {
        concat!("https://docs.rs/tower-sluice/latest/tower_sluice/guide/misconfigured/#", $section)
    };
}

pub(crate) fn topology_changed(topology: &str) {
    tracing::info!(target: "tower_sluice", topology, "redis: topology changed");
}

pub(crate) fn may_evict(maxmemory_policy: &str) {
    tracing::warn!(target: "tower_sluice", see = page!("redis-may-evict-budgets"), maxmemory_policy, "redis: when its memory is full, the server may evict budgets in use, which resets them: set maxmemory-policy to noeviction, or use a dedicated server");
}
