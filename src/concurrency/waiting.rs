//! The future of a request that waits for its turn.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, Sleep, sleep};

use super::counts::Counts;
use super::wait_lists::WaitTicket;
use super::{admitted, closed, rejected};
use crate::values::{Decision, LimiterError};

/// A waiter: resolves when its turn comes, or when its time is over.
///
/// A waiter that is dropped leaves its list. If it has its units by then, they are released. This is decided under the
/// list's lock, so that no unit is lost or released twice.
pub(super) struct WaitForUnits {
    counts: Arc<Counts>,
    /// Cleared when the result is returned.
    ticket: Option<WaitTicket>,
    slot: usize,
    cost: u64,
    limit: u64,
    since: Instant,
    /// The end of the longest wait. Runs on the runtime on which the wait began.
    timeout: Option<Pin<Box<Sleep>>>,
}

impl WaitForUnits {
    /// The future of the waiter with this ticket; it leaves when it has waited for `longest`.
    ///
    /// # Errors
    ///
    /// Outside of a tokio runtime. Then the waiter has left.
    pub(super) fn new(
        counts: Arc<Counts>,
        ticket: WaitTicket,
        (cost, limit): (u64, u64),
        longest: Duration,
    ) -> Result<Self, LimiterError> {
        if Handle::try_current().is_err() {
            Self::leave(&counts, ticket, cost);
            return Err(LimiterError::new(
                "a request that waits for others to be over needs tokio's timer: call it from within a tokio runtime",
            ));
        }
        let slot = ticket.slot();
        let since = Instant::now();
        let mut waiting = Self { counts, ticket: Some(ticket), slot, cost, limit, since, timeout: None };
        // Last: on a runtime without a timer, tokio panics, and the waiter leaves.
        waiting.timeout = Some(Box::pin(sleep(longest)));
        Ok(waiting)
    }

    fn leave(counts: &Counts, ticket: WaitTicket, cost: u64) {
        if counts.wait_lists.leave(&counts.slots, ticket).is_some() {
            counts.release(ticket.slot(), cost);
        }
    }

    fn is_in_time(&mut self, context: &mut Context<'_>) -> bool {
        self.timeout.as_mut().is_some_and(|timeout| timeout.as_mut().poll(context).is_pending())
    }

    fn granted(&self, units: u64) -> Decision {
        admitted(self.slot, units, self.limit).with_delay(self.since.elapsed())
    }
}

impl Future for WaitForUnits {
    type Output = Result<Decision, LimiterError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(ticket) = self.ticket else { panic!("polled after it was ready") };
        let result = match self.counts.wait_lists.poll(ticket, context) {
            Poll::Ready(Some(units)) => Ok(self.granted(units)),
            Poll::Ready(None) => Err(closed()),
            Poll::Pending if self.is_in_time(context) => return Poll::Pending,
            // Its turn may have come since the poll above.
            Poll::Pending => match self.counts.wait_lists.leave(&self.counts.slots, ticket) {
                Some(units) => Ok(self.granted(units)),
                None => Ok(rejected(self.limit, 0)),
            },
        };
        self.ticket = None;
        Poll::Ready(result)
    }
}

impl Drop for WaitForUnits {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            Self::leave(&self.counts, ticket, self.cost);
        }
    }
}
