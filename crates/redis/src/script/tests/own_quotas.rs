//! Keys whose quotas change: the scripts, with their callers' conversions, decide like a store in memory.

use std::fmt::Debug;
use std::time::Duration;

use proptest::prelude::*;
use tower_sluice::algorithm::{Algorithm, CalendarWindow, FixedWindow, GcraState, SlidingWindow, TokenBucket};
use tower_sluice::internal::remote::StateParts as _;
use tower_sluice::internal::remote::testing::{ReadCalendar as _, ReplayApplied as _};
use tower_sluice::limiter::{Ask, Receipt};
use tower_sluice::store::MemoryStore;
use tower_sluice::time::ManualClock;
use tower_sluice::{Decision, Limiter as _, PartitionKey, Quota, RateLimiter, testing};

use super::{ALL, talk, target};
use crate::script::bucket::mark_of;
use crate::script::manual_server::{ManualServer, START, at, key};
use crate::script::random::Xorshift;
use crate::script::sealed::Steps;
use crate::script::{Key, MOST_UNITS, OwnQuota, ScriptCharge, Scripted, TextUnder};
use crate::store::conversation::{KeyPart, Quotas};
use crate::support::cases::cases;
use crate::support::trace::Trace;

const STEPS: usize = 4_000;
const KEYS: u64 = 3;

/// In microseconds. Time advances by multiples of it, which are whole microseconds of debt under each hourly quota. So
/// a bucket's conversions do not round, and the answers are the same.
const GRAIN: u64 = 5_040;

/// Charges like a caller: asks again while the state is under another quota. Returns the decision and the number of
/// calls.
fn charge<A: Scripted>(
    server: &mut ManualServer,
    limiter: &A,
    key: &Key,
    quota: Quota,
    cost: u64,
    micros: u64,
) -> (Decision, u64) {
    let algorithm = limiter.under(quota).unwrap();
    let quotas = Quotas::default();
    let mut part = KeyPart::charging((target(&algorithm, Some(quota), limiter.quota()), &quotas), key.clone(), cost);
    let calls = talk(server, &mut part, micros);
    (part.found.replay(&algorithm, cost, 1).unwrap().0[0], calls)
}

/// Refunds like a caller.
fn give_back<A: Scripted>(
    server: &mut ManualServer,
    limiter: &A,
    key: &Key,
    quota: Quota,
    (cost, receipt): (u64, Receipt),
    micros: u64,
) {
    let algorithm = limiter.under(quota).unwrap();
    let quotas = Quotas::default();
    let target = target(&algorithm, Some(quota), limiter.quota());
    // Without other callers, the state stays under the first answer's quota.
    assert!(talk(server, &mut KeyPart::charging((target, &quotas), key.clone(), cost).refunding(receipt), micros) <= 2);
}

/// Compares long traces with a store in memory. All units are multiples of `scale`.
fn follow<A: Scripted + Debug>(limiter: &A, scale: u64, quota: impl Fn(&mut Xorshift) -> Quota) {
    let mut random = Xorshift::seeded();
    let mut server = ManualServer::new(&ALL);
    let clock = ManualClock::starting_at(at(START));
    let memory = RateLimiter::new(limiter.clone(), MemoryStore::with_capacity(1_000).with_clock(clock.clone()));
    assert!(testing::take_quotas(&memory));
    let mut now = START;
    let mut rejected = 0;
    let mut converted = 0;
    let mut refunded = 0;
    let mut trace = Trace::of(STEPS);
    while trace.goes_on([("rejections", rejected > 300), ("conversions", converted > 300), ("refunds", refunded > 100)])
    {
        let step = trace.step();
        now += GRAIN * random.pick(&[0, 0, 1, 1_000, 30_000, 100_000, 1_000_000]);
        clock.set(at(now));
        let id = random.below(KEYS);
        let quota = quota(&mut random);
        let most = limiter.under(quota).unwrap().max_cost() / scale;
        let cost = scale * (1 + random.below(most) / random.pick(&[1, 2, 8]));
        let name = key(id);
        let owner = PartitionKey::from(id);
        let expected = memory.decide(&Ask::charge(&owner, cost).under(Some(quota))).at_once().unwrap();
        let (found, calls) = charge(&mut server, limiter, &name, quota, cost, now);
        let context = || format!("step {step}, {cost} of {quota:?} for {id}: {found:?} instead of {expected:?}");
        assert_eq!(found.outcome(), expected.outcome(), "{}", context());
        assert_eq!((found.remaining(), found.limit()), (expected.remaining(), expected.limit()), "{}", context());
        assert_eq!(found.reset_after(), expected.reset_after(), "{}", context());
        assert!(calls <= 2, "{}", context());
        converted += calls - 1;
        if !found.is_allowed() {
            rejected += 1;
        } else if random.below(4) == 0 {
            // A partial refund, sometimes after a change of the quota.
            let cost = scale * (1 + random.below(cost / scale));
            if random.below(2) == 0 {
                let other = Quota::per(5 * scale, quota.period());
                let _ = memory.decide(&Ask::charge(&owner, scale).under(Some(other))).at_once();
                let _ = charge(&mut server, limiter, &name, other, scale, now);
            }
            memory.refund(&Ask::charge(&owner, cost).under(Some(quota)), expected.receipt(), cost);
            give_back(&mut server, limiter, &name, quota, (cost, found.receipt()), now);
            refunded += 1;
        }
    }
    println!("{rejected} rejected, {converted} converted, {refunded} refunded");
}

fn hours(random: &mut Xorshift, scale: u64, hours: &[u64]) -> Quota {
    let limit = random.pick(&[1, 2, 5, 7, 12, 20, 60, 144]);
    Quota::per(scale * limit, Duration::from_secs(3_600 * random.pick(hours)))
}

/// Single units, and a scale at which the greatest quotas have 48 bits.
const SCALES: [u64; 2] = [1, 1_000_000_000_000];

#[test]
pub(super) fn buckets_keep_their_used_units() {
    for scale in SCALES {
        follow(&TokenBucket::new(Quota::per_hour(10 * scale)), scale, |random| {
            let quota = hours(random, scale, &[1]);
            if random.below(2) == 0 { quota.burst(scale * (1 + random.below(200))) } else { quota }
        });
    }
}

#[test]
pub(super) fn windows_keep_their_used_units() {
    for scale in SCALES {
        follow(&FixedWindow::new(Quota::per_hour(10 * scale)), scale, |random| hours(random, scale, &[1, 1, 24]));
        follow(&SlidingWindow::new(Quota::per_hour(10 * scale)), scale, |random| hours(random, scale, &[1, 1, 24]));
        let daily = CalendarWindow::daily(10 * scale).zone("Europe/Berlin").unwrap();
        follow(&daily, scale, |random| hours(random, scale, &[1, 24]));
    }
}

proptest! {
    #![proptest_config(cases(256))]

    /// A converted bucket's debt is rounded up, by less than a microsecond.
    #[test]
    fn a_written_bucket_rounds_within_a_microsecond(
        // Both the longest periods and the greatest limits, up to the rates that fit.
        (limit, period) in prop_oneof![
            (1..=MOST_UNITS, (1..1_u64 << 40).prop_map(|micros| micros * 1_000)),
            (1..1_u64 << 42, 1..1_u64 << 50),
        ],
        burst in 1..=MOST_UNITS, micros in 0..(1_u64 << 51) - 2, rest: u64,
    ) {
        let burst = burst.min(limit.saturating_mul((1 << 50) / (period / 1_000 + 1)));
        let quota = Quota::per(limit, Duration::from_nanos(period)).burst(burst);
        let bucket = TokenBucket::new(quota);
        prop_assume!(bucket.fits().is_ok());
        let micro = 1_000 * u128::from(quota.limit());
        let tat = u128::from(START + micros) * micro + u128::from(rest) % micro;
        let text = bucket.write(&GcraState::from_parts(tat), at(START));
        let read = bucket.read(text.as_bytes(), at(START)).unwrap().parts();
        prop_assert!((tat..tat + micro).contains(&read), "{text}: {read} for {tat}");
    }
}

/// Even if the call that converts the state charges nothing.
#[test]
pub(super) fn a_converted_state_lives_while_it_owes() {
    let mut server = ManualServer::new(&ALL);
    let limiter = FixedWindow::new(Quota::per_hour(10));
    let hour = 3_600_000_000;
    assert!(charge(&mut server, &limiter, &key("a"), Quota::per_hour(5), 3, START).0.is_allowed());
    let (rejected, calls) = charge(&mut server, &limiter, &key("a"), Quota::per_hour(7), 6, START);
    assert_eq!((rejected.remaining(), calls), (4, 2));
    let ends = i64::try_from((START / hour + 1) * hour / 1_000).unwrap();
    assert!((ends..=ends + 2).contains(&server.expiry(&key("a"))));
    // Two hours later, the window is over, and the key owes nothing.
    let now = START + 2 * hour;
    let eight = FixedWindow::new(Quota::per_hour(8));
    let under = TextUnder { algorithm: &eight, limiter: limiter.quota(), of_mark: &|_| None };
    let charge = |cost, conversion| {
        let own = OwnQuota { quota: Some(eight.quota()), conversion };
        ScriptCharge::new(&eight, key("a"), cost, at(now)).with_own_quota(own).alone()
    };
    let answer = server.run(now, &charge(1, None));
    let conversion = under.convert(answer.old(0).unwrap(), at(now), Some(eight.quota())).unwrap().0;
    assert_eq!(server.run(now, &charge(9, Some(conversion))).admitted, 0);
    assert_eq!(server.get(&key("a")), None);
}

/// If a clock was set back, a state's correction is kept under its quota.
#[test]
pub(super) fn a_corrected_state_keeps_its_quota() {
    fn check<A: Scripted>(limiter: &A) {
        let mut server = ManualServer::new(&ALL);
        let quota = Quota::per_day(7);
        let before = START - 10 * 86_400_000_000;
        assert!(charge(&mut server, limiter, &key("a"), quota, 7, START).0.is_allowed());
        assert!(!charge(&mut server, limiter, &key("a"), quota, 7, before).0.is_allowed());
        assert_ne!(server.expiry(&key("a")), -1);
        let (decision, calls) = charge(&mut server, limiter, &key("a"), quota, 7, before);
        assert!(!decision.is_allowed() && calls == 1);
        let stored = server.get(&key("a")).unwrap();
        assert!(stored.ends_with("@7:7:86400000000000"), "{stored}");
        let (state, _) = stored.split_once('@').unwrap();
        assert_eq!(mark_of(state.as_bytes()), None, "the quota names the rate: {stored}");
    }
    check(&TokenBucket::new(Quota::per_day(7)));
    check(&FixedWindow::new(Quota::per_day(7)));
    check(&SlidingWindow::new(Quota::per_day(7)));
    check(&CalendarWindow::daily(7));
}

/// Customers who move: half-hour zones, both sides of the date line, and periods with other lengths.
#[test]
pub(super) fn per_key_windows_move_as_in_memory() {
    let zones = ["UTC", "Europe/Berlin", "Asia/Kolkata", "Pacific/Apia", "Pacific/Pago_Pago"];
    follow(&CalendarWindow::daily(5), 1, |random| {
        // Great limits, too: most requests of a key that moves to a greater limit fit.
        let limit = random.pick(&[1, 2, 5, 20, 100, 1_000, 10_000]);
        let window = match random.below(8) {
            0 => CalendarWindow::monthly(limit).anchor(random.pick(&[1, 17, 31])),
            1 => CalendarWindow::weekly(limit),
            _ => CalendarWindow::daily(limit),
        };
        window.zone(random.pick(&zones)).unwrap().own_quota()
    });
}

/// Two processes have two quotas for one key, and take turns. Each charge costs two calls, and together they are
/// admitted at most the greater quota's units.
#[test]
pub(super) fn two_quotas_admit_at_most_the_greater() {
    let mut server = ManualServer::new(&ALL);
    let limiter = TokenBucket::new(Quota::per_hour(10));
    let quotas = [Quota::per_hour(7), Quota::per_hour(60)];
    let mut now = START;
    let mut admitted = 0_u64;
    for step in 0..3_000_u64 {
        now += 4_000_037;
        let quota = quotas[usize::from(step % 2 == 0)];
        let (decision, calls) = charge(&mut server, &limiter, &key("shared"), quota, 1, now);
        assert!(calls <= 2);
        admitted += u64::from(decision.is_allowed());
    }
    // The burst, and one per minute.
    let most = 60 + (now - START) / 60_000_000;
    assert!((most / 2..=most).contains(&admitted), "{admitted} of {most}");
}

/// After a clock was set back, a key owes, beyond a full bucket, at most its excess at the conversion. So it does not
/// lock out a client.
#[test]
pub(super) fn a_debt_beyond_the_bucket_survives() {
    let mut server = ManualServer::new(&ALL);
    let limiter = TokenBucket::new(Quota::per_hour(10));
    let small = Quota::per_hour(10);
    let great = Quota::per_hour(5_000);
    assert!(charge(&mut server, &limiter, &key("a"), great, 3_000, START).0.is_allowed());
    let hours = |decision: Decision| decision.retry_after().unwrap().as_secs() / 3_600;
    // The key owes 3,000 units, so the first of ten is free after 299.1 hours.
    assert_eq!(hours(charge(&mut server, &limiter, &key("a"), small, 1, START).0), 299);
    // Changes to and fro do not refill the budget.
    assert_eq!(charge(&mut server, &limiter, &key("a"), great, 1, START).0.remaining(), 1_999);
    let day = 86_400_000_000;
    // A day pays the debt off, at the rate of the greater quota.
    assert_eq!(charge(&mut server, &limiter, &key("a"), small, 1, START + day).0.remaining(), 9);
    assert!(charge(&mut server, &limiter, &key("b"), great, 3_000, START + 50 * day).0.is_allowed());
    assert_eq!(hours(charge(&mut server, &limiter, &key("b"), small, 1, START + 50 * day).0), 299);
    assert_eq!(hours(charge(&mut server, &limiter, &key("b"), small, 1, START).0), 299);
}
