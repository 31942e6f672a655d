//! Processes over a map, by the test's paused time.

use std::collections::HashMap;
use std::error::Error as _;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::SharedConcurrency;
use super::lines::KeyLines;
use super::pace::AskingPace;
use super::process::{Process, RemoteWanted};
use crate::limiter::{Limiter, LimiterExt, Permit, WaitBounds};
use crate::store::remote::limiter_keys::LimiterKeys;
use crate::store::remote::{
    CallLimits, GaveUp, InFlight, ProcessField, Record, Records, RemoteKey, Server, TakenUnits, Unchanged,
};
use crate::testing::{Random, check_in_flight, seed_of};
use crate::util::random::seeded;
use crate::values::time::{SIMULATED, Timestamp};
use crate::values::{Ask, LimiterError, Mode, PartitionKey};

/// The values, with the ends of their lifetimes.
#[derive(Default)]
struct Values(Mutex<HashMap<String, (Vec<u8>, Timestamp)>>);

/// One process's way to the values.
#[derive(Default)]
struct Way {
    /// Nothing arrives, and no answer comes.
    is_cut: AtomicBool,
    /// This number of swaps is made, and their answers are lost.
    lost_answers: AtomicU64,
    calls: AtomicU64,
}

/// One process' view of a server that is two milliseconds away.
#[derive(Clone, Default)]
struct Distant {
    values: Arc<Values>,
    way: Arc<Way>,
}

const ONE_WAY: Duration = Duration::from_millis(2);

const TIMEOUT: Duration = Duration::from_secs(1);

const LEASE: Duration = Duration::from_secs(10);

std::thread_local! {
    static START: Instant = Instant::now();
}

fn now() -> Timestamp {
    START.with(|start| Timestamp::from_nanos(1_700_000_000_000_000_000).saturating_add(start.elapsed()))
}

/// Lets this thread count paused time, and draw from the run's seed.
fn simulate() {
    seeded::set(Some(seed_of(0)));
    SIMULATED.set(Some(now));
}

impl Distant {
    /// Another process with the same values.
    fn other(&self) -> Self {
        Self { values: Arc::clone(&self.values), way: Arc::default() }
    }

    async fn way(&self, deadline: Instant) -> Result<(), LimiterError> {
        let span = if self.way.is_cut.load(Ordering::Relaxed) { TIMEOUT * 9 } else { ONE_WAY };
        let arrives = tokio::time::timeout_at(deadline, sleep(span)).await;
        arrives.map_err(|_| self.gave_up(GaveUp::TimedOut))
    }
}

impl Records for Distant {
    async fn read(&self, name: &str, limits: CallLimits) -> Result<Record, LimiterError> {
        self.way.calls.fetch_add(1, Ordering::Relaxed);
        self.way(limits.deadline).await?;
        let live = |(value, end): &(Vec<u8>, Timestamp)| (*end > now()).then(|| value.clone());
        let record = Record { value: self.values.0.lock().unwrap().get(name).and_then(live), now: now() };
        self.way(limits.deadline).await?;
        Ok(record)
    }

    async fn swap(
        &self,
        name: &str,
        old: Option<&[u8]>,
        new: Option<&[u8]>,
        lifetime: Duration,
        limits: CallLimits,
    ) -> Result<bool, LimiterError> {
        self.way.calls.fetch_add(1, Ordering::Relaxed);
        self.way(limits.deadline).await?;
        let is_swapped = {
            let mut values = self.values.0.lock().unwrap();
            let present = values.get(name).filter(|(_, end)| *end > now()).map(|(value, _)| value.as_slice());
            let is_same = present == old;
            match new.filter(|_| is_same) {
                Some(new) => drop(values.insert(name.to_owned(), (new.to_vec(), now().saturating_add(lifetime)))),
                None if is_same => drop(values.remove(name)),
                None => {}
            }
            is_same
        };
        let is_lost = |left: u64| left.checked_sub(1);
        if self.way.lost_answers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, is_lost).is_ok() {
            return Err(self.gave_up(GaveUp::TimedOut));
        }
        self.way(limits.deadline).await?;
        Ok(is_swapped)
    }
}

impl Server for Distant {
    fn timeout(&self) -> Duration {
        TIMEOUT
    }

    fn is_same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.values, &other.values)
    }
}

type Limited = SharedConcurrency<Distant>;

fn limiter(server: &Distant, limit: u64) -> Limited {
    SharedConcurrency::new(server.clone(), "test", limit).lease(LEASE)
}

fn key() -> PartitionKey {
    PartitionKey::from("a")
}

async fn take(limiter: &Limited, units: u64) -> Option<Permit<&Limited>> {
    limiter.acquire(&key(), units).await.unwrap().admitted()
}

/// The units that the server counts.
async fn counted(server: &Distant) -> u64 {
    let keys = LimiterKeys::new(&[], "test");
    let field = ProcessField { process: 0, number: 0 };
    let limits = CallLimits::until(Instant::now() + TIMEOUT);
    let nobody = server.other();
    let count = InFlight::take(&nobody, &keys.key(keys.tag(&key())), field, 0, 1, LEASE, limits).await;
    count.unwrap().before
}

fn waiting(limiter: &Limited) -> usize {
    limiter.stats().backlog.expect("it has a queue").waiting()
}

#[tokio::test(start_paused = true)]
async fn records_pass_the_conformance_suite() {
    simulate();
    check_in_flight(Distant::default(), seed_of(1)).await;
}

/// Requests that come and go in eight processes, for longer or shorter, some of them for longer than a lease.
#[tokio::test(start_paused = true)]
async fn processes_never_exceed_the_limit() {
    const LIMIT: u64 = 9;
    simulate();
    let server = Distant::default();
    let in_flight = Arc::new(AtomicU64::new(0));
    let served = Arc::new(AtomicU64::new(0));
    let mut clients = Vec::new();
    for process in 0..8 {
        let limiter = Arc::new(limiter(&server.other(), LIMIT).max_queue(9).max_wait(Duration::from_secs(60)));
        for client in 0..4 {
            let (limiter, in_flight, served) = (Arc::clone(&limiter), Arc::clone(&in_flight), Arc::clone(&served));
            let mut random = Random::of_trial(process * 4 + client);
            clients.push(tokio::spawn(async move {
                for _ in 0..30 {
                    let units = 1 + random.below(3);
                    let Some(permit) = take(&limiter, units).await else { continue };
                    let now = in_flight.fetch_add(units, Ordering::SeqCst) + units;
                    assert!(now <= LIMIT, "{now} units are in flight");
                    served.fetch_add(1, Ordering::SeqCst);
                    let longest = if random.below(10) == 0 { 30_000 } else { 100 };
                    sleep(Duration::from_millis(random.below(longest))).await;
                    in_flight.fetch_sub(units, Ordering::SeqCst);
                    drop(permit);
                }
            }));
        }
    }
    for client in clients {
        client.await.unwrap();
    }
    sleep(LEASE).await;
    println!("{served:?} of {} were served", 8 * 4 * 30);
    assert!(served.load(Ordering::SeqCst) > 100);
    assert_eq!(counted(&server).await, 0);
}

/// The process's calls reach nobody any more, as after a kill.
#[tokio::test(start_paused = true)]
async fn dead_processes_units_return_with_leases() {
    simulate();
    let server = Distant::default();
    let dies = server.other();
    let dead = limiter(&dies, 4);
    let _units = take(&dead, 3).await.unwrap();
    let held = Instant::now();
    // Renewals keep them while it lives.
    sleep(5 * LEASE).await;
    dies.way.is_cut.store(true, Ordering::Relaxed);
    let died = Instant::now();
    let alive = limiter(&server, 4);
    while take(&alive, 4).await.is_none() {
        sleep(Duration::from_millis(50)).await;
    }
    println!("held for {:?}, and free {:?} after its death", held.elapsed(), died.elapsed());
    assert!(died.elapsed() >= LEASE / 4 && died.elapsed() <= LEASE + Duration::from_millis(100));
}

/// A swap that was made, and whose answer is lost: for a request, for a release, for a renewal.
#[tokio::test(start_paused = true)]
async fn lost_answers_are_repaired_by_renewals() {
    simulate();
    let server = Distant::default();
    let process = server.other();
    let limiter = limiter(&process, 9);
    let first = take(&limiter, 2).await.unwrap();
    process.way.lost_answers.store(1, Ordering::Relaxed);
    limiter.acquire(&key(), 3).await.unwrap_err();
    assert_eq!((counted(&server).await, limiter.stats().in_flight), (5, Some(2)), "three that nobody holds");
    sleep(LEASE / 2).await;
    assert_eq!(counted(&server).await, 2);

    let second = take(&limiter, 4).await.unwrap();
    process.way.lost_answers.store(2, Ordering::Relaxed);
    drop(first);
    sleep(LEASE).await;
    assert_eq!(process.way.lost_answers.load(Ordering::Relaxed), 0);
    assert_eq!(counted(&server).await, 4);
    drop(second);
    sleep(LEASE).await;
    assert_eq!(counted(&server).await, 0);
    assert!(limiter.process().counts.is_empty(), "the key is forgotten");
}

/// A cancelled request gives its units back, whether its call has read or is about to swap.
#[tokio::test(start_paused = true)]
async fn cancelled_requests_keep_nothing() {
    simulate();
    let server = Distant::default();
    let limiter = limiter(&server, 9);
    for after in 0..10 {
        let cancelled = tokio::time::timeout(Duration::from_millis(after), take(&limiter, 9)).await;
        drop(cancelled);
        sleep(TIMEOUT).await;
        assert_eq!((counted(&server).await, limiter.stats().in_flight), (0, Some(0)), "after {after} ms");
    }
}

/// A key that another process uses up costs this process no memory, however many of its requests are rejected.
#[tokio::test(start_paused = true)]
async fn rejected_requests_leave_no_entry() {
    simulate();
    let server = Distant::default();
    let [here, there] = [server.clone(), server.other()].map(|process| limiter(&process, 2));
    let permit = take(&there, 2).await.unwrap();
    assert!(take(&here, 1).await.is_none());
    assert!(here.process().counts.is_empty(), "a rejected call is over");
    drop(permit);
    sleep(TIMEOUT).await;
    let permit = take(&here, 1).await.unwrap();
    assert!(take(&here, 2).await.is_none());
    drop(permit);
    sleep(TIMEOUT).await;
    assert!(here.process().counts.is_empty());
}

/// One process makes more requests than the server can answer in their time: most fail, and no unit is lost.
#[tokio::test(start_paused = true)]
async fn request_storms_lose_no_units() {
    simulate();
    let server = Distant::default();
    let [here, there] = [server.other(), server.other()].map(|process| Arc::new(limiter(&process, 2)));
    let _units = [take(&here, 1).await.unwrap(), take(&there, 1).await.unwrap()];
    let answered = Arc::new(AtomicU64::new(0));
    let clients: Vec<_> = (0..1_000)
        .map(|_| {
            let (here, answered) = (Arc::clone(&here), Arc::clone(&answered));
            tokio::spawn(async move {
                loop {
                    match here.acquire(&key(), 1).await {
                        Ok(rejection) => assert!(rejection.admitted().is_none(), "two are in flight"),
                        Err(_) => continue,
                    }
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for _ in 0..30 {
        sleep(TIMEOUT).await;
        assert_eq!(counted(&server).await, 2);
    }
    println!("{answered:?} requests were answered in 30 seconds, of which each takes a call of 4 ms");
    assert!(answered.load(Ordering::Relaxed) > 6_000, "{answered:?}");
    clients.iter().for_each(JoinHandle::abort);
}

/// Two calls to take units, one to be rejected, and no call while this process has them all.
#[tokio::test(start_paused = true)]
async fn a_rejection_takes_one_call() {
    simulate();
    let server = Distant::default();
    let [here, there] = [server.clone(), server.other()].map(|process| limiter(&process, 2));
    let calls = || server.way.calls.swap(0, Ordering::Relaxed);
    let one = take(&here, 1).await.unwrap();
    assert_eq!(calls(), 2);
    let two = take(&there, 1).await.unwrap();
    assert!(take(&here, 1).await.is_none());
    assert_eq!(calls(), 1);
    drop(two);
    sleep(TIMEOUT).await;
    let _two = take(&here, 1).await.unwrap();
    assert_eq!(calls(), 2);
    assert!(take(&here, 1).await.is_none());
    assert_eq!(calls(), 0);
    drop(one);
    sleep(TIMEOUT).await;
    assert_eq!(calls(), 2);
}

/// The fallback of a process that is cut off counts its units before and after, and reports them when it is back.
#[tokio::test(start_paused = true)]
async fn an_outage_gives_no_second_limit() {
    simulate();
    let server = Distant::default();
    let process = server.other();
    let limiter = limiter(&process, 3);
    let _held = take(&limiter, 2).await.unwrap();
    process.way.is_cut.store(true, Ordering::Relaxed);
    limiter.acquire(&key(), 1).await.unwrap_err();
    let fall_back = || limiter.decide(&Ask::charge(&key(), 1).to(Mode::Fallback)).at_once().unwrap().is_allowed();
    assert!(fall_back() && !fall_back());
    sleep(2 * LEASE).await;
    assert_eq!(counted(&server).await, 0, "its lease has ended");
    process.way.is_cut.store(false, Ordering::Relaxed);
    sleep(LEASE / 2).await;
    assert_eq!(counted(&server).await, 3);
}

async fn line_up(limiter: &Arc<Limited>, units: u64) -> JoinHandle<Option<Permit<Arc<Limited>>>> {
    let theirs = Arc::clone(limiter);
    let waits = tokio::spawn(async move { theirs.acquire_owned(&key(), units).await.unwrap().admitted() });
    sleep(10 * ONE_WAY).await;
    waits
}

#[tokio::test(start_paused = true)]
async fn waiters_are_served_in_order() {
    simulate();
    let server = Distant::default();
    let limiter = Arc::new(limiter(&server, 2).max_queue(9).max_wait(LEASE));
    let permit = take(&limiter, 2).await.unwrap();
    let mut line = Vec::new();
    // The last one costs less than the one before, and does not overtake.
    for units in [1, 1, 2, 1] {
        line.push(line_up(&limiter, units).await);
    }
    assert_eq!(waiting(&limiter), 4);
    drop(permit);
    let mut line = line.into_iter();
    let (first, second) = (line.next().unwrap().await.unwrap(), line.next().unwrap().await.unwrap());
    assert!(first.is_some() && second.is_some());
    sleep(TIMEOUT).await;
    drop(first);
    sleep(TIMEOUT).await;
    assert_eq!(waiting(&limiter), 2);
    drop(second);
    let third = line.next().unwrap().await.unwrap();
    assert_eq!((third.unwrap().units(), waiting(&limiter)), (2, 1));
    assert!(line.next().unwrap().await.unwrap().is_some());
    // Nobody is served for longer than `max_wait`.
    let other = limiter_of_all(&server).await;
    let waiter = line_up(&limiter, 1).await;
    let began = Instant::now();
    assert!(waiter.await.unwrap().is_none() && began.elapsed() <= LEASE);
    drop(other);
}

/// Another process, with all units.
async fn limiter_of_all(server: &Distant) -> Permit<Arc<Limited>> {
    sleep(TIMEOUT).await;
    let other = Arc::new(limiter(&server.other(), 2));
    other.acquire_owned(&key(), 2).await.unwrap().admitted().unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_heir_shares_units_and_lines() {
    simulate();
    let server = Distant::default();
    let before = Arc::new(limiter(&server, 1).max_queue(9).max_wait(LEASE));
    let permit = take(&before, 1).await.unwrap();
    let waiter = line_up(&before, 1).await;
    let heir = limiter(&server, 2).max_queue(9);
    heir.inherit(&*before).unwrap().finish();
    assert_eq!(heir.stats().in_flight, Some(1));
    assert!(waiter.await.unwrap().is_some(), "it fits under the new limit");
    drop(permit);
    let elsewhere = SharedConcurrency::new(server.clone(), "other", 2);
    assert!(elsewhere.inherit(&heir).is_none(), "another name");
    assert!(limiter(&Distant::default(), 2).inherit(&heir).is_none(), "another server");
    heir.close();
    let full = limiter_of_all(&server).await;
    assert!(heir.acquire(&key(), 1).await.unwrap_err().is_closed(), "it would have to wait");
    drop(full);
}

/// If a server's answers contradict themselves, we do not believe them, and repair the changes that it may have made.
#[tokio::test(start_paused = true)]
async fn a_contradiction_is_an_error() {
    struct Liar(bool);

    impl InFlight for Liar {
        fn take(
            &self,
            _: &RemoteKey<'_>,
            _: ProcessField,
            _: u64,
            _: u64,
            _: Duration,
            _: CallLimits,
        ) -> impl Future<Output = Result<TakenUnits, Unchanged>> + Send {
            std::future::ready(Ok(TakenUnits { is_taken: self.0, before: if self.0 { 9 } else { 0 } }))
        }

        fn renew(
            &self,
            _: &RemoteKey<'_>,
            _: ProcessField,
            _: u64,
            _: Duration,
            _: CallLimits,
        ) -> impl Future<Output = Result<(), Unchanged>> + Send {
            std::future::ready(Ok(()))
        }

        fn release(
            &self,
            _: &RemoteKey<'_>,
            _: ProcessField,
            _: u64,
            _: CallLimits,
        ) -> impl Future<Output = Result<bool, Unchanged>> + Send {
            std::future::ready(Ok(true))
        }
    }

    impl Server for Liar {
        fn timeout(&self) -> Duration {
            TIMEOUT
        }

        fn is_same_as(&self, _: &Self) -> bool {
            false
        }
    }

    simulate();
    for takes in [false, true] {
        let limiter = SharedConcurrency::new(Liar(takes), "test", 9).lease(LEASE);
        let error = limiter.acquire(&key(), 1).await.unwrap_err();
        assert_eq!(error.source().unwrap().to_string(), GaveUp::Disagreement.to_string());
        sleep(LEASE).await;
        assert!(limiter.process().counts.is_empty());
    }
}

/// Without the memory for the layer, the connection and a call under way.
#[test]
fn waiters_take_less_than_1200_bytes() {
    let process = Arc::new(Process::new(Arc::new(Distant::default()), "test", LEASE));
    let wanted = RemoteWanted { tag: process.tag(&PartitionKey::SHARED), cost: 1, limit: 1 };
    let bounds = WaitBounds::new(1);
    let pace = AskingPace::unknown(Instant::now());
    let Ok(place) = KeyLines::join(&process.lines, wanted.tag, &bounds, pace) else { panic!() };
    let first = size_of_val(&Arc::clone(&process).take_or_wait(wanted, false, bounds));
    let then = size_of_val(&process.wait(place, wanted, false, Duration::ZERO));
    println!("{first} and {then} bytes");
    assert!(first + then < 1_200, "{first} and {then}");
    assert_eq!(process.lines.waiting(), 0);
}
