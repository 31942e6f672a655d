//! The layer for HTTP and gRPC: keys, policies, the transaction that charges all of the policies or no policy, and
//! responses.

mod body;
mod evaluate;
mod first_requests;
pub mod grpc;
pub(crate) mod head;
pub mod headers;
pub mod key;
mod layer;
mod log;
mod mounting;
mod outcome;
mod permits;
pub(crate) mod policy;
mod preflight;
pub(crate) mod reject;
mod reload;
mod response_body;
mod service;
mod settled_names;
mod settlement;
mod snapshot;
mod text;
mod verdict;

pub use self::body::RejectionBody;
pub use self::head::{RequestHead, ResponseHead};
pub use self::layer::{RateLimitLayer, RateLimitLayerBuilder};
pub use self::permits::{Permits, TakenPermits};
pub use self::policy::{
    ChargeOnce, Crossing, Event, ExemptionError, Exemptions, IntoPolicies, MissingKey, Offender, Offenders, Penalty,
    Policies, Policy, PolicyError, Replaced, ShowKey, Transition,
};
pub use self::reject::{Reason, Rejection, RejectionFormat};
pub use self::reload::{KeyOf, KeyStatus, LimitsHandle, PolicyStatus};
pub use self::response_body::ResponseBody;
pub use self::service::{RateLimit, ResponseFuture};
pub use self::settlement::{Meter, SettleError, Settlement};
pub use self::snapshot::{Restored, Saved, SnapshotError, Snapshots};
pub use self::verdict::{PolicyVerdict, Verdict};
