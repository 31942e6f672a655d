//! [`Departures`]: the departure times of queues that processes share.
//!
//! - `timeline` has the two steps that change the reservations of a key, without a server.
//! - `records` makes them on any server that keeps [`Records`](super::Records).

mod records;
#[cfg(all(test, not(sluice_loom)))]
mod tests;
mod timeline;

use std::error::Error;
use std::future::Future;
use std::sync::Arc;

use tokio::time::Instant;

use super::any_records::AnyRecords;
use super::backend::GaveUp;
use super::tag::KeyTag;
use crate::store::NodeHealth;
use crate::values::LimiterError;
use crate::values::time::Timestamp;

pub use self::records::RecordQueue;
pub use self::timeline::{Arrival, DepartureTerms, Timeline};

/// A server that keeps the departure times of a [`SharedQueue`](crate::SharedQueue).
///
/// Every server of [`Records`](super::Records) does, and needs nothing more. Implement this one for a server that makes
/// a reservation by itself, in one call: by a script, or by a function in a database.
///
/// `testing::check_departures` (feature `test-util`) tests yours.
pub trait Departures: Sized + Send + Sync + 'static {
    /// One queue on this server, as a process sees it.
    type Queue: DepartureQueue;

    /// Returns the queue that is called `name`, whose terms [fit](Self::check_fit). Makes no call.
    fn open(self: Arc<Self>, name: &str, terms: DepartureTerms) -> Self::Queue;

    /// Checks whether the server can keep a queue with these terms. By default it can.
    ///
    /// # Errors
    ///
    /// If it cannot: why, and what to do.
    fn check_fit(&self, terms: &DepartureTerms) -> Result<(), Box<dyn Error + Send + Sync>> {
        let _ = terms;
        Ok(())
    }

    /// Returns whether both keep the same queues, so that a queue on this server inherits from one on the other.
    fn shares_departures_with(&self, other: &Self) -> bool;

    /// Returns the secret of the hashes that stand for keys, as [`Records::secret`](super::Records::secret) does.
    fn secret(&self) -> &[u8] {
        &[]
    }

    /// Returns the records in which processes pass on to each other what they have rejected and reported. By default
    /// none, and each process has its own.
    fn shared_records(self: &Arc<Self>) -> Option<AnyRecords> {
        None
    }
}

/// One queue on a server. Each of its keys has a [`Timeline`].
///
/// # Contract
///
/// - Both steps are atomic, whichever process makes them: [`Timeline::reserve`] and [`Timeline::give_back`], at the
///   time of the server, on the timeline [as of](Timeline::as_of) that time.
/// - A key is kept until its timeline ends, and may be forgotten then.
/// - A failure is an error. A step that failed may have been made, and is not made again.
/// - Both return within the timeout of the server.
pub trait DepartureQueue: Send + Sync + 'static {
    /// Reserves time for a request.
    ///
    /// # Errors
    ///
    /// If the server gives no answer, or if the key holds something else.
    fn reserve(&self, key: KeyTag, arrival: Arrival) -> impl Future<Output = Result<Reserved, LimiterError>> + Send;

    /// Gives back a reservation, of a length and up to an end in ticks. Returns whether something of it was left.
    ///
    /// # Errors
    ///
    /// If the server gives no answer, or if the key holds something else. Then the reservation may stay.
    fn give_back(
        &self,
        key: KeyTag,
        length: u128,
        end: u128,
    ) -> impl Future<Output = Result<bool, LimiterError>> + Send;

    /// Returns the state of each node of the server, as [`Backend::health`](super::Backend::health) does.
    fn health(&self) -> Vec<NodeHealth> {
        Vec::new()
    }

    /// Returns the error of a request that this process gave up. By default with the reason as its source.
    fn gave_up(&self, reason: GaveUp) -> LimiterError {
        LimiterError::new(reason.to_string()).with_source(reason)
    }
}

/// The answer to an [`Arrival`].
#[derive(Clone, Debug)]
#[allow(clippy::exhaustive_structs, reason = "a server writes all of it")]
pub struct Reserved {
    /// The time of the server.
    pub now: Timestamp,
    /// An instant of this process at which the server's clock showed `now`, or more. The wait is counted from it.
    pub seen: Instant,
    /// When the reservation ends, in ticks; `None` if there is none.
    pub end: Option<u128>,
    /// The timeline with it, as of `now`.
    pub timeline: Timeline,
}
