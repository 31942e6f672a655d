//! Budgets on your own server, shared by many processes: the parts of a store that do not depend on its server.
//!
//! - For a key-value store that can compare and swap, implement [`KeyValue`]: two methods.
//! - For a server that can apply a whole transition by itself, as a script or a conditional write, implement
//!   [`Backend`].
//!
//! Limits whose state does not belong to an algorithm, such as requests in flight, queues and balances, are kept as
//! [`Records`]. A server that can make their steps by itself implements [`InFlight`], [`Departures`] and [`Accounts`].
//! Each of them is a [`Server`].
//!
//! In either case [`RemoteStore`] does the rest, as it does for
//! [`RedisStore`](https://docs.rs/tower-sluice-redis/latest/tower_sluice_redis/struct.RedisStore.html). A request's
//! path:
//!
//! 1. `table`, which a limiter makes from the settings in `store`, answers from a lease (`leases`) or from the
//!    `negative_cache`; both map a key's `tag` to the knowledge about it.
//! 2. Otherwise it makes a `query`, which `single_flight` lets share a call with others for its key.
//! 3. The [`backend`](Backend) makes the call, within the bounds that [`Calls`] sets unless it has its own, through its
//!    node's `gate`, which has a `circuit_breaker` that pauses by `backoff`. If other processes change the key in
//!    between, it makes several [`Attempts`].
//!
//! A key's ban, allowance or debt is its [`Standing`], which is kept and read with its state.
//!
//! A backend may have more parts: it decides on several keys in one call ([`JointCharge`]), enters charges by hand with
//! their references ([`ChargeByHand`]), or decides on free retries in the call that charges ([`ChargeRetries`]).
//!
//! `testing::check_backend` (feature `test-util`) tests your backend.

pub mod accounts;
mod alternatives;
mod any_records;
mod attempts;
pub(crate) mod backend;
pub(crate) mod backoff;
pub(crate) mod by_hand;
mod calls;
pub(crate) mod circuit_breaker;
#[cfg(all(test, not(sluice_loom)))]
mod contention;
pub(crate) mod departures;
mod fault;
pub(crate) mod free_retries;
pub(crate) mod gate;
mod in_flight;
pub(crate) mod joint;
mod key_value;
mod leases;
pub(crate) mod limiter_keys;
mod log;
pub(crate) mod negative_cache;
mod parts;
pub(crate) mod query;
pub(crate) mod records;
pub(crate) mod server;
pub(crate) mod shared_reports;
mod single_flight;
mod standing;
mod store;
mod table;
pub(crate) mod tag;

pub use self::accounts::Accounts;
pub use self::alternatives::Alternatives;
pub use self::any_records::AnyRecords;
pub use self::attempts::Attempts;
pub use self::backend::{Applied, Backend, CallLimits, GaveUp, Target, Transition};
pub use self::by_hand::{ChargeByHand, KeyRead, Replacement};
pub use self::calls::Calls;
pub use self::departures::{Arrival, DepartureTerms, Departures, Reserved, Timeline};
pub use self::fault::{Fault, KindOfFault};
pub use self::free_retries::{ChargeRetries, ChargedOnce, FreeRetry, RetryRecord};
pub use self::in_flight::{InFlight, ProcessField, TakenUnits};
pub use self::joint::{JointAnswer, JointBackend, JointCharge};
pub use self::key_value::{KeyValue, KeyValueBackend, KeyValueRecords};
pub use self::limiter_keys::RemoteKey;
pub use self::parts::Parts;
pub use self::records::{Record, Records, Unchanged};
pub use self::server::Server;
pub use self::standing::Standing;
pub use self::store::RemoteStore;
pub use self::table::RemoteTable;
pub use self::tag::KeyTag;
pub use crate::values::BanGrowth;
