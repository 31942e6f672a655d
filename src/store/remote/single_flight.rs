//! Single flight: requests for one key that come while a call for it is in flight wait for it, and then share the next
//! call.

use std::collections::BTreeMap;
use std::collections::hash_map::{Entry, HashMap, OccupiedEntry};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout_at};

use super::backend::deadline_after;
use super::tag::KeyTag;
use crate::util::lock::Shards;
use crate::values::Quota;

/// The keys for which calls are in flight. `T` is the answer to a request.
///
/// A key's first request, the leader, makes its call itself. A request that comes before that call is done becomes a
/// follower. The first follower starts a task, the collector, which answers all followers by further calls, so a leader
/// whose future is not polled does not delay the others for long; and while a key is used up, one call finds that out
/// for all.
///
/// Unlike Go's `singleflight`, followers share a call but not a result: each is charged and decided on its own (group
/// commit).
///
/// Each runtime has its own flights, so a blocked runtime delays only itself.
///
/// No foreign code runs under a shard's lock: wakers are called, and answers and flights dropped, after it is released.
pub(crate) struct SingleFlight<T> {
    shards: Shards<HashMap<FlightKey, Flight<T>>>,
    next_id: AtomicU64,
}

/// A key under a quota, on one runtime. Requests under different quotas have different flights, because a call has one
/// quota.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FlightKey {
    tag: KeyTag,
    quota: Quota,
    runtime: Option<Id>,
}

impl FlightKey {
    pub(crate) fn on_this_runtime(tag: KeyTag, quota: Quota) -> Self {
        Self { tag, quota, runtime: Handle::try_current().ok().map(|handle| handle.id()) }
    }
}

/// The number of locks. Each is held for a look at its map, and for a pass over one key's followers when these are
/// taken or when one is late, so requests for different keys rarely meet at one lock.
const SHARDS: usize = 16;

/// The most followers that one call decides on; a lease that is taken with it comes on top. Redis decides on each in
/// turn and serves no other key meanwhile, for up to 25 µs, where a call for one request takes 7 (Redis 7,
/// `commandstats`).
pub(crate) const BATCH: usize = 256;

/// The most followers for one key, which bounds the memory for a key under attack. If they have one cost, they are
/// answered in 16 calls, one after the other, and each may take 3 ms if the timeout has its default of 50 ms. With many
/// more followers, the last would pass their deadlines.
const MAX_FOLLOWERS: usize = 16 * BATCH;

/// One key's flight.
struct Flight<T> {
    /// Distinguishes this flight from earlier and later ones for its key.
    id: u64,
    phase: Phase,
    /// When the leader's call began.
    since: Instant,
    leader_done: Arc<Notify>,
    /// How many collectors this flight has had, which is the number of the present or last one.
    collectors: u64,
    /// When the present or last collector was made.
    collector_since: Instant,
    followers: Vec<PendingFollower<T>>,
}

/// One of a key's flights, because the key may have another by now.
struct FlightRef<T> {
    single_flight: Arc<SingleFlight<T>>,
    key: FlightKey,
    id: u64,
}

impl<T> Clone for FlightRef<T> {
    fn clone(&self) -> Self {
        Self { single_flight: Arc::clone(&self.single_flight), key: self.key, id: self.id }
    }
}

impl<T> FlightRef<T> {
    fn shard(&self) -> MutexGuard<'_, HashMap<FlightKey, Flight<T>>> {
        self.single_flight.shards.lock(self.key.tag.short())
    }

    /// Returns the flight, if it has not ended.
    fn find<'a>(
        &self,
        shard: &'a mut HashMap<FlightKey, Flight<T>>,
    ) -> Option<OccupiedEntry<'a, FlightKey, Flight<T>>> {
        match shard.entry(self.key) {
            Entry::Occupied(entry) if entry.get().id == self.id => Some(entry),
            _ => None,
        }
    }
}

/// Whether the leader, the collector or both are at work in a flight. A flight is removed when both are done.
///
/// | from | to | when |
/// |---|---|---|
/// | no flight | `Leader` | a request joins |
/// | `Leader` | `Both` | the first follower joins |
/// | `Leader` | no flight | the leader is done |
/// | `Both` | `Collector` | the leader is done, or a late follower replaces the collector |
/// | `Both` | `Leader` | the collector finds no follower |
/// | `Collector` | `Collector` | a late follower replaces the collector |
/// | `Collector` | no flight | the collector finds no follower |
/// | `Both`, `Collector` | no flight | the collector is dropped before it is done, or is stuck without followers |
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The leader's call is in flight, without followers.
    Leader,
    /// The leader's call is in flight, and a collector waits for it or serves followers.
    Both,
    /// The collector serves followers. The leader is done, or the collector does not wait for it any more.
    Collector,
}

/// A follower without an answer.
pub(crate) struct PendingFollower<T> {
    cost: u64,
    pub(crate) deadline: Instant,
    pub(crate) answer: oneshot::Sender<T>,
}

/// A request's role in its key's flight.
pub(crate) enum Join<T> {
    /// No call is in flight for this key. Make it, and drop the guard once its answer is recorded.
    Leader(LeaderGuard<T>),
    /// The answer will come. If there is a collector, the caller must start it.
    Follower(Follower<T>, Option<Collector<T>>),
    /// The key has [`MAX_FOLLOWERS`] followers already.
    Full,
}

impl<T> SingleFlight<T> {
    pub(crate) fn new() -> Self {
        Self { shards: Shards::new(SHARDS, HashMap::new), next_id: AtomicU64::new(0) }
    }

    /// Joins a key's flight, for a request that waits until `deadline`.
    pub(crate) fn join(self: &Arc<Self>, key: FlightKey, cost: u64, deadline: Instant) -> Join<T> {
        let now = Instant::now();
        let flight_of = |id| FlightRef { single_flight: Arc::clone(self), key, id };
        let mut shard = self.shards.lock(key.tag.short());
        match shard.entry(key) {
            Entry::Vacant(entry) => {
                // Relaxed, because an id need only be unique.
                let id = self.next_id.fetch_add(1, Ordering::Relaxed);
                entry.insert(Flight {
                    id,
                    phase: Phase::Leader,
                    since: now,
                    leader_done: Arc::new(Notify::new()),
                    collectors: 0,
                    collector_since: now,
                    followers: Vec::new(),
                });
                Join::Leader(LeaderGuard(flight_of(id)))
            }
            Entry::Occupied(entry) => {
                let flight = entry.into_mut();
                if flight.followers.len() >= MAX_FOLLOWERS {
                    return Join::Full;
                }
                let (sender, answer) = oneshot::channel();
                flight.followers.push(PendingFollower { cost, deadline, answer: sender });
                let this = flight_of(flight.id);
                let follower = Follower { flight: this.clone(), joined: now, deadline, answer };
                let collector = (flight.phase == Phase::Leader).then(|| {
                    flight.phase = Phase::Both;
                    let leader = Some((flight.since, Arc::clone(&flight.leader_done)));
                    flight.new_collector(this, leader, now)
                });
                Join::Follower(follower, collector)
            }
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.len()).sum()
    }
}

impl<T> Flight<T> {
    /// Makes a collector, which replaces the former one if there was one.
    fn new_collector(
        &mut self,
        this: FlightRef<T>,
        leader: Option<(Instant, Arc<Notify>)>,
        now: Instant,
    ) -> Collector<T> {
        self.collectors += 1;
        self.collector_since = now;
        Collector { flight: this, number: self.collectors, leader, is_done: false }
    }

    /// Takes the followers whose requests were cancelled or are late, to be dropped outside the lock.
    fn take_cancelled(&mut self) -> Vec<PendingFollower<T>> {
        let (cancelled, waiting) =
            std::mem::take(&mut self.followers).into_iter().partition(|follower| follower.answer.is_closed());
        self.followers = waiting;
        cancelled
    }
}

/// The leader's call. Dropped when its answer is recorded, or when the leader is cancelled.
pub(crate) struct LeaderGuard<T>(FlightRef<T>);

impl<T> Drop for LeaderGuard<T> {
    fn drop(&mut self) {
        let mut shard = self.0.shard();
        let Some(mut entry) = self.0.find(&mut shard) else { return };
        let flight = entry.get_mut();
        match flight.phase {
            Phase::Leader => {
                let ended = entry.remove();
                drop(shard);
                drop(ended);
            }
            Phase::Both => {
                flight.phase = Phase::Collector;
                let leader_done = Arc::clone(&flight.leader_done);
                drop(shard);
                // A collector that does not wait yet finds the notification when it does.
                leader_done.notify_one();
            }
            // The collector was replaced, and its successor does not wait for this call.
            Phase::Collector => {}
        }
    }
}

/// A request that shares the next call.
pub(crate) struct Follower<T> {
    flight: FlightRef<T>,
    joined: Instant,
    deadline: Instant,
    answer: oneshot::Receiver<T>,
}

/// The result of a [`Follower`].
pub(crate) enum FollowerOutcome<T> {
    Answered(T),
    /// The collector is gone.
    Lost,
    /// The deadline passed without an answer. If not even a call was made for it, the collector is stuck, for example
    /// on a blocked thread. Then the caller must start this collector in its place, for the other followers.
    Late(Option<Collector<T>>),
}

impl<T> Follower<T> {
    pub(crate) async fn answer(self) -> FollowerOutcome<T> {
        let Self { flight: this, joined, deadline, answer } = self;
        match timeout_at(deadline, answer).await {
            Ok(Ok(answer)) => return FollowerOutcome::Answered(answer),
            Ok(Err(_)) => return FollowerOutcome::Lost,
            // The receiver is dropped now, which shows below whether the collector has taken this follower into a call.
            Err(_) => {}
        }
        let now = Instant::now();
        let mut shard = this.shard();
        let Some(mut entry) = this.find(&mut shard) else { return FollowerOutcome::Late(None) };
        let flight = entry.get_mut();
        // If many followers are late at once, the first replaces the collector. The successor then has half a timeout
        // to take the others, before it counts as stuck in its turn.
        let is_new = now.saturating_duration_since(flight.collector_since) < (deadline - joined) / 2;
        let mut followers = flight.followers.iter();
        if is_new || !followers.any(|follower| follower.answer.is_closed() && follower.deadline <= now) {
            return FollowerOutcome::Late(None);
        }
        let cancelled = flight.take_cancelled();
        let (ended, collector) = if flight.followers.is_empty() {
            (Some(entry.remove()), None)
        } else {
            // A new number under the lock, because the stuck collector, when it continues, no longer owns the flight,
            // so it cannot answer followers a second time, or remove its successor's flight.
            flight.phase = Phase::Collector;
            (None, Some(flight.new_collector(this.clone(), None, now)))
        };
        drop(shard);
        drop((cancelled, ended));
        FollowerOutcome::Late(collector)
    }
}

/// Answers a key's followers. If it is dropped before it is done (with its runtime, for example), the followers learn
/// at once that no answer will come.
pub(crate) struct Collector<T> {
    flight: FlightRef<T>,
    number: u64,
    /// When the leader's call began, and the notification when it ends. `None` for a collector that replaces another.
    leader: Option<(Instant, Arc<Notify>)>,
    is_done: bool,
}

impl<T> Collector<T> {
    /// Waits until the leader's call is done, but only until `patience` after it began, because the leader's future may
    /// not be polled.
    pub(crate) async fn await_leader(&self, patience: Duration) {
        if let Some((since, done)) = &self.leader {
            // Whether it is done or not, the followers are served.
            let _ = timeout_at(deadline_after(*since, patience), done.notified()).await;
        }
    }

    /// Takes all followers that wait for an answer, in groups with an equal cost, each in the order in which they
    /// arrived. If there are no followers, the collector is done. This is decided under the same lock, so a request
    /// that joins later finds the collector gone and starts another.
    pub(crate) fn groups(&mut self) -> Vec<Group<T>> {
        let mut shard = self.flight.shard();
        let Some(mut entry) = self.find_owned(&mut shard) else {
            self.is_done = true;
            return Vec::new();
        };
        let flight = entry.get_mut();
        let cancelled = flight.take_cancelled();
        let followers = std::mem::take(&mut flight.followers);
        let mut ended = None;
        if followers.is_empty() {
            self.is_done = true;
            match flight.phase {
                Phase::Both => flight.phase = Phase::Leader,
                Phase::Collector => ended = Some(entry.remove()),
                // It was done before, and the leader's call is still in flight.
                Phase::Leader => {}
            }
        }
        drop(shard);
        drop((cancelled, ended));

        let mut groups: BTreeMap<u64, Group<T>> = BTreeMap::new();
        for follower in followers {
            let cost = follower.cost;
            groups.entry(cost).or_insert_with(|| Group { cost, followers: Vec::new() }).followers.push(follower);
        }
        groups.into_values().collect()
    }

    /// Returns the flight, unless this collector was replaced.
    fn find_owned<'a>(
        &self,
        shard: &'a mut HashMap<FlightKey, Flight<T>>,
    ) -> Option<OccupiedEntry<'a, FlightKey, Flight<T>>> {
        self.flight.find(shard).filter(|entry| entry.get().collectors == self.number)
    }
}

impl<T> Drop for Collector<T> {
    fn drop(&mut self) {
        if !self.is_done {
            let mut shard = self.flight.shard();
            let ended = self.find_owned(&mut shard).map(OccupiedEntry::remove);
            // Unlocked before the senders are dropped, which wakes every follower.
            drop(shard);
            drop(ended);
        }
    }
}

/// Followers with one cost.
pub(crate) struct Group<T> {
    pub(crate) cost: u64,
    pub(crate) followers: Vec<PendingFollower<T>>,
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;
    use crate::store::remote::tag::Tags;
    use crate::values::PartitionKey;

    fn key() -> FlightKey {
        FlightKey::on_this_runtime(Tags::new(b"").of(&PartitionKey::from("a")), Quota::per_second(1))
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_millis(50)
    }

    fn first(single_flight: &Arc<SingleFlight<u32>>) -> LeaderGuard<u32> {
        match single_flight.join(key(), 1, later()) {
            Join::Leader(leader) => leader,
            _ => panic!("a call was in flight"),
        }
    }

    fn follower(single_flight: &Arc<SingleFlight<u32>>, cost: u64) -> (oneshot::Receiver<u32>, Option<Collector<u32>>) {
        match single_flight.join(key(), cost, later()) {
            Join::Follower(follower, collector) => (follower.answer, collector),
            _ => panic!("no call was in flight"),
        }
    }

    fn joined(single_flight: &Arc<SingleFlight<u32>>, deadline: Instant) -> (Follower<u32>, Option<Collector<u32>>) {
        match single_flight.join(key(), 1, deadline) {
            Join::Follower(follower, collector) => (follower, collector),
            _ => panic!("no call was in flight"),
        }
    }

    /// Takes groups until all followers are taken.
    fn costs_and_sizes(collector: &mut Collector<u32>) -> Vec<(u64, usize)> {
        let mut sizes = Vec::new();
        loop {
            let groups = collector.groups();
            if groups.is_empty() {
                return sizes;
            }
            sizes.extend(groups.iter().map(|group| (group.cost, group.followers.len())));
        }
    }

    #[test]
    fn a_lone_leader_leaves_nothing_behind() {
        let single_flight = Arc::new(SingleFlight::new());
        drop(first(&single_flight));
        assert_eq!(single_flight.len(), 0);
        drop(first(&single_flight));
    }

    /// Cancelled followers are left out.
    #[test]
    fn followers_are_grouped_by_cost() {
        let single_flight = Arc::new(SingleFlight::new());
        let leader = first(&single_flight);
        let (gone, collector) = follower(&single_flight, 9);
        let mut collector = collector.expect("the first follower starts it");
        let followers: Vec<_> = [1, 1, 2, 1].map(|cost| follower(&single_flight, cost)).into();
        assert!(followers.iter().all(|(_, collector)| collector.is_none()));
        drop(gone);
        drop(leader);
        assert_eq!(costs_and_sizes(&mut collector), [(1, 3), (2, 1)]);
        assert_eq!(single_flight.len(), 0);
    }

    #[test]
    fn followers_are_bounded() {
        let single_flight = Arc::new(SingleFlight::new());
        let _leader = first(&single_flight);
        let mut followers: Vec<_> = (0..MAX_FOLLOWERS).map(|_| follower(&single_flight, 1)).collect();
        assert!(matches!(single_flight.join(key(), 1, later()), Join::Full));
        let mut collector = followers[0].1.take().unwrap();
        assert_eq!(costs_and_sizes(&mut collector), [(1, MAX_FOLLOWERS)]);
    }

    #[test]
    fn a_dropped_collector_leaves_no_follower_waiting() {
        let single_flight = Arc::new(SingleFlight::new());
        let leader = first(&single_flight);
        let (mut receiver, collector) = follower(&single_flight, 1);
        drop(collector);
        assert!(receiver.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Closed));
        // The key has a new flight by now, which the old leader does not remove when it ends.
        let second = first(&single_flight);
        let (_receiver, collector) = follower(&single_flight, 1);
        drop(leader);
        assert_eq!(costs_and_sizes(&mut collector.unwrap()), [(1, 1)]);
        assert_eq!(single_flight.len(), 1);
        drop(second);
        assert_eq!(single_flight.len(), 0);
    }

    #[test]
    fn a_finished_collector_spares_its_successor() {
        let single_flight = Arc::new(SingleFlight::new());
        let leader = first(&single_flight);
        let (receiver, collector) = follower(&single_flight, 1);
        let mut old = collector.unwrap();
        drop(receiver);
        assert!(old.groups().is_empty());
        let (mut receiver, collector) = follower(&single_flight, 1);
        drop(old);
        assert!(receiver.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Empty));
        drop((leader, collector));
    }

    #[test]
    fn a_finished_collector_leaves_its_leader() {
        let single_flight = Arc::new(SingleFlight::new());
        let leader = first(&single_flight);
        let (receiver, collector) = follower(&single_flight, 1);
        let mut collector = collector.unwrap();
        drop(receiver);
        // The second time, it was done already.
        for _ in 0..2 {
            assert!(collector.groups().is_empty());
            assert_eq!(single_flight.len(), 1);
        }
        drop(leader);
        assert_eq!(single_flight.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_collector_stops_waiting_for_the_leader() {
        let single_flight = Arc::new(SingleFlight::new());
        let leader = first(&single_flight);
        let (_receiver, collector) = follower(&single_flight, 1);
        let collector = collector.unwrap();
        let patience = Duration::from_millis(50);
        let begun = Instant::now();
        collector.await_leader(patience).await;
        assert!(begun.elapsed() >= patience);
        // The second wait ends at once.
        let begun = Instant::now();
        collector.await_leader(patience).await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        drop(leader);
    }

    /// The instant plus such a timeout overflowed, so each request that shared a call panicked.
    #[tokio::test(start_paused = true)]
    async fn collectors_wait_under_the_longest_timeout() {
        let single_flight = Arc::new(SingleFlight::new());
        let leader = first(&single_flight);
        let (_receiver, collector) = follower(&single_flight, 1);
        let collector = collector.unwrap();
        let mut waiting = pin!(collector.await_leader(Duration::MAX));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(leader);
        assert!(waiting.now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn late_followers_replace_a_stuck_collector() {
        let single_flight = Arc::new(SingleFlight::<u32>::new());
        let leader = first(&single_flight);
        let (follower, stuck) = joined(&single_flight, later());
        let (followers, others): (Vec<_>, Vec<_>) =
            (0..3).map(|_| joined(&single_flight, later() + Duration::from_millis(1))).unzip();
        assert!(others.iter().all(Option::is_none));
        let FollowerOutcome::Late(Some(mut collector)) = follower.answer().await else { panic!("it was answered") };
        // The stuck collector continues, and has no effect.
        drop((leader, stuck));
        collector.await_leader(Duration::from_secs(1)).await;
        let mut groups = collector.groups();
        assert_eq!((groups.len(), groups[0].followers.len()), (1, 3));
        for (number, follower) in (0..).zip(groups.remove(0).followers) {
            follower.answer.send(number).unwrap();
        }
        for (number, follower) in (0..).zip(followers) {
            assert!(matches!(follower.answer().await, FollowerOutcome::Answered(answer) if answer == number));
        }
        assert!(collector.groups().is_empty());
        assert_eq!(single_flight.len(), 0);
    }

    /// All of these followers joined before the first collector was replaced.
    #[tokio::test(start_paused = true)]
    async fn a_stuck_successor_is_replaced() {
        let single_flight = Arc::new(SingleFlight::<u32>::new());
        let leader = first(&single_flight);
        let begun = Instant::now();
        let in_millis = |millis| joined(&single_flight, begun + Duration::from_millis(millis));
        let (first_late, stuck) = in_millis(50);
        let ((soon_late, _), (second_late, _), (served, _)) = (in_millis(51), in_millis(120), in_millis(200));

        let FollowerOutcome::Late(Some(stuck_too)) = first_late.answer().await else {
            panic!("the collector was not replaced")
        };
        // The successor has had no time yet.
        assert!(matches!(soon_late.answer().await, FollowerOutcome::Late(None)));
        let FollowerOutcome::Late(Some(mut collector)) = second_late.answer().await else {
            panic!("the successor was not replaced")
        };
        drop((leader, stuck, stuck_too));
        for follower in collector.groups().remove(0).followers {
            follower.answer.send(7).unwrap();
        }
        assert!(matches!(served.answer().await, FollowerOutcome::Answered(7)));
        assert!(collector.groups().is_empty());
        assert_eq!(single_flight.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn calls_in_flight_keep_their_collector() {
        let single_flight = Arc::new(SingleFlight::<u32>::new());
        let leader = first(&single_flight);
        let (follower, collector) = joined(&single_flight, later());
        let mut collector = collector.unwrap();
        drop(leader);
        let calling = collector.groups();
        let (next, other) = joined(&single_flight, later() + Duration::from_secs(1));
        assert!(other.is_none());
        assert!(matches!(follower.answer().await, FollowerOutcome::Late(None)));
        drop(calling);
        for follower in collector.groups().remove(0).followers {
            follower.answer.send(7).unwrap();
        }
        assert!(matches!(next.answer().await, FollowerOutcome::Answered(7)));
    }
}
