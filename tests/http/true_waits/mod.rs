//! Advertised waits are true: a rejected client that waits as advertised, alone on its keys, is admitted.

mod balances;
mod debts;
mod looks;
mod stack;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use self::stack::{Answer, Call, Held, Stack, clock, timed};
use crate::support::effort::rounds;
use crate::support::trace::Trace;
use http::{Request, Response, StatusCode};
use tower_sluice::algorithm::{SlidingWindow, TokenBucket};
use tower_sluice::key::User;
use tower_sluice::testing::Random;
use tower_sluice::time::ManualClock;
use tower_sluice::{Penalty, Policy, Quota, RateLimitLayer};

const BAN: Duration = Duration::from_secs(10);

fn ban_after_one(clock: &ManualClock) -> Penalty {
    Penalty::new(Quota::per_minute(1), BAN).with_clock(clock.clone())
}

/// Sends until the answer is a ban.
fn until_banned(stack: &Stack) -> Answer {
    (0..10).map(|_| stack.call(Call::of("alice"))).find(Answer::is_ban).expect("a client that keeps sending is banned")
}

#[test]
fn a_bans_wait_covers_the_exhausted_limit() {
    let clock = clock();
    let stack = Stack::new(
        &clock,
        [Policy::new("daily", timed(TokenBucket::new(Quota::per_day(2)), &clock))
            .key(User::key())
            .penalty(ban_after_one(&clock))],
    );
    let banned = until_banned(&stack);
    assert_eq!(banned.retry_after, Some(43_200), "half a day until the next unit, not the ten seconds of the ban");
    clock.advance(BAN);
    clock.advance(banned.wait.unwrap() - BAN);
    assert_eq!(stack.call(Call::of("alice")).status, 200);
}

/// The longer wait comes from another policy.
#[test]
fn a_ban_hides_no_longer_wait() {
    let clock = clock();
    let stack = Stack::new(
        &clock,
        [
            Policy::new("seconds", timed(TokenBucket::new(Quota::per_second(2)), &clock))
                .key(User::key())
                .penalty(ban_after_one(&clock)),
            Policy::new("days", timed(SlidingWindow::new(Quota::per_day(2)), &clock)).key(User::key()),
        ],
    );
    let banned = until_banned(&stack);
    assert!(banned.wait > Some(Duration::from_secs(10_000)), "advertised {:?}", banned.wait);
    clock.advance(banned.wait.unwrap());
    assert_eq!(stack.call(Call::of("alice")).status, 200);
}

#[test]
fn impossible_costs_have_no_wait_when_banned() {
    let clock = clock();
    let stack = Stack::new(
        &clock,
        [Policy::new("units", timed(TokenBucket::new(Quota::per_second(2)), &clock))
            .key(User::key())
            .cost_fn(Call::cost_of)
            .penalty(ban_after_one(&clock))],
    );
    until_banned(&stack);
    let never = stack.call(Call { cost: 3, ..Call::of("alice") });
    assert_eq!((never.status, never.retry_after, never.wait), (429, None, None));
    assert!(never.body.contains("more than is ever admitted"), "{}", never.body);
}

/// Random stacks of policies, each with some hundred requests by three clients: one ignores the waits; one waits as
/// advertised, alone; and one waits as advertised while the others keep sending. Some refundable requests are held open
/// meanwhile.
#[test]
fn random_stacks_advertise_true_waits() {
    let mut tally = Tally::default();
    let mut trace = Trace::of(rounds(60, 1_000));
    while trace.goes_on([
        ("waits that are checked", tally.checked > 600),
        ("bans", tally.bans > 30),
        ("waits that are exact", tally.estimated * 100 < tally.checked),
    ]) {
        let seed = trace.seed();
        let (mut random, clock) = (Random::new(seed), clock());
        let stack = Stack::random(&mut random, &clock);
        let (mut held, mut patient_until) = (Vec::new(), Duration::ZERO);
        let mut passed = Duration::ZERO;
        for _ in 0..60 {
            for _ in 0..random.below(4) {
                let answer = stack.call(Call::random(&mut random, "insistent"));
                tally.note(&answer);
                if random.below(6) == 0 {
                    passed += tally.check(&stack, &answer, &mut held, seed);
                }
            }
            if random.below(4) == 0 {
                held.extend(stack.hold(Call { status: 200, ..Call::random(&mut random, "insistent") }));
            }
            let step = Duration::from_millis(random.below(3) * random.below(2_000));
            stack.advance(step);
            passed += step;
            if passed >= patient_until {
                let answer = stack.call(Call::random(&mut random, "patient"));
                tally.note(&answer);
                tally.banned_obedient += u64::from(answer.is_ban());
                patient_until = passed + answer.wait.unwrap_or_default();
            }
            let answer = stack.call(Call::random(&mut random, "obedient"));
            tally.note(&answer);
            tally.banned_obedient += u64::from(answer.is_ban());
            passed += tally.check(&stack, &answer, &mut held, seed);
        }
        stack.check_invariants();
    }
    let Tally { rejected, checked, bans, banned_obedient, estimated, untrue } = tally;
    println!(
        "{rejected} rejections, {bans} of them bans; {checked} waits checked, {estimated} late, {} untrue",
        untrue.len()
    );
    assert!(untrue.is_empty(), "{} of {checked} waits are untrue: {:#?}", untrue.len(), &untrue[..untrue.len().min(3)]);
    assert_eq!(banned_obedient, 0);
}

#[derive(Default)]
struct Tally {
    rejected: u64,
    checked: u64,
    bans: u64,
    banned_obedient: u64,
    /// Waits that assumed refunds which came too late to help.
    estimated: u64,
    untrue: Vec<String>,
}

impl Tally {
    fn note(&mut self, answer: &Answer) {
        self.rejected += u64::from(answer.is_rejected());
        self.bans += u64::from(answer.is_ban());
    }

    /// Waits as advertised, and sends an equal request again. Returns the time that passed. Held requests are finished
    /// and refunded before: a wait that assumes refunds is true if they are made.
    fn check(&mut self, stack: &Stack, answer: &Answer, held: &mut Vec<Held>, seed: u64) -> Duration {
        if !answer.is_rejected() {
            return Duration::ZERO;
        }
        self.checked += 1;
        let is_estimate = !held.is_empty();
        held.drain(..).for_each(Held::finish);
        let wait = match answer.wait {
            Some(wait) => {
                let seconds = Duration::from_secs(answer.retry_after.expect("both fields or none"));
                assert!(!wait.is_zero() && wait <= seconds, "{wait:?} and {seconds:?}");
                wait
            }
            // No wait helps, not even 100 days.
            None => {
                assert_eq!(answer.retry_after, None);
                Duration::from_secs(100 * 86_400)
            }
        };
        stack.advance(wait);
        let again = stack.call(answer.call);
        if again.is_rejected() && is_estimate && answer.wait.is_some() {
            // The refund came so late that the charge was no longer owed. The next wait is not an estimate.
            self.estimated += 1;
            return wait + self.check(stack, &again, held, seed);
        }
        if again.is_rejected() == answer.wait.is_some() {
            self.untrue.push(format!("seed {seed}: {answer:?}, then {again:?}"));
        }
        wait
    }
}

/// Many concurrent logins from one address, which a household or an office shares, all with the right password. They
/// are not banned, and wait about one login's time.
#[tokio::test]
async fn concurrent_correct_logins_are_not_banned() {
    const LIMIT: usize = 20;
    let policy = Policy::new("failed-logins", SlidingWindow::new(Quota::per_hour(20)))
        .key(User::key())
        .charge_when(|response| response.status() == StatusCode::UNAUTHORIZED)
        .penalty(Penalty::new(Quota::per_minute(10), Duration::from_secs(3_600)));
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let service = {
        let gate = Arc::clone(&gate);
        tower::Layer::layer(
            &RateLimitLayer::new(policy),
            tower::service_fn(move |_: Request<()>| {
                let gate = Arc::clone(&gate);
                async move {
                    gate.acquire().await.unwrap().forget();
                    Ok::<_, Infallible>(Response::new(http_body_util::Empty::<bytes::Bytes>::new()))
                }
            }),
        )
    };
    let login = || {
        let mut request = Request::new(());
        request.extensions_mut().insert(User::new("one address"));
        tokio::spawn(tower::ServiceExt::oneshot(service.clone(), request))
    };
    let (mut left, mut rounds) = (120_usize, 0);
    while left > 0 {
        rounds += 1;
        assert!(rounds < 20, "{left} logins are still rejected");
        let begun = std::time::Instant::now();
        let logins: Vec<_> = (0..left).map(|_| login()).collect();
        // Rejections are answered while the admitted requests are in flight.
        while logins.iter().filter(|login| login.is_finished()).count() < left.saturating_sub(LIMIT) {
            tokio::task::yield_now().await;
        }
        gate.add_permits(LIMIT.min(left));
        let mut admitted = 0;
        for login in logins {
            let response = login.await.unwrap().unwrap();
            if response.status() == 200 {
                admitted += 1;
                continue;
            }
            let answer = Answer::of(&response.map(|_| String::new()), Call::of("one address"));
            assert!(!answer.is_ban());
            // In the first round, 1 s, since no duration is known; later, the time that logins take.
            let most =
                if rounds == 1 { Duration::from_secs(1) } else { Duration::from_secs(1).max(begun.elapsed() * 4) };
            assert!(answer.wait.is_some_and(|wait| wait <= most), "round {rounds}: {answer:?} of {most:?}");
        }
        assert_eq!(admitted, LIMIT.min(left));
        left -= admitted;
    }
    assert_eq!(rounds, 6);
}
