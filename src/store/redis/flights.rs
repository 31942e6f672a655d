//! Requests for one key that come while a call for it is under way: they wait for it, and then share the next.

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap, OccupiedEntry};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use super::key::Tag;

/// The keys for which calls are under way. `T` is what each request is answered.
///
/// The first request of a key makes its call itself. Whoever comes before that has landed takes a seat, and the first to
/// do so starts a task, the collector, which answers all who are seated, a batch at a time. So nobody waits for a call
/// that another's future makes, longer than the timeout; and while a key is used up, one call finds that out for all.
pub(super) struct Flights<T> {
    shards: [Mutex<HashMap<Tag, Flight<T>>>; SHARDS],
}

const SHARDS: usize = 16;

/// As many requests as one call may decide on.
const BATCH: usize = 256;

/// As many as may be seated for one key.
const SEATS: usize = 4_096;

struct Flight<T> {
    /// Whether the first request's call is under way.
    is_out: bool,
    landed: Arc<Notify>,
    has_collector: bool,
    seated: VecDeque<(u32, oneshot::Sender<T>)>,
}

pub(super) enum Boarding<T> {
    /// Nobody is under way: go, and drop this when the answer has been noted.
    First(Landing<T>),
    /// The answer will come. If there is a collector, it must be started.
    Seated(oneshot::Receiver<T>, Option<Collector<T>>),
    /// All seats are taken.
    Full,
}

impl<T> Flights<T> {
    pub(super) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()) }
    }

    pub(super) fn board(self: &Arc<Self>, tag: Tag, cost: u32) -> Boarding<T> {
        let mut shard = self.shard(tag);
        match shard.entry(tag) {
            Entry::Vacant(entry) => {
                let landed = Arc::new(Notify::new());
                let landing = Landing { flights: Arc::clone(self), tag, landed: Arc::clone(&landed) };
                entry.insert(Flight { is_out: true, landed, has_collector: false, seated: VecDeque::new() });
                Boarding::First(landing)
            }
            Entry::Occupied(entry) => {
                let flight = entry.into_mut();
                if flight.seated.len() >= SEATS {
                    return Boarding::Full;
                }
                let (sender, receiver) = oneshot::channel();
                flight.seated.push_back((cost, sender));
                let is_first = !std::mem::replace(&mut flight.has_collector, true);
                let landed = Arc::clone(&flight.landed);
                let collector = || Collector { flights: Arc::clone(self), tag, landed, is_done: false };
                Boarding::Seated(receiver, is_first.then(collector))
            }
        }
    }

    fn shard(&self, tag: Tag) -> MutexGuard<'_, HashMap<Tag, Flight<T>>> {
        #[allow(clippy::cast_possible_truncation)]
        let shard = &self.shards[tag.short() as usize / 7 % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().unwrap().len()).sum()
    }
}

/// The first request's call. Dropped when its answer has been noted, or when it is given up.
pub(super) struct Landing<T> {
    flights: Arc<Flights<T>>,
    tag: Tag,
    landed: Arc<Notify>,
}

impl<T> Drop for Landing<T> {
    fn drop(&mut self) {
        let mut shard = self.flights.shard(self.tag);
        let Some(mut entry) = own(&mut shard, self.tag, &self.landed) else { return };
        let flight = entry.get_mut();
        flight.is_out = false;
        if flight.has_collector {
            flight.landed.notify_one();
        } else {
            entry.remove();
        }
    }
}

/// Answers those who are seated. Dropped before it has (with its runtime, say), it leaves them without an answer at
/// once.
pub(super) struct Collector<T> {
    flights: Arc<Flights<T>>,
    tag: Tag,
    landed: Arc<Notify>,
    is_done: bool,
}

impl<T> Collector<T> {
    /// Until the first request's call has landed, but no longer than `patience`: its future may not be polled.
    pub(super) async fn landing(&self, patience: Duration) {
        // Whether it has landed or not, those who wait are served.
        let _ = tokio::time::timeout(patience, self.landed.notified()).await;
    }

    /// The next to be answered: requests of an equal cost, in the order in which they came, that are still waited for.
    /// `None` if there are none, and then this is done: whoever comes now starts another.
    pub(super) fn batch(&mut self) -> Option<(u32, Vec<oneshot::Sender<T>>)> {
        let mut shard = self.flights.shard(self.tag);
        let Some(mut entry) = own(&mut shard, self.tag, &self.landed) else {
            self.is_done = true;
            return None;
        };
        let flight = entry.get_mut();
        flight.seated.retain(|(_, answer)| !answer.is_closed());
        let Some(&(cost, _)) = flight.seated.front() else {
            self.is_done = true;
            flight.has_collector = false;
            if !flight.is_out {
                entry.remove();
            }
            return None;
        };
        let alike = flight.seated.iter().take(BATCH).take_while(|(other, _)| *other == cost).count();
        Some((cost, flight.seated.drain(..alike).map(|(_, answer)| answer).collect()))
    }
}

impl<T> Drop for Collector<T> {
    fn drop(&mut self) {
        if !self.is_done {
            let mut shard = self.flights.shard(self.tag);
            own(&mut shard, self.tag, &self.landed).map(OccupiedEntry::remove);
        }
    }
}

/// The flight of a key, unless that has ended and the key has a new one.
fn own<'a, T>(
    shard: &'a mut HashMap<Tag, Flight<T>>,
    tag: Tag,
    landed: &Arc<Notify>,
) -> Option<OccupiedEntry<'a, Tag, Flight<T>>> {
    match shard.entry(tag) {
        Entry::Occupied(entry) if Arc::ptr_eq(&entry.get().landed, landed) => Some(entry),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition::PartitionKey;
    use crate::store::redis::key::Names;

    fn tag() -> Tag {
        Names::new("", "", b"").tag(&PartitionKey::from("a"))
    }

    fn first(flights: &Arc<Flights<u32>>) -> Landing<u32> {
        match flights.board(tag(), 1) {
            Boarding::First(landing) => landing,
            _ => panic!("nobody was under way"),
        }
    }

    fn seat(flights: &Arc<Flights<u32>>, cost: u32) -> (oneshot::Receiver<u32>, Option<Collector<u32>>) {
        match flights.board(tag(), cost) {
            Boarding::Seated(receiver, collector) => (receiver, collector),
            _ => panic!("somebody was under way"),
        }
    }

    fn costs_and_sizes(collector: &mut Collector<u32>) -> Vec<(u32, usize)> {
        std::iter::from_fn(|| collector.batch()).map(|(cost, answers)| (cost, answers.len())).collect()
    }

    #[test]
    fn one_that_is_alone_leaves_nothing_behind() {
        let flights = Arc::new(Flights::new());
        drop(first(&flights));
        assert_eq!(flights.len(), 0);
        drop(first(&flights));
    }

    #[test]
    fn followers_are_answered_in_batches_of_equal_cost_without_those_who_left() {
        let flights = Arc::new(Flights::new());
        let landing = first(&flights);
        let (gone, collector) = seat(&flights, 9);
        let mut collector = collector.expect("the first to be seated starts it");
        let seats: Vec<_> = [1, 1, 2, 1].map(|cost| seat(&flights, cost)).into();
        assert!(seats.iter().all(|(_, collector)| collector.is_none()));
        drop(gone);
        drop(landing);
        assert_eq!(costs_and_sizes(&mut collector), [(1, 2), (2, 1), (1, 1)]);
        assert_eq!(flights.len(), 0);
    }

    #[test]
    fn seats_and_batches_are_bounded() {
        let flights = Arc::new(Flights::new());
        let _landing = first(&flights);
        let mut seats: Vec<_> = (0..SEATS).map(|_| seat(&flights, 1)).collect();
        assert!(matches!(flights.board(tag(), 1), Boarding::Full));
        let mut collector = seats[0].1.take().unwrap();
        assert_eq!(costs_and_sizes(&mut collector), vec![(1, BATCH); SEATS / BATCH]);
    }

    #[test]
    fn a_collector_that_is_given_up_leaves_nobody_waiting() {
        let flights = Arc::new(Flights::new());
        let landing = first(&flights);
        let (mut receiver, collector) = seat(&flights, 1);
        drop(collector);
        assert!(receiver.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Closed));
        // The key has a new flight by now, which the old one's end does not disturb.
        let second = first(&flights);
        let (_receiver, collector) = seat(&flights, 1);
        drop(landing);
        assert_eq!(costs_and_sizes(&mut collector.unwrap()), [(1, 1)]);
        assert_eq!(flights.len(), 1);
        drop(second);
        assert_eq!(flights.len(), 0);
    }

    #[test]
    fn one_that_ended_does_not_end_its_successor() {
        let flights = Arc::new(Flights::new());
        let landing = first(&flights);
        let (receiver, collector) = seat(&flights, 1);
        let mut old = collector.unwrap();
        drop(receiver);
        assert!(old.batch().is_none());
        let (mut receiver, collector) = seat(&flights, 1);
        drop(old);
        assert!(receiver.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Empty));
        drop((landing, collector));
    }

    #[tokio::test(start_paused = true)]
    async fn a_collector_waits_for_the_landing_but_not_for_ever() {
        let flights = Arc::new(Flights::new());
        let landing = first(&flights);
        let (_receiver, collector) = seat(&flights, 1);
        let collector = collector.unwrap();
        let patience = Duration::from_millis(50);
        let begun = tokio::time::Instant::now();
        collector.landing(patience).await;
        assert!(begun.elapsed() >= patience);
        drop(landing);
        let begun = tokio::time::Instant::now();
        collector.landing(patience).await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
}
