//! Bucket states after live changes: their marks name the rates by which their debts are times.

use tower_sluice::algorithm::{Algorithm, GcraState, TokenBucket};
use tower_sluice::internal::remote::testing::ReplayApplied as _;
use tower_sluice::limiter::Receipt;
use tower_sluice::testing::seeds;
use tower_sluice::time::Timestamp;
use tower_sluice::{Decision, Quota};

use super::{ALL, target};
use crate::script::Charging;
use crate::script::bucket::{mark_of, marked, rate_mark};
use crate::script::manual_server::{ManualServer, START, at, key};
use crate::script::random::Xorshift;
use crate::store::conversation::{ConversationPart, KeyPart, Quotas};
use crate::support::effort::rounds;

/// Charges or refunds like a caller in a process with these quotas. Returns the decision, and the number of calls.
fn ask(
    server: &mut ManualServer,
    bucket: &TokenBucket,
    quotas: &Quotas,
    (cost, receipt): (u64, Option<Receipt>),
    micros: u64,
) -> (Decision, u64) {
    let mut part = KeyPart::charging((target(bucket, None, bucket.quota()), quotas), key("a"), cost);
    if let Some(receipt) = receipt {
        part = part.refunding(receipt);
    }
    for calls in 1..4 {
        let call = part.charge(at(micros)).alone();
        let answer = server.run(micros, &call);
        if part.hear(&answer, 0, &Charging::of(&call)).unwrap() {
            let decision = if receipt.is_some() {
                bucket.decide(part.found.old, at(micros), 0).0
            } else {
                part.found.replay(bucket, cost, 1).unwrap().0[0]
            };
            return (decision, calls);
        }
        answer.charged(0).unwrap();
    }
    panic!("the state is not converted");
}

fn knowing(quotas: &[Quota]) -> Quotas {
    let known = Quotas::default();
    known.learn(quotas.iter().copied());
    known
}

#[test]
pub(super) fn a_raised_limit_leaves_used_units() {
    let mut server = ManualServer::new(&ALL);
    let [ten, thousand] = [10, 1_000].map(|limit| TokenBucket::new(Quota::per_hour(limit)));
    let [before, after] = [knowing(&[ten.quota()]), knowing(&[thousand.quota(), ten.quota()])];
    assert!(ask(&mut server, &ten, &before, (10, None), START).0.is_allowed());
    assert!(!ask(&mut server, &ten, &before, (1, None), START).0.is_allowed());
    let (decision, calls) = ask(&mut server, &thousand, &after, (990, None), START);
    assert_eq!((decision.is_allowed(), decision.remaining(), calls), (true, 0, 2));
    let (decision, calls) = ask(&mut server, &thousand, &after, (1, None), START);
    assert_eq!((decision.is_allowed(), calls), (false, 1), "it has its mark");
    // Lowered again: a thousand units are owed, and each takes six minutes.
    let again = knowing(&[ten.quota(), thousand.quota()]);
    let decision = ask(&mut server, &ten, &again, (1, None), START).0;
    assert_eq!(decision.retry_after().unwrap().as_secs(), 991 * 360);
}

/// A state keeps its mark and its debt through a process that does not know the other rate, and as a time.
#[test]
pub(super) fn an_unknown_mark_keeps_the_time() {
    let mut server = ManualServer::new(&ALL);
    let [ten, thousand] = [10, 1_000].map(|limit| TokenBucket::new(Quota::per_hour(limit)));
    assert!(ask(&mut server, &ten, &knowing(&[ten.quota()]), (1, None), START).0.is_allowed());
    let (decision, calls) = ask(&mut server, &thousand, &knowing(&[thousand.quota()]), (900, None), START);
    assert_eq!((decision.is_allowed(), decision.remaining(), calls), (true, 0, 1));
    // A process that converts marks, but not this one, changes it in one more call.
    let hundred = TokenBucket::new(Quota::per_hour(100));
    let quotas = knowing(&[hundred.quota(), ten.quota()]);
    let (decision, calls) = ask(&mut server, &hundred, &quotas, (1, None), START);
    assert_eq!((decision.is_allowed(), calls), (false, 2));
}

#[test]
pub(super) fn a_charge_of_another_rate_stays() {
    let mut server = ManualServer::new(&ALL);
    let [ten, thousand] = [10, 1_000].map(|limit| TokenBucket::new(Quota::per_hour(limit)));
    let [before, after] = [knowing(&[ten.quota()]), knowing(&[thousand.quota(), ten.quota()])];
    let receipt = ask(&mut server, &ten, &before, (5, None), START).0.receipt();
    assert_eq!(ask(&mut server, &thousand, &after, (1, None), START).0.remaining(), 994);
    // By either process.
    let _ = ask(&mut server, &ten, &before, (5, Some(receipt)), START);
    let _ = ask(&mut server, &thousand, &after, (5, Some(receipt)), START);
    assert_eq!(ask(&mut server, &thousand, &after, (1, None), START).0.remaining(), 993);
    // And a charge at the same rate is refunded.
    let receipt = ask(&mut server, &thousand, &after, (3, None), START).0.receipt();
    let _ = ask(&mut server, &thousand, &after, (3, Some(receipt)), START);
    assert_eq!(ask(&mut server, &thousand, &after, (1, None), START).0.remaining(), 992);
}

/// Long traces with many changes, against the algorithm with its own conversions. The server rounds a converted debt up
/// to the microsecond.
#[test]
pub(super) fn changes_decide_like_the_algorithm() {
    let quotas = [
        Quota::per_hour(10),
        Quota::per_hour(1_000),
        Quota::per_minute(7).burst(20),
        Quota::per_second(3),
        Quota::per_day(5).burst(9),
    ];
    for seed in seeds(rounds(20, 200)) {
        let mut random = Xorshift::from_seed(seed);
        let mut server = ManualServer::new(&ALL);
        let mut bucket = TokenBucket::new(quotas[0]);
        let mut known = vec![quotas[0]];
        let mut process = knowing(&known);
        let (mut state, mut kept): (Option<GcraState>, _) = (None, quotas[0]);
        let mut now = START;
        for step in 0..300 {
            now += random.below(1_000_000_000) >> random.below(30);
            if random.below(10) == 0 {
                bucket = TokenBucket::new(random.pick(&quotas));
                known.insert(0, bucket.quota());
                process = knowing(&known);
            }
            let cost = 1 + random.below(bucket.max_cost() + 1);
            let moment: Timestamp = at(now);
            let before = state.map(|state| bucket.inherit(state, &kept, moment));
            let (expected, next) = bucket.decide(before, moment, cost);
            let (decision, _) = ask(&mut server, &bucket, &process, (cost, None), now);
            let near = expected.remaining().abs_diff(decision.remaining()) <= 1;
            assert!(near, "seed {seed}, step {step}: {decision:?} in place of {expected:?}");
            if decision.is_allowed() != expected.is_allowed() {
                // By one microsecond. The trace goes on from the server's state.
                assert!(expected.is_allowed(), "seed {seed}, step {step}: more is admitted");
                let left = decision.retry_after().expect("it fits soon");
                assert!(left.as_micros() <= 1, "seed {seed}, step {step}: {left:?}");
            }
            // A cost that can never be admitted converts nothing.
            if cost <= bucket.max_cost() {
                (state, kept) = (if decision.is_allowed() { next.or(before) } else { before }, bucket.quota());
            }
        }
    }
}

#[test]
pub(super) fn marks_have_three_digits() {
    for limit in 1..2_000 {
        for quota in [Quota::per_second(limit), Quota::per_day(limit), Quota::per_hour(limit).burst(7)] {
            assert!((100..=921).contains(&rate_mark(&quota)), "{quota:?}");
        }
    }
    assert_eq!(rate_mark(&Quota::per_minute(60)), rate_mark(&Quota::per_second(1).burst(9)), "one rate");
    assert_ne!(rate_mark(&Quota::per_hour(10)), rate_mark(&Quota::per_hour(1_000)));
    assert_eq!(marked("-7+3~5", 123), "-1230000000000000007+3~5");
    assert_eq!(mark_of(b"-1230000000000000007+3"), Some(123));
    assert_eq!([&b"-7"[..], b"-1773658800123456", b"-12300000000000000077"].map(mark_of), [None; 3]);
    // Redis keeps a state as an integer.
    assert!(marked("-9007199254740991", 921).parse::<i64>().is_ok());
}
