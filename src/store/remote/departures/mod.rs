//! [`Departures`]: the departure times for queues that processes share.
//!
//! - `timeline` has the two steps that change a key's reservations, without a server.
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
use super::backend::CallLimits;
use super::limiter_keys::RemoteKey;
use super::server::Server;
use crate::values::LimiterError;
use crate::values::time::Timestamp;

pub(super) use self::records::Line;
pub use self::timeline::{Arrival, DepartureTerms, Timeline};

/// A server that keeps the departure times for a [`SharedQueue`](crate::SharedQueue): each key in the queue has a
/// [`Timeline`].
///
/// Every server with [`Records`](super::Records) implements this, and needs nothing more. Implement this trait for a
/// server that makes a reservation by itself, in one call: by a script, or by a database function.
///
/// # Contract
///
/// - Both steps are atomic, even across processes: [`Timeline::reserve`] and [`Timeline::give_back`], at the server's
///   time, on the timeline [as of](Timeline::as_of) that time.
/// - A key is kept until its timeline ends, and may be forgotten then.
/// - A failure is an error. A step that failed may have been made, and is not made again.
/// - Both return before the deadline, even if the server does not answer.
///
/// `testing::check_departures` (feature `test-util`) tests yours.
pub trait Departures: Server {
    /// Reserves time for a request, in a queue whose terms [fit](Self::check_fit).
    ///
    /// # Errors
    ///
    /// If the server does not answer, or if the key holds something else.
    fn reserve(
        self: &Arc<Self>,
        key: &RemoteKey<'_>,
        terms: &DepartureTerms,
        arrival: Arrival,
        limits: CallLimits,
    ) -> impl Future<Output = Result<Reserved, LimiterError>> + Send;

    /// Gives back a reservation with a length and an end in ticks. Returns whether part of it was left.
    ///
    /// # Errors
    ///
    /// If the server does not answer, or if the key holds something else. Then the reservation may stay.
    fn give_back(
        self: &Arc<Self>,
        key: &RemoteKey<'_>,
        terms: &DepartureTerms,
        length: u128,
        end: u128,
        limits: CallLimits,
    ) -> impl Future<Output = Result<bool, LimiterError>> + Send;

    /// Checks whether the server can keep a queue with these terms. By default it can.
    ///
    /// # Errors
    ///
    /// If it cannot. The error says why, and how to fix it.
    fn check_fit(&self, terms: &DepartureTerms) -> Result<(), Box<dyn Error + Send + Sync>> {
        let _ = terms;
        Ok(())
    }

    /// Returns the records in which processes share their rejections and reports. By default `None`, and each process
    /// has its own.
    fn shared_records(self: &Arc<Self>) -> Option<AnyRecords> {
        None
    }
}

/// The answer to an [`Arrival`].
#[derive(Clone, Debug)]
#[allow(clippy::exhaustive_structs, reason = "a server writes all of it")]
pub struct Reserved {
    /// The server's time.
    pub now: Timestamp,
    /// An instant in this process at which the server's clock showed `now`, or more. The wait is counted from it.
    pub seen: Instant,
    /// When the reservation ends, in ticks. `None` if there is no reservation.
    pub end: Option<u128>,
    /// The timeline with it, at `now`.
    pub timeline: Timeline,
}
