//! Single flight: requests for one key that come while a call for it is in flight wait for it, and then share the next
//! call.

use std::collections::BTreeMap;
use std::collections::hash_map::{Entry, HashMap, OccupiedEntry};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout_at};

use super::key::Tag;

/// The keys for which calls are in flight. `T` is the answer to a request.
///
/// The first request of a key, the leader, makes its call itself. A request that comes before that call is done becomes
/// a follower. The first follower starts a task, the collector, which answers all of them by further calls. So a leader
/// whose future is not polled does not delay the others for long; and while a key is used up, one call finds that out
/// for all.
///
/// Unlike Go's `singleflight`, followers share a call but not a result: each is charged and decided on its own (group
/// commit).
///
/// Each runtime has flights of its own, so a runtime that is blocked delays only itself.
pub(super) struct SingleFlight<T> {
    shards: [Mutex<HashMap<FlightKey, Flight<T>>>; SHARDS],
}

/// A key, on one runtime.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct FlightKey {
    tag: Tag,
    runtime: Option<Id>,
}

impl FlightKey {
    pub(super) fn of(tag: Tag) -> Self {
        Self { tag, runtime: Handle::try_current().ok().map(|handle| handle.id()) }
    }
}

const SHARDS: usize = 16;

/// The most followers of one key.
const MAX_FOLLOWERS: usize = 4_096;

/// The flight of one key. Its `leader_done` is its identity, too: see [`own`].
struct Flight<T> {
    /// Whether the leader's call is in flight.
    leader_in_flight: bool,
    /// When the leader's call began.
    since: Instant,
    leader_done: Arc<Notify>,
    has_collector: bool,
    followers: Vec<PendingFollower<T>>,
}

/// A follower without an answer.
struct PendingFollower<T> {
    cost: u32,
    deadline: Instant,
    answer: oneshot::Sender<T>,
}

/// The role of a request in the flight of its key.
pub(super) enum Join<T> {
    /// No call is in flight for this key: make it, and drop the guard once its answer is recorded.
    Leader(LeaderGuard<T>),
    /// The answer will come. If there is a collector, the caller must start it.
    Follower(Follower<T>, Option<Collector<T>>),
    /// There are as many followers as may be.
    Full,
}

impl<T> SingleFlight<T> {
    pub(super) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()) }
    }

    /// Joins the flight of a key, for a request that waits until `deadline`.
    pub(super) fn join(self: &Arc<Self>, key: FlightKey, cost: u32, deadline: Instant) -> Join<T> {
        let mut shard = self.shard(key);
        match shard.entry(key) {
            Entry::Vacant(entry) => {
                let leader_done = Arc::new(Notify::new());
                let leader =
                    LeaderGuard { single_flight: Arc::clone(self), key, leader_done: Arc::clone(&leader_done) };
                entry.insert(Flight {
                    leader_in_flight: true,
                    since: Instant::now(),
                    leader_done,
                    has_collector: false,
                    followers: Vec::new(),
                });
                Join::Leader(leader)
            }
            Entry::Occupied(entry) => {
                let flight = entry.into_mut();
                if flight.followers.len() >= MAX_FOLLOWERS {
                    return Join::Full;
                }
                let (sender, answer) = oneshot::channel();
                flight.followers.push(PendingFollower { cost, deadline, answer: sender });
                let is_first = !std::mem::replace(&mut flight.has_collector, true);
                let (since, leader_done) = (flight.since, &flight.leader_done);
                let follower = Follower {
                    single_flight: Arc::clone(self),
                    key,
                    leader_done: Arc::clone(leader_done),
                    deadline,
                    answer,
                };
                let leader_done = Arc::clone(leader_done);
                let collector =
                    || Collector { single_flight: Arc::clone(self), key, since, leader_done, is_done: false };
                Join::Follower(follower, is_first.then(collector))
            }
        }
    }

    fn shard(&self, key: FlightKey) -> MutexGuard<'_, HashMap<FlightKey, Flight<T>>> {
        #[allow(clippy::cast_possible_truncation)]
        let shard = &self.shards[key.tag.short() as usize / 7 % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().unwrap().len()).sum()
    }
}

/// The leader's call. Dropped when its answer is recorded, or when the leader is cancelled.
pub(super) struct LeaderGuard<T> {
    single_flight: Arc<SingleFlight<T>>,
    key: FlightKey,
    leader_done: Arc<Notify>,
}

impl<T> Drop for LeaderGuard<T> {
    fn drop(&mut self) {
        let mut shard = self.single_flight.shard(self.key);
        let Some(mut entry) = own(&mut shard, self.key, &self.leader_done) else { return };
        let flight = entry.get_mut();
        flight.leader_in_flight = false;
        if flight.has_collector {
            flight.leader_done.notify_one();
        } else {
            entry.remove();
        }
    }
}

/// A request that shares the next call.
pub(super) struct Follower<T> {
    single_flight: Arc<SingleFlight<T>>,
    key: FlightKey,
    leader_done: Arc<Notify>,
    deadline: Instant,
    answer: oneshot::Receiver<T>,
}

/// The result of a [`Follower`].
pub(super) enum FollowerOutcome<T> {
    Answered(T),
    /// The collector is gone.
    Lost,
    /// There was no answer by the deadline. If not even a call was made for it, the collector is stuck, for example on
    /// a thread that is blocked: then the caller must start this one in its place, for the other followers.
    Late(Option<Collector<T>>),
}

impl<T> Follower<T> {
    pub(super) async fn answer(self) -> FollowerOutcome<T> {
        let Self { single_flight, key, leader_done, deadline, answer } = self;
        match timeout_at(deadline, answer).await {
            Ok(Ok(answer)) => return FollowerOutcome::Answered(answer),
            Ok(Err(_)) => return FollowerOutcome::Lost,
            // The receiver is dropped now, which shows below whether the collector has taken this follower into a call.
            Err(_) => {}
        }
        let now = Instant::now();
        let mut shard = single_flight.shard(key);
        let Some(mut entry) = own(&mut shard, key, &leader_done) else { return FollowerOutcome::Late(None) };
        let flight = entry.get_mut();
        let is_stuck = flight.followers.iter().any(|follower| follower.answer.is_closed() && follower.deadline <= now);
        if !is_stuck {
            return FollowerOutcome::Late(None);
        }
        flight.followers.retain(|follower| !follower.answer.is_closed());
        if flight.followers.is_empty() {
            entry.remove();
            return FollowerOutcome::Late(None);
        }
        // A new identity under the lock: the stuck collector, when it continues, no longer owns the flight, so it neither
        // answers followers a second time nor removes the flight from under its successor.
        let leader_done = Arc::new(Notify::new());
        leader_done.notify_one();
        (flight.leader_done, flight.leader_in_flight) = (Arc::clone(&leader_done), false);
        let since = flight.since;
        drop(shard);
        FollowerOutcome::Late(Some(Collector { single_flight, key, since, leader_done, is_done: false }))
    }
}

/// Answers the followers of a key. Dropped before it is done (with its runtime, for example), it leaves them without an
/// answer at once.
pub(super) struct Collector<T> {
    single_flight: Arc<SingleFlight<T>>,
    key: FlightKey,
    since: Instant,
    leader_done: Arc<Notify>,
    is_done: bool,
}

impl<T> Collector<T> {
    /// Waits until the leader's call is done, but only until `patience` after it began: the leader's future may not be
    /// polled.
    pub(super) async fn await_leader(&self, patience: Duration) {
        // Whether it is done or not, the followers are served.
        let _ = timeout_at(self.since + patience, self.leader_done.notified()).await;
    }

    /// Takes all followers that are to be answered, in groups of an equal cost, each in the order of arrival. If there
    /// is none, the collector is done: under the same lock, so a request that joins later finds no collector and starts
    /// another.
    pub(super) fn groups(&mut self) -> Vec<Group<T>> {
        let mut shard = self.single_flight.shard(self.key);
        let Some(mut entry) = own(&mut shard, self.key, &self.leader_done) else {
            self.is_done = true;
            return Vec::new();
        };
        let flight = entry.get_mut();
        flight.followers.retain(|follower| !follower.answer.is_closed());
        if flight.followers.is_empty() {
            self.is_done = true;
            flight.has_collector = false;
            if !flight.leader_in_flight {
                entry.remove();
            }
            return Vec::new();
        }
        let mut groups: BTreeMap<u32, Group<T>> = BTreeMap::new();
        for PendingFollower { cost, deadline, answer } in flight.followers.drain(..) {
            groups
                .entry(cost)
                .or_insert_with(|| Group { cost, followers: Vec::new() })
                .followers
                .push((deadline, answer));
        }
        groups.into_values().collect()
    }
}

impl<T> Drop for Collector<T> {
    fn drop(&mut self) {
        if !self.is_done {
            let mut shard = self.single_flight.shard(self.key);
            own(&mut shard, self.key, &self.leader_done).map(OccupiedEntry::remove);
        }
    }
}

/// Followers of one cost, each with its deadline.
pub(super) struct Group<T> {
    pub(super) cost: u32,
    pub(super) followers: Vec<(Instant, oneshot::Sender<T>)>,
}

/// Returns the flight of a key if it is still the one with this `leader_done`: it may have ended, and the key have a
/// new one.
fn own<'a, T>(
    shard: &'a mut HashMap<FlightKey, Flight<T>>,
    key: FlightKey,
    leader_done: &Arc<Notify>,
) -> Option<OccupiedEntry<'a, FlightKey, Flight<T>>> {
    match shard.entry(key) {
        Entry::Occupied(entry) if Arc::ptr_eq(&entry.get().leader_done, leader_done) => Some(entry),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::key::Names;
    use crate::values::PartitionKey;

    fn key() -> FlightKey {
        FlightKey::of(Names::new("", "", b"").tag(&PartitionKey::from("a")))
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

    fn follower(single_flight: &Arc<SingleFlight<u32>>, cost: u32) -> (oneshot::Receiver<u32>, Option<Collector<u32>>) {
        match single_flight.join(key(), cost, later()) {
            Join::Follower(follower, collector) => (follower.answer, collector),
            _ => panic!("no call was in flight"),
        }
    }

    /// Takes groups until there are none.
    fn costs_and_sizes(collector: &mut Collector<u32>) -> Vec<(u32, usize)> {
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
    fn a_leader_without_followers_leaves_nothing_behind() {
        let single_flight = Arc::new(SingleFlight::new());
        drop(first(&single_flight));
        assert_eq!(single_flight.len(), 0);
        drop(first(&single_flight));
    }

    #[test]
    fn followers_are_answered_in_groups_of_equal_cost_without_cancelled_ones() {
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
        let _landing = first(&single_flight);
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
        // The key has a new flight by now, which the end of the old leader does not remove.
        let second = first(&single_flight);
        let (_receiver, collector) = follower(&single_flight, 1);
        drop(leader);
        assert_eq!(costs_and_sizes(&mut collector.unwrap()), [(1, 1)]);
        assert_eq!(single_flight.len(), 1);
        drop(second);
        assert_eq!(single_flight.len(), 0);
    }

    #[test]
    fn a_collector_that_is_done_does_not_end_its_successor() {
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

    #[tokio::test(start_paused = true)]
    async fn a_collector_waits_for_the_leader_but_not_for_ever() {
        let single_flight = Arc::new(SingleFlight::new());
        let leader = first(&single_flight);
        let (_receiver, collector) = follower(&single_flight, 1);
        let collector = collector.unwrap();
        let patience = Duration::from_millis(50);
        let begun = tokio::time::Instant::now();
        collector.await_leader(patience).await;
        assert!(begun.elapsed() >= patience);
        // Nor a second time.
        let begun = tokio::time::Instant::now();
        collector.await_leader(patience).await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        drop(leader);
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_follower_replaces_a_stuck_collector() {
        let single_flight = Arc::new(SingleFlight::<u32>::new());
        let leader = first(&single_flight);
        let Join::Follower(follower, stuck) = single_flight.join(key(), 1, later()) else {
            panic!("no call is in flight")
        };
        let (followers, others): (Vec<_>, Vec<_>) = (0..3)
            .map(|_| match single_flight.join(key(), 1, later() + Duration::from_millis(1)) {
                Join::Follower(follower, other) => (follower, other),
                _ => panic!("no call is in flight"),
            })
            .unzip();
        assert!(others.iter().all(Option::is_none));
        let FollowerOutcome::Late(Some(mut collector)) = follower.answer().await else { panic!("it was answered") };
        // The stuck collector continues, and has no effect.
        drop((leader, stuck));
        collector.await_leader(Duration::from_secs(1)).await;
        let mut groups = collector.groups();
        assert_eq!((groups.len(), groups[0].followers.len()), (1, 3));
        for (number, (_, answer)) in (0..).zip(groups.remove(0).followers) {
            answer.send(number).unwrap();
        }
        for (number, follower) in (0..).zip(followers) {
            assert!(matches!(follower.answer().await, FollowerOutcome::Answered(answer) if answer == number));
        }
        assert!(collector.groups().is_empty());
        assert_eq!(single_flight.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_follower_of_a_call_in_flight_replaces_no_collector() {
        let single_flight = Arc::new(SingleFlight::<u32>::new());
        let leader = first(&single_flight);
        let Join::Follower(follower, collector) = single_flight.join(key(), 1, later()) else {
            panic!("no call is in flight")
        };
        let mut collector = collector.unwrap();
        drop(leader);
        let calling = collector.groups();
        let Join::Follower(next, None) = single_flight.join(key(), 1, later() + Duration::from_secs(1)) else {
            panic!()
        };
        assert!(matches!(follower.answer().await, FollowerOutcome::Late(None)));
        drop(calling);
        for (_, answer) in collector.groups().remove(0).followers {
            answer.send(7).unwrap();
        }
        assert!(matches!(next.answer().await, FollowerOutcome::Answered(7)));
    }
}
