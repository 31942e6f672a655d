//! The guide: a page per task.
//!
//! | task | page |
//! |---|---|
//! | choose an algorithm, with pictures | [`choosing`] |
//! | set the rate, the burst and the cost of requests | [`quotas`] |
//! | sell a quota per day, week or month | [`calendar`] |
//! | let requests wait instead of rejecting them | [`waiting`] |
//! | limit what is in flight at once | [`in_flight`] |
//! | charge what a response really cost | [`real_costs`] |
//! | call an API that has limits of its own | [`partners`] |
//! | give each client its own budget, also behind proxies | [`keys`] |
//! | share one limit between machines | [`machines`] |
//! | share it on DynamoDB | [`dynamodb`] |
//! | share it on a store of your own | [`own_stores`] |
//! | know how large a server that takes, and what it costs | [`capacity`] |
//! | limit gRPC | [`grpc`] |
//! | try a limit out, monitor it, read its log, change it | [`operating`] |
//! | cure a mistake that the log reports | [`misconfigured`] |
//! | know what happens when something fails | [`failure`] |
//! | migrate from `tower_governor` | [`from_tower_governor`] |
//! | migrate from ASP.NET Core's rate limiting | [`from_aspnet`] |
//! | migrate from Sidekiq Enterprise's limiters | [`from_sidekiq`] |
//!
//! The pages are text and add no code to your program. Complete programs are in the
//! [`examples`](https://github.com/tower-sluice/tower-sluice/tree/main/examples) of the repository.

// The pages link to items of all features, even if some are off.
#![cfg_attr(
    not(all(feature = "calendar", feature = "config", feature = "queue", feature = "redis", feature = "remote")),
    allow(rustdoc::broken_intra_doc_links)
)]

pub mod calendar;
pub mod capacity;
pub mod choosing;
pub mod dynamodb;
pub mod failure;
pub mod from_aspnet;
pub mod from_sidekiq;
pub mod from_tower_governor;
pub mod grpc;
pub mod in_flight;
pub mod keys;
pub mod machines;
pub mod misconfigured;
pub mod operating;
pub mod own_stores;
pub mod partners;
pub mod quotas;
pub mod real_costs;
pub mod waiting;
