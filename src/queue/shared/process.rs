//! One queue in one process: its calls to the server, its negative cache, its waiters, and the reservations that they
//! return when they leave.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::terms::QueueTerms;
use crate::algorithm::GcraState;
use crate::limiter::Limiter;
use crate::queue::{LeakyQueue, closed, no_runtime};
use crate::store::remote::limiter_keys::LimiterKeys;
use crate::store::remote::negative_cache::{NegativeCache, Observation};
use crate::store::remote::server::deadline_of;
use crate::store::remote::{CallLimits, Departures, GaveUp};
use crate::util::undo::{OnDrop, complete_or_undo};
use crate::values::time::{Clock, Monotonic};
use crate::values::{Ask, Decision, LimiterError, Mode, PartitionKey, Receipt};

/// The state that one process's waiters share. The server keeps the schedules.
pub(super) struct ProcessQueue<D> {
    pub(super) store: Arc<D>,
    pub(super) keys: LimiterKeys,
    pub(super) terms: QueueTerms,
    /// Keys with a backlog. Some arrivals may wait behind it and others may not: each is checked by its own cost and
    /// patience.
    negative_cache: NegativeCache<GcraState>,
    /// Decides while the server fails.
    pub(super) fallback: LeakyQueue,
    waiting: AtomicUsize,
    max_waiters: usize,
    is_closed: watch::Sender<bool>,
}

/// A decision, and the instant from which its delay counts.
type Joined = (Decision, Instant);

impl<D: Departures> ProcessQueue<D> {
    pub(super) fn new(
        store: Arc<D>,
        keys: LimiterKeys,
        terms: QueueTerms,
        fallback: LeakyQueue,
        max_waiters: usize,
    ) -> Self {
        Self {
            store,
            keys,
            terms,
            negative_cache: NegativeCache::new(),
            fallback,
            waiting: AtomicUsize::new(0),
            max_waiters,
            is_closed: watch::Sender::new(false),
        }
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    pub(super) fn close(&self) {
        self.is_closed.send_replace(true);
        self.fallback.close();
    }

    /// Takes a slot for a request that waits for less than `patience`, if one is free. Returns the slot, and the
    /// request's longest wait: zero without a slot, and `None` if only the queue's bound applies.
    pub(super) fn take_slot(self: &Arc<Self>, patience: Option<Duration>) -> (Option<WaiterSlot<D>>, Option<Duration>) {
        // Relaxed: only the count matters, and no other memory is published by it.
        let taken = self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
            (taken < self.max_waiters).then_some(taken + 1)
        });
        match taken {
            Ok(_) => {
                let longest = patience.map(|patience| patience.saturating_sub(Duration::from_nanos(1)));
                (Some(WaiterSlot(Arc::clone(self))), longest)
            }
            Err(_) => (None, Some(Duration::ZERO)),
        }
    }

    /// Joins the queue on the server for a request that waits for `patience` at most, and if it is admitted, the
    /// fallback's queue as well. Makes no call if the negative cache knows that it would be rejected. If this future is
    /// dropped before the answer came, the reservation may have been made.
    pub(super) async fn join(
        &self,
        key: &PartitionKey,
        cost: u64,
        patience: Option<Duration>,
    ) -> Result<Joined, LimiterError> {
        let tag = self.keys.tag(key);
        let sent = Monotonic.now();
        if let Some(rejection) =
            self.negative_cache.rejection(tag, sent, |state, at| self.terms.rejection(state, at, cost, patience))
        {
            return Ok((rejection, Instant::now()));
        }
        let (terms, arrival) = (self.terms.for_server(), self.terms.arrival(cost, patience));
        let answer = self.store.reserve(&self.keys.key(tag), &terms, arrival, self.limits()).await?;
        let answered = Monotonic.now();
        let decided = self.terms.decide(&answer, cost, patience);
        let (decision, state) = decided.ok_or_else(|| self.store.gave_up(GaveUp::Disagreement))?;
        let backlogged = state.filter(|state| !decision.is_allowed() || self.terms.has_backlog(*state, answer.now));
        self.negative_cache.note(tag, backlogged, Observation { server: answer.now, sent, answered });
        if decision.is_allowed() {
            // We ignore the fallback's decision, because its queue is shorter, unless the server has forgotten a longer
            // one.
            drop(self.fallback.decide(&Ask::charge(key, cost).to(Mode::Shadow)));
        }
        Ok((decision, answer.seen))
    }

    fn limits(&self) -> CallLimits {
        CallLimits::until(deadline_of(&*self.store))
    }

    /// Returns a reservation, for the next arrival.
    async fn refund(&self, key: &PartitionKey, cost: u64, receipt: Receipt) {
        let tag = self.keys.tag(key);
        if let Some((length, end)) = self.terms.reservation(cost, receipt) {
            // If the call fails, the reservation stays, so that fewer requests depart, and never too many.
            let terms = self.terms.for_server();
            let _ = self.store.give_back(&self.keys.key(tag), &terms, length, end, self.limits()).await;
            self.negative_cache.forget(tag, Monotonic.now());
        }
    }

    /// Joins with `cost`. If that is rejected as a cost that can never be let in, joins a second time with the units
    /// that are left. No request waits for the turn.
    pub(super) async fn join_up_to(&self, key: &PartitionKey, cost: u64) -> Result<Decision, LimiterError> {
        let (decision, _) = self.join(key, cost, None).await?;
        match decision.partial_cost(cost) {
            Some(left) => Ok(self.join(key, left, None).await?.0),
            None => Ok(decision),
        }
    }

    /// Joins, and waits until the turn comes.
    pub(super) async fn wait_turn(
        self: Arc<Self>,
        key: PartitionKey,
        cost: u64,
        patience: Option<Duration>,
    ) -> Result<Decision, LimiterError> {
        let (_slot, patience) = self.take_slot(patience);
        let runtime = Handle::try_current().map_err(|_| no_runtime())?;
        let shared = Arc::clone(&self);
        let joined_key = key.clone();
        let call = async move { shared.join(&joined_key, cost, patience).await };
        let shared = Arc::clone(&self);
        let refunded_key = key.clone();
        let give_back = async move |answer: Result<Joined, LimiterError>| {
            if let Ok((decision, _)) = answer {
                shared.refund(&refunded_key, cost, decision.receipt()).await;
            }
        };
        let (decision, seen) = complete_or_undo(runtime.clone(), call, give_back).await?;
        if decision.delay().is_zero() {
            // Rejected, or it departs at once.
            return Ok(decision);
        }
        // A waiter that is dropped before its turn returns its reservation.
        let wait = OnDrop::new(|| self.refund_in_background(&runtime, key, cost, decision.receipt()));
        sleep_until(seen + decision.delay()).await;
        // Before anything else is awaited: a waiter that is dropped from here on has used its turn.
        wait.end();
        Ok(decision.with_delay(seen.elapsed()))
    }

    /// Returns the result of `turn`, unless the queue is closed first. Takes it by reference, since a future that is
    /// moved into another one takes its memory twice.
    pub(super) async fn unless_closed<T>(
        &self,
        turn: Pin<&mut impl Future<Output = Result<T, LimiterError>>>,
    ) -> Result<T, LimiterError> {
        let mut is_closed = self.is_closed.subscribe();
        // Before the server is called: a reservation that it grants would have to be returned.
        if *is_closed.borrow() {
            return Err(closed());
        }
        tokio::select! {
            // A waiter whose turn has come departs, although the queue is closed.
            biased;
            answer = turn => answer,
            _ = is_closed.wait_for(|is_closed| *is_closed) => Err(closed()),
        }
    }

    /// Returns a reservation in the background.
    pub(super) fn refund_in_background(
        self: Arc<Self>,
        runtime: &Handle,
        key: PartitionKey,
        cost: u64,
        receipt: Receipt,
    ) {
        runtime.spawn(async move { self.refund(&key, cost, receipt).await });
    }
}

/// Counts a waiter in this process while it waits.
pub(super) struct WaiterSlot<D>(Arc<ProcessQueue<D>>);

impl<D> Drop for WaiterSlot<D> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
