//! The conformance suite for servers on which processes count units in flight.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Random;
use crate::store::remote::limiter_keys::LimiterKeys;
use crate::store::remote::{CallLimits, InFlight, ProcessField, RemoteKey, TakenUnits};
use crate::values::PartitionKey;

/// Checks a server on which processes count units in flight: random steps match a plain map; eight tasks that take and
/// release units all the time never have more than the limit, and leave no units; a lease that is not renewed ends, and
/// no earlier.
///
/// The limiter `testing` on `store` has no keys yet. Takes some 2,000 steps, and up to half a second on the server.
///
/// # Panics
///
/// At the first step that breaks the contract, or if a step fails. The message says how.
pub async fn check_in_flight<S: InFlight>(store: S, seed: u64) {
    let server = Arc::new(Counting { keys: LimiterKeys::new(store.secret(), "testing"), store });
    check_trace(&server, &mut Random::new(seed)).await;
    check_limit(&server, seed).await;
    check_leases(&server).await;
}

const HOUR: Duration = Duration::from_secs(3_600);

/// Long enough for a machine that is busy.
fn limits() -> CallLimits {
    CallLimits::until(Instant::now() + Duration::from_secs(60))
}

struct Counting<S> {
    store: S,
    keys: LimiterKeys,
}

impl<S: InFlight> Counting<S> {
    fn key(&self, name: &str) -> RemoteKey<'_> {
        self.keys.key(self.keys.tag(&PartitionKey::from(name)))
    }

    async fn take(&self, key: &str, field: ProcessField, units: u64, limit: u64, lease: Duration) -> TakenUnits {
        self.store.take(&self.key(key), field, units, limit, lease, limits()).await.expect("no step fails")
    }

    async fn renew(&self, key: &str, field: ProcessField, units: u64) {
        self.store.renew(&self.key(key), field, units, HOUR, limits()).await.expect("no step fails");
    }

    async fn release(&self, key: &str, field: ProcessField, units: u64) -> bool {
        self.store.release(&self.key(key), field, units, limits()).await.expect("no step fails")
    }

    /// The units in flight.
    async fn count(&self, key: &str) -> u64 {
        let nobody = ProcessField { process: 0, number: 0 };
        let TakenUnits { is_taken, before } = self.take(key, nobody, 0, 1, HOUR).await;
        assert!(!is_taken, "zero units only read");
        before
    }
}

/// The units in one key's fields.
#[derive(Default)]
struct Model(BTreeMap<ProcessField, u64>);

impl Model {
    fn total(&self) -> u64 {
        self.0.values().sum()
    }

    fn add(&mut self, field: ProcessField, units: u64) {
        *self.0.entry(field).or_default() += units;
        self.0.retain(|_, units| *units > 0);
    }

    fn take(&mut self, field: ProcessField, units: u64, limit: u64) -> TakenUnits {
        let before = self.total();
        let is_taken = units > 0 && before + units <= limit;
        if is_taken {
            self.add(field, units);
        }
        TakenUnits { is_taken, before }
    }

    fn renew(&mut self, field: ProcessField, units: u64) {
        self.0.retain(|other, _| other.process != field.process || other.number >= field.number);
        self.add(field, units);
    }

    fn release(&mut self, field: ProcessField, units: u64) -> bool {
        let left = self.0.get(&field).and_then(|held| held.checked_sub(units));
        if let Some(left) = left {
            self.0.insert(field, left);
            self.0.retain(|_, units| *units > 0);
        }
        left.is_some()
    }
}

async fn check_trace<S: InFlight>(server: &Counting<S>, random: &mut Random) {
    for (key, scale) in [("few", 1), ("many", 120_000_000_000_000)] {
        let mut model = Model::default();
        for step in 0..250 {
            // The greatest process that there is, and a field that it has begun later.
            let field = ProcessField { process: (1 << 52) - 1 - random.below(3), number: 1 + random.below(3) };
            let units = random.below(5) * scale;
            let at = format!("step {step} of {key}: {field:?} and {units} units");
            match random.below(8) {
                0..=3 => {
                    let limit = random.pick(&[5, 8]) * scale;
                    let expected = model.take(field, units, limit);
                    assert_eq!(server.take(key, field, units, limit, HOUR).await, expected, "{at}, at most {limit}");
                }
                4 if model.total() < 10 * scale => {
                    model.renew(field, units);
                    server.renew(key, field, units).await;
                }
                _ => {
                    let units = units.max(scale);
                    let expected = model.release(field, units);
                    assert_eq!(server.release(key, field, units).await, expected, "{at} or more are released");
                }
            }
            if step % 25 == 0 {
                assert_eq!(server.count(key).await, model.total(), "after {at}");
            }
        }
    }
}

const TASKS: u64 = 8;

async fn check_limit<S: InFlight>(server: &Arc<Counting<S>>, seed: u64) {
    const LIMIT: u64 = 5;
    let in_flight = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (server, in_flight) = (Arc::clone(server), Arc::clone(&in_flight));
            let mut random = Random::new(seed.wrapping_add(task));
            tokio::spawn(async move {
                for number in 0..40 {
                    let field = ProcessField { process: task + 1, number: number / 8 };
                    let units = 1 + random.below(3);
                    if !server.take("limited", field, units, LIMIT, HOUR).await.is_taken {
                        continue;
                    }
                    let now = in_flight.fetch_add(units, Ordering::SeqCst) + units;
                    assert!(now <= LIMIT, "{now} units are in flight, and the limit is {LIMIT}");
                    tokio::task::yield_now().await;
                    in_flight.fetch_sub(units, Ordering::SeqCst);
                    assert!(server.release("limited", field, units).await, "the units that were taken are there");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no task panics");
    }
    assert_eq!(server.count("limited").await, 0, "all units were released");
}

async fn check_leases<S: InFlight>(server: &Counting<S>) {
    const LEASE: Duration = Duration::from_millis(100);
    let [dead, alive, last] = [1, 2, 3].map(|process| ProcessField { process, number: 1 });
    assert!(server.take("leased", alive, 1, 3, HOUR).await.is_taken);
    // Before the server has seen the call, so that the lease is no longer.
    let began = Instant::now();
    assert!(server.take("leased", dead, 2, 3, LEASE).await.is_taken);
    let mut before = server.take("leased", last, 2, 3, HOUR).await;
    while !before.is_taken {
        assert_eq!(before.before, 3);
        assert!(began.elapsed() < Duration::from_secs(60), "the lease of a process that does not renew does not end");
        sleep(Duration::from_millis(5)).await;
        before = server.take("leased", last, 2, 3, HOUR).await;
    }
    assert_eq!(before.before, 1, "the lease of the other process has not ended");
    assert!(began.elapsed() >= LEASE * 9 / 10, "the lease of a process ends too early, after {:?}", began.elapsed());
    assert!(!server.release("leased", dead, 1).await, "what a process held is lost with its lease");
    assert_eq!(server.count("leased").await, 3);
}
