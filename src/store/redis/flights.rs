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
/// The first request of a key makes its call itself. Whoever comes before that has landed takes a seat, and the first to
/// do so starts a task, the collector, which answers all who are seated. So a call that another's future makes, and that
/// is not polled, holds up nobody for long; and while a key is used up, one call finds that out for all.
///
/// Each runtime has its own flights: one that is blocked holds up only itself.
pub(super) struct Flights<T> {
    shards: [Mutex<HashMap<Route, Flight<T>>>; SHARDS],
}

/// A key, as a runtime asks for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Route {
    tag: Tag,
    runtime: Option<Id>,
}

impl Route {
    pub(super) fn of(tag: Tag) -> Self {
        Self { tag, runtime: Handle::try_current().ok().map(|handle| handle.id()) }
    }
}

const SHARDS: usize = 16;

/// As many as may be seated for one key.
const SEATS: usize = 4_096;

struct Flight<T> {
    /// Whether the first request's call is under way.
    is_out: bool,
    /// Since when.
    since: Instant,
    landed: Arc<Notify>,
    has_collector: bool,
    seated: Vec<Seated<T>>,
}

/// One that waits for its answer, of that cost, until then.
struct Seated<T> {
    cost: u32,
    deadline: Instant,
    answer: oneshot::Sender<T>,
}

pub(super) enum Boarding<T> {
    /// Nobody is under way: go, and drop this when the answer has been noted.
    First(Landing<T>),
    /// The answer will come. If there is a collector, it must be started.
    Seated(Seat<T>, Option<Collector<T>>),
    /// All seats are taken.
    Full,
}

impl<T> Flights<T> {
    pub(super) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()) }
    }

    /// For a request that waits until `deadline`.
    pub(super) fn board(self: &Arc<Self>, route: Route, cost: u32, deadline: Instant) -> Boarding<T> {
        let mut shard = self.shard(route);
        match shard.entry(route) {
            Entry::Vacant(entry) => {
                let landed = Arc::new(Notify::new());
                let landing = Landing { flights: Arc::clone(self), route, landed: Arc::clone(&landed) };
                entry.insert(Flight {
                    is_out: true,
                    since: Instant::now(),
                    landed,
                    has_collector: false,
                    seated: Vec::new(),
                });
                Boarding::First(landing)
            }
            Entry::Occupied(entry) => {
                let flight = entry.into_mut();
                if flight.seated.len() >= SEATS {
                    return Boarding::Full;
                }
                let (sender, answer) = oneshot::channel();
                flight.seated.push(Seated { cost, deadline, answer: sender });
                let is_first = !std::mem::replace(&mut flight.has_collector, true);
                let (since, landed) = (flight.since, &flight.landed);
                let seat = Seat { flights: Arc::clone(self), route, landed: Arc::clone(landed), deadline, answer };
                let landed = Arc::clone(landed);
                let collector = || Collector { flights: Arc::clone(self), route, since, landed, is_done: false };
                Boarding::Seated(seat, is_first.then(collector))
            }
        }
    }

    fn shard(&self, route: Route) -> MutexGuard<'_, HashMap<Route, Flight<T>>> {
        #[allow(clippy::cast_possible_truncation)]
        let shard = &self.shards[route.tag.short() as usize / 7 % SHARDS];
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
    route: Route,
    landed: Arc<Notify>,
}

impl<T> Drop for Landing<T> {
    fn drop(&mut self) {
        let mut shard = self.flights.shard(self.route);
        let Some(mut entry) = own(&mut shard, self.route, &self.landed) else { return };
        let flight = entry.get_mut();
        flight.is_out = false;
        if flight.has_collector {
            flight.landed.notify_one();
        } else {
            entry.remove();
        }
    }
}

/// A place among those who share the next call.
pub(super) struct Seat<T> {
    flights: Arc<Flights<T>>,
    route: Route,
    landed: Arc<Notify>,
    deadline: Instant,
    answer: oneshot::Receiver<T>,
}

/// What became of a [`Seat`].
pub(super) enum Outcome<T> {
    Answered(T),
    /// Whoever was to bring the answer is gone.
    Lost,
    /// There was no answer by the deadline. If not even a call was made for it, the collector is stuck, on a thread that is
    /// blocked, say: then this one is to be started in its place, for the others who are seated.
    Late(Option<Collector<T>>),
}

impl<T> Seat<T> {
    pub(super) async fn answer(self) -> Outcome<T> {
        let Self { flights, route, landed, deadline, answer } = self;
        match timeout_at(deadline, answer).await {
            Ok(Ok(answer)) => return Outcome::Answered(answer),
            Ok(Err(_)) => return Outcome::Lost,
            // The receiver is dropped, which shows below whether the collector has seen its seat.
            Err(_) => {}
        }
        let now = Instant::now();
        let mut shard = flights.shard(route);
        let Some(mut entry) = own(&mut shard, route, &landed) else { return Outcome::Late(None) };
        let flight = entry.get_mut();
        let is_stuck = flight.seated.iter().any(|seated| seated.answer.is_closed() && seated.deadline <= now);
        if !is_stuck {
            return Outcome::Late(None);
        }
        flight.seated.retain(|seated| !seated.answer.is_closed());
        if flight.seated.is_empty() {
            entry.remove();
            return Outcome::Late(None);
        }
        // From now on, the flight is no longer that of the other collector.
        let landed = Arc::new(Notify::new());
        landed.notify_one();
        (flight.landed, flight.is_out) = (Arc::clone(&landed), false);
        let since = flight.since;
        drop(shard);
        Outcome::Late(Some(Collector { flights, route, since, landed, is_done: false }))
    }
}

/// Answers those who are seated. Dropped before it has (with its runtime, say), it leaves them without an answer at
/// once.
pub(super) struct Collector<T> {
    flights: Arc<Flights<T>>,
    route: Route,
    since: Instant,
    landed: Arc<Notify>,
    is_done: bool,
}

impl<T> Collector<T> {
    /// Until the first request's call has landed, but only until `patience` after it began: its future may not be polled.
    pub(super) async fn landing(&self, patience: Duration) {
        // Whether it has landed or not, those who wait are served.
        let _ = timeout_at(self.since + patience, self.landed.notified()).await;
    }

    /// All who are to be answered, in groups of an equal cost, each in the order in which they came. Nobody needs an
    /// answer any more if there is none, and then this is done: whoever comes now starts another.
    pub(super) fn groups(&mut self) -> Vec<Group<T>> {
        let mut shard = self.flights.shard(self.route);
        let Some(mut entry) = own(&mut shard, self.route, &self.landed) else {
            self.is_done = true;
            return Vec::new();
        };
        let flight = entry.get_mut();
        flight.seated.retain(|seated| !seated.answer.is_closed());
        if flight.seated.is_empty() {
            self.is_done = true;
            flight.has_collector = false;
            if !flight.is_out {
                entry.remove();
            }
            return Vec::new();
        }
        let mut groups: BTreeMap<u32, Group<T>> = BTreeMap::new();
        for Seated { cost, deadline, answer } in flight.seated.drain(..) {
            groups.entry(cost).or_insert_with(|| Group { cost, seats: Vec::new() }).seats.push((deadline, answer));
        }
        groups.into_values().collect()
    }
}

impl<T> Drop for Collector<T> {
    fn drop(&mut self) {
        if !self.is_done {
            let mut shard = self.flights.shard(self.route);
            own(&mut shard, self.route, &self.landed).map(OccupiedEntry::remove);
        }
    }
}

/// Requests of one cost, each with its deadline.
pub(super) struct Group<T> {
    pub(super) cost: u32,
    pub(super) seats: Vec<(Instant, oneshot::Sender<T>)>,
}

/// The flight of a key, unless that has ended and the key has a new one.
fn own<'a, T>(
    shard: &'a mut HashMap<Route, Flight<T>>,
    route: Route,
    landed: &Arc<Notify>,
) -> Option<OccupiedEntry<'a, Route, Flight<T>>> {
    match shard.entry(route) {
        Entry::Occupied(entry) if Arc::ptr_eq(&entry.get().landed, landed) => Some(entry),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::key::Names;
    use crate::values::PartitionKey;

    fn route() -> Route {
        Route::of(Names::new("", "", b"").tag(&PartitionKey::from("a")))
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_millis(50)
    }

    fn first(flights: &Arc<Flights<u32>>) -> Landing<u32> {
        match flights.board(route(), 1, later()) {
            Boarding::First(landing) => landing,
            _ => panic!("nobody was under way"),
        }
    }

    fn seat(flights: &Arc<Flights<u32>>, cost: u32) -> (oneshot::Receiver<u32>, Option<Collector<u32>>) {
        match flights.board(route(), cost, later()) {
            Boarding::Seated(seat, collector) => (seat.answer, collector),
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
            sizes.extend(groups.iter().map(|group| (group.cost, group.seats.len())));
        }
    }

    #[test]
    fn one_that_is_alone_leaves_nothing_behind() {
        let flights = Arc::new(Flights::new());
        drop(first(&flights));
        assert_eq!(flights.len(), 0);
        drop(first(&flights));
    }

    #[test]
    fn followers_are_answered_in_groups_of_equal_cost_without_those_who_left() {
        let flights = Arc::new(Flights::new());
        let landing = first(&flights);
        let (gone, collector) = seat(&flights, 9);
        let mut collector = collector.expect("the first to be seated starts it");
        let seats: Vec<_> = [1, 1, 2, 1].map(|cost| seat(&flights, cost)).into();
        assert!(seats.iter().all(|(_, collector)| collector.is_none()));
        drop(gone);
        drop(landing);
        assert_eq!(costs_and_sizes(&mut collector), [(1, 3), (2, 1)]);
        assert_eq!(flights.len(), 0);
    }

    #[test]
    fn seats_are_bounded() {
        let flights = Arc::new(Flights::new());
        let _landing = first(&flights);
        let mut seats: Vec<_> = (0..SEATS).map(|_| seat(&flights, 1)).collect();
        assert!(matches!(flights.board(route(), 1, later()), Boarding::Full));
        let mut collector = seats[0].1.take().unwrap();
        assert_eq!(costs_and_sizes(&mut collector), [(1, SEATS)]);
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
        assert!(old.groups().is_empty());
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
        // Nor once more, by whoever comes later.
        let begun = tokio::time::Instant::now();
        collector.landing(patience).await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        drop(landing);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_waits_in_vain_has_the_others_answered() {
        let flights = Arc::new(Flights::<u32>::new());
        let landing = first(&flights);
        let Boarding::Seated(seat, stuck) = flights.board(route(), 1, later()) else { panic!("somebody is under way") };
        let (seats, others): (Vec<_>, Vec<_>) = (0..3)
            .map(|_| match flights.board(route(), 1, later() + Duration::from_millis(1)) {
                Boarding::Seated(seat, other) => (seat, other),
                _ => panic!("somebody is under way"),
            })
            .unzip();
        assert!(others.iter().all(Option::is_none));
        let Outcome::Late(Some(mut collector)) = seat.answer().await else { panic!("nobody answers") };
        // What the one that was stuck does when it goes on disturbs nobody.
        drop((landing, stuck));
        collector.landing(Duration::from_secs(1)).await;
        let mut groups = collector.groups();
        assert_eq!((groups.len(), groups[0].seats.len()), (1, 3));
        for (number, (_, answer)) in (0..).zip(groups.remove(0).seats) {
            answer.send(number).unwrap();
        }
        for (number, seat) in (0..).zip(seats) {
            assert!(matches!(seat.answer().await, Outcome::Answered(answer) if answer == number));
        }
        assert!(collector.groups().is_empty());
        assert_eq!(flights.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn one_whose_call_takes_too_long_disturbs_nobody() {
        let flights = Arc::new(Flights::<u32>::new());
        let landing = first(&flights);
        let Boarding::Seated(seat, collector) = flights.board(route(), 1, later()) else {
            panic!("somebody is under way")
        };
        let mut collector = collector.unwrap();
        drop(landing);
        let calling = collector.groups();
        let Boarding::Seated(next, None) = flights.board(route(), 1, later() + Duration::from_secs(1)) else {
            panic!()
        };
        assert!(matches!(seat.answer().await, Outcome::Late(None)));
        drop(calling);
        for (_, answer) in collector.groups().remove(0).seats {
            answer.send(7).unwrap();
        }
        assert!(matches!(next.answer().await, Outcome::Answered(7)));
    }
}
