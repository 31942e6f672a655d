//! `sluice serve`, as proxies ask it.

mod auth;
mod envoy;
#[path = "../../src/serve/rls/proto.rs"]
#[allow(dead_code, missing_docs, reason = "the tests read a part of it")]
mod proto;
mod running;
mod service;
