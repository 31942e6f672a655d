//! The conformance suites for limiters.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::Random;
use crate::algorithm::Algorithm;
use crate::limiter::Limiter;
use crate::values::time::{Clock, ManualClock, Timestamp};
use crate::values::{Answer, Ask, Decision, Mode, PartitionKey};

/// Checks a limiter that decides at once, in memory: it decides like the algorithm over a plain map, forgets no debt,
/// admits exactly the units that the algorithm admits under concurrent requests, and answers the [modes](check_modes)
/// that it describes.
///
/// A limiter may keep time in coarser units than nanoseconds: its waits may differ from the algorithm's by 1 µs plus
/// 2^-30 of the time in which the whole burst is restored. The algorithm must not give keys a
/// [phase](Algorithm::phase), which a plain map does not have.
///
/// `make` builds a limiter with that algorithm that has admitted nothing yet, uses the given clock and holds at least
/// 64 keys.
///
/// # Panics
///
/// At the first step that breaks the contract. The message says how.
#[track_caller]
pub fn check_limiter<A, L>(algorithm: &A, seed: u64, make: impl Fn(ManualClock) -> L)
where
    A: Algorithm,
    L: Limiter,
{
    check_trace(algorithm, &mut Random::new(seed), &make);
    let limiter = make(frozen_clock());
    match pin!(check_modes(&limiter)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(()) => {}
        Poll::Pending => panic!("a limiter in memory must decide at once, in all modes"),
    }
    let burst = algorithm.quota().max_burst();
    let attempts = (burst + burst / 2).clamp(64, 100_000).div_ceil(THREADS as u64);
    let expected = admitted_one_by_one(algorithm, attempts * THREADS as u64);
    for _ in 0..20 {
        let admitted = admitted_by_threads(&make(frozen_clock()), THREADS, attempts);
        assert_eq!(
            admitted, expected,
            "{THREADS} threads were admitted another number of units than one after the other"
        );
    }
}

/// Checks that a limiter answers each [mode](Mode) that it [describes](crate::limiter::Description::answers), and every
/// other mode with an [error](crate::LimiterError::unsupported), by which nothing is charged, reserved, taken or reset.
///
/// For any limiter whose keys have their own budgets, on a server or not. It charges two keys, asks about only one of
/// them in the modes that are not described, and compares the two. The clock should stand still, or the quota be
/// restored slowly; there must be room for ten units per key. The limiter keeps its held units.
///
/// # Panics
///
/// At the first mode that breaks the contract.
pub async fn check_modes(limiter: &(impl Limiter + ?Sized)) {
    let (asked, control) = (PartitionKey::from("asked in all modes"), PartitionKey::from("asked in one mode"));
    let description = limiter.describe();
    let charge = async |key: &PartitionKey| {
        let decision = limiter.decide(&Ask::charge(key, 1)).decided().await;
        let decision = decision.unwrap_or_else(|error| panic!("a charge failed: {error}"));
        (decision.is_allowed(), decision.limit(), decision.remaining(), decision.delay())
    };
    assert_eq!(charge(&asked).await, charge(&control).await, "two new keys");
    for mode in [Mode::Peek, Mode::Shadow, Mode::UpTo, Mode::Fallback, Mode::Reset] {
        let key = if description.answers(mode) { PartitionKey::from("of its own") } else { asked.clone() };
        let answer = limiter.decide(&Ask::charge(&key, 1).to(mode)).decided().await;
        match (description.answers(mode), answer) {
            (true, Err(error)) => panic!("{mode:?} is described, and failed: {error}"),
            (false, Ok(decision)) => panic!("{mode:?} is not described, and was answered: {decision:?}"),
            (true, Ok(_)) | (false, Err(_)) => {}
        }
        assert_eq!(charge(&asked).await, charge(&control).await, "{mode:?} is not described, and changed the key");
    }
}

/// The threads that contend for one key.
const THREADS: usize = 8;

/// The key for which they contend.
const CONTENDED: &str = "contended";

/// Counts the units that an algorithm admits at one instant, when `attempts` charges of one unit are made.
pub(super) fn admitted_one_by_one<A: Algorithm>(algorithm: &A, attempts: u64) -> u64 {
    let now = frozen_clock().now();
    let mut state = None;
    let mut admitted = 0;
    for _ in 0..attempts {
        let (decision, next) = algorithm.decide(state, now, 1);
        admitted += u64::from(decision.is_allowed());
        state = next.or(state);
    }
    admitted
}

/// Counts the units that are admitted when `threads` threads each make `attempts` charges of one unit to the same
/// key, concurrently.
///
/// # Panics
///
/// If the limiter fails or would make a request wait.
#[track_caller]
pub fn admitted_by_threads(limiter: &impl Limiter, threads: usize, attempts: u64) -> u64 {
    let admitted = AtomicU64::new(0);
    let start = Barrier::new(threads);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let key = PartitionKey::from(CONTENDED);
                start.wait();
                let mine =
                    (0..attempts).filter(|_| decided(limiter.decide(&Ask::charge(&key, 1))).is_allowed()).count();
                admitted.fetch_add(mine as u64, Ordering::Relaxed);
            });
        }
    });
    admitted.into_inner()
}

/// A stopped clock at a realistic instant, so that windows do not begin at zero.
pub(super) fn frozen_clock() -> ManualClock {
    ManualClock::starting_at(Timestamp::from_nanos(1_700_000_000_123_456_789))
}

fn check_trace<A, L>(algorithm: &A, random: &mut Random, make: impl Fn(ManualClock) -> L)
where
    A: Algorithm,
    L: Limiter,
{
    let clock = frozen_clock();
    let limiter = make(clock.clone());
    let mut model: HashMap<u64, A::State> = HashMap::new();
    let quota = algorithm.quota();
    let period = quota.period_nanos();
    let full = quota.time_of(quota.max_burst());
    let tolerance = full / (1 << 30) + Duration::from_micros(1);
    for step in 0..20_000 {
        let id = random.below(64);
        let key = PartitionKey::from(id);
        let cost = random.pick(&[0, 1, 1, 1, 2, 3]);
        let now = clock.now();

        let (expected, next) = algorithm.decide(model.get(&id).copied(), now, cost);
        if limiter.describe().answers(Mode::Peek) {
            let peeked = decided(limiter.decide(&Ask::peek(&key, cost)));
            assert_same(&peeked, &expected, tolerance, &format!("step {step}: peeking at {now:?}"));
        }
        let decision = decided(limiter.decide(&Ask::charge(&key, cost)));
        assert_same(&decision, &expected, tolerance, &format!("step {step}: asking for {cost} at {now:?}"));
        if let Some(next) = next {
            model.insert(id, next);
        }

        if decision.is_allowed() && random.below(8) == 0 {
            limiter.refund(&Ask::charge(&key, cost), decision.receipt(), cost);
            if let Some(state) = model.get_mut(&id) {
                *state = algorithm.refund(*state, now, cost, expected.receipt());
            }
        }
        let some = random.below(period / 8 + 1);
        clock.advance(Duration::from_nanos(random.pick(&[0, 0, 1, period / 1_000, some])));
    }
}

pub(super) fn assert_same(decision: &Decision, expected: &Decision, tolerance: Duration, context: &str) {
    let facts = |decision: &Decision| (decision.is_allowed(), decision.limit(), decision.remaining());
    assert_eq!(facts(decision), facts(expected), "{context}");
    let near = |a: Duration, b: Duration| a.abs_diff(b) <= tolerance;
    let waits = (decision.retry_after(), expected.retry_after());
    let waits_agree = match waits {
        (Some(wait), Some(expected)) => near(wait, expected),
        (wait, expected) => wait == expected,
    };
    assert!(waits_agree, "{context}: retry after {:?} instead of {:?}", waits.0, waits.1);
    let resets = (decision.reset_after(), expected.reset_after());
    assert!(near(resets.0, resets.1), "{context}: reset after {:?} instead of {:?}", resets.0, resets.1);
}

fn decided(check: Answer) -> Decision {
    match check {
        Answer::Ready(Ok(decision)) => decision,
        other => panic!("a limiter in memory must decide at once, but answered {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::AtomicUsize;
    use std::sync::{Mutex, MutexGuard};

    use super::*;
    use crate::algorithm::{GcraState, TokenBucket};
    use crate::values::{LimiterError, Quota, Receipt};

    /// A map behind a lock.
    struct Map {
        bucket: TokenBucket,
        clock: ManualClock,
        states: Mutex<HashMap<PartitionKey, GcraState>>,
        fault: Option<Fault>,
        contended: AtomicUsize,
        all_have_read: Barrier,
    }

    #[derive(Clone, Copy, PartialEq)]
    enum Fault {
        RefundsNothing,
        /// The first charge of each thread reads before any of them writes.
        ReadsAndWritesApart,
        /// It does not look at the mode.
        ChargesInAllModes,
        /// Its answer to another mode is an error, and it charges all the same.
        ChargesAndFails,
    }

    impl Map {
        fn new(bucket: TokenBucket, clock: ManualClock, fault: Option<Fault>) -> Self {
            let states = Mutex::default();
            let contended = AtomicUsize::new(0);
            let all_have_read = Barrier::new(THREADS);
            Self { bucket, clock, states, fault, contended, all_have_read }
        }

        fn states(&self) -> MutexGuard<'_, HashMap<PartitionKey, GcraState>> {
            self.states.lock().unwrap()
        }
    }

    impl Limiter for Map {
        fn decide(&self, ask: &Ask<'_>) -> Answer {
            let is_unsupported = ask.mode() != Mode::Charge && self.fault != Some(Fault::ChargesInAllModes);
            if is_unsupported && self.fault != Some(Fault::ChargesAndFails) {
                return LimiterError::unsupported(ask.mode()).into();
            }
            let mut states = self.states();
            let state = states.get(ask.key()).copied();
            let is_contended = *ask.key() == PartitionKey::from(CONTENDED);
            if is_contended && self.fault == Some(Fault::ReadsAndWritesApart) {
                drop(states);
                if self.contended.fetch_add(1, Ordering::Relaxed) < THREADS {
                    self.all_have_read.wait();
                }
                states = self.states();
            }
            let (decision, next) = self.bucket.decide(state, self.clock.now(), ask.cost());
            if let Some(next) = next {
                states.insert(ask.key().clone(), next);
            }
            if is_unsupported { LimiterError::unsupported(ask.mode()).into() } else { decision.into() }
        }

        fn refund(&self, charged: &Ask<'_>, receipt: Receipt, units: u64) {
            if self.fault == Some(Fault::RefundsNothing) {
                return;
            }
            if let Some(state) = self.states().get_mut(charged.key()) {
                *state = self.bucket.refund(*state, self.clock.now(), units, receipt);
            }
        }
    }

    fn check(fault: Option<Fault>) {
        let bucket = TokenBucket::new(Quota::per_minute(7).burst(3));
        check_limiter(&bucket, 1, |clock| Map::new(bucket, clock, fault));
    }

    #[test]
    fn a_correct_limiter_passes() {
        check(None);
    }

    #[test]
    fn each_fault_is_found_and_named() {
        for (fault, message) in [
            (Fault::RefundsNothing, "step "),
            (Fault::ReadsAndWritesApart, "threads were admitted another number of units"),
            (Fault::ChargesInAllModes, "Peek is not described, and was answered"),
            (Fault::ChargesAndFails, "Peek is not described, and changed the key"),
        ] {
            let panic = catch_unwind(AssertUnwindSafe(|| check(Some(fault)))).expect_err(message);
            let found = panic.downcast_ref::<String>().expect("the message says when");
            assert!(found.contains(message), "{message}: {found}");
        }
    }
}
