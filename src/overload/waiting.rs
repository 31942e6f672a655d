//! The future of a request that waits for its turn.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, Sleep, sleep};

use super::decided;
use super::fair_queue::Ticket;
use super::gate::{Gate, Turn};
use crate::values::{Decision, LimiterError, PartitionKey};

/// Resolves when a request's turn has come, when it was shed, or at the end of its longest wait.
///
/// If it is dropped, the request leaves the queue. If it has its units by then, they are released. This is decided
/// under the queue's lock, so that no unit is lost or released twice.
pub(super) struct WaitForTurn {
    gate: Arc<Gate>,
    /// Cleared when the result is returned.
    ticket: Option<Ticket>,
    key: PartitionKey,
    cost: u64,
    since: Instant,
    longest: Duration,
    /// The end of the longest wait, or before it, the next look at the bodies that hold units. Runs on the runtime on
    /// which the wait began.
    timer: Option<Pin<Box<Sleep>>>,
}

impl WaitForTurn {
    /// The future of the request with this ticket; it leaves when it has waited for `longest`.
    ///
    /// # Errors
    ///
    /// Outside of a tokio runtime. Then the request has left.
    pub(super) fn new(
        gate: Arc<Gate>,
        (ticket, key): (Ticket, PartitionKey),
        cost: u64,
        longest: Duration,
    ) -> Result<Self, LimiterError> {
        // Made first, so that the request leaves if there is no runtime, or if tokio panics since it has no timer.
        let mut waiting = Self { gate, ticket: Some(ticket), key, cost, since: Instant::now(), longest, timer: None };
        if Handle::try_current().is_err() {
            return Err(LimiterError::new(
                "a request that waits for an overloaded server needs tokio's timer: call it from within a tokio runtime",
            ));
        }
        waiting.timer = Some(Box::pin(sleep(waiting.pause())));
        Ok(waiting)
    }

    /// The time for which it sleeps, unless it is woken.
    fn pause(&self) -> Duration {
        let left = self.longest.saturating_sub(self.since.elapsed());
        left.min(self.gate.bodies.next_look(self.gate.now()))
    }

    /// Whether the request may go on waiting. Looks at the bodies that hold units when it is time to: if nothing else
    /// happens, no other request does.
    fn is_in_time(&mut self, context: &mut Context<'_>) -> bool {
        while self.timer.as_mut().is_some_and(|timer| timer.as_mut().poll(context).is_ready()) {
            if self.since.elapsed() >= self.longest {
                return false;
            }
            // If this is its turn, it wakes itself.
            self.gate.look_at_bodies();
            let next = Instant::now() + self.pause();
            if let Some(timer) = &mut self.timer {
                timer.as_mut().reset(next);
            }
        }
        true
    }
}

impl Future for WaitForTurn {
    type Output = Result<Decision, LimiterError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(ticket) = self.ticket else { panic!("polled after it was ready") };
        let turn = match self.gate.poll(ticket, context) {
            Poll::Ready(turn) => turn,
            Poll::Pending if self.is_in_time(context) => return Poll::Pending,
            // Its turn may have come since the poll above.
            Poll::Pending => self.gate.leave(ticket, true).unwrap_or(Turn::Shed(None)),
        };
        self.ticket = None;
        let delay = if matches!(turn, Turn::Granted(_)) { self.since.elapsed() } else { Duration::ZERO };
        Poll::Ready(decided(&self.gate, turn).map(|decision| decision.with_delay(delay)))
    }
}

impl Drop for WaitForTurn {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.take() else { return };
        if let Some(Turn::Granted(held)) = self.gate.leave(ticket, false) {
            self.gate.refund(&self.key, self.cost, held);
        }
    }
}
