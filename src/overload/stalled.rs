//! Bodies whose reader does not take the next frame: their units stop counting against the limit.
//!
//! A server polls a body when it can send. To a client that lets it send nothing, the body stands still, nobody works
//! on it, and yet it would hold its units until the client disconnects. So when a request has to wait, the gate looks
//! at the bodies that hold units, and takes back the units of each whose reader has been silent for [`SILENCE`]. A body
//! that is pending itself, since its handler still works, is not silent.
//!
//! Units that were taken back count for their key until the request ends, even if the reader goes on: a client that
//! reads one frame now and then cannot hold them again. If a key has the whole limit in such units, it does not wait
//! for more. This does not apply to the key that all clients share, because one client could shut out the others.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::ops::DerefMut;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::Overload;
use super::gate::Gate;
use super::word::GateWord;
use crate::util::sync::{AtomicU64, Mutex, Ordering};
use crate::values::{PartitionKey, Receipt, WatchedBody, WatchesBodies};

/// After this time, a reader is silent. It equals the time for which a queue may be too long before its class is
/// [overloaded](super::controlled_delay::INTERVAL), so that bodies which stand still are found before requests are
/// shed. Longer than the round trip in which a usual client opens its window, and than a worker lets a ready task wait.
const SILENCE: u64 = super::controlled_delay::INTERVAL;

/// The pause between two looks, because the gate looks at all bodies that hold units.
const PAUSE: u64 = SILENCE / 4;

const NEVER: u64 = u64::MAX;

/// The number of locks, so that the responses of several workers rarely want the same one.
const SHARDS: usize = if cfg!(sluice_loom) { 1 } else { 16 };

/// The bodies that hold units.
pub(super) struct Bodies {
    shards: [Mutex<Places>; SHARDS],
    /// When the next look is due, in nanoseconds: before, no reader will have been silent for long enough. [`NEVER`]
    /// until the first body comes, so that requests that wait do not wake up for nothing where there are none.
    next_look: AtomicU64,
}

/// Some of the bodies. A free place is used again, so that nothing is allocated while bodies come and go at one rate.
#[derive(Default)]
struct Places {
    places: Vec<Option<Arc<dyn WatchedBody>>>,
    free: Vec<usize>,
}

impl Default for Bodies {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::new(Places::default())), next_look: AtomicU64::new(NEVER) }
    }
}

impl Bodies {
    fn lock(&self, shard: usize) -> impl DerefMut<Target = Places> + '_ {
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn watch(&self, body: Arc<dyn WatchedBody>) -> usize {
        // By its cache line: allocators give each thread its own memory.
        let shard = Arc::as_ptr(&body).addr() / 64 % SHARDS;
        if self.next_look.load(Ordering::Relaxed) == NEVER {
            self.next_look.store(0, Ordering::Relaxed);
        }
        self.lock(shard).put(body) * SHARDS + shard
    }

    pub(super) fn forget(&self, place: usize, body: &dyn WatchedBody) {
        let forgotten = self.lock(place % SHARDS).remove(place / SHARDS, body);
        // Dropped after the lock was released.
        drop(forgotten);
    }

    /// The time from `now` to the next look: [`SILENCE`] at most, once there was a body.
    pub(super) fn next_look(&self, now: u64) -> Duration {
        match self.next_look.load(Ordering::Relaxed) {
            NEVER => Duration::MAX,
            next => Duration::from_nanos(next.saturating_sub(now).min(SILENCE)),
        }
    }

    /// Whether a look may find something.
    pub(super) fn is_due(&self, now: u64) -> bool {
        self.are_due(|| now)
    }

    /// Whether a look may find something now. The clock is read only if there was a body.
    pub(super) fn are_due(&self, now: impl FnOnce() -> u64) -> bool {
        let next_look = self.next_look.load(Ordering::Relaxed);
        next_look != NEVER && now() >= next_look
    }

    /// Takes back the units of bodies whose reader has been silent for too long, if a look is due. The gate's lock is
    /// held, and the word is claimed.
    pub(super) fn take_back(&self, now: u64, word: &mut GateWord, stalled: &mut StalledUnits) {
        if !self.is_due(now) {
            return;
        }
        let mut forgotten = Vec::new();
        let mut next_look = now.saturating_add(SILENCE);
        for shard in 0..SHARDS {
            let mut places = self.lock(shard);
            for index in 0..places.places.len() {
                let Some(body) = &places.places[index] else { continue };
                let Some(since) = body.silent_since() else { continue };
                let until = since.saturating_add(SILENCE);
                if until > now {
                    next_look = next_look.min(until);
                } else if let Some((key, units)) = body.take_back(since) {
                    *word = word.with_units(word.units().saturating_sub(units));
                    stalled.add(key, units);
                    forgotten.extend(places.free(index));
                }
            }
        }
        self.next_look.store(next_look.max(now.saturating_add(PAUSE)), Ordering::Relaxed);
        drop(forgotten);
    }

    /// Whether no body is watched.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        (0..SHARDS).all(|shard| self.lock(shard).places.iter().all(Option::is_none))
    }
}

impl Places {
    fn put(&mut self, body: Arc<dyn WatchedBody>) -> usize {
        if let Some(index) = self.free.pop() {
            self.places[index] = Some(body);
            return index;
        }
        self.places.push(Some(body));
        // So that `free`, which is called while a request ends, allocates nothing.
        self.free.reserve(self.places.len());
        self.places.len() - 1
    }

    fn free(&mut self, index: usize) -> Option<Arc<dyn WatchedBody>> {
        let body = self.places.get_mut(index)?.take()?;
        self.free.push(index);
        Some(body)
    }

    /// Frees a place, unless the body has lost it because its units were taken back.
    fn remove(&mut self, index: usize, body: &dyn WatchedBody) -> Option<Arc<dyn WatchedBody>> {
        let is_there = self.places.get(index)?.as_ref().is_some_and(|it| std::ptr::addr_eq(Arc::as_ptr(it), body));
        if is_there { self.free(index) } else { None }
    }
}

/// The units that were taken back, by key, until their requests end: an entry for each key that has some.
#[derive(Debug, Default)]
pub(super) struct StalledUnits(HashMap<PartitionKey, u64>);

impl StalledUnits {
    fn add(&mut self, key: &PartitionKey, units: u64) {
        *self.0.entry(key.clone()).or_default() += units;
    }

    pub(super) fn end(&mut self, key: &PartitionKey, units: u64) {
        if let Some(left) = self.0.get_mut(key) {
            *left = left.saturating_sub(units);
            if *left == 0 {
                self.0.remove(key);
            }
        }
    }

    /// Whether a key's stalled units reach the limit. For the key that all clients share, they never do.
    pub(super) fn is_full(&self, key: &PartitionKey, limit: u64) -> bool {
        !self.0.is_empty() && *key != PartitionKey::SHARED && self.0.get(key).is_some_and(|units| *units >= limit)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl WatchesBodies for Gate {
    fn now(&self) -> u64 {
        Self::now(self)
    }

    fn watch(&self, body: Arc<dyn WatchedBody>) -> usize {
        self.bodies.watch(body)
    }

    fn forget(&self, place: usize, body: &dyn WatchedBody) {
        self.bodies.forget(place, body);
    }

    fn end(&self, key: &PartitionKey, units: u64, receipt: Receipt) {
        self.end_stalled(key, units, receipt.read().unwrap_or_default());
    }
}

impl Overload {
    /// The watcher for response bodies whose requests hold units from `limiter`.
    pub(super) fn find_watcher(limiter: &dyn Any) -> Option<Arc<dyn WatchesBodies>> {
        let gate = Arc::clone(limiter.downcast_ref::<Self>()?.gate());
        Some(gate)
    }
}

impl fmt::Debug for Bodies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bodies").finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "http", not(sluice_loom)))]
mod tests {
    use std::num::NonZeroU32;

    use proptest::prelude::*;
    use tokio::time::{advance, timeout};

    use super::super::InFlight;
    use super::super::fair_queue::Arrival;
    use super::super::gate::Turn;
    use super::*;
    use crate::limiter::{Limiter, LimiterExt, Permit, WatchedUnits};
    use crate::util::cases::cases;
    use crate::values::{Ask, Mode, Priority, RequestEnd};

    const MS: Duration = Duration::from_millis(1);

    fn overload(limit: u64) -> Overload {
        Overload::new().limits(limit..=limit)
    }

    fn key(number: u64) -> PartitionKey {
        number.into()
    }

    fn arrival(key: &PartitionKey, cost: u64, at: u64) -> Arrival {
        Arrival { key: key.clone(), priority: Priority::Normal, weight: NonZeroU32::MIN, cost, at }
    }

    /// A request whose head was sent.
    struct Body {
        units: Arc<WatchedUnits>,
        place: usize,
        key: PartitionKey,
        cost: u64,
        held: InFlight,
    }

    impl Body {
        /// A body whose request takes units that are free.
        fn begin(gate: &Arc<Gate>, key: PartitionKey, cost: u64) -> Option<Self> {
            let held = match gate.take_at_once(cost) {
                Ok(_) => InFlight::default(),
                // It needs the reserve.
                Err(word) if word.has_room(cost) => match gate.enter(arrival(&key, cost, gate.now())) {
                    Err(Turn::Granted(held)) => held,
                    Err(_) => return None,
                    // Others wait, or the key has its part of the reserve.
                    Ok(ticket) => match gate.leave(ticket, false) {
                        Some(Turn::Granted(held)) => held,
                        _ => return None,
                    },
                },
                Err(_) => return None,
            };
            Some(Self::of(gate, key, cost, held))
        }

        /// The body of a request that has its units.
        fn of(gate: &Arc<Gate>, key: PartitionKey, cost: u64, held: InFlight) -> Self {
            let watcher = Arc::clone(gate) as Arc<dyn WatchesBodies>;
            let units = Arc::new(WatchedUnits::new(watcher, key.clone(), cost));
            units.hand_over();
            let place = WatchesBodies::watch(&**gate, Arc::clone(&units) as Arc<dyn WatchedBody>);
            Self { units, place, key, cost, held }
        }

        fn end(self, gate: &Gate) {
            let is_taken_back = self.units.end();
            WatchesBodies::forget(gate, self.place, &*self.units);
            if is_taken_back {
                WatchesBodies::end(gate, &self.key, self.cost, Receipt::from_proof(self.held));
            } else {
                gate.release(&self.key, self.cost, self.held, RequestEnd::Served);
            }
        }
    }

    fn in_flight(overload: &Overload) -> u64 {
        overload.stats().in_flight.unwrap()
    }

    /// Acquires a unit, and returns the time that took, in milliseconds.
    async fn wait_for_unit(overload: &Overload, number: u64) -> (Option<Permit<&Overload>>, u128) {
        let since = tokio::time::Instant::now();
        let permit = overload.acquire(&key(number), 1).await.unwrap().admitted();
        (permit, since.elapsed().as_millis())
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_body_lets_a_waiter_pass() {
        let overload = overload(1);
        let gate = Arc::clone(overload.gate());
        let body = Body::begin(&gate, key(1), 1).unwrap();
        // Nothing else happens: the request that waits looks itself.
        let (permit, waited) = wait_for_unit(&overload, 2).await;
        assert!(permit.is_some() && (100..=126).contains(&waited), "{waited} ms");
        assert_eq!(in_flight(&overload), 1);
        drop(permit);
        body.end(&gate);
        gate.check(0);
        assert!(gate.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_silent_before_delay_nobody() {
        for places in [1_024, 0] {
            let overload = overload(2).max_queue(places);
            let gate = Arc::clone(overload.gate());
            let bodies = [1, 1].map(|number| Body::begin(&gate, key(number), 1).unwrap());
            advance(100 * MS).await;
            let (permit, waited) = wait_for_unit(&overload, 2).await;
            assert!(permit.is_some() && waited == 0, "{waited} ms");
            bodies.into_iter().for_each(|body| body.end(&gate));
            drop(permit);
            gate.check(0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_works_keeps_its_unit() {
        let overload = overload(1).queue_target(Duration::from_secs(60)).max_wait(Duration::from_secs(10));
        let gate = Arc::clone(overload.gate());
        let body = Body::begin(&gate, key(1), 1).unwrap();
        // The server polls it, and it is pending.
        body.units.resume();
        assert!(wait_for_unit(&overload, 2).await.0.is_none());
        // A frame each 90 ms.
        let slow_reader = async {
            for _ in 0..20 {
                body.units.hand_over();
                tokio::time::sleep(90 * MS).await;
                body.units.resume();
            }
        };
        let waiting = async { timeout(1_800 * MS, wait_for_unit(&overload, 2)).await.is_err() };
        assert!(tokio::join!(slow_reader, waiting).1);
        assert_eq!(in_flight(&overload), 1);
        body.end(&gate);
        gate.check(0);
        assert!(gate.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn resumed_readers_take_no_unit_again() {
        let overload = overload(1);
        let gate = Arc::clone(overload.gate());
        let body = Body::begin(&gate, key(1), 1).unwrap();
        let (permit, _) = wait_for_unit(&overload, 2).await;
        body.units.resume();
        body.units.hand_over();
        drop(permit);
        gate.check(0);
        let (permit, waited) = wait_for_unit(&overload, 2).await;
        assert!(permit.is_some() && waited == 0);
        drop(permit);
        body.end(&gate);
        gate.check(0);
        assert!(gate.is_empty());
    }

    /// If a key's stalled units reach the limit, its requests pass only while nobody has to wait.
    #[tokio::test(start_paused = true)]
    async fn stalled_keys_do_not_wait() {
        let overload = overload(2);
        let gate = Arc::clone(overload.gate());
        let mut bodies: Vec<_> = (0..2).map(|_| Body::begin(&gate, key(1), 1).unwrap()).collect();
        advance(100 * MS).await;
        drop(wait_for_unit(&overload, 2).await);
        gate.check(0);
        bodies.extend((0..2).map(|_| Body::begin(&gate, key(1), 1).unwrap()));
        let (permit, waited) = wait_for_unit(&overload, 1).await;
        assert!(permit.is_none() && waited == 0, "the key waits for none");
        assert_eq!(overload.stats().overload.unwrap().shed_over_share[Priority::Normal as usize], 1);
        assert!(wait_for_unit(&overload, 2).await.0.is_some(), "another key waits");
        // One of the first two has ended, so that the key may wait again.
        bodies.swap_remove(0).end(&gate);
        bodies.drain(..).for_each(|body| body.end(&gate));
        assert!(wait_for_unit(&overload, 1).await.0.is_some());
        gate.check(0);
        assert!(gate.is_empty());
    }

    /// 60 streams from one client that read nothing, and others with the same key: the default, without any setting.
    #[tokio::test(start_paused = true)]
    async fn unread_streams_do_not_block_others() {
        let overload = Arc::new(Overload::new());
        let gate = Arc::clone(overload.gate());
        let bodies = Arc::new(std::sync::Mutex::new(Vec::new()));
        for _ in 0..60 {
            let (overload, gate, bodies) = (Arc::clone(&overload), Arc::clone(&gate), Arc::clone(&bodies));
            tokio::spawn(async move {
                let permit = overload.acquire(&PartitionKey::SHARED, 1).await.unwrap().admitted();
                if let Some(permit) = permit {
                    std::mem::forget(permit);
                    bodies.lock().unwrap().push(Body::of(&gate, PartitionKey::SHARED, 1, InFlight::default()));
                }
            });
        }
        let mut requests = Vec::new();
        for _ in 0..1_000 {
            let overload = Arc::clone(&overload);
            requests.push(tokio::spawn(async move {
                let permit = overload.acquire(&PartitionKey::SHARED, 1).await.unwrap().admitted();
                tokio::time::sleep(5 * MS).await;
                permit.is_some()
            }));
            tokio::time::sleep(20 * MS).await;
        }
        let mut served = 0;
        for request in requests {
            served += u32::from(request.await.unwrap());
        }
        assert!(served >= 990, "{served} of 1,000");
        std::mem::take(&mut *bodies.lock().unwrap()).into_iter().for_each(|body| body.end(&gate));
        gate.check(0);
        assert!(gate.is_empty());
    }

    proptest! {
        #![proptest_config(cases(256))]

        /// After any schedule nothing is in flight, and no unit was released twice.
        #[test]
        fn no_unit_is_lost_or_released_twice(
            limit in 1..5_u64,
            steps in prop::collection::vec((0..7_u8, 0..8_usize, 1..3_u64, 0..3_u64), 1..150),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            runtime.block_on(async {
                let overload = overload(limit);
                let gate = Arc::clone(overload.gate());
                let (mut bodies, mut waiting) = (Vec::new(), Vec::new());
                for (step, index, cost, number) in steps {
                    let cost = cost.min(limit);
                    match step {
                        0 => bodies.extend(Body::begin(&gate, key(number), cost)),
                        1 if !bodies.is_empty() => bodies.swap_remove(index % bodies.len()).end(&gate),
                        2 if !bodies.is_empty() => bodies[index % bodies.len()].units.resume(),
                        3 if !bodies.is_empty() => bodies[index % bodies.len()].units.hand_over(),
                        4 => advance(Duration::from_millis(17 * index as u64)).await,
                        5 => {
                            let key = key(number);
                            match gate.enter(arrival(&key, cost, gate.now())) {
                                Ok(ticket) => waiting.push((ticket, key, cost)),
                                Err(Turn::Granted(held)) => bodies.push(Body::of(&gate, key, cost, held)),
                                Err(_) => {}
                            }
                        }
                        _ => gate.look_at_bodies(),
                    }
                    // Those whose turn has come are served, and the last one leaves now and then.
                    let leaves = step == 4 && index % 2 == 0;
                    let all = std::mem::take(&mut waiting);
                    for (position, (ticket, key, cost)) in all.into_iter().enumerate() {
                        let context = std::task::Context::from_waker(std::task::Waker::noop());
                        let turn = match gate.poll(ticket, &context) {
                            std::task::Poll::Ready(turn) => Some(turn),
                            std::task::Poll::Pending if leaves && position == 0 => {
                                gate.leave(ticket, false).or(Some(Turn::Shed(None)))
                            }
                            std::task::Poll::Pending => None,
                        };
                        match turn {
                            Some(Turn::Granted(held)) => bodies.push(Body::of(&gate, key, cost, held)),
                            Some(_) => {}
                            None => waiting.push((ticket, key, cost)),
                        }
                    }
                    let held: u64 = bodies.iter().filter(|body| !body.units.is_taken_back()).map(|body| body.cost).sum();
                    gate.check(held);
                }
                for (ticket, key, cost) in waiting {
                    if let Some(Turn::Granted(held)) = gate.leave(ticket, false) {
                        gate.refund(&key, cost, held);
                    }
                }
                bodies.into_iter().for_each(|body| body.end(&gate));
                // Ends the window of the search, if one is open.
                gate.check(0);
                assert!(gate.is_empty());
                assert!(overload.decide(&Ask::charge(&key(9), 1).to(Mode::Peek)).at_once().unwrap().is_allowed());
            });
        }
    }
}
