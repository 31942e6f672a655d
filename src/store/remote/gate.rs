//! [`CallGate`]: the way to one node. [`Watch`]: a call in flight to it, whose outcome is evidence for the circuit
//! breaker.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::backend::{CallLimits, GaveUp};
use super::circuit_breaker::{CallFailure, CallPermit, CircuitBreaker};
use super::log;
use crate::store::NodeHealth;
use crate::util::lock::Lock;

/// A node's circuit breaker, and the number of calls in flight to it.
#[derive(Debug)]
pub struct CallGate {
    name: Arc<str>,
    pub(crate) breaker: Lock<CircuitBreaker>,
    in_flight: AtomicUsize,
}

/// The evidence that a call gives about its node.
#[allow(missing_debug_implementations, clippy::exhaustive_enums, reason = "who makes the call knows which it is")]
#[derive(Clone, Copy)]
pub enum Evidence<'a> {
    /// The node answered, if only with an error that is not its own.
    Healthy,
    /// With the reason, for the log.
    Failed(CallFailure, &'a dyn Display),
    /// The call's outcome did not become known.
    Unknown,
}

impl CallGate {
    /// Creates the gate for calls that take at most `timeout`, to a node that is called `name` in log lines and
    /// metrics.
    pub fn new(name: Arc<str>, timeout: Duration) -> Arc<Self> {
        let breaker = Lock::new(CircuitBreaker::new(Instant::now(), timeout));
        Arc::new(Self { name, breaker, in_flight: AtomicUsize::new(0) })
    }

    /// The node's name.
    pub const fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Whether the circuit breaker is not closed.
    pub fn is_failing(&self) -> bool {
        self.breaker.lock().is_failing()
    }

    /// Notes that the node has answered a request other than a decision, such as a ping. Closes the breaker if it
    /// opened because no answer came.
    pub fn answered(&self) {
        if self.breaker.lock().answered() {
            log::breaker_closed(&self.name);
        }
    }

    /// Notes a new connection, so that the node is probed soon.
    pub fn connected(&self) {
        self.breaker.lock().connected(Instant::now());
    }

    /// The node's state, for metrics.
    pub fn health(&self) -> NodeHealth {
        let breaker = self.breaker.lock().state(Instant::now());
        NodeHealth::new(Arc::clone(&self.name), breaker).with_in_flight(self.in_flight.load(Ordering::Relaxed))
    }

    /// Takes a slot, and asks the breaker. If all slots are taken, waits for one for half the remaining time, because
    /// the other half is for the call.
    pub async fn enter(self: &Arc<Self>, slots: Arc<Semaphore>, limits: CallLimits) -> Result<Watch, GaveUp> {
        let slot = match Arc::clone(&slots).try_acquire_owned() {
            Ok(slot) => slot,
            Err(_) if self.breaker.lock().rejects_calls(Instant::now()) => return Err(GaveUp::BreakerOpen),
            Err(_) => {
                let now = Instant::now();
                let patience = limits.deadline.saturating_duration_since(now) / 2;
                let slot = timeout_at(now + patience, slots.acquire_owned()).await;
                slot.ok().and_then(Result::ok).ok_or(GaveUp::TooManyInFlight)?
            }
        };
        let now = Instant::now();
        if limits.deadline <= now {
            return Err(GaveUp::TimedOut);
        }
        // It may have opened in the meantime.
        let permit = self.breaker.lock().try_enter(now, limits.requests).ok_or(GaveUp::BreakerOpen)?;
        self.in_flight.fetch_add(1, Ordering::Acquire);
        Ok(Watch { gate: Arc::clone(self), permit: Some(permit), slot: Some(slot), began: now })
    }
}

/// A call in flight. If it is dropped before its end, the call has panicked, or the outcome is unknown. If it was the
/// probe, the breaker must not wait for it.
#[derive(Debug)]
pub struct Watch {
    gate: Arc<CallGate>,
    permit: Option<CallPermit>,
    slot: Option<OwnedSemaphorePermit>,
    /// When it began.
    pub began: Instant,
}

impl Watch {
    /// Ends the call.
    pub fn end(mut self, evidence: Evidence<'_>) {
        self.record(evidence);
    }

    /// Gives the slot to another call, because no caller waits for this one any more.
    pub fn leave(&mut self) {
        if let Some(slot) = self.slot.take() {
            // Before the slot is free, because otherwise the next call would be counted beside this one.
            self.gate.in_flight.fetch_sub(1, Ordering::Release);
            drop(slot);
        }
    }

    fn record(&mut self, evidence: Evidence<'_>) {
        self.leave();
        let Some(permit) = self.permit.take() else { return };
        let now = Instant::now();
        let mut opened = None;
        let mut closed = false;
        {
            let mut breaker = self.gate.breaker.lock();
            match evidence {
                Evidence::Healthy => closed = breaker.succeeded(&permit),
                Evidence::Failed(failure, reason) => opened = breaker.failed(&permit, now, failure).then_some(reason),
                Evidence::Unknown => breaker.abandoned(&permit, now),
            }
        }
        if let Some(reason) = opened {
            log::breaker_opened(&self.gate.name, reason);
        }
        if closed {
            log::breaker_closed(&self.gate.name);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // A panic counts as a failure. Otherwise a store that panics would be called for every request.
        let panicked = Evidence::Failed(CallFailure::Silent, &"the call panicked");
        self.record(if thread::panicking() { panicked } else { Evidence::Unknown });
    }
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Tries to enter a gate whose slots are all taken. Returns why it gave up, and after how long.
    async fn give_up(gate: &Arc<CallGate>) -> (Option<GaveUp>, Duration) {
        let began = Instant::now();
        let limits = CallLimits { deadline: began + SECOND, requests: 1 };
        (gate.enter(Arc::new(Semaphore::new(0)), limits).await.err(), began.elapsed())
    }

    /// While the breaker is open, they do not wait at all.
    #[tokio::test(start_paused = true)]
    async fn slots_are_awaited_half_the_time() {
        let gate = CallGate::new("node".into(), SECOND);
        let (reason, after) = give_up(&gate).await;
        assert_eq!(reason, Some(GaveUp::TooManyInFlight));
        // The timer has steps of a millisecond.
        assert!((SECOND / 2..=SECOND / 2 + Duration::from_millis(1)).contains(&after), "{after:?}");
        while !gate.is_failing() {
            let mut breaker = gate.breaker.lock();
            let permit = breaker.try_enter(Instant::now(), 1).expect("it is closed");
            let _ = breaker.failed(&permit, Instant::now(), CallFailure::Silent);
        }
        assert_eq!(give_up(&gate).await, (Some(GaveUp::BreakerOpen), Duration::ZERO));
    }
}
