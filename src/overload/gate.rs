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
use std::sync::atomic::AtomicU64 as Count;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::Instant;

use super::InFlight;
use super::controlled_delay::ControlledDelay;
use super::fair_queue::{Arrival, Departure, FairQueue, Order, Ticket};
use super::reserve::{self, Reserve};
use super::search::Search;
use super::stalled::{Bodies, StalledUnits};
use super::word::GateWord;
use super::worker_lag::WorkerLag;
use crate::store::OverloadStats;
use crate::util::sync::{AtomicU32, AtomicU64, Mutex, Ordering, before_a_step};
use crate::util::wake::{let_others_take, wake_all};
use crate::values::{PartitionKey, Priority, RequestEnd, ShedsAnybody};

/// The settings that a live change may change.
#[derive(Clone, Debug)]
pub(super) struct GateSettings {
    pub(super) bounds: RangeInclusive<u64>,
    pub(super) queue_target: Duration,
    pub(super) max_wait: Duration,
    pub(super) max_queue: usize,
}

#[derive(Debug)]
pub(super) struct Gate {
    word: AtomicU64,
    pub(super) worker_lag: WorkerLag,
    line: Mutex<Line>,
    /// The bodies whose requests hold units.
    pub(super) bodies: Bodies,
    /// The last change's number.
    changes: AtomicU64,
    /// Not zero while each request that finds the limit full is shed, because no request may wait. Written under the
    /// lock. Relaxed: a thread that reads an old value sheds as if it had come before the change, or asks the line.
    sheds_at_once: AtomicU32,
    /// The requests per class that were shed without the lock. Relaxed: nothing is published through them.
    shed_unlocked: [Count; Priority::ALL.len()],
    /// Where its clock begins.
    origin: Instant,
}

/// The state behind the lock.
#[derive(Debug)]
struct Line {
    queue: FairQueue,
    /// One per class, so that overload in a low class does not mark a higher one as overloaded.
    delays: [ControlledDelay; Priority::ALL.len()],
    queue_target: u64,
    longest_wait: u64,
    search: Search,
    reserve: Reserve,
    /// The units that were taken back from bodies that stand still.
    stalled: StalledUnits,
    /// The requests that have left the queue, and do not know it yet.
    decided: HashMap<Ticket, Turn>,
    wakers: HashMap<Ticket, Waker>,
    max_queue: usize,
    /// The number that the last applied change has.
    change: u64,
    is_closed: bool,
    shed: [u64; Priority::ALL.len()],
    shed_over_share: [u64; Priority::ALL.len()],
}

/// How a request has left the queue, or has passed it by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It has its units.
    Granted(InFlight),
    /// It was shed. It may come back after this time, by an estimate; `None` if the estimate is unknown or below a
    /// second.
    Shed(Option<Duration>),
    Closed,
}

/// A change's number. Later changes have greater numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct GateChange(u64);

/// An estimate below this helps no client: `Retry-After` counts whole seconds.
const SHORTEST_HINT: Duration = Duration::from_secs(1);

/// A longer estimate is cut to this: by then, the load is another.
const LONGEST_HINT: Duration = Duration::from_secs(30);

impl Gate {
    pub(super) fn new(settings: &GateSettings, start: u64) -> Self {
        let search = Search::new(settings.bounds.clone(), start);
        Self {
            word: AtomicU64::new(GateWord::new(search.limit()).bits()),
            worker_lag: WorkerLag::new(nanos(settings.queue_target)),
            line: Mutex::new(Line {
                queue: FairQueue::default(),
                delays: Priority::ALL
                    .map(|_| ControlledDelay::new(nanos(settings.queue_target), nanos(settings.max_wait))),
                queue_target: nanos(settings.queue_target),
                longest_wait: nanos(settings.max_wait),
                search,
                reserve: Reserve::default(),
                stalled: StalledUnits::default(),
                decided: HashMap::new(),
                wakers: HashMap::new(),
                max_queue: settings.max_queue,
                change: 0,
                is_closed: false,
                shed: Default::default(),
                shed_over_share: Default::default(),
            }),
            bodies: Bodies::default(),
            changes: AtomicU64::new(0),
            sheds_at_once: AtomicU32::new(u32::from(settings.max_queue == 0)),
            shed_unlocked: Priority::ALL.map(|_| Count::new(0)),
            origin: Instant::now(),
        }
    }

    /// The present instant, in nanoseconds. By tokio's clock, so that your tests may pause it.
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

    /// Takes `cost` units, if they are free without the reserve, and nobody waits. Otherwise returns the word.
    #[inline]
    pub(super) fn take_at_once(&self, cost: u64) -> Result<GateWord, GateWord> {
        self.take_if(cost, |word| !reserve::is_needed(word, cost))
    }

    /// Takes `cost` units for a request that never waits, if they are free and nobody waits.
    pub(super) fn take_in_shadow(&self, cost: u64) -> Result<GateWord, GateWord> {
        let taken = self.take_if(cost, |word| word.has_room(cost));
        // Perhaps nobody waits, and the search counts: for a limiter that others enforce.
        taken.or_else(|word| if word.is_queued() { self.take_in_turn(cost) } else { Err(word) })
    }

    #[cold]
    fn take_in_turn(&self, cost: u64) -> Result<GateWord, GateWord> {
        self.locked(self.now(), |line, word, _| {
            if !line.queue.is_empty() || !word.has_room(cost) {
                return Err(*word);
            }
            *word = word.with_units(word.units() + cost);
            Ok(*word)
        })
    }

    #[inline(always)]
    fn take_if(&self, cost: u64, is_free: impl Fn(GateWord) -> bool) -> Result<GateWord, GateWord> {
        let mut word = self.word();
        loop {
            if word.is_queued() || !is_free(word) {
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
    pub(super) fn release(&self, key: &PartitionKey, units: u64, held: InFlight, end: RequestEnd) {
        if held.is_marked() || end == RequestEnd::Abandoned || !self.release_at_once(units) {
            self.release_and_count(key, (units, held), Some(end));
        }
    }

    /// Releases units of a request that was never served, since another policy has rejected it.
    pub(super) fn refund(&self, key: &PartitionKey, units: u64, held: InFlight) {
        if held.is_marked() || !self.release_at_once(units) {
            self.release_and_count(key, (units, held), None);
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
            self.sheds_at_once.store(u32::from(line.sheds_at_once()), Ordering::Relaxed);
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
    fn release_and_count(&self, key: &PartitionKey, (units, held): (u64, InFlight), end: Option<RequestEnd>) {
        let now = self.now();
        self.locked(now, |line, word, _| {
            let is_binding = !line.queue.is_empty();
            let end = end.filter(|_| held != InFlight::SHADOW);
            if let Some(end) = end {
                line.search.note_end(now, key, word.units(), held.followed(), end);
            }
            *word = word.with_units(word.units().saturating_sub(units));
            if held.is_reserved() {
                line.reserve.release(key, units);
            }
            match (end, held.followed()) {
                (Some(end), followed) => {
                    line.search.count(now, key, (units, followed), end, is_binding);
                }
                (None, Some(followed)) => line.search.forget(key, followed),
                (None, None) => {}
            }
        });
    }

    /// Whether every request that finds this word is shed: the limit is full, no request may wait, and no units can be
    /// taken back from bodies that stand still.
    #[inline]
    pub(super) fn sheds_anybody(&self, word: GateWord, cost: u64) -> bool {
        let sheds_at_once = self.sheds_at_once.load(Ordering::Relaxed) != 0;
        sheds_at_once && !word.has_room(cost) && !self.bodies.are_due(|| self.now())
    }

    /// Counts a request that was shed for this reason, without the lock.
    #[inline]
    pub(super) fn count_unlocked_shed(&self, class: Priority) {
        self.shed_unlocked[class as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Takes a request's units, or gives it a place in the queue; the error is its turn, if it need not wait.
    #[cold]
    #[inline(never)]
    pub(super) fn enter(&self, arrival: Arrival) -> Result<Ticket, Turn> {
        let now = self.now();
        self.locked(now, |line, word, wakers| {
            let is_free = |line: &Line, word: &GateWord| {
                line.queue.is_empty() && line.may_be_served(*word, &arrival.key, arrival.cost)
            };
            if !is_free(line, word) {
                self.bodies.take_back(now, word, &mut line.stalled);
            }
            if is_free(line, word) {
                return Err(Turn::Granted(line.grant(now, word, &arrival.key, arrival.cost)));
            }
            if line.is_closed {
                return Err(Turn::Closed);
            }
            if line.stalled.is_full(&arrival.key, word.limit()) {
                line.shed_over_share[arrival.priority as usize] += 1;
                return Err(Turn::Shed(None));
            }
            if line.max_queue == 0 {
                line.shed[arrival.priority as usize] += 1;
                return Err(Turn::Shed(None));
            }
            line.delay(arrival.priority).join();
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
        let now = self.now();
        let (turn, _waker) = self.locked(now, |line, _, _| {
            let waker = line.wakers.remove(&ticket);
            let turn = line.decided.remove(&ticket).or_else(|| {
                let left = line.queue.remove(ticket)?;
                if is_shed {
                    return Some(Turn::Shed(line.note_shed(&left)));
                }
                line.delay(ticket.priority).withdraw(now, left.arrived);
                None
            });
            (turn, waker)
        });
        turn
    }

    /// Takes back the units from bodies that stand still, for requests that wait.
    pub(super) fn look_at_bodies(&self) {
        let now = self.now();
        if self.bodies.is_due(now) {
            self.locked(now, |line, word, _| self.bodies.take_back(now, word, &mut line.stalled));
        }
    }

    /// Ends a request whose units were taken back: they no longer count for the key.
    pub(super) fn end_stalled(&self, key: &PartitionKey, units: u64, held: InFlight) {
        // With this, the key may have its part of the reserve again.
        self.locked(self.now(), |line, _, _| {
            line.stalled.end(key, units);
            if held.is_reserved() {
                line.reserve.release(key, units);
            }
            if let Some(followed) = held.followed() {
                line.search.forget(key, followed);
            }
        });
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
            (line.queue_target, line.longest_wait) = (nanos(settings.queue_target), nanos(settings.max_wait));
            line.delays.iter_mut().for_each(|delay| delay.set_longest_wait(nanos(settings.max_wait)));
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
        let at_once = |class: Priority| self.shed_unlocked[class as usize].load(Ordering::Relaxed);
        OverloadStats {
            limit: line.search.limit(),
            is_overloaded: Priority::ALL.into_iter().any(|class| line.is_overloaded(now, class)),
            waiting: line.queue.lens(),
            shed: Priority::ALL.map(|class| line.shed[class as usize] + at_once(class)),
            shed_over_share: line.shed_over_share,
            ..OverloadStats::default()
        }
    }

    /// Whether nothing is kept about any request.
    #[cfg(all(test, not(sluice_loom)))]
    pub(super) fn is_empty(&self) -> bool {
        let line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let has_bodies = !self.bodies.is_empty() || !line.stalled.is_empty();
        line.queue.is_blank() && line.decided.is_empty() && line.wakers.is_empty() && !has_bodies
    }

    /// Panics if an invariant is broken. No other thread must use the gate meanwhile.
    #[cfg(test)]
    pub(super) fn check(&self, units: u64) {
        let line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let word = self.word();
        assert_eq!(word.units(), units, "units in flight");
        assert_eq!(word.limit(), line.search.limit());
        assert_eq!(word.is_queued(), !line.queue.is_empty() || line.search.is_counting());
        // The order may have changed with the time since the line was settled.
        let orders = [Order::OldestFirst, Order::NewestFirst];
        let has_room = |order| line.next_in(order, word).is_some();
        assert!(!orders.into_iter().all(has_room), "there is room for the next request");
    }
}

impl ShedsAnybody for Gate {
    #[inline]
    fn sheds_anybody(&self, cost: u64) -> bool {
        // An arrival may have to start a probe.
        !self.worker_lag.is_watched() && Self::sheds_anybody(self, self.word(), cost)
    }

    #[inline]
    fn count_shed(&self, class: Priority) {
        self.count_unlocked_shed(class);
    }
}

impl Line {
    /// Whether each request that finds the limit full is shed. A key that has units from stalled bodies is shed for
    /// another reason, which is counted separately.
    fn sheds_at_once(&self) -> bool {
        self.max_queue == 0 && !self.is_closed && self.stalled.is_empty()
    }

    fn delay(&mut self, class: Priority) -> &mut ControlledDelay {
        &mut self.delays[class as usize]
    }

    /// The order in which a class is served: the newest first while it is overloaded, unless hardly any more come.
    fn order(&self, now: u64, class: Priority) -> Order {
        let delay = &self.delays[class as usize];
        if delay.is_overloaded(now) && !delay.is_draining(now) { Order::NewestFirst } else { Order::OldestFirst }
    }

    /// While no limit is known, a queue may also say that the limit is too low, so nothing is shed.
    fn is_overloaded(&self, now: u64, class: Priority) -> bool {
        self.search.is_known() && self.delays[class as usize].is_overloaded(now)
    }

    /// The request that may be served now: in the highest class, from the key whose turn it is, unless that key has its
    /// share of the reserve.
    fn next_to_serve(&self, now: u64, word: GateWord) -> Option<(Ticket, u64, PartitionKey)> {
        self.next_in(self.order(now, self.queue.highest()?), word)
    }

    fn next_in(&self, order: Order, word: GateWord) -> Option<(Ticket, u64, PartitionKey)> {
        let class = self.queue.highest()?;
        // A dear request is not passed over by cheap ones, or it would wait for ever.
        self.queue.next(class, order).filter(|(_, cost)| word.has_room(*cost))?;
        let may_be = |key: &PartitionKey, cost| self.may_be_served(word, key, cost);
        let (ticket, cost, key) = self.queue.next_of(class, order, may_be)?;
        Some((ticket, cost, key.clone()))
    }

    fn may_be_served(&self, word: GateWord, key: &PartitionKey, cost: u64) -> bool {
        word.has_room(cost) && (!reserve::is_needed(word, cost) || self.reserve.has_room(word, key, cost))
    }

    /// Takes the units of a request that may be served.
    fn grant(&mut self, now: u64, word: &mut GateWord, key: &PartitionKey, cost: u64) -> InFlight {
        let is_reserved = reserve::is_needed(*word, cost);
        if is_reserved {
            self.reserve.take(now, key, cost);
        }
        *word = word.with_units(word.units() + cost);
        // The limit binds: it is full, or others wait that have their share of the reserve.
        let is_full = !word.has_room(1) || !self.queue.is_empty();
        let followed = self.search.follow(now, key, is_full);
        InFlight::new(followed, is_reserved)
    }

    /// Sheds the requests that have waited for too long, and then hands out the units that are free.
    fn settle(&mut self, now: u64, word: &mut GateWord, wakers: &mut Vec<Waker>) {
        // A wait of a quarter of a request's time isn't long. Above half of the longest wait, we would find few
        // requests that have waited for twice the target.
        let target = (self.search.time_of_one() / 4).min(self.longest_wait / 2).max(self.queue_target);
        self.delays.iter_mut().for_each(|delay| delay.set_target(target));
        for class in Priority::ALL {
            self.observe(now, class);
            while let Some(old) = self.pop_late(now, class) {
                self.shed(&old, wakers);
                self.observe(now, class);
            }
        }
        if !self.queue.is_empty() {
            self.search.look(now, self.longest_wait / 2);
        }
        *word = word.with_limit(self.search.limit());
        while let Some((ticket, cost, key)) = self.next_to_serve(now, *word) {
            self.queue.serve(ticket);
            self.delay(ticket.priority).serve();
            let held = self.grant(now, word, &key, cost);
            self.decide(ticket, Turn::Granted(held), wakers);
            self.observe(now, ticket.priority);
        }
        *word = word.with_queue(!self.queue.is_empty() || self.search.is_counting());
    }

    /// Reports a class's queue to its delay.
    fn observe(&mut self, now: u64, class: Priority) {
        let oldest = self.queue.oldest(class);
        self.delay(class).observe(now, oldest);
    }

    /// Removes the oldest request of a class, if the class is overloaded and the request has waited for too long.
    fn pop_late(&mut self, now: u64, class: Priority) -> Option<Departure> {
        if !self.search.is_known() {
            return None;
        }
        let served: u64 = self.delays.iter().map(ControlledDelay::served_in_longest_wait).sum();
        let is_hopeful = self.queue.len_from(class) <= served;
        let before = self.delay(class).shed_before(now, is_hopeful)?;
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
