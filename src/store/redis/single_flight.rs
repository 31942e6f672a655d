//! Requests for one key that come while a call for it is under way: they wait for it, and then share the next.

use std::collections::BTreeMap;
use std::collections::hash_map::{Entry, HashMap, OccupiedEntry};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout_at};

use super::key::Tag;

/// The keys for which calls are under way. `T` is what each request is answered.
///
/// The first request of a key makes its call itself. Whoever comes before that has leader_done takes a follower, and the first to
/// do so starts a task, the collector, which answers all who are followers. So a call that another's future makes, and that
/// is not polled, holds up nobody for long; and while a key is used up, one call finds that out for all.
///
/// Each runtime has its own single_flight: one that is blocked holds up only itself.
pub(super) struct SingleFlight<T> {
    shards: [Mutex<HashMap<FlightKey, Flight<T>>>; SHARDS],
}

/// A key, as a runtime asks for it.
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

/// As many as may be followers for one key.
const MAX_FOLLOWERS: usize = 4_096;

struct Flight<T> {
    /// Whether the first request's call is under way.
    leader_in_flight: bool,
    /// Since when.
    since: Instant,
    leader_done: Arc<Notify>,
    has_collector: bool,
    followers: Vec<PendingFollower<T>>,
}

/// One that waits for its answer, of that cost, until then.
struct PendingFollower<T> {
    cost: u32,
    deadline: Instant,
    answer: oneshot::Sender<T>,
}

pub(super) enum Join<T> {
    /// Nobody is under way: go, and drop this when the answer has been noted.
    Leader(LeaderGuard<T>),
    /// The answer will come. If there is a collector, it must be started.
    Follower(Follower<T>, Option<Collector<T>>),
    /// All followers are taken.
    Full,
}

impl<T> SingleFlight<T> {
    pub(super) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()) }
    }

    /// For a request that waits until `deadline`.
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

/// The first request's call. Dropped when its answer has been noted, or when it is given up.
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

/// A place among those who share the next call.
pub(super) struct Follower<T> {
    single_flight: Arc<SingleFlight<T>>,
    key: FlightKey,
    leader_done: Arc<Notify>,
    deadline: Instant,
    answer: oneshot::Receiver<T>,
}

/// What became of a [`Follower`].
pub(super) enum FollowerOutcome<T> {
    Answered(T),
    /// Whoever was to bring the answer is gone.
    Lost,
    /// There was no answer by the deadline. If not even a call was made for it, the collector is stuck, on a thread that is
    /// blocked, say: then this one is to be started in its place, for the others who are followers.
    Late(Option<Collector<T>>),
}

impl<T> Follower<T> {
    pub(super) async fn answer(self) -> FollowerOutcome<T> {
        let Self { single_flight, key, leader_done, deadline, answer } = self;
        match timeout_at(deadline, answer).await {
            Ok(Ok(answer)) => return FollowerOutcome::Answered(answer),
            Ok(Err(_)) => return FollowerOutcome::Lost,
            // The receiver is dropped, which shows below whether the collector has seen its follower.
            Err(_) => {}
        }
        let now = Instant::now();
        let mut shard = single_flight.shard(key);
        let Some(mut entry) = own(&mut shard, key, &leader_done) else { return FollowerOutcome::Late(None) };
        let flight = entry.get_mut();
        let is_stuck =
            flight.followers.iter().any(|followers| followers.answer.is_closed() && followers.deadline <= now);
        if !is_stuck {
            return FollowerOutcome::Late(None);
        }
        flight.followers.retain(|followers| !followers.answer.is_closed());
        if flight.followers.is_empty() {
            entry.remove();
            return FollowerOutcome::Late(None);
        }
        // From now on, the flight is no longer that of the other collector.
        let leader_done = Arc::new(Notify::new());
        leader_done.notify_one();
        (flight.leader_done, flight.leader_in_flight) = (Arc::clone(&leader_done), false);
        let since = flight.since;
        drop(shard);
        FollowerOutcome::Late(Some(Collector { single_flight, key, since, leader_done, is_done: false }))
    }
}

/// Answers those who are followers. Dropped before it has (with its runtime, say), it leaves them without an answer at
/// once.
pub(super) struct Collector<T> {
    single_flight: Arc<SingleFlight<T>>,
    key: FlightKey,
    since: Instant,
    leader_done: Arc<Notify>,
    is_done: bool,
}

impl<T> Collector<T> {
    /// Until the first request's call has leader_done, but only until `patience` after it began: its future may not be polled.
    pub(super) async fn leader_done(&self, patience: Duration) {
        // Whether it has leader_done or not, those who wait are served.
        let _ = timeout_at(self.since + patience, self.leader_done.notified()).await;
    }

    /// All who are to be answered, in groups of an equal cost, each in the order in which they came. Nobody needs an
    /// answer any more if there is none, and then this is done: whoever comes now starts another.
    pub(super) fn groups(&mut self) -> Vec<Group<T>> {
        let mut shard = self.single_flight.shard(self.key);
        let Some(mut entry) = own(&mut shard, self.key, &self.leader_done) else {
            self.is_done = true;
            return Vec::new();
        };
        let flight = entry.get_mut();
        flight.followers.retain(|followers| !followers.answer.is_closed());
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

/// Requests of one cost, each with its deadline.
pub(super) struct Group<T> {
    pub(super) cost: u32,
    pub(super) followers: Vec<(Instant, oneshot::Sender<T>)>,
}

/// The flight of a key, unless that has ended and the key has a new one.
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
            _ => panic!("nobody was under way"),
        }
    }

    fn follower(single_flight: &Arc<SingleFlight<u32>>, cost: u32) -> (oneshot::Receiver<u32>, Option<Collector<u32>>) {
        match single_flight.join(key(), cost, later()) {
            Join::Follower(follower, collector) => (follower.answer, collector),
            _ => panic!("somebody was under way"),
        }
    }

    /// Of all groups, until there are none.
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
    fn one_that_is_alone_leaves_nothing_behind() {
        let single_flight = Arc::new(SingleFlight::new());
        drop(first(&single_flight));
        assert_eq!(single_flight.len(), 0);
        drop(first(&single_flight));
    }

    #[test]
    fn followers_are_answered_in_groups_of_equal_cost_without_those_who_left() {
        let single_flight = Arc::new(SingleFlight::new());
        let leader = first(&single_flight);
        let (gone, collector) = follower(&single_flight, 9);
        let mut collector = collector.expect("the first to be followers starts it");
        let followers: Vec<_> = [1, 1, 2, 1].map(|cost| follower(&single_flight, cost)).into();
        assert!(followers.iter().all(|(_, collector)| collector.is_none()));
        drop(gone);
        drop(leader);
        assert_eq!(costs_and_sizes(&mut collector), [(1, 3), (2, 1)]);
        assert_eq!(single_flight.len(), 0);
    }

    #[test]
    fn seats_are_bounded() {
        let single_flight = Arc::new(SingleFlight::new());
        let _landing = first(&single_flight);
        let mut followers: Vec<_> = (0..MAX_FOLLOWERS).map(|_| follower(&single_flight, 1)).collect();
        assert!(matches!(single_flight.join(key(), 1, later()), Join::Full));
        let mut collector = followers[0].1.take().unwrap();
        assert_eq!(costs_and_sizes(&mut collector), [(1, MAX_FOLLOWERS)]);
    }

    #[test]
    fn a_collector_that_is_given_up_leaves_nobody_waiting() {
        let single_flight = Arc::new(SingleFlight::new());
        let leader = first(&single_flight);
        let (mut receiver, collector) = follower(&single_flight, 1);
        drop(collector);
        assert!(receiver.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Closed));
        // The key has a new flight by now, which the old one's end does not disturb.
        let second = first(&single_flight);
        let (_receiver, collector) = follower(&single_flight, 1);
        drop(leader);
        assert_eq!(costs_and_sizes(&mut collector.unwrap()), [(1, 1)]);
        assert_eq!(single_flight.len(), 1);
        drop(second);
        assert_eq!(single_flight.len(), 0);
    }

    #[test]
    fn one_that_ended_does_not_end_its_successor() {
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
    async fn a_collector_waits_for_the_landing_but_not_for_ever() {
        let single_flight = Arc::new(SingleFlight::new());
        let leader = first(&single_flight);
        let (_receiver, collector) = follower(&single_flight, 1);
        let collector = collector.unwrap();
        let patience = Duration::from_millis(50);
        let begun = tokio::time::Instant::now();
        collector.leader_done(patience).await;
        assert!(begun.elapsed() >= patience);
        // Nor once more, by whoever comes later.
        let begun = tokio::time::Instant::now();
        collector.leader_done(patience).await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        drop(leader);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_waits_in_vain_has_the_others_answered() {
        let single_flight = Arc::new(SingleFlight::<u32>::new());
        let leader = first(&single_flight);
        let Join::Follower(follower, stuck) = single_flight.join(key(), 1, later()) else {
            panic!("somebody is under way")
        };
        let (followers, others): (Vec<_>, Vec<_>) = (0..3)
            .map(|_| match single_flight.join(key(), 1, later() + Duration::from_millis(1)) {
                Join::Follower(follower, other) => (follower, other),
                _ => panic!("somebody is under way"),
            })
            .unzip();
        assert!(others.iter().all(Option::is_none));
        let FollowerOutcome::Late(Some(mut collector)) = follower.answer().await else { panic!("nobody answers") };
        // What the one that was stuck does when it goes on disturbs nobody.
        drop((leader, stuck));
        collector.leader_done(Duration::from_secs(1)).await;
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
    async fn one_whose_call_takes_too_long_disturbs_nobody() {
        let single_flight = Arc::new(SingleFlight::<u32>::new());
        let leader = first(&single_flight);
        let Join::Follower(follower, collector) = single_flight.join(key(), 1, later()) else {
            panic!("somebody is under way")
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
