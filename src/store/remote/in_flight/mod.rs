//! [`InFlight`]: the units in flight of a key, which processes count together on a server.
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

/// A server on which processes count the units of a key that are in flight, for a
/// [`SharedConcurrency`](crate::SharedConcurrency).
///
/// All [`Records`] are one. Implement it for a server that makes a step in one call, such as by a script.
///
/// # Contract
///
/// A key has fields. A [`ProcessField`] is one that a process has made, with its units and the end of its lease by the
/// clock of the server. A field whose lease has ended does not count, and is dropped. Each step is atomic, whichever
/// process makes it.
///
/// - [`take`](Self::take) adds the units of all fields. If `units` more are at most `limit`, it adds them to the field
///   of the process, whose lease begins anew.
/// - [`renew`](Self::renew) adds units to the field of the process, whatever the limit, drops the fields of the process
///   with smaller numbers, and lets the lease begin anew.
/// - [`release`](Self::release) subtracts units from a field, if it has so many, and keeps the end of its lease.
/// - If the clock of the server was set back, so that a field would end later than one lease from now, it ends one
///   lease from now.
/// - All return before the deadline, also if the server does not answer. A step that failed is not sent again. One
///   whose answer did not come may be made even later, but only as it would have been made then.
///
/// `testing::check_in_flight` (feature `test-util`) tests yours.
pub trait InFlight: Server {
    /// Takes units of a key, if they fit. With no units, it only reads.
    ///
    /// # Errors
    ///
    /// If the server gives no answer.
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
    /// If the server gives no answer.
    fn renew(
        &self,
        key: &RemoteKey<'_>,
        field: ProcessField,
        units: u64,
        lease: Duration,
        limits: CallLimits,
    ) -> impl Future<Output = Result<(), Unchanged>> + Send;

    /// Releases units, and returns whether the field had them. If it had fewer, the server has lost them, and the field
    /// stays: its units may be those of later requests.
    ///
    /// # Errors
    ///
    /// If the server gives no answer.
    fn release(
        &self,
        key: &RemoteKey<'_>,
        field: ProcessField,
        units: u64,
        limits: CallLimits,
    ) -> impl Future<Output = Result<bool, Unchanged>> + Send;

    /// Returns the records in which processes pass on to each other what they have rejected and reported. By default
    /// none, and each process has its own.
    fn shared_records(self: &Arc<Self>) -> Option<AnyRecords> {
        None
    }
}

/// The name of a field: a process begins a field with a higher number each time it renews.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(clippy::exhaustive_structs, reason = "servers and tests make them")]
pub struct ProcessField {
    /// Distinguishes the process from the others. Below 2⁵².
    pub process: u64,
    /// Increases with each field of the process. Below 2⁵².
    pub number: u64,
}

/// What a [`take`](InFlight::take) found and did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "a server writes all of it")]
pub struct TakenUnits {
    /// Whether the units were taken.
    pub is_taken: bool,
    /// The units in flight before, of all processes.
    pub before: u64,
}

/// The kind of the records of units in flight.
const KIND: char = 'n';

/// Two calls for a step, or one if nothing is written.
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
        // However many requests wait for their turns: a lease that ends lets others overrun the limit.
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
