//! The conformance suite for servers that keep departure times.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Random;
use super::backend::assert_distinct_names;
use crate::store::remote::limiter_keys::LimiterKeys;
use crate::store::remote::{Arrival, CallLimits, DepartureTerms, Departures, RemoteKey, Reserved};
use crate::values::{PartitionKey, Quota};

/// Checks a server that keeps [departure times](Departures), from two processes: reservations match a plain list, if
/// either process makes them or gives them back, and with different bounds in both; reservations that are made at once
/// do not overlap, and between them no time is lost. The nodes whose health it reports, if any, have distinct names.
///
/// All queues that are called `check-...` are new. Takes some 2,000 calls.
///
/// # Panics
///
/// At the first step that breaks the contract, or if a call fails. The message says how.
pub async fn check_departures<D: Departures>(processes: [D; 2], seed: u64) {
    let processes = processes.map(Arc::new);
    let mut random = Random::new(seed);
    for trace in 0..8 {
        check_trace(&processes, trace, &mut random).await;
    }
    check_reservations_at_once(&processes).await;
    assert_distinct_names(&processes[0].health());
}

const HOUR: Duration = Duration::from_secs(3_600);

/// How far ahead reservations may end, in units of the quota.
const MOST_AHEAD: u64 = 400;

/// A queue, as one process sees it.
struct Queue<D> {
    server: Arc<D>,
    keys: LimiterKeys,
    terms: DepartureTerms,
}

/// Opens a queue in both processes, which make reservations up to `most` units ahead.
fn open<D: Departures>(processes: &[Arc<D>; 2], name: &str, quota: &Quota, most: [u64; 2]) -> [Arc<Queue<D>>; 2] {
    [0, 1].map(|index| {
        let server = Arc::clone(&processes[index]);
        let terms = DepartureTerms::new(*quota, length(quota, most[index]));
        server.check_fit(&terms).expect("the server keeps queues of weeks");
        let keys = LimiterKeys::new(server.secret(), name);
        Arc::new(Queue { server, keys, terms })
    })
}

/// The time for this number of units, in ticks.
fn length(quota: &Quota, units: u64) -> u128 {
    u128::from(quota.period_nanos()) * u128::from(units)
}

impl<D: Departures> Queue<D> {
    fn key(&self, name: &str) -> RemoteKey<'_> {
        self.keys.key(self.keys.tag(&PartitionKey::from(name)))
    }

    async fn reserve(&self, key: &str, arrival: Arrival) -> Reserved {
        self.server.reserve(&self.key(key), &self.terms, arrival, limits()).await.expect("no reservation fails")
    }

    async fn give_back(&self, key: &str, length: u128, end: u128) -> bool {
        self.server.give_back(&self.key(key), &self.terms, length, end, limits()).await.expect("no return fails")
    }
}

/// Long enough for a machine that is busy.
fn limits() -> CallLimits {
    CallLimits::until(Instant::now() + Duration::from_secs(60))
}

/// The end of the first stretch that is free and long enough, if it is in reach.
fn first_free(taken: &[[u128; 2]], now: u128, arrival: Arrival) -> Option<u128> {
    let mut begin = now;
    for [from, until] in taken.iter().filter(|[_, until]| *until > now) {
        if begin + arrival.length <= *from {
            break;
        }
        begin = begin.max(*until);
    }
    let end = begin + arrival.length;
    (arrival.length > 0 && end <= now + arrival.reach).then_some(end)
}

/// Reservations last longer than the trace. So the server's time, which passes, decides only on the first one.
async fn check_trace<D: Departures>(processes: &[Arc<D>; 2], trace: u64, random: &mut Random) {
    // No whole number of ticks per nanosecond, and as exact as a server with microseconds can be.
    let quota = Quota::per(random.pick(&[1, 3, 7]), HOUR);
    // One process reserves more than the other ever does.
    let most = [24, random.pick(&[4, 12])];
    let queues = open(processes, &format!("check-{trace}"), &quota, most);
    let keys = ["a", "b"];
    let mut taken: [Vec<[u128; 2]>; 2] = [vec![], vec![]];
    for step in 0..100 {
        let [index, process] = [0; 2].map(|_| usize::try_from(random.below(2)).expect("one of two"));
        let (queue, key, taken) = (&queues[process], keys[index], &mut taken[index]);
        // The first one has begun to pass, so its rest depends on when it is given back.
        if taken.len() > 1 && random.below(3) == 0 {
            let index = 1 + usize::try_from(random.below(taken.len() as u64 - 1)).expect("an index");
            let [begin, end] = taken.remove(index);
            for is_there in [true, false] {
                let is_left = queue.give_back(key, end - begin, end).await;
                assert_eq!(is_left, is_there, "step {step}: a reservation is given back once");
            }
            continue;
        }
        let [units, reach] = [random.below(4), random.below(most[process] + 1)];
        let arrival = Arrival { length: length(&quota, units), reach: length(&quota, reach) };
        let Reserved { now, end, timeline, .. } = queue.reserve(key, arrival).await;
        let now = u128::from(now.as_nanos()) * u128::from(quota.limit());
        assert_eq!(end, first_free(taken, now, arrival), "step {step}: {arrival:?} at {now}, behind {taken:?}");
        if let Some(end) = end {
            taken.push([end - arrival.length, end]);
            taken.sort_unstable();
        }
        let last = taken.last().map_or(now, |[_, end]| *end);
        assert_eq!(timeline.end(), last.max(now), "step {step}: the timeline ends with the last reservation");
    }
}

const TASKS: u64 = 8;

/// Each task makes reservations in one of the two processes, and gives some of them back.
async fn check_reservations_at_once<D: Departures>(processes: &[Arc<D>; 2]) {
    const EACH: u64 = 20;
    let quota = Quota::per(1, HOUR);
    let queues = open(processes, "check-at-once", &quota, [MOST_AHEAD; 2]);
    let hour = length(&quota, 1);
    let arrival = Arrival { length: hour, reach: length(&quota, MOST_AHEAD) };
    // This one stays. All others begin behind it, so no part of them passes before they are given back.
    let first = queues[0].reserve("a", arrival).await.end.expect("it is in reach");
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let queue = Arc::clone(&queues[usize::from(task % 2 == 0)]);
            tokio::spawn(async move {
                let mut ends = Vec::new();
                for number in 0..EACH {
                    let end = queue.reserve("a", arrival).await.end.expect("it is in reach");
                    if (task + number) % 5 == 0 {
                        queue.give_back("a", hour, end).await;
                    } else {
                        ends.push(end);
                    }
                }
                ends
            })
        })
        .collect();
    let mut ends = vec![first];
    for task in tasks {
        ends.extend(task.await.expect("no task panics"));
    }
    // Where one was given back, its place is free, or another has taken it.
    while ends.len() <= usize::try_from(TASKS * EACH).expect("few") {
        ends.push(queues[0].reserve("a", arrival).await.end.expect("it is in reach"));
    }
    ends.sort_unstable();
    for pair in ends.windows(2) {
        let is_next = pair[1] - pair[0] == hour;
        assert!(is_next, "reservations of an hour end {} ticks apart", pair[1] - pair[0]);
    }
}
