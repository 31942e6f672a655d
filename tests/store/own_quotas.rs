//! Keys with their own quotas, against naive models: a token level, or window counts, for each key, under the quota
//! that its last question had.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tower_sluice::algorithm::{Algorithm, FixedWindow, GcraState, SlidingWindow, TokenBucket};
use tower_sluice::limiter::{Ask, IntoLimiter, Mode};
use tower_sluice::store::{MemoryStore, WhenFull};
use tower_sluice::testing::{Random, seeds, take_quotas};
use tower_sluice::time::{Clock, ManualClock, Timestamp};
use tower_sluice::{Decision, Limiter, PartitionKey, Quota, RateLimiter};

use crate::common::{check_invariants, clock, decided};
use crate::heirs::inherit;

const SECOND: u64 = 1_000_000_000;

/// In each mode and with each table kind, a suspended key is rejected and stays as it is.
#[test]
fn a_suspended_key_keeps_its_use() {
    fn holds(algorithm: impl Algorithm, has_quotas: bool) {
        let limiter = RateLimiter::new(algorithm, MemoryStore::default().with_clock(clock()));
        let key = PartitionKey::from("a");
        let ask = |cost| Ask::charge(&key, cost).under(has_quotas.then(|| Quota::per_hour(20)));
        let before = decided(limiter.decide(&ask(4)));
        for mode in [Mode::Charge, Mode::Peek, Mode::Shadow, Mode::UpTo, Mode::Fallback] {
            for cost in [0, 1, 30] {
                let decision =
                    decided(limiter.decide(&Ask::charge(&key, cost).under(Some(Quota::suspended())).to(mode)));
                assert_eq!(decision, Decision::suspended(), "{mode:?} {cost}");
                limiter.refund(&Ask::charge(&key, cost).under(Some(Quota::suspended())), decision.receipt(), cost);
            }
        }
        assert_eq!(decided(limiter.decide(&ask(0))).remaining(), before.remaining());
        // A reset clears the key, and the answer comes from the quota.
        let reset = decided(limiter.decide(&Ask::reset(&key).under(Some(Quota::suspended()))));
        assert_eq!((reset, decided(limiter.decide(&ask(0))).remaining()), (Decision::suspended(), before.limit()));
    }
    let quota = Quota::per_hour(20);
    for has_quotas in [false, true] {
        holds(TokenBucket::new(quota), has_quotas);
        holds(FixedWindow::new(quota), has_quotas);
        holds(SlidingWindow::new(quota), has_quotas);
        holds(SlidingWindow::new(quota).staggered(), has_quotas);
    }
}

/// One key in a naive model.
trait Model: Clone {
    fn new(quota: Quota) -> Self;

    /// Lets the key continue under another quota, with its used units.
    fn convert(&mut self, quota: Quota, now: u64);

    /// Returns how much would be left after `cost` units; `None` if they do not fit.
    fn fits(&self, cost: u64, now: u64) -> Option<u64>;

    fn take(&mut self, cost: u64, now: u64);
}

/// A token level, in parts that each rate below drains in whole numbers per nanosecond.
#[derive(Clone)]
struct Level {
    quota: Quota,
    parts: u128,
    at: u64,
}

/// All periods below divide it.
const PARTS: u128 = 3_600_000_000_000;

impl Level {
    fn now(&self, now: u64) -> u128 {
        let rate = u128::from(self.quota.limit()) * (PARTS / self.quota.period().as_nanos());
        self.parts.saturating_sub(u128::from(now - self.at) * rate)
    }
}

impl Model for Level {
    fn new(quota: Quota) -> Self {
        Self { quota, parts: 0, at: 0 }
    }

    fn convert(&mut self, quota: Quota, now: u64) {
        *self = Self { quota, parts: self.now(now), at: now };
    }

    fn fits(&self, cost: u64, now: u64) -> Option<u64> {
        let after = self.now(now) + u128::from(cost) * PARTS;
        let full = u128::from(self.quota.max_burst()) * PARTS;
        (cost == 0 || after <= full).then(|| u64::try_from(full.saturating_sub(after) / PARTS).unwrap())
    }

    fn take(&mut self, cost: u64, now: u64) {
        (self.parts, self.at) = (self.now(now) + u128::from(cost) * PARTS, now);
    }
}

/// A key's charges, each with the window in which it counts. `SLIDES`: charges from the window before weigh as well.
#[derive(Clone)]
struct Counts<const SLIDES: bool> {
    quota: Quota,
    charges: Vec<(u64, u64)>,
}

impl<const SLIDES: bool> Counts<SLIDES> {
    fn window(&self, now: u64) -> u64 {
        now / u64::try_from(self.quota.period().as_nanos()).unwrap()
    }

    fn in_window(&self, window: u64) -> u128 {
        self.charges.iter().filter(|(charged, _)| *charged == window).map(|(_, cost)| u128::from(*cost)).sum()
    }

    /// One charge's units over the period.
    fn weighted(&self, now: u64) -> u128 {
        let (window, period) = (self.window(now), self.quota.period().as_nanos());
        let left = period - u128::from(now) % period;
        let before = if SLIDES { self.in_window(window - 1) * left } else { 0 };
        before + self.in_window(window) * period
    }
}

impl<const SLIDES: bool> Model for Counts<SLIDES> {
    fn new(quota: Quota) -> Self {
        Self { quota, charges: Vec::new() }
    }

    fn convert(&mut self, quota: Quota, now: u64) {
        if quota.period() != self.quota.period() {
            let used = self.weighted(now).div_ceil(self.quota.period().as_nanos());
            *self = Self::new(quota);
            self.charges.push((self.window(now), u64::try_from(used).unwrap()));
        }
        self.quota = quota;
    }

    fn fits(&self, cost: u64, now: u64) -> Option<u64> {
        let period = self.quota.period().as_nanos();
        let (after, full) = (self.weighted(now) + u128::from(cost) * period, u128::from(self.quota.limit()) * period);
        (cost == 0 || after <= full).then(|| u64::try_from(full.saturating_sub(after) / period).unwrap())
    }

    fn take(&mut self, cost: u64, now: u64) {
        self.charges.push((self.window(now), cost));
    }
}

/// A question to a key, and its quota.
struct Step {
    key: u64,
    cost: u64,
    quota: Option<Quota>,
    mode: Mode,
}

fn quota(random: &mut Random, is_bucket: bool) -> Quota {
    let quota =
        Quota::try_per(random.pick(&[1, 2, 5, 10, 16, 100, 3_000]), Duration::from_secs(random.pick(&[1, 1, 10, 60])));
    let quota = quota.unwrap();
    if is_bucket && random.below(2) == 0 { quota.burst(random.pick(&[1, 3, 20, 400])) } else { quota }
}

fn step(random: &mut Random, is_bucket: bool, has_quotas: bool) -> Step {
    let mode = if random.below(4) == 0 { Mode::Peek } else { Mode::Charge };
    let quota = if !has_quotas || random.below(3) == 0 { None } else { Some(quota(random, is_bucket)) };
    Step { key: random.below(20), cost: random.pick(&[0, 1, 1, 1, 2, 3, 7, 50]), quota, mode }
}

fn limiter<A: Algorithm>(algorithm: A, clock: &ManualClock) -> Arc<dyn Limiter> {
    RateLimiter::new(algorithm, MemoryStore::with_capacity(256).with_clock(clock.clone())).into_limiter()
}

fn asked(limiter: &dyn Limiter, Step { key, cost, quota, mode }: &Step) -> Decision {
    decided(limiter.decide(&Ask::charge(&PartitionKey::from(*key), *cost).under(*quota).to(*mode)))
}

/// Asks a limiter and its model equal questions, and compares their decisions, the remaining units, and the time at
/// which a rejected request fits.
fn follows<A: Algorithm, M: Model>(of: fn(Quota) -> A, is_bucket: bool, seed: u64) {
    let (mut random, clock) = (Random::new(seed), clock());
    let mut own = quota(&mut random, is_bucket);
    let mut limiter = limiter(of(own), &clock);
    let mut models: HashMap<u64, (M, Quota)> = HashMap::new();
    // Some limiters are asked without quotas at first. A bucket then counts in ticks, and hands its count on to a
    // 2^33rd of its refill time.
    let is_exact = !is_bucket || random.below(2) == 0;
    let mut has_quotas = (is_bucket && is_exact) || random.below(2) == 0;
    assert!(!is_bucket || !is_exact || take_quotas(&*limiter));
    let slack = if is_exact { 0 } else { 20 * (1 + ((400 * 60 * SECOND) >> 33)) };
    for number in 0..400 {
        let pause = random.pick(&[1, SECOND / 50, SECOND, 20 * SECOND]);
        clock.advance(Duration::from_nanos(random.below(pause) + 1));
        if random.below(60) == 0 {
            // A live change to the limiter's own quota, to a limiter with or without keys' own quotas.
            (own, has_quotas) = (quota(&mut random, is_bucket), is_bucket && is_exact || random.below(2) == 0);
            let heir = self::limiter(of(own), &clock);
            assert!(!has_quotas || take_quotas(&*heir));
            let heir = inherit(&heir, &limiter).expect("of one kind");
            let now = clock.now().as_nanos();
            if !has_quotas {
                for (model, under) in models.values_mut() {
                    model.convert(own, now);
                    *under = own;
                }
            }
            limiter = heir;
        }
        let step = step(&mut random, is_bucket, has_quotas);
        let (now, under) = (clock.now().as_nanos(), step.quota.unwrap_or(own));
        let (model, kept) = models.entry(step.key).or_insert_with(|| (M::new(under), under));
        if *kept != under {
            model.convert(under, now);
            *kept = under;
        }
        let context = format!("seed {seed}, step {number}, {under:?}, cost {}", step.cost);
        let decision = asked(&*limiter, &step);
        let fits = model.fits(step.cost, now);
        assert_eq!(decision.is_allowed(), fits.is_some(), "{context}");
        assert_eq!(decision.limit(), if is_bucket { under.max_burst() } else { under.limit() }, "{context}");
        match fits {
            Some(left) => {
                assert_eq!(decision.remaining(), left, "{context}");
                if step.mode == Mode::Charge {
                    model.take(step.cost, now);
                }
            }
            None => {
                let Some(wait) = decision.retry_after() else {
                    assert!(step.cost > decision.limit(), "{context}");
                    continue;
                };
                let wait = u64::try_from(wait.as_nanos()).unwrap();
                assert!(model.fits(step.cost, now + wait + slack).is_some(), "{context}: too early");
                // Each conversion rounds up by less than a nanosecond. Each of the 400 steps converts twice at most.
                let early = wait.saturating_sub(if is_bucket { slack + 800 } else { 1 });
                assert!(early == 0 || model.fits(step.cost, now + early).is_none(), "{context}: too late");
            }
        }
    }
    check_invariants(&*limiter, &clock);
}

#[test]
fn buckets_agree_with_the_model() {
    seeds(60).for_each(|seed| follows::<_, Level>(TokenBucket::new, true, seed));
}

#[test]
fn fixed_windows_agree_with_the_model() {
    seeds(60).for_each(|seed| follows::<_, Counts<false>>(FixedWindow::new, false, seed));
}

#[test]
fn sliding_windows_agree_with_the_model() {
    seeds(60).for_each(|seed| follows::<_, Counts<true>>(SlidingWindow::new, false, seed));
}

/// Another quota knows how much a charge still owes only if both have equal rates, or equal window periods.
#[test]
fn refunds_need_equal_units() {
    let day = Duration::from_secs(86_400);
    let (bucket, window) = (Quota::per_day(10), Quota::per_day(10));
    let alike = [Quota::per_day(10).burst(20), Quota::per_day(20)];
    let unlike = [Quota::per_day(20).burst(20), Quota::try_per(20, day * 2).unwrap()];
    refunds_under(TokenBucket::new, bucket, alike[0], 19);
    refunds_under(TokenBucket::new, bucket, unlike[0], 15);
    refunds_under(FixedWindow::new, window, alike[1], 19);
    refunds_under(FixedWindow::new, window, unlike[1], 15);
    refunds_under(SlidingWindow::new, window, alike[1], 19);
    refunds_under(SlidingWindow::new, window, unlike[1], 15);
}

/// The first window for any period, so that receipts name one window.
fn first_window() -> ManualClock {
    ManualClock::starting_at(Timestamp::from_nanos(5 * SECOND))
}

/// Refunds four units that were charged under the first quota once one was charged under the second.
fn refunds_under<A: Algorithm>(of: fn(Quota) -> A, first: Quota, second: Quota, left: u64) {
    let (clock, key) = (first_window(), PartitionKey::from("key"));
    let limiter = limiter(of(Quota::per_day(7)), &clock);
    assert!(take_quotas(&*limiter));
    let ask = |cost, quota| decided(limiter.decide(&Ask::charge(&key, cost).under(Some(quota))));
    let charged = ask(4, first);
    assert_eq!(ask(1, second).remaining(), 15, "{second:?}");
    limiter.refund(&Ask::charge(&key, 4).under(Some(first)), charged.receipt(), 4);
    assert_eq!(ask(0, second).remaining(), left, "{second:?}");
}

/// Windows that are asked without quotas continue the keys under the limiter's quota.
#[test]
fn refunds_after_quotas_need_equal_units() {
    let day = Duration::from_secs(86_400);
    for (own, left) in [(Quota::per_day(20), 10), (Quota::try_per(20, day * 2).unwrap(), 6)] {
        let (clock, key) = (first_window(), PartitionKey::from("key"));
        let before = limiter(FixedWindow::new(Quota::per_day(10)), &clock);
        assert!(take_quotas(&*before));
        let charged = decided(before.decide(&Ask::charge(&key, 4).under(Some(own))));
        let heir = inherit(&limiter(FixedWindow::new(Quota::per_day(10)), &clock), &before).unwrap();
        heir.refund(&Ask::charge(&key, 4).under(Some(own)), charged.receipt(), 4);
        assert_eq!(decided(heir.decide(&Ask::peek(&key, 0))).remaining(), left, "{own:?}");
    }
}

/// A key's windows begin at its own instant, which does not depend on its quota.
#[test]
fn own_quotas_have_staggered_windows() {
    let clock = clock();
    let limiter = limiter(FixedWindow::new(Quota::per_hour(10)).staggered(), &clock);
    assert!(take_quotas(&*limiter));
    let reset_after =
        |key: u64, quota| decided(limiter.decide(&Ask::charge(&PartitionKey::from(key), 1).under(quota))).reset_after();
    // There are 512 instants, and some keys share one.
    let ends: HashSet<_> = (0..50).map(|key| reset_after(key, None)).collect();
    assert!(ends.len() > 30, "{} different ends", ends.len());
    for key in 0..50 {
        assert_eq!(reset_after(key, Some(Quota::per_hour(20))), reset_after(key, None), "{key}");
    }
}

#[test]
fn a_flood_evicts_none_owing_more() {
    let store = MemoryStore::with_capacity(64).when_full(WhenFull::EvictLeast).with_clock(clock());
    let limiter = RateLimiter::new(TokenBucket::new(Quota::per_day(7)), store).into_limiter();
    assert!(take_quotas(&*limiter));
    let own = Some(Quota::per_day(10));
    let ask = |key: u64, cost| decided(limiter.decide(&Ask::charge(&PartitionKey::from(key), cost).under(own)));
    for key in 0..4 {
        assert!(ask(key, 9).is_allowed());
    }
    for key in 100..2_000 {
        assert!(ask(key, 1).is_allowed());
    }
    assert_eq!([0, 1, 2, 3].map(|key| ask(key, 0).remaining()), [1; 4]);
    assert_eq!(ask(1_999, 0).remaining(), 9, "the last one has found room");
}

/// A limiter cannot use counts from windows that begin at other instants, or in other units.
#[test]
fn quota_limiters_inherit_from_their_like() {
    let clock = clock();
    let with_quotas = |limiter: Arc<dyn Limiter>| {
        assert!(take_quotas(&*limiter));
        limiter
    };
    let [hour, day] = [Quota::per_hour(10), Quota::per_day(10)];
    let make = [|| TokenBucket::new(Quota::per_hour(10)), || TokenBucket::new(Quota::per_day(20))];
    let buckets = make.map(|make| with_quotas(limiter(make(), &clock)));
    let fixed = [hour, day].map(|quota| with_quotas(limiter(FixedWindow::new(quota), &clock)));
    let staggered = [hour, day].map(|quota| with_quotas(limiter(FixedWindow::new(quota).staggered(), &clock)));
    let sliding = with_quotas(limiter(SlidingWindow::new(hour), &clock));
    for limiter in [&buckets[0], &fixed[0], &staggered[0], &sliding] {
        let _ = asked(&**limiter, &Step { key: 7, cost: 1, quota: None, mode: Mode::Charge });
    }
    let inherits = |heir: &Arc<dyn Limiter>, from: &Arc<dyn Limiter>| heir.inherit(&**from).is_some();
    assert!(inherits(&buckets[1], &buckets[0]) && inherits(&fixed[1], &fixed[0]));
    assert!(!inherits(&staggered[1], &staggered[0]), "the instants depend on the period");
    assert!(!inherits(&staggered[1], &fixed[0]) && !inherits(&fixed[1], &staggered[0]));
    assert!(!inherits(&sliding, &fixed[0]) && !inherits(&fixed[1], &sliding));
    assert!(!inherits(&buckets[1], &fixed[0]) && !inherits(&fixed[1], &buckets[0]));
}

/// A custom bucket, which counts as it likes.
struct Custom(TokenBucket);

impl Algorithm for Custom {
    type State = GcraState;

    fn quota(&self) -> Quota {
        self.0.quota()
    }

    fn decide(&self, state: Option<GcraState>, now: Timestamp, cost: u64) -> (Decision, Option<GcraState>) {
        self.0.decide(state, now, cost)
    }

    fn expires_at(&self, state: &GcraState) -> Timestamp {
        self.0.expires_at(state)
    }

    fn can_inherit(&self, _: &Quota) -> bool {
        true
    }

    fn under(&self, quota: Quota) -> Option<Self> {
        Some(Self(TokenBucket::new(quota)))
    }
}

/// Two different algorithms do not inherit from each other, even with states of one type.
#[test]
fn equal_state_types_do_not_inherit() {
    let (clock, bucket) = (clock(), || TokenBucket::new(Quota::per_hour(10)));
    for has_quotas in [false, true] {
        let [first, second] = [limiter(bucket(), &clock), limiter(Custom(bucket()), &clock)];
        assert!(!has_quotas || take_quotas(&*first) && take_quotas(&*second));
        for limiter in [&first, &second] {
            let _ = asked(&**limiter, &Step { key: 7, cost: 1, quota: None, mode: Mode::Charge });
        }
        assert!(second.inherit(&*first).is_none() && first.inherit(&*second).is_none());
    }
}

/// A full heir's table has no room for the key, and its state need not be kept because nothing is charged.
#[test]
fn a_full_heir_judges_by_use() {
    let clock = clock();
    let [before, heir] = [(); 2].map(|()| {
        let store = MemoryStore::with_capacity(8).when_full(WhenFull::Reject).with_clock(clock.clone());
        let limiter = RateLimiter::new(TokenBucket::new(Quota::per_day(7)), store);
        assert!(take_quotas(&limiter));
        limiter
    });
    let ask = |limiter: &RateLimiter<_, _>, key: u64, cost, quota| {
        decided(limiter.decide(&Ask::charge(&PartitionKey::from(key), cost).under(Some(quota))))
    };
    let (first, second) = (Quota::per_day(10), Quota::per_day(20));
    assert!((0..6).all(|key| ask(&before, key, 8, first).is_allowed()));
    heir.inherit(&before).unwrap().finish();
    for key in 100..400 {
        let _ = ask(&heir, key, 10, first);
    }
    let turned_away = heir.turned_away();
    assert!(turned_away > 200);
    for key in 0..6 {
        let free = ask(&heir, key, 0, second);
        assert_eq!((free.is_allowed(), free.remaining()), (true, 12));
        let rejected = ask(&heir, key, 13, second);
        assert_eq!(rejected.retry_after(), Some(Duration::from_secs(86_400 / 20)));
    }
    assert_eq!(heir.turned_away(), turned_away);
}
