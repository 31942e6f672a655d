//! One run of a script for many requests: the script charges each as if it were alone.

use std::collections::HashMap;
use std::fmt::Debug;

use ::redis::cmd;
use smallvec::SmallVec;
use tower_sluice::Quota;
use tower_sluice::algorithm::{Algorithm, CalendarWindow, FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::internal::remote::testing::ReadQuota as _;

use super::hostile::FOREIGN;
use super::traces::{bucket_quota, cost, window_quota};
use super::{ALL, NOW, decide_all, start};
use crate::connection::evalsha;
use crate::script::manual_server::{ManualServer, START, at, key};
use crate::script::random::Xorshift;
use crate::script::variant::hash_of;
use crate::script::{OwnQuota, ScriptCall, ScriptCharge, ScriptReply, Scripted, decide};
use crate::support::trace::Trace;

/// The number of runs with one quota, sent together.
const RUNS: u64 = 20;

/// Checks against Rust over a plain map: random keys, some of them several times in a run.
fn check<A: Scripted + Debug>(make: impl Fn(Quota) -> A, quota: impl Fn(&mut Xorshift) -> Quota) {
    let mut random = Xorshift::seeded();
    let mut server = ManualServer::new(&ALL);
    let mut batch = 0;
    let mut admitted = 0;
    let mut rejected = 0;
    let mut trace = Trace::of(50);
    while trace.goes_on([
        ("batches", batch >= 50),
        ("admitted requests", admitted > 3_000),
        ("rejected requests", rejected > 3_000),
    ]) {
        let algorithm = make(quota(&mut random));
        if algorithm.fits().is_err() {
            continue;
        }
        let own = (batch % 2 == 1).then(|| algorithm.quota());
        let mut states = HashMap::new();
        let mut expected = Vec::new();
        let mut now = START + random.below(1 << 49);
        for _ in 0..RUNS {
            let token = algorithm.quota().period_nanos() / 1_000 / algorithm.max_cost();
            now = (now + random.below(2 * token + 2)).min((1 << 52) - 1);
            let cost = cost(&mut random, algorithm.max_cost()).max(1);
            let count = 1 + random.below(3) as u32;
            let keys: Vec<u64> = (0..2 + random.below(31)).map(|_| random.below(24)).collect();
            let names = keys.iter().map(|id| key(format!("{batch} {id}"))).collect();
            let mut charge = ScriptCharge::new(&algorithm, key(""), cost, at(now));
            charge.count = count;
            let own_quota = OwnQuota { quota: own, conversion: None };
            let call = ScriptCall { keys: names, ..charge.with_own_quota(own_quota).alone() };
            server.add(now, &call);
            let is_charge = cost <= algorithm.max_cost();
            let decisions = keys.iter().map(|id| {
                let state = states.get(id).copied();
                let decide = |state: &mut Option<A::State>| {
                    let (decision, next) = algorithm.decide(*state, at(now), cost);
                    *state = next.or(*state);
                    decision
                };
                let mut after = state;
                let decisions: Vec<_> = (0..count).map(|_| decide(&mut after)).collect();
                after.filter(|_| is_charge).map(|after| states.insert(*id, after));
                decisions
            });
            expected.push((now, cost, count, decisions.collect::<Vec<_>>()));
        }
        for (reply, (now, cost, count, decisions)) in server.replies().iter().zip(expected) {
            let replies = ScriptReply::read_each(reply, decisions.len(), 1).unwrap();
            for (reply, decisions) in replies.into_iter().zip(decisions) {
                let reply = reply.expect("this key can be read");
                assert_eq!(reply.now, at(now));
                assert!(reply.text(0).unwrap().is_under(own, None));
                let (found, _) = reply.replay(&algorithm, cost, count).unwrap();
                assert_eq!(&found[..], &decisions[..], "{algorithm:?}, cost {cost}, {reply:?}");
                let allowed = found.iter().filter(|decision| decision.is_allowed()).count();
                admitted += allowed;
                rejected += found.len() - allowed;
            }
        }
        batch += 1;
    }
}

#[test]
pub(super) fn each_key_is_charged_as_if_alone() {
    check(TokenBucket::new, bucket_quota);
    check(FixedWindow::new, window_quota);
    check(SlidingWindow::new, window_quota);
    check(|quota| CalendarWindow::monthly(quota.limit()), window_quota);
}

/// With any text in one key, the other keys are charged. That key stays as it is, and needs a call of its own.
#[test]
pub(super) fn an_unreadable_key_concerns_no_other() {
    fn check<A: Scripted>(algorithm: &A) {
        let (_server, mut connection) = start();
        let [list, foreign] = [key("list"), key("foreign")];
        cmd("RPUSH").arg(list.as_str()).arg(1).exec(&mut connection).unwrap();
        // The added texts have a comma, or an invalid quota.
        for (run, value) in FOREIGN.into_iter().chain(["-1,1,-1", "@,", "-,1@1:1:1"]).enumerate() {
            cmd("SET").arg(foreign.as_str()).arg(value).exec(&mut connection).unwrap();
            let keys = [key(format!("{run} a")), list.clone(), key(format!("{run} b")), foreign.clone()];
            let mut keys: SmallVec<_> = keys.into_iter().collect();
            keys.push(key(format!("{run} b")));
            let call = ScriptCall { keys, ..decide(algorithm, key(""), 1, 1, NOW) };
            let reply = evalsha(&call, &hash_of(call.script)).query(&mut connection).unwrap();
            let replies = ScriptReply::read_each(&reply, 5, 1).unwrap();
            let charged: Vec<_> = replies.iter().map(|reply| reply.as_ref().map(|reply| reply.admitted)).collect();
            assert_eq!(charged, [Some(1), None, Some(1), None, Some(1)], "{value:?}");
            // One of two keys.
            let keys = [list.clone(), key(format!("{run} c"))].into_iter().collect();
            let call = ScriptCall { keys, ..decide(algorithm, key(""), 1, 1, NOW) };
            let reply = evalsha(&call, &hash_of(call.script)).query(&mut connection).unwrap();
            let replies = ScriptReply::read_each(&reply, 2, 1).unwrap();
            assert_eq!(replies[0].as_ref().map(|reply| reply.admitted), None);
            assert_eq!(replies[1].as_ref().map(|reply| reply.admitted), Some(1));
            assert_eq!(cmd("GET").arg(foreign.as_str()).query::<String>(&mut connection).unwrap(), value);
            assert_eq!(cmd("LLEN").arg(list.as_str()).query::<u32>(&mut connection).unwrap(), 1);
        }
    }
    check(&TokenBucket::new(Quota::per_second(10)));
    check(&FixedWindow::new(Quota::per_second(10)));
    check(&SlidingWindow::new(Quota::per_second(10)));
}

/// Checks against Rust over a plain map: requests for a bucket and two windows, some with shared keys. One key may only
/// be read.
#[test]
pub(super) fn requests_for_several_keys_are_independent() {
    let mut random = Xorshift::seeded();
    let mut server = ManualServer::new(&ALL);
    let mut batch = 0;
    let mut charged = 0;
    let mut rejected = 0;
    let mut trace = Trace::of(30);
    while trace.goes_on([
        ("batches", batch >= 30),
        ("charged requests", charged > 300),
        ("rejected requests", rejected > 300),
    ]) {
        let quotas = [(); 3].map(|()| window_quota(&mut random));
        let bucket = TokenBucket::new(quotas[0]);
        let fixed = FixedWindow::new(quotas[1]);
        let sliding = SlidingWindow::new(quotas[2]);
        if bucket.fits().and(fixed.fits()).and(sliding.fits()).is_err() {
            continue;
        }
        let mut first = HashMap::new();
        let mut second = HashMap::new();
        let mut third = HashMap::new();
        let mut expected = Vec::new();
        let mut now = START + random.below(1 << 49);
        for _ in 0..RUNS {
            let token = quotas[batch % 3].period_nanos() / 1_000 / quotas[batch % 3].limit();
            now = (now + random.below(2 * token + 2)).min((1 << 52) - 1);
            let costs = [bucket.max_cost(), fixed.max_cost(), sliding.max_cost()].map(|max| cost(&mut random, max));
            let are_possible =
                costs[0] <= bucket.max_cost() && costs[1] <= fixed.max_cost() && costs[2] <= sliding.max_cost();
            let requests: Vec<[u64; 3]> =
                (0..2 + random.below(9)).map(|_| [random.below(3), random.below(8), random.below(8)]).collect();
            let names = |[a, b, c]: [u64; 3]| {
                [key(format!("a {batch} {a}")), key(format!("b {batch} {b}")), key(format!("c {batch} {c}"))]
            };
            let [a, b, c] = names(requests[0]);
            let alone = decide_all([
                ScriptCharge::new(&bucket, a, costs[0], at(now)),
                ScriptCharge::new(&fixed, b, costs[1], at(now)),
                ScriptCharge::new(&sliding, c, costs[2], at(now)),
            ]);
            server.add(now, &ScriptCall { keys: requests.iter().flat_map(|ids| names(*ids)).collect(), ..alone });
            for [a, b, c] in requests.clone() {
                let (one, next_first) = bucket.decide(first.get(&a).copied(), at(now), costs[0]);
                let (two, next_second) = fixed.decide(second.get(&b).copied(), at(now), costs[1]);
                let (three, next_third) = sliding.decide(third.get(&c).copied(), at(now), costs[2]);
                let are_allowed = [one, two, three].iter().all(|decision| decision.is_allowed());
                if are_allowed {
                    next_first.map(|state| first.insert(a, state));
                    next_second.map(|state| second.insert(b, state));
                    next_third.map(|state| third.insert(c, state));
                }
                expected.push((costs, [one, two, three], are_allowed));
                assert!(!are_allowed || are_possible);
            }
        }
        let mut expected = expected.into_iter();
        for reply in server.replies() {
            let ::redis::Value::BulkString(text) = &reply else { panic!("{reply:?}") };
            let requests = text.split(|byte| *byte == b',').count() / 4;
            for answer in ScriptReply::read_each(&reply, requests, 3).unwrap() {
                let answer = answer.expect("its keys can be read");
                let (costs, decisions, are_allowed) = expected.next().unwrap();
                let found = [
                    answer.decision(&bucket, 0, costs[0]).unwrap(),
                    answer.decision(&fixed, 1, costs[1]).unwrap(),
                    answer.decision(&sliding, 2, costs[2]).unwrap(),
                ];
                assert_eq!(found, decisions, "{bucket:?} {fixed:?} {sliding:?} {answer:?}");
                assert_eq!(answer.charged(are_allowed.into()), Ok(()));
                let count = if are_allowed { &mut charged } else { &mut rejected };
                *count += 1;
            }
        }
        batch += 1;
    }
    println!("{charged} charged, {rejected} not");
}

/// With any text in one key, requests without this key are charged, and requests with it charge nothing.
#[test]
pub(super) fn an_unreadable_keys_request_concerns_no_other() {
    let (_server, mut connection) = start();
    let [list, foreign, used_up] = ["list", "foreign", "used up"].map(key);
    cmd("SET").arg(used_up.as_str()).arg("-9000000000000000").exec(&mut connection).unwrap();
    cmd("RPUSH").arg(list.as_str()).arg(1).exec(&mut connection).unwrap();
    let bucket = TokenBucket::new(Quota::per_second(10));
    for (run, value) in FOREIGN.into_iter().chain(["-1,1,-1", "@,", "-,1@1:1:1"]).enumerate() {
        cmd("SET").arg(foreign.as_str()).arg(value).exec(&mut connection).unwrap();
        let good = |name| key(format!("{run} {name}"));
        let requests = [
            [good("a"), good("b")],
            [good("c"), foreign.clone()],
            [list.clone(), good("d")],
            [good("a"), good("e")],
            [list.clone(), used_up.clone()],
        ];
        // Like in a bundle of requests whose second policy only reads.
        for second in [1, 0] {
            let [one, two] = requests[0].clone();
            let charges = [ScriptCharge::new(&bucket, one, 1, NOW), ScriptCharge::new(&bucket, two, second, NOW)];
            let call = ScriptCall { keys: requests.iter().flatten().cloned().collect(), ..decide_all(charges) };
            let reply = evalsha(&call, &hash_of(call.script)).query(&mut connection).unwrap();
            let replies = ScriptReply::read_each(&reply, 5, 2).unwrap();
            let charged: Vec<_> = replies.iter().map(|reply| reply.as_ref().map(|reply| reply.admitted)).collect();
            // A standing that is over: the key is only read, and the script returns the text behind the standing.
            if second == 0 && value.starts_with("!5:6:7:!") {
                continue;
            }
            // The script does not parse a key that is only read.
            let is_answered = second == 0 && !value.contains(',') && !value.starts_with('!');
            let with_foreign = is_answered.then_some(1);
            assert_eq!(charged, [Some(1), with_foreign, None, Some(1), None], "{value:?}, {second}");
            let written: Vec<_> = ["c", "d"]
                .map(|name| cmd("EXISTS").arg(good(name).as_str()).query::<u32>(&mut connection).unwrap())
                .into();
            assert_eq!(written, [u32::from(is_answered), 0], "{value:?}, {second}");
        }
        assert_eq!(cmd("GET").arg(foreign.as_str()).query::<String>(&mut connection).unwrap(), value);
        assert_eq!(cmd("LLEN").arg(list.as_str()).query::<u32>(&mut connection).unwrap(), 1);
    }
}
