//! Values that all other modules exchange: the question (`Ask`), its answer (`Decision`), and their parts. No I/O, and
//! no locks, except for the texts in `OverrideReason`.

pub(crate) mod account;
mod adjusting;
mod answer;
mod ask;
mod backlog;
mod ban_growth;
mod batch;
mod charge_once;
#[cfg(all(test, not(sluice_loom)))]
pub(crate) mod counterexamples;
mod credit;
mod decision;
mod description;
mod failure_mode;
mod formula;
mod inheritance;
mod keeps_standing;
mod overrides;
mod partition_key;
mod priority;
mod quota;
mod receipt;
mod request_end;
mod shares_reports;
mod sheds_anybody;
pub(crate) mod snapshot;
mod terms;
pub mod time;
mod watches_bodies;

pub use self::account::{Paid, Shortfall, Unfit};
pub(crate) use self::adjusting::{Adjusted, Adjusting, PendingAdjustment};
pub use self::answer::{Answer, LimiterError, Pending};
#[cfg(feature = "http")]
pub(crate) use self::ask::Now;
pub use self::ask::{Ask, Mode};
pub use self::backlog::Backlog;
pub use self::ban_growth::BanGrowth;
pub(crate) use self::batch::{Answers, MemberAnswers};
pub use self::batch::{Batching, Claim, MemberDecision};
pub(crate) use self::charge_once::{ChargingOnce, Retry};
pub use self::credit::{Credit, Debit};
pub use self::credit::{CreditExpiry, Expiry, REFERENCE_KEPT};
pub(crate) use self::decision::DeferredTime;
pub use self::decision::{Decision, Outcome};
pub use self::description::Description;
#[cfg(feature = "http")]
pub(crate) use self::description::Lasting;
pub use self::failure_mode::FailureMode;
#[cfg(feature = "http")]
pub(crate) use self::formula::Rest;
pub use self::formula::{Formula, Room};
pub use self::inheritance::Inheritance;
pub(crate) use self::inheritance::{Finish, Heritage, KeepsStates};
pub(crate) use self::keeps_standing::KeepsStanding;
pub use self::overrides::{Exception, Override, OverrideReason, OverrideReasonError};
pub use self::partition_key::PartitionKey;
pub(crate) use self::partition_key::little_endian;
pub use self::priority::Priority;
pub(crate) use self::quota::gcd;
pub use self::quota::{Quota, QuotaError};
pub use self::receipt::Receipt;
pub(crate) use self::receipt::{Issuer, Proof};
pub use self::request_end::RequestEnd;
pub(crate) use self::shares_reports::{Report, SharesReports};
pub(crate) use self::sheds_anybody::{FindShedder, ShedsAnybody};
pub use self::terms::{Shape, Terms};
pub(crate) use self::watches_bodies::{FindWatcher, WatchedBody, WatchesBodies};
