//! [`Gate`]: the units in flight, the requests that wait for some, and the limit.
//!
//! # Concurrency
//!
//! While nobody waits and the search for the limit does not count, a request takes and releases its units by one
//! compare-and-swap of the [word](GateWord). All else happens under the lock of the [`Line`], whose holder first
//! [claims](Gate::claim) the word by its mark *Q*. From then on every other thread fails its compare-and-swap, finds
//! *Q* and waits for the lock, so the holder alone changes the word, until it stores it without *Q*. So a limit that
//! shrinks is in force at once, and no release is lost between two limits.
//!
//! Wakers run after the lock was released.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::PoisonError;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::Instant;

use super::controlled_delay::ControlledDelay;
use super::fair_queue::{Arrival, Departure, FairQueue, Order, Ticket};
use super::limit_search::LimitSearch;
use super::word::GateWord;
use super::worker_lag::WorkerLag;
use crate::store::OverloadStats;
use crate::util::sync::{AtomicU64, Mutex, Ordering, before_a_step};
use crate::util::wake::{let_others_take, wake_all};
use crate::values::{Priority, RequestEnd};

/// The settings that a live change may change.
#[derive(Clone, Debug)]
pub(super) struct GateSettings {
    pub(super) bounds: RangeInclusive<u64>,
    pub(super) queue_target: Duration,
    pub(super) max_queue: usize,
}

#[derive(Debug)]
pub(super) struct Gate {
    word: AtomicU64,
    pub(super) worker_lag: WorkerLag,
    line: Mutex<Line>,
    /// The number of the last change.
    changes: AtomicU64,
    /// Where its clock begins.
    origin: Instant,
}

/// The state behind the lock.
#[derive(Debug)]
struct Line {
    queue: FairQueue,
    /// Of each class: an important one is not overloaded because a lower one is.
    delays: [ControlledDelay; Priority::ALL.len()],
    search: LimitSearch,
    /// The requests that have left the queue, and do not know it yet.
    decided: HashMap<Ticket, Turn>,
    wakers: HashMap<Ticket, Waker>,
    max_queue: usize,
    /// The number of the change that was applied last.
    change: u64,
    is_closed: bool,
    shed: [u64; Priority::ALL.len()],
    shed_over_share: [u64; Priority::ALL.len()],
}

/// How a request has left the queue, or has passed it by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It has its units.
    Granted,
    /// It was shed. It may come back after this time, by an estimate; `None` if the estimate is unknown or below a
    /// second.
    Shed(Option<Duration>),
    Closed,
}

/// The number of a change. A later one has a greater number.
#[derive(Clone, Copy, Debug)]
pub(super) struct GateChange(u64);

/// An estimate below this helps no client: `Retry-After` counts whole seconds.
const SHORTEST_HINT: Duration = Duration::from_secs(1);

/// A longer estimate is cut to this: by then, the load is another.
const LONGEST_HINT: Duration = Duration::from_secs(30);

impl Gate {
    pub(super) fn new(settings: &GateSettings, start: u64) -> Self {
        let search = LimitSearch::new(settings.bounds.clone(), start);
        Self {
            word: AtomicU64::new(GateWord::new(search.limit()).bits()),
            worker_lag: WorkerLag::new(nanos(settings.queue_target)),
            line: Mutex::new(Line {
                queue: FairQueue::default(),
                delays: Priority::ALL.map(|_| ControlledDelay::new(nanos(settings.queue_target))),
                search,
                decided: HashMap::new(),
                wakers: HashMap::new(),
                max_queue: settings.max_queue,
                change: 0,
                is_closed: false,
                shed: Default::default(),
                shed_over_share: Default::default(),
            }),
            changes: AtomicU64::new(0),
            origin: Instant::now(),
        }
    }

    /// The present instant, in nanoseconds. Tokio's, so that the tests of users may pause it.
    pub(super) fn now(&self) -> u64 {
        nanos(self.origin.elapsed())
    }

    /// Acquire, as in a semaphore: a thread that takes units sees all writes of the requests that have released them.
    #[inline(always)]
    pub(super) fn word(&self) -> GateWord {
        before_a_step();
        GateWord::from_bits(self.word.load(Ordering::Acquire))
    }

    #[inline(always)]
    fn replace(&self, old: GateWord, new: GateWord) -> Result<(), GateWord> {
        before_a_step();
        let swapped = self.word.compare_exchange(old.bits(), new.bits(), Ordering::AcqRel, Ordering::Acquire);
        swapped.map(|_| ()).map_err(GateWord::from_bits)
    }

    /// Takes `cost` units, if they are free and nobody waits. Otherwise returns the word.
    #[inline]
    pub(super) fn take_at_once(&self, cost: u64) -> Result<GateWord, GateWord> {
        let mut word = self.word();
        loop {
            if word.is_queued() || !word.has_room(cost) {
                return Err(word);
            }
            let taken = word.with_units(word.units() + cost);
            match self.replace(word, taken) {
                Ok(()) => return Ok(taken),
                Err(now) => word = now,
            }
        }
    }

    /// Releases units of a request that is over.
    #[inline]
    pub(super) fn release(&self, units: u64, end: RequestEnd) {
        if !self.release_at_once(units) {
            self.release_and_count(self.now(), units, Some(end));
        }
    }

    /// Releases units of a request that was never served, since another policy has rejected it.
    pub(super) fn refund(&self, units: u64) {
        if !self.release_at_once(units) {
            self.release_and_count(self.now(), units, None);
        }
    }

    /// Releases units, unless the queue has to be asked.
    #[inline]
    fn release_at_once(&self, units: u64) -> bool {
        let mut word = self.word();
        while !word.is_queued() {
            debug_assert!(word.units() >= units, "{units} units are released, and {} are in flight", word.units());
            match self.replace(word, word.with_units(word.units().saturating_sub(units))) {
                Ok(()) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Marks the word, so that only the holder of the lock changes it. The lock is held.
    fn claim(&self) -> GateWord {
        let mut word = self.word();
        while !word.is_queued() {
            match self.replace(word, word.with_queue(true)) {
                Ok(()) => return word.with_queue(true),
                Err(now) => word = now,
            }
        }
        word
    }

    /// Changes the line under its lock, then hands out units that are free and sheds requests that have waited for too
    /// long. `change` may change the word, which it owns.
    fn locked<T>(&self, now: u64, change: impl FnOnce(&mut Line, &mut GateWord, &mut Vec<Waker>) -> T) -> T {
        let mut wakers = Vec::new();
        let result = {
            let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
            let mut word = self.claim();
            let result = change(&mut line, &mut word, &mut wakers);
            line.settle(now, &mut word, &mut wakers);
            before_a_step();
            self.word.store(word.bits(), Ordering::Release);
            result
        };
        let has_woken = !wakers.is_empty();
        wake_all(wakers);
        if has_woken {
            let_others_take();
        }
        result
    }

    #[cold]
    #[inline(never)]
    fn release_and_count(&self, now: u64, units: u64, end: Option<RequestEnd>) {
        self.locked(now, |line, word, _| {
            *word = word.with_units(word.units().saturating_sub(units));
            if let Some(end) = end {
                line.search.count(now, units, end == RequestEnd::Served, !line.queue.is_empty());
            }
        });
    }

    /// Takes the units of a request, or gives it a place in the queue; the error is its turn, if it need not wait.
    #[cold]
    #[inline(never)]
    pub(super) fn enter(&self, arrival: Arrival) -> Result<Ticket, Turn> {
        let now = self.now();
        self.locked(now, |line, word, wakers| {
            if line.queue.is_empty() && word.has_room(arrival.cost) {
                *word = word.with_units(word.units() + arrival.cost);
                return Err(Turn::Granted);
            }
            if line.is_closed {
                return Err(Turn::Closed);
            }
            let ticket = line.queue.push(arrival);
            if line.queue.len() <= line.max_queue {
                return Ok(ticket);
            }
            // The request that would be served last gives way: perhaps the newcomer.
            let lowest = line.queue.lowest();
            match lowest.and_then(|class| line.queue.pop_last(class, line.order(now, class))) {
                Some(last) if last.ticket == ticket => Err(Turn::Shed(line.note_shed(&last))),
                Some(last) => {
                    line.shed(&last, wakers);
                    Ok(ticket)
                }
                None => Ok(ticket),
            }
        })
    }

    /// Returns how the wait has ended, or keeps the waker.
    pub(super) fn poll(&self, ticket: Ticket, context: &Context<'_>) -> Poll<Turn> {
        // Wakers are foreign code, which may drop a task with another waiter: cloned before the lock, dropped after it.
        let waker = context.waker().clone();
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = line.decided.remove(&ticket) {
            return Poll::Ready(turn);
        }
        let before = line.wakers.insert(ticket, waker);
        drop(line);
        drop(before);
        Poll::Pending
    }

    /// Takes a request out of the queue that does not wait any longer, and counts it as shed if it was not dropped.
    /// Returns how its wait has ended: perhaps its turn has come meanwhile.
    pub(super) fn leave(&self, ticket: Ticket, is_shed: bool) -> Option<Turn> {
        let (turn, _waker) = self.locked(self.now(), |line, _, _| {
            let waker = line.wakers.remove(&ticket);
            let turn = line.decided.remove(&ticket).or_else(|| {
                let left = line.queue.remove(ticket)?;
                is_shed.then(|| Turn::Shed(line.note_shed(&left)))
            });
            (turn, waker)
        });
        turn
    }

    /// Begins a change of the settings, which is later than all that were begun before.
    pub(super) fn begin_change(&self) -> GateChange {
        GateChange(self.changes.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Applies other settings, unless a later change was applied already.
    pub(super) fn change(&self, change: GateChange, settings: &GateSettings) {
        self.locked(self.now(), |line, _, _| {
            if change.0 < line.change {
                return;
            }
            line.change = change.0;
            line.search.set_bounds(settings.bounds.clone());
            line.delays.iter_mut().for_each(|delay| delay.set_target(nanos(settings.queue_target)));
            line.max_queue = settings.max_queue;
            self.worker_lag.set_target(nanos(settings.queue_target));
        });
    }

    /// Ends all waits, and lets no request wait any more.
    pub(super) fn close(&self) {
        self.locked(self.now(), |line, _, wakers| {
            line.is_closed = true;
            for ticket in line.queue.drain() {
                line.decide(ticket, Turn::Closed, wakers);
            }
        });
    }

    /// The number of requests that wait.
    pub(super) fn waiting(&self) -> usize {
        self.line.lock().unwrap_or_else(PoisonError::into_inner).queue.len()
    }

    pub(super) fn stats(&self) -> OverloadStats {
        let now = self.now();
        let line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        OverloadStats {
            limit: line.search.limit(),
            is_overloaded: line.delays.iter().any(|delay| delay.is_overloaded(now)),
            waiting: line.queue.lens(),
            shed: line.shed,
            shed_over_share: line.shed_over_share,
            ..OverloadStats::default()
        }
    }

    /// Whether nothing is kept of any request.
    #[cfg(all(test, not(sluice_loom)))]
    pub(super) fn is_empty(&self) -> bool {
        let line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        line.queue.is_blank() && line.decided.is_empty() && line.wakers.is_empty()
    }

    /// Panics if an invariant is broken. No other thread must use the gate meanwhile.
    #[cfg(test)]
    pub(super) fn check(&self, units: u64) {
        let line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let word = self.word();
        assert_eq!(word.units(), units, "units in flight");
        assert_eq!(word.limit(), line.search.limit());
        assert_eq!(word.is_queued(), !line.queue.is_empty() || line.search.is_counting());
        if let Some((_, cost)) = line.next(0) {
            assert!(!word.has_room(cost), "there is room for the next request");
        }
    }
}

impl Line {
    fn delay(&mut self, class: Priority) -> &mut ControlledDelay {
        &mut self.delays[class as usize]
    }

    /// The order in which a class is served: the newest first while it is overloaded.
    fn order(&self, now: u64, class: Priority) -> Order {
        if self.delays[class as usize].is_overloaded(now) { Order::NewestFirst } else { Order::OldestFirst }
    }

    /// The request that is served next, and its cost.
    fn next(&self, now: u64) -> Option<(Ticket, u64)> {
        let class = self.queue.highest()?;
        self.queue.next(class, self.order(now, class))
    }

    /// Sheds the requests that have waited for too long, and then hands out the units that are free.
    fn settle(&mut self, now: u64, word: &mut GateWord, wakers: &mut Vec<Waker>) {
        for class in Priority::ALL {
            self.observe(now, class);
            while let Some(old) = self.pop_late(now, class) {
                self.shed(&old, wakers);
                self.observe(now, class);
            }
        }
        *word = word.with_limit(self.search.limit());
        while let Some((ticket, cost)) = self.next(now).filter(|(_, cost)| word.has_room(*cost)) {
            self.queue.serve(ticket);
            *word = word.with_units(word.units() + cost);
            self.decide(ticket, Turn::Granted, wakers);
            self.observe(now, ticket.priority);
        }
        *word = word.with_queue(!self.queue.is_empty() || self.search.is_counting());
    }

    /// Tells the delay of a class of its queue.
    fn observe(&mut self, now: u64, class: Priority) {
        let oldest = self.queue.oldest(class);
        self.delay(class).observe(now, oldest);
    }

    /// Removes the oldest request of a class, if the class is overloaded and the request has waited for too long.
    fn pop_late(&mut self, now: u64, class: Priority) -> Option<Departure> {
        let before = self.delay(class).shed_before(now)?;
        self.queue.pop_before(class, before)
    }

    fn decide(&mut self, ticket: Ticket, turn: Turn, wakers: &mut Vec<Waker>) {
        self.decided.insert(ticket, turn);
        wakers.extend(self.wakers.remove(&ticket));
    }

    fn shed(&mut self, departure: &Departure, wakers: &mut Vec<Waker>) {
        let hint = self.note_shed(departure);
        self.decide(departure.ticket, Turn::Shed(hint), wakers);
    }

    /// Counts a request that was shed. Returns the estimate after which it would be served: the time in which the
    /// requests that are before it end.
    fn note_shed(&mut self, departure: &Departure) -> Option<Duration> {
        let counts = if departure.is_over_share { &mut self.shed_over_share } else { &mut self.shed };
        counts[departure.ticket.priority as usize] += 1;
        let before = self.queue.units_from(departure.ticket.priority).saturating_add(departure.cost);
        let wait = Duration::from_nanos(self.search.time_of(before)?);
        (wait >= SHORTEST_HINT).then(|| wait.min(LONGEST_HINT))
    }
}

/// Saturates at 584 years.
fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
