//! The layer for HTTP and gRPC: keys, policies, and responses. The engine decides.

mod answer;
mod body;
mod exemptions;
mod extensions;
pub mod grpc;
pub(crate) mod head;
pub mod headers;
pub mod key;
mod key_of;
mod layer;
mod log;
mod mounting;
mod outcome;
mod policy;
mod preflight;
pub(crate) mod reject;
mod response_body;
mod service;
mod snapshot;
mod text;
pub(crate) mod translation;

pub use self::answer::Answering;
pub use self::body::RejectionBody;
pub use self::exemptions::{ExemptionError, Exemptions};
pub use self::head::{RequestHead, ResponseHead};
pub use self::layer::{RateLimitLayer, RateLimitLayerBuilder};
pub use self::reject::{Reason, Rejection, RejectionFormat};
pub use self::response_body::ResponseBody;
pub use self::service::{RateLimit, ResponseFuture};
pub use crate::engine::permits::{Permits, TakenPermits};
pub use crate::engine::policy::{
    ChargeOnce, Crossing, Event, IntoPolicies, MissingKey, Offender, Offenders, Penalty, Policies, Policy, PolicyError,
    Replaced, ShowKey, Transition,
};
pub use crate::engine::reload::{KeyOf, KeyStatus, LimitsHandle, Operate, PolicyStatus};
pub use crate::engine::settlement::{Meter, SettleError, Settlement};
pub use crate::engine::snapshot::{Restored, Saved, SnapshotError, Snapshots};
pub use crate::engine::verdict::{PolicyVerdict, Verdict};
