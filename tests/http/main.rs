//! The layer: requests, responses, keys, and gRPC.

mod alternatives;
mod bans;
mod by_hand;
mod change;
mod charge_once;
#[cfg(feature = "http")]
mod client_ip;
mod crossings;
mod disguises;
mod ecosystem;
mod exemptions;
mod fallback;
mod fields;
mod grpc;
#[cfg(feature = "axum")]
mod handlers;
#[cfg(feature = "axum")]
mod identity;
mod in_flight;
mod layer;
mod offenders;
mod outcome;
mod overload;
mod overrides;
mod own_quotas;
mod own_windows;
mod policy_options;
mod settlement;
mod several_keys;
mod shared_key;
mod suspended;
mod transitions;
mod true_waits;
mod wide_units;
mod wire;
mod worker_lag;

#[path = "../../examples/server/src/echo.rs"]
#[allow(dead_code, unreachable_pub)]
mod echo;
#[path = "../support/mod.rs"]
mod support;
