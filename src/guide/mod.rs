//! The guide: a page per task, in reading order.
//!
//! **The first hour**
//!
//! | you want to | page |
//! |---|---|
//! | limit each client of a service | [start here](start) |
//! | protect a login | [`login`] |
//! | sell an API: plans, months, requests in flight, tokens | [`plans`] |
//! | sell included units, then overage | [`overage`] |
//! | give a team a pool of units | [`pool`] |
//! | charge the tokens of a language model | [`streams`] |
//! | sell units beyond the quota, and charge work by hand | [`top_ups`] |
//! | limit clients behind nginx, Caddy, HAProxy, Envoy or a cloud's load balancer | [`proxies`] |
//! | share one limit between several machines | [`machines`] |
//! | know which processes share what | [`sharing`] |
//! | let requests wait instead of rejecting them | [`queue`] |
//! | slow clients down before they are rejected | [`slow_down`] |
//! | protect a server from overload | [`overload`] |
//! | share the capacity of a server between tenants | [`tenants`] |
//! | serve important requests first under overload | [`priorities`] |
//! | limit gRPC, or obey a limit as a gRPC client | [`grpc`] |
//! | limit part of a handler, jobs, a WebSocket | [`direct`] |
//! | call a partner that has limits of its own | [`partners`] |
//! | read limits from a file, and change them while the server runs | [`configuration`] |
//! | exempt health checks and callers of your own | [`allow_list`] |
//! | answer rejections in your own JSON | [`rejections`] |
//! | look plans up in a database | [`look_ups`] |
//! | test your limits | [`testing`] |
//! | switch limits off in development | [`development`] |
//!
//! **In production**
//!
//! | you want to | page |
//! |---|---|
//! | find out which limit is right, from an access log | [`which_limit`] |
//! | try a limit out before it rejects | [`shadow`] |
//! | monitor limits: metrics, logs | [`monitoring`] |
//! | warn a customer at 80 % of her limit | [`warnings`] |
//! | show support staff why a customer is limited, and let her in | [`support`] |
//! | change a limit while the server runs | [`hot_reload`] |
//! | shut down without waiting for queues | [`shutdown`] |
//! | keep budgets and bans through a restart | [`restarts`] |
//! | cure a mistake that the log reports | [`misconfigured`] |
//! | know what happens when something fails | [`failure`] |
//! | know all defaults | [`defaults`] |
//! | know how large a server a limit needs, and its costs | [`capacity`] |
//! | limit at Envoy, nginx, Traefik, Caddy or HAProxy, and services in other languages | [`gateways`] |
//! | share limits on PostgreSQL | [`postgres`] |
//! | share limits on DynamoDB | [`dynamodb`] |
//! | share limits on a store of your own | [`own_stores`] |
//!
//! **In depth**
//!
//! | you want to | page |
//! |---|---|
//! | choose an algorithm, with pictures | [`choosing`] |
//! | choose the rate, the burst and the cost of requests | [`quotas`] |
//! | choose the key: whose budget a request draws on | [`keys`] |
//! | limit by day, week or month | [`calendar`] |
//! | give each customer a billing day and a zone of its own | [`billing_days`] |
//! | limit requests in flight | [`in_flight`] |
//! | charge the real cost of a response | [`real_costs`] |
//!
//! **Coming from** [tower's own limits](from_tower) · [tower_governor](from_tower_governor) ·
//! [axum-governor](from_axum_governor) · [ASP.NET Core](from_aspnet) · [express-rate-limit](from_express) ·
//! [Sidekiq Enterprise](from_sidekiq)
//!
//! The pages are text and add no code to your program. Their programs are complete. Each is compiled with the
//! tests, and those that need no server and no other machine run as tests of what their headings say. Further programs are in the [`examples`](https://github.com/tower-sluice/tower-sluice/tree/main/examples) of
//! the repository.

// The pages link to items of all features, even if some are off.
#![cfg_attr(not(feature = "calendar"), allow(rustdoc::broken_intra_doc_links))]

pub mod allow_list;
pub mod billing_days;
pub mod calendar;
pub mod capacity;
pub mod choosing;
pub mod configuration;
pub mod defaults;
pub mod development;
pub mod direct;
pub mod dynamodb;
pub mod failure;
pub mod from_aspnet;
pub mod from_axum_governor;
pub mod from_express;
pub mod from_sidekiq;
pub mod from_tower;
pub mod from_tower_governor;
pub mod gateways;
pub mod grpc;
pub mod hot_reload;
pub mod in_flight;
pub mod keys;
pub mod login;
pub mod look_ups;
pub mod machines;
pub mod misconfigured;
pub mod monitoring;
pub mod overage;
pub mod overload;
pub mod own_stores;
pub mod partners;
pub mod plans;
pub mod pool;
pub mod postgres;
pub mod priorities;
pub mod proxies;
pub mod queue;
pub mod quotas;
pub mod real_costs;
pub mod rejections;
pub mod restarts;
pub mod shadow;
pub mod sharing;
pub mod shutdown;
pub mod slow_down;
pub mod start;
pub mod streams;
pub mod support;
pub mod tenants;
pub mod testing;
pub mod top_ups;
pub mod warnings;
pub mod which_limit;
