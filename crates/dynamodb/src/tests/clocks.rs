//! Clocks that differ, that are wrong, and that were wrong.

use tower_sluice::algorithm::{FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::testing::{IntervalChecker, Random, seeds};

use tower_sluice::Limiter;
use tower_sluice::limiter::Ask;

use super::service::Fate;
use super::*;
use crate::items::LONGEST_WAY;

const ERROR: Duration = Duration::from_millis(50);

/// A process with its own clock.
fn process(service: &Service, clock: &ManualClock) -> Dynamo {
    dynamo(service, clock).clock_error(ERROR)
}

/// Four processes whose clocks are wrong by up to `ERROR`, at random for each request, make requests at random times.
/// In no interval of true time do they admit more than the burst, the refill by the rate, and the refill in `ERROR`.
async fn overrun_is_bounded<A: Kept>(algorithm: A, seed: u64) {
    let (service, truth) = service().await;
    let mut random = Random::new(seed);
    let processes: Vec<_> = (0..4)
        .map(|_| {
            let clock = ManualClock::starting_at(NOW);
            (limiter(&process(&service, &clock), algorithm.clone()), clock)
        })
        .collect();
    let quota = algorithm.quota();
    let restored = u128::from(quota.limit()) * ERROR.as_nanos() / quota.period().as_nanos();
    let most = algorithm.worst_burst() + u64::try_from(restored).unwrap();
    let mut checker = IntervalChecker::new(quota, most);
    for _ in 0..3_000 {
        let (limiter, clock) = random.pick(&[&processes[0], &processes[1], &processes[2], &processes[3]]);
        let ahead = random.below(u64::try_from(ERROR.as_nanos()).unwrap() + 1);
        clock.set(Timestamp::from_nanos(truth.now().as_nanos() + ahead));
        let cost = random.pick(&[1, 1, 1, 3]);
        if limiter.acquire(&"key".into(), cost).await.unwrap().is_allowed() {
            checker.admit(truth.now(), cost);
        }
        let step = random.pick(&[0, 0, 1_000_000, 7_000_000, 40_000_000]);
        truth.advance(Duration::from_nanos(random.below(step + 1)));
    }
}

#[tokio::test]
async fn clock_errors_bound_the_overrun_of_buckets() {
    for seed in seeds(5) {
        overrun_is_bounded(TokenBucket::new(Quota::per_second(100).burst(10)), seed).await;
        overrun_is_bounded(TokenBucket::new(Quota::per_second(20).burst(40)), seed).await;
    }
}

#[tokio::test]
async fn clock_errors_bound_the_overrun_of_windows() {
    let quota = Quota::per(20, Duration::from_millis(200));
    for seed in seeds(5) {
        overrun_is_bounded(SlidingWindow::new(quota), seed).await;
        overrun_is_bounded(FixedWindow::new(quota), seed).await;
    }
}

/// A request rejected in a window that nobody had charged left it as the one to charge. Another request, which had read
/// the clock before that window began, charged it, and took the earlier item for a contradiction.
#[tokio::test]
async fn clocks_set_back_charge_the_earlier_window() {
    let (service, truth) = service().await;
    let period = 1_000_000_000;
    let begin = truth.now().as_nanos() / period * period + period;
    let at = |thousandths: u64| Timestamp::from_nanos(begin + thousandths * (period / 1_000));
    let fresh = |clock: &ManualClock| limiter(&process(&service, clock), SlidingWindow::new(Quota::per_second(4)));
    // By processes without memory. At the end, the second window has three units, and the first still weighs one.
    for (thousandths, cost) in [(0, 4), (1_500, 2), (1_950, 1)] {
        truth.set(at(thousandths));
        assert!(fresh(&truth).acquire(&"key".into(), cost).await.unwrap().is_allowed(), "{cost} at {thousandths}");
    }
    truth.set(at(2_010));
    let clock = ManualClock::starting_at(at(2_010));
    let limiter = fresh(&clock);
    for (thousandths, cost) in [(2_010, 2), (1_950, 1)] {
        clock.set(at(thousandths));
        let permit = limiter.acquire(&"key".into(), cost).await.unwrap();
        assert!(!permit.is_allowed(), "{cost} at {thousandths}");
    }
}

/// A machine that starts with a wrong clock writes nothing until its clock has been set.
#[tokio::test(start_paused = true)]
async fn a_wrong_clock_writes_nothing() {
    for (wrong, which) in [(NOW.saturating_add(Duration::from_secs(3)), "ahead of"), (Timestamp::ZERO, "behind")] {
        let (service, clock) = service().await;
        let own = ManualClock::starting_at(wrong);
        let limiter = limiter(&process(&service, &own), TokenBucket::new(per_day(5)));
        for _ in 0..100 {
            let error = ask(&limiter).await.unwrap_err();
            assert!(matches!(kind(&error), FaultKind::WrongClock | FaultKind::BreakerOpen), "{error}");
            assert!(kind(&error) != FaultKind::WrongClock || format!("{error:?}").contains(which), "{error:?}");
        }
        assert_eq!((service.counts().writes, service.items().len()), (0, 0));
        own.set(clock.now());
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert_eq!(admitted(&limiter, 10).await, 5);
    }
}

/// A clock is set wrongly while the process runs. The other processes ignore the first request's write.
#[tokio::test(start_paused = true)]
async fn the_first_answer_reveals_a_wrong_clock() {
    let (service, clock) = service().await;
    let own = ManualClock::starting_at(NOW);
    let bucket = TokenBucket::new(per_day(5));
    let limiter = limiter(&process(&service, &own), bucket);
    let other = super::limiter(&process(&service, &clock), bucket);
    let decision = ask(&limiter).await.unwrap();
    own.advance(Duration::from_secs(30 * 86_400));
    service.forget_counts();
    for _ in 0..3 {
        assert_eq!(kind(&ask(&limiter).await.unwrap_err()), FaultKind::WrongClock);
    }
    assert_eq!(service.counts().writes, 1);
    assert_eq!(admitted(&other, 10).await, 5);
    // A refund by such a clock would be too large or too small.
    service.forget_counts();
    limiter.refund(&Ask::charge(&"key".into(), 1), decision.receipt(), 1);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((service.counts().reads, service.counts().writes), (1, 0));
    own.set(clock.now());
    assert!(!ask(&limiter).await.unwrap().is_allowed());
}

/// Some emulators send no `Date`. We know nothing about the clock then, and make decisions.
#[tokio::test]
async fn without_a_date_clocks_are_trusted() {
    let (service, _) = service().await;
    service.send_no_date();
    let own = ManualClock::starting_at(Timestamp::ZERO);
    let limiter = limiter(&process(&service, &own), TokenBucket::new(per_day(5)));
    assert_eq!(admitted(&limiter, 10).await, 5);
}

/// A state that a right clock cannot have written is ignored and overwritten. It counts if it is ahead by at most the
/// clocks' difference plus a request's longest way.
async fn only_impossible_states_are_overwritten<A: Kept>(algorithm: A, limit: u64) {
    let possible = 2 * ERROR + LONGEST_WAY;
    for (ahead, left) in [(possible, 0), (possible + algorithm.quota().period(), limit)] {
        let (service, clock) = service().await;
        // Just before the edge of a window, which the clock that is ahead has passed.
        let period = u64::try_from(algorithm.quota().period().as_nanos()).unwrap();
        clock.set(Timestamp::from_nanos((NOW.as_nanos() / period + 1) * period - 1));
        let early = ManualClock::starting_at(clock.now().saturating_add(ahead));
        // The process does not know that its clock is wrong.
        service.send_no_date();
        let early = limiter(&process(&service, &early), algorithm.clone());
        assert_eq!(admitted(&early, limit + 1).await, limit);
        let process = limiter(&process(&service, &clock), algorithm.clone());
        assert_eq!(admitted(&process, limit + 1).await, left, "{ahead:?} ahead");
        // The ignored state has not used up the next window.
        clock.advance(algorithm.quota().period());
        assert!(ahead == possible || !process_has_far_state(&service, &algorithm, &clock));
    }
}

/// A write is on its way for half a minute. Meanwhile another process uses up the key, and a window ends. When the
/// write arrives, it forgives nothing.
async fn a_late_write_forgives_nothing<A: Kept>(algorithm: A) {
    let (service, clock) = service().await;
    let minute = 60_000_000_000;
    clock.set(Timestamp::from_nanos(NOW.as_nanos() / minute * minute + minute * 3 / 4));
    let [slow, other, last] = [(); 3].map(|()| limiter(&process(&service, &clock), algorithm.clone()));
    assert!(ask(&slow).await.unwrap().is_allowed());
    let mut fates = [Fate::Delayed(Duration::from_secs(30))].into_iter();
    service.decide(move |_| fates.next().unwrap_or(Fate::Answered));
    let late = tokio::spawn(async move { ask(&slow).await.unwrap().is_allowed() });
    tokio::time::sleep(Duration::from_secs(1)).await;
    clock.advance(Duration::from_secs(30));
    assert!(admitted(&other, 10).await >= 4);
    assert!(!late.await.unwrap());
    assert_eq!(admitted(&last, 10).await, 0);
}

#[tokio::test(start_paused = true)]
async fn late_writes_forgive_nothing() {
    a_late_write_forgives_nothing(TokenBucket::new(Quota::per_minute(5))).await;
    a_late_write_forgives_nothing(SlidingWindow::new(Quota::per_minute(5))).await;
}

/// A process has read the count of a window that has ended. Before it writes, a process whose clock is behind charges
/// the ended window once more.
#[tokio::test(start_paused = true)]
async fn a_late_charge_counts_in_full() {
    let (service, early) = service().await;
    let minute = 60_000_000_000;
    let edge = NOW.as_nanos() / minute * minute + minute;
    early.set(Timestamp::from_nanos(edge));
    let late = ManualClock::starting_at(Timestamp::from_nanos(edge - 1));
    let window = SlidingWindow::new(Quota::per_minute(5));
    let [early, late] = [early, late].map(|clock| limiter(&process(&service, &clock), window));
    assert!(late.acquire(&"key".into(), 3).await.unwrap().is_allowed());
    let mut fates = [Fate::Answered, Fate::Delayed(Duration::from_secs(2))].into_iter();
    service.decide(move |_| fates.next().unwrap_or(Fate::Answered));
    let charge = tokio::spawn(async move { early.acquire(&"key".into(), 2).await.unwrap().is_allowed() });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(late.acquire(&"key".into(), 2).await.unwrap().is_allowed());
    assert!(!charge.await.unwrap());
}

fn process_has_far_state<A: Kept>(service: &Service, algorithm: &A, clock: &ManualClock) -> bool {
    let at = crate::items::Moment { now: clock.now(), error: ERROR };
    let after = at.latest().as_nanos() / u64::try_from(algorithm.quota().period().as_nanos()).unwrap();
    service.items().iter().any(|item| {
        let windows = item.as_object().unwrap().keys().filter_map(|name| name.strip_prefix('w')?.parse::<u64>().ok());
        windows.into_iter().any(|window| window > after)
    })
}

#[tokio::test]
async fn a_bucket_from_the_future_is_overwritten() {
    // A full bucket that is ahead by twice the error owes a little more than a full bucket.
    only_impossible_states_are_overwritten(TokenBucket::new(Quota::per_minute(5)), 5).await;
}

#[tokio::test]
async fn a_window_from_the_future_is_overwritten() {
    only_impossible_states_are_overwritten(SlidingWindow::new(Quota::per_minute(5)), 5).await;
}
