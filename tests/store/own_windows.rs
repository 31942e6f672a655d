//! Keys with their own calendar windows, against a naive model.

use std::sync::Arc;
use std::time::Duration;

use tower_sluice::algorithm::{Algorithm, CalendarWindow};
use tower_sluice::limiter::{Ask, IntoLimiter};
use tower_sluice::store::MemoryStore;
use tower_sluice::testing::{Random, take_quotas};
use tower_sluice::time::{ManualClock, Timestamp};
use tower_sluice::{Decision, Limiter, PartitionKey, Quota, RateLimiter};

use crate::common::{check_invariants, decided};
use crate::heirs::inherit;
use crate::support::trace::Trace;

/// Half hours, daylight saving, and both sides of the date line.
const ZONES: [&str; 7] = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kolkata",
    "Pacific/Apia",
    "Pacific/Pago_Pago",
    "Australia/Lord_Howe",
];

/// Windows over days, weeks and months, in each zone, with two limits.
fn windows() -> Vec<CalendarWindow> {
    let mut windows = Vec::new();
    for (zone, limit) in ZONES.into_iter().flat_map(|zone| [(zone, 3), (zone, 7)]) {
        windows.extend([CalendarWindow::daily(limit), CalendarWindow::weekly(limit)].map(|it| it.zone(zone).unwrap()));
        let month = |anchor| CalendarWindow::monthly(limit).anchor(anchor).zone(zone).unwrap();
        windows.extend([1, 17, 29, 30, 31].map(month));
    }
    windows
}

/// A window's zone and period, which two windows with different limits share.
const fn schedule(index: usize) -> (usize, usize) {
    (index / 14, index % 7)
}

/// The second at which the window around `now` ends.
fn end(window: &CalendarWindow, now: u64) -> u64 {
    let left = window.decide(None, Timestamp::from_nanos(now * 1_000_000_000), 0).0.reset_after();
    now + left.as_secs()
}

/// A key: its used units, when they cease to count, and its last question's window index and quota.
#[derive(Clone, Copy, Default)]
struct Model {
    used: u64,
    ends: u64,
    window: usize,
    quota: Option<Quota>,
    /// When the units before these ceased to count.
    ended: u64,
}

impl Model {
    /// Lets the used units count in this calendar's present window, if it is another calendar, or has another limit
    /// since a live change.
    fn enter(&mut self, (index, window): (usize, &CalendarWindow), now: u64) {
        let quota = Some(window.quota());
        if self.used == 0 || now >= self.ends {
            let ended = if self.used == 0 { self.ended } else { self.ends };
            *self = Self { used: 0, ends: end(window, now), window: index, quota, ended };
        } else if (self.window, self.quota) != (index, quota) {
            (self.ends, self.window, self.quota) = (end(window, now), index, quota);
        }
    }

    /// Charges the units. Returns whether they fit, the rest, and the seconds until the window ends.
    fn ask(&mut self, window: (usize, &CalendarWindow), now: u64, cost: u64) -> (bool, u64, u64) {
        self.enter(window, now);
        let limit = window.1.quota().limit();
        let fits = cost == 0 || self.used + cost <= limit;
        self.used += if fits { cost } else { 0 };
        (fits, limit.saturating_sub(self.used), self.ends - now)
    }
}

fn clock(second: u64) -> ManualClock {
    ManualClock::starting_at(Timestamp::from_nanos(second * 1_000_000_000))
}

fn limiter(window: CalendarWindow, clock: &ManualClock) -> Arc<dyn Limiter> {
    let limiter = RateLimiter::new(window, MemoryStore::with_capacity(256).with_clock(clock.clone())).into_limiter();
    assert!(take_quotas(&*limiter));
    limiter
}

fn outcome(decision: Decision) -> (bool, u64, u64) {
    (decision.is_allowed(), decision.remaining(), decision.reset_after().as_secs())
}

/// Customers who move, some of whom have the limiter's own window for a time, with clocks that go on by seconds to
/// weeks, and back. A live change to the limiter's window moves exactly the keys that have it.
#[test]
fn keys_windows_agree_with_the_model() {
    let all = windows();
    let draw = |random: &mut Random| usize::try_from(random.below(all.len() as u64)).unwrap();
    let mut moves = 0;
    let mut trace = Trace::of(20);
    while trace.goes_on([("moves", moves > 1_000)]) {
        let seed = trace.seed();
        let mut random = Random::new(seed);
        // From August 2026 on, including the autumn clock changes.
        let mut now = 1_785_542_400 + random.below(60 * 86_400);
        let clock = clock(now);
        let mut own = draw(&mut random);
        let mut limiter = limiter(all[own].clone(), &clock);
        // The index for a key under the limiter's own window.
        let none = all.len();
        let mut models = [Model::default(); 6];
        for step in 0..1_000 {
            let seconds = random.pick(&[0, 0, 0, 1, 1_800, 3_600, 18_000, 90_000, 600_000]);
            // Once a state has expired, a change or another key may drop it. If the clock were set back before the
            // state's end, it would show which states are left (see `CalendarWindow`).
            let mut ends = models.iter().flat_map(|model| [model.ends, model.ended]);
            let may_go_back = ends.all(|ends| !(now - 3_600..=now).contains(&ends));
            now = if random.below(50) == 0 && may_go_back { now - 3_600 } else { now + seconds };
            clock.set(Timestamp::from_nanos(now * 1_000_000_000));
            if random.below(60) == 0 {
                let before = std::mem::replace(&mut own, draw(&mut random));
                limiter = inherit(&self::limiter(all[own].clone(), &clock), &limiter).unwrap();
                let is_moved = |model: &Model| model.window == none && now < model.ends;
                for model in models.iter_mut().filter(|it| is_moved(it) && schedule(own) != schedule(before)) {
                    model.ends = end(&all[own], now);
                }
            }
            let id = random.below(6);
            let model = &mut models[usize::try_from(id).unwrap()];
            // Most of a key's requests come with the window that it has.
            let index = match random.below(8) {
                0 => none,
                1 => draw(&mut random),
                _ => model.window,
            };
            moves += usize::from(model.used > 0 && index != model.window);
            let asked = if index == none { None } else { Some(&all[index]) };
            let window = asked.unwrap_or(&all[own]);
            let cost = random.pick(&[0, 1, 1, 2, 5]);
            let key = PartitionKey::from(id);
            let decision = decided(limiter.decide(&Ask::charge(&key, cost).in_window(asked)));
            let expected = model.ask((index, window), now, cost);
            assert_eq!(outcome(decision), expected, "seed {seed}, step {step}, {cost} of {window:?} at {now}");
            let wait = (!expected.0 && cost <= window.quota().limit()).then(|| Duration::from_secs(expected.2));
            assert_eq!(decision.retry_after(), wait, "seed {seed}, step {step}");
            if step % 50 == 0 {
                check_invariants(&*limiter, &clock);
            }
        }
    }
}

/// A customer who may choose a zone for each request asks in all of them every half hour, and then waits in the zone
/// whose day ends first. Each window's end grants the limit once; in between, moving gains nothing.
#[test]
fn moving_grants_once_per_midnight() {
    let zones = ZONES.map(|zone| CalendarWindow::daily(5).zone(zone).unwrap());
    let start = 1_785_542_400;
    let clock = clock(start);
    let limiter = limiter(CalendarWindow::daily(5), &clock);
    let key = PartitionKey::from("nomad");
    let (mut admitted, mut midnights) = (0, 0);
    for now in (start..start + 10 * 86_400).step_by(1_800) {
        clock.set(Timestamp::from_nanos(now * 1_000_000_000));
        midnights += u64::from(zones.iter().any(|window| end(window, now - 1) == now));
        let first = zones.iter().min_by_key(|window| end(window, now));
        for window in zones.iter().cycle().take(3 * ZONES.len()).chain(first) {
            let decision = decided(limiter.decide(&Ask::charge(&key, 1).in_window(Some(window))));
            admitted += u64::from(decision.is_allowed());
        }
    }
    println!("{admitted} at {midnights} midnights");
    assert!(admitted > 100 && admitted <= 5 * (midnights + 1), "{admitted} at {midnights} midnights");
}

/// A live change to the limiter's window, made while the clock is set back over midnight. It moved keys with their own
/// windows, which it does not concern, into the window before midnight, so that the next one started over.
#[test]
fn a_live_change_leaves_keys_windows() {
    let midnight = 1_791_331_200;
    let clock = clock(midnight + 1_800);
    let before = limiter(CalendarWindow::daily(5).zone("Europe/Berlin").unwrap(), &clock);
    let (key, own) = (PartitionKey::from("a"), CalendarWindow::daily(3));
    let ask =
        |limiter: &Arc<dyn Limiter>| outcome(decided(limiter.decide(&Ask::charge(&key, 1).in_window(Some(&own)))));
    assert_eq!(ask(&before), (true, 2, 84_600));
    clock.set(Timestamp::from_nanos((midnight - 1_800) * 1_000_000_000));
    let after = inherit(&limiter(CalendarWindow::weekly(5), &clock), &before).unwrap();
    clock.set(Timestamp::from_nanos((midnight + 1_800) * 1_000_000_000));
    assert_eq!(ask(&after), (true, 1, 84_600));
}

/// One window's charge, refunded once the key is in another: only if both end at one instant.
#[test]
fn another_windows_charge_is_not_refunded() {
    // Noon on 20 March 2026 in Berlin.
    let clock = clock(1_774_004_400);
    let month = |zone: &str, limit| CalendarWindow::monthly(limit).zone(zone).unwrap();
    let [berlin, greater, paris, london] =
        [("Europe/Berlin", 10), ("Europe/Berlin", 20), ("Europe/Paris", 10), ("Europe/London", 10)]
            .map(|(zone, limit)| month(zone, limit));
    for (number, (next, used)) in [(&greater, 1), (&paris, 1), (&london, 5)].into_iter().enumerate() {
        let limiter = limiter(CalendarWindow::daily(5), &clock);
        let key = PartitionKey::from(number as u64);
        let charge = |window, cost| decided(limiter.decide(&Ask::charge(&key, cost).in_window(Some(window))));
        let charged = charge(&berlin, 4);
        assert!(charge(next, 1).is_allowed());
        limiter.refund(&Ask::charge(&key, 4).in_window(Some(&berlin)), charged.receipt(), 4);
        assert_eq!(charge(next, 0).remaining(), next.quota().limit() - used, "{next:?}");
    }
}
