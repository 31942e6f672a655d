//! Random steps on one key, with quotas that change and clocks that are set back. Every answer is exactly the
//! algorithm's.

use std::collections::HashMap;

use tower_sluice::algorithm::{FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::limiter::Receipt;
use tower_sluice::store::remote::Standing;
use tower_sluice::testing::Random;
use tower_sluice::time::{Clock, ManualClock, Timestamp};

use super::effort::rounds;
use super::*;
use crate::kept::{Numbers, terms};
use crate::sql::Kind;

/// A key in a plain map.
#[derive(Clone)]
struct KeyModel<A: Kept> {
    state: A::State,
    /// The algorithm under whose quota the state is kept.
    under: A,
    /// The clock at the last decision, in whole microseconds.
    changed: u64,
}

/// A clock that was set back leaves a bucket's debt as it was, and lets a window be the next one at most.
fn corrected<A: Kept>(model: &KeyModel<A>, now: Timestamp) -> A::State {
    let mut numbers = Numbers::of(&model.under, Some(&model.state));
    let Numbers { limit, period, .. } = numbers;
    let ahead = model.changed.saturating_sub(now.as_nanos() / 1_000);
    match A::KIND {
        Kind::Bucket => numbers.number = numbers.number.saturating_sub(u128::from(ahead * 1_000) * u128::from(limit)),
        Kind::FixedWindow | Kind::SlidingWindow => {
            numbers.number = numbers.number.min(u128::from(now.as_nanos() / period + 1));
        }
        #[cfg(feature = "calendar")]
        Kind::CalendarWindow => {}
    }
    numbers.state(&model.under, now).unwrap()
}

/// Compares everything that a client may see.
fn assert_same(found: &tower_sluice::Decision, expected: &tower_sluice::Decision, context: &str) {
    let shown = |decision: &tower_sluice::Decision| {
        (
            decision.is_allowed(),
            decision.limit(),
            decision.remaining(),
            decision.retry_after(),
            decision.reset_after(),
            decision.next_after(),
        )
    };
    assert_eq!(shown(found), shown(expected), "{context}");
}

struct Trace<A: Kept> {
    postgres: Postgres,
    clock: ManualClock,
    random: Random,
    model: HashMap<u64, KeyModel<A>>,
    receipts: Vec<(u64, u64, Receipt, A)>,
}

impl<A: Kept> Trace<A> {
    async fn apply(&self, algorithm: &A, id: u64, transition: Transition) -> Applied<A::State> {
        apply(&self.postgres, algorithm, id.into(), transition).await.expect("a server that works")
    }

    async fn charge(&mut self, algorithm: &A, id: u64, context: &str) {
        let now = self.clock.now();
        let most = algorithm.max_cost();
        let some = 1 + self.random.below(most);
        let cost = self.random.pick(&[1, 1, some, 2.min(most), most]);
        let count = self.random.pick(&[1, 1, 2, 5, 100]);
        // Some by the statement that decides on any row.
        let postgres = self.postgres.clone();
        let postgres = if self.random.below(4) == 0 { postgres.with_whole_statements() } else { postgres };
        let charge = Transition::Charge { cost, count };
        let applied = apply(&postgres, algorithm, id.into(), charge).await.expect("a server that works");
        assert_eq!((applied.now, applied.standing), (now, Standing::default()), "{context}");
        let model = self.model.get(&id);
        let mut expected = model.map(|model| {
            let state = corrected(model, now);
            let [own, kept] = [algorithm, &model.under].map(|under| terms(&under.quota()));
            let is_converted = own != kept || is_calendar(A::KIND);
            if is_converted { algorithm.inherit(state, &model.under.quota(), now) } else { state }
        });
        let (mut found, mut charged) = (applied.old, 0);
        let bytes = |state: Option<A::State>| state.map(|state| algorithm.to_bytes(&state));
        let context = &format!("{context}: {:?} instead of {:?}", bytes(found), bytes(expected));
        for _ in 0..count {
            let (decision, next) = algorithm.decide(found, now, cost);
            let (right, after) = algorithm.decide(expected, now, cost);
            assert_same(&decision, &right, context);
            (found, expected) = (next.or(found), after.or(expected));
            charged += u32::from(after.is_some());
            if after.is_some() && self.random.below(4) == 0 {
                self.receipts.push((id, cost, decision.receipt(), algorithm.clone()));
            }
        }
        assert_eq!(applied.charged, charged, "{context}");
        if let Some(state) = expected {
            // Rejections are written too, because they roll a sliding window to the present one.
            let state = algorithm.refund(state, now, 0, Receipt::NONE);
            self.model.insert(id, KeyModel { state, under: algorithm.clone(), changed: now.as_nanos() / 1_000 });
        }
    }

    async fn refund(&mut self) {
        let now = self.clock.now();
        let Some((id, cost, receipt, by)) = self.receipts.pop() else { return };
        self.apply(&by, id, Transition::Refund { cost, receipt }).await;
        // Nothing is owed for a charge to an earlier window, so the row is not written.
        let is_owed = by.receipt_number(receipt, now).is_some();
        let Some(model) = self.model.get_mut(&id).filter(|_| is_owed) else { return };
        let [own, kept] = [&by, &model.under].map(|under| terms(&under.quota()));
        let has_same_units = match A::KIND {
            Kind::Bucket => (own[0], own[2]) == (kept[0], kept[2]),
            Kind::FixedWindow | Kind::SlidingWindow => own[2] == kept[2],
            #[cfg(feature = "calendar")]
            Kind::CalendarWindow => true,
        };
        // A refund leaves a state in the window that it is in.
        if !is_calendar(A::KIND) {
            model.state = corrected(model, now);
        }
        if has_same_units {
            model.state = by.refund(model.state, now, cost, receipt);
        }
        model.changed = now.as_nanos() / 1_000;
    }

    async fn read(&self, algorithm: &A, id: u64, context: &str) {
        let now = self.clock.now();
        let applied = self.apply(algorithm, id, Transition::Read).await;
        let under = applied.kept.and_then(|quota| algorithm.under(quota)).unwrap_or_else(|| algorithm.clone());
        let model = self.model.get(&id);
        let expected = model.map(|model| corrected(model, now));
        // Another calendar's state counts in the present window.
        let expected =
            expected.map(|state| if is_calendar(A::KIND) { under.inherit(state, &under.quota(), now) } else { state });
        if let Some(model) = model {
            let [own, kept] = [&under, &model.under].map(|under| terms(&under.quota()));
            assert_eq!(own[0], kept[0], "{context}");
            assert!(own[2] == kept[2] || is_calendar(A::KIND), "{context}");
            assert!(own[1] == kept[1] || A::KIND != Kind::Bucket, "{context}");
        }
        assert_same(&under.decide(applied.old, now, 0).0, &under.decide(expected, now, 0).0, context);
    }
}

/// Whether this algorithm has calendar windows, which a state does not name.
fn is_calendar(kind: Kind) -> bool {
    !matches!(kind, Kind::Bucket | Kind::FixedWindow | Kind::SlidingWindow)
}

/// Makes every step under one of these quotas, by one clock, which is also set back.
pub(super) async fn trace<A: Kept>(postgres: Postgres, quotas: &[A], seed: u64, steps: usize) {
    let clock = ManualClock::starting_at(Timestamp::from_nanos(1_700_000_000_123_456_789));
    // A row may be deleted once it has expired, although the clock is set back then.
    let postgres = postgres.with_clock(clock.clone()).without_sweeps();
    let random = Random::of_trial(seed);
    let mut trace = Trace { postgres, clock, random, model: HashMap::new(), receipts: Vec::new() };
    for step in 0..steps {
        let id = trace.random.below(8);
        // A key mostly keeps its quota.
        let other = if trace.random.below(8) == 0 { trace.random.below(8) } else { 0 };
        let algorithm = quotas[usize::try_from(id + other).unwrap() % quotas.len()].clone();
        let context = format!("step {step} of seed {seed}, key {id}, {:?}", trace.clock.now());
        match trace.random.below(16) {
            0 => {
                trace.apply(&algorithm, id, Transition::Reset).await;
                trace.model.remove(&id);
            }
            1..4 => trace.read(&algorithm, id, &context).await,
            4..7 => trace.refund().await,
            _ => trace.charge(&algorithm, id, &context).await,
        }
        let period = crate::kept::period_nanos(&algorithm.quota());
        let some = trace.random.below(period / 8 + 1);
        let passed = trace.random.pick(&[0, 0, 1, period / 1_000, some]);
        let now = trace.clock.now().as_nanos();
        if trace.random.below(32) == 0 {
            trace.clock.set(Timestamp::from_nanos(now - trace.random.pick(&[1, 1_000, some, 3 * some])));
        } else {
            trace.clock.set(Timestamp::from_nanos(now + passed));
        }
    }
}

#[tokio::test]
async fn buckets_match_the_algorithm() {
    let quotas = [
        TokenBucket::new(quota().burst(3)),
        TokenBucket::new(quota().burst(20)),
        TokenBucket::new(Quota::per(3, Duration::from_nanos(61_000_000_007))),
        TokenBucket::new(Quota::per(1_000_000, Duration::from_secs(50))),
    ];
    trace(process(pool(1)).await, &quotas, 1, rounds(3_000, 100_000)).await;
    let great = [greatest(), greatest().burst(Quota::MAX_UNITS - 1), Quota::per(1, Duration::from_secs(86_400))];
    trace(process(pool(1)).await, &great.map(TokenBucket::new), 2, rounds(2_000, 20_000)).await;
}

#[tokio::test]
async fn fixed_windows_match_the_algorithm() {
    let quotas =
        [quota(), Quota::per(70, Duration::from_secs(60)), Quota::per(30, Duration::from_nanos(61_000_000_007))];
    trace(process(pool(1)).await, &quotas.map(FixedWindow::new), 3, rounds(3_000, 100_000)).await;
    trace(
        process(pool(1)).await,
        &[greatest(), Quota::per_day(Quota::MAX_UNITS)].map(FixedWindow::new),
        4,
        rounds(2_000, 20_000),
    )
    .await;
}

#[tokio::test]
async fn sliding_windows_match_the_algorithm() {
    let quotas =
        [quota(), Quota::per(70, Duration::from_secs(60)), Quota::per(30, Duration::from_nanos(61_000_000_007))];
    trace(process(pool(1)).await, &quotas.map(SlidingWindow::new), 5, rounds(3_000, 100_000)).await;
    trace(
        process(pool(1)).await,
        &[greatest(), Quota::per_day(Quota::MAX_UNITS)].map(SlidingWindow::new),
        6,
        rounds(2_000, 20_000),
    )
    .await;
}

#[cfg(feature = "calendar")]
#[tokio::test]
async fn calendar_windows_match_the_algorithm() {
    use tower_sluice::algorithm::CalendarWindow;

    let berlin = |window: CalendarWindow| window.zone("Europe/Berlin").unwrap();
    let quotas = [CalendarWindow::daily(7), CalendarWindow::daily(70), berlin(CalendarWindow::daily(9))];
    trace(process(pool(1)).await, &quotas, 7, rounds(3_000, 100_000)).await;
    let quotas = [CalendarWindow::monthly(Quota::MAX_UNITS), berlin(CalendarWindow::weekly(1_000))];
    trace(process(pool(1)).await, &quotas, 8, rounds(2_000, 20_000)).await;
}
