//! The guide: from what you want to what to write.
//!
//! | you want | page |
//! |---|---|
//! | to know which algorithm does what, in pictures | [`choosing`] |
//! | numbers: a rate, a burst, what a request costs | [`quotas`] |
//! | requests to wait instead of being refused | [`waiting`] |
//! | to tell clients apart, also behind proxies | [`keys`] |
//! | one limit for several machines | [`machines`] |
//! | gRPC | [`grpc`] |
//! | to try a limit out, watch it, and know what its log says | [`operating`] |
//! | to know what happens when something breaks | [`failure`] |
//! | to come from `tower_governor` | [`from_tower_governor`] |
//! | to come from ASP.NET Core's rate limiting | [`from_aspnet`] |
//! | to come from Sidekiq Enterprise's limiters | [`from_sidekiq`] |
//!
//! Its pages are text: nothing of them is compiled into your program. Programs to run are in the
//! [`examples`](https://github.com/tower-sluice/tower-sluice/tree/main/examples) of the repository.

// It tells of all features, also where some are off.
#![cfg_attr(not(all(feature = "config", feature = "redis")), allow(rustdoc::broken_intra_doc_links))]

pub mod choosing;
pub mod failure;
pub mod from_aspnet;
pub mod from_sidekiq;
pub mod from_tower_governor;
pub mod grpc;
pub mod keys;
pub mod machines;
pub mod operating;
pub mod quotas;
pub mod waiting;
