//! [`InFlight`]: a key's units in flight, which processes count together on a server.
//!
//! `record` has the steps on a value, for any server with [`Records`].

mod record;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::any_records::AnyRecords;
use super::backend::CallLimits;
use super::limiter_keys::RemoteKey;
use super::records::{Records, Unchanged, change};
use super::server::Server;

/// A server on which processes count a key's units in flight, for a [`SharedConcurrency`](crate::SharedConcurrency).
///
/// All [`Records`] implement it. Implement it yourself for a server that makes a step in one call, such as by a script.
///
/// # Contract
///
/// A key has fields. A process makes a [`ProcessField`], with its units and a lease that ends at a time on the server's
/// clock. A field whose lease has ended does not count, and is dropped. Each step is atomic, even across processes.
///
/// - [`take`](Self::take) adds up the units in all fields. If `units` more stay within `limit`, it adds them to the
///   process's field, whose lease begins again.
/// - [`renew`](Self::renew) adds units to the process's field, regardless of the limit, drops that process's fields
///   with smaller numbers, and lets the lease begin again.
/// - [`release`](Self::release) subtracts units from a field, if the field has enough, and keeps the lease's end.
/// - If the server's clock was set back, so that a field would end later than one lease from now, it ends one lease
///   from now.
/// - All return before the deadline, even if the server does not answer. A step that failed is not sent again. If no
///   answer came, the step may still be made later, but only with the effect that it would have had then.
///
/// `testing::check_in_flight` (feature `test-util`) tests yours.
pub trait InFlight: Server {
    /// Takes a key's units, if they fit. Without units, it only reads.
    ///
    /// # Errors
    ///
    /// If the server does not answer.
    fn take(
        &self,
        key: &RemoteKey<'_>,
        field: ProcessField,
        units: u64,
        limit: u64,
        lease: Duration,
        limits: CallLimits,
    ) -> impl Future<Output = Result<TakenUnits, Unchanged>> + Send;

    /// Moves the units that a process has in flight to a field. Units that requests have taken there already stay.
    ///
    /// # Errors
    ///
    /// If the server does not answer.
    fn renew(
        &self,
        key: &RemoteKey<'_>,
        field: ProcessField,
        units: u64,
        lease: Duration,
        limits: CallLimits,
    ) -> impl Future<Output = Result<(), Unchanged>> + Send;

    /// Releases units, and returns whether the field had them. If it had fewer, the server has lost them, and the field
    /// stays, because its units may belong to later requests.
    ///
    /// # Errors
    ///
    /// If the server does not answer.
    fn release(
        &self,
        key: &RemoteKey<'_>,
        field: ProcessField,
        units: u64,
        limits: CallLimits,
    ) -> impl Future<Output = Result<bool, Unchanged>> + Send;

    /// Returns the records in which processes share their rejections and reports. By default `None`, and each process
    /// has its own.
    fn shared_records(self: &Arc<Self>) -> Option<AnyRecords> {
        None
    }
}

/// A field's name. Each time that a process renews, it begins a field with a higher number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(clippy::exhaustive_structs, reason = "servers and tests make them")]
pub struct ProcessField {
    /// Distinguishes the process from the others. Below 2⁵².
    pub process: u64,
    /// Increases with each of the process's fields. Below 2⁵².
    pub number: u64,
}

/// The outcome of a [`take`](InFlight::take).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "a server writes all of it")]
pub struct TakenUnits {
    /// Whether the units were taken.
    pub is_taken: bool,
    /// All processes' units in flight before the step.
    pub before: u64,
}

/// The kind of records for units in flight.
const KIND: char = 'n';

/// A step takes two calls, or one if nothing is written.
impl<R: Records> InFlight for R {
    async fn take(
        &self,
        key: &RemoteKey<'_>,
        field: ProcessField,
        units: u64,
        limit: u64,
        lease: Duration,
        limits: CallLimits,
    ) -> Result<TakenUnits, Unchanged> {
        let step = |old: Option<&[u8]>, now| record::take(old, now, field, units, limit, lease);
        Ok(change(self, Some(key.turns()), &key.record(KIND), limits.deadline, step).await?.result)
    }

    async fn renew(
        &self,
        key: &RemoteKey<'_>,
        field: ProcessField,
        units: u64,
        lease: Duration,
        limits: CallLimits,
    ) -> Result<(), Unchanged> {
        let step = |old: Option<&[u8]>, now| record::renew(old, now, field, units, lease);
        // Goes before all requests that wait for their turns, because a lease that ends lets others overrun the limit.
        change(self, None, &key.record(KIND), limits.deadline, step).await?;
        Ok(())
    }

    async fn release(
        &self,
        key: &RemoteKey<'_>,
        field: ProcessField,
        units: u64,
        limits: CallLimits,
    ) -> Result<bool, Unchanged> {
        let step = |old: Option<&[u8]>, now| record::release(old, now, field, units);
        Ok(change(self, Some(key.turns()), &key.record(KIND), limits.deadline, step).await?.result)
    }

    fn shared_records(self: &Arc<Self>) -> Option<AnyRecords> {
        Some(AnyRecords::shared(Arc::clone(self)))
    }
}
