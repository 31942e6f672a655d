//! Balances on Redis: against the naive ledger, in several processes, and until their millisecond.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use tower_sluice::key::User;
use tower_sluice::limiter::{Ask, Credit, Debit, Mode};
use tower_sluice::testing::{Random, check_accounts, check_modes, seed_of, seeds};
use tower_sluice::{
    Decision, FixedWindow, Limiter, LimiterExt, LimitsHandle, PartitionKey, Policy, Quota, RateLimitLayer, RateLimiter,
    SharedBalance, TokenBucket,
};
use tower_sluice_redis::{Redis, RedisStore};

use crate::support::clients::PLENTY;
use crate::support::effort::rounds;
use crate::support::ledger::Ledger;
use crate::support::redis::RedisServer;
use crate::support::timing::eventually;

const HOUR: Duration = Duration::from_secs(3_600);

/// Connects as another process would.
fn redis(server: &RedisServer) -> Redis {
    Redis::single(server.url()).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap()
}

fn balance(server: &RedisServer) -> SharedBalance<Redis> {
    SharedBalance::new(redis(server), "bought")
}

fn process(server: &RedisServer) -> LimitsHandle {
    RateLimitLayer::new(Policy::new("bought", balance(server)).key(User::key())).handle()
}

async fn charge(balance: &SharedBalance<Redis>, key: &PartitionKey, cost: u64) -> Decision {
    balance.decide(&Ask::charge(key, cost)).decided().await.unwrap()
}

async fn left(balance: &SharedBalance<Redis>, key: &PartitionKey) -> u64 {
    charge(balance, key, 0).await.remaining()
}

/// The lots of the only key on the server, by their milliseconds, and its debt.
fn state(server: &RedisServer) -> (BTreeMap<u64, u64>, u64) {
    let Some(name) = server.run::<Vec<String>>(&["KEYS", "*:bought:l"]).pop() else { return Default::default() };
    let mut fields = server.run::<BTreeMap<String, u64>>(&["HGETALL", &name]);
    let owed = fields.remove("owed").unwrap_or(0);
    (fields.into_iter().map(|(expires, units)| (expires.parse().unwrap(), units)).collect(), owed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_keep_accounts() {
    let server = RedisServer::start();
    check_accounts(redis(&server), seed_of(31)).await;
}

/// Two processes take turns. Lots expire hours apart, and not during the test.
#[tokio::test]
async fn two_processes_keep_the_naive_ledger() {
    let server = RedisServer::start();
    let (limiters, handles) = ([balance(&server), balance(&server)], [process(&server), process(&server)]);
    let key = PartitionKey::from("alice");
    let now = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap();
    for seed in seeds(rounds(4, 100)) {
        server.run::<()>(&["FLUSHALL"]);
        let mut random = Random::new(seed);
        let mut ledger = Ledger::default();
        let mut charges: Vec<(Vec<u64>, Decision)> = Vec::new();
        for step in 0..100 {
            let context = format!("seed {seed}, step {step}");
            let units = 1 + random.below(9);
            let (balance, handle) =
                (random.pick(&[&limiters[0], &limiters[1]]), random.pick(&[&handles[0], &handles[1]]));
            match random.below(7) {
                0 | 1 => {
                    let expires = now + 3_600_000 * (1 + random.below(5));
                    (0..units).for_each(|_| ledger.add(expires, now));
                    let credit = Credit::units(units).expires_at(UNIX_EPOCH + Duration::from_millis(expires));
                    let status = handle.credit("bought", "alice", credit).await.unwrap();
                    assert_eq!(status.decision().remaining(), ledger.left(), "{context}");
                }
                2..=4 => {
                    let decision = charge(balance, &key, units).await;
                    let taken = ledger.charge(units);
                    assert_eq!(
                        (decision.is_allowed(), decision.remaining()),
                        (taken.is_some(), ledger.left()),
                        "{context}"
                    );
                    charges.extend(taken.map(|taken| (taken, decision)));
                }
                5 if !charges.is_empty() => {
                    let index = usize::try_from(random.below(charges.len() as u64)).unwrap();
                    let (taken, decision) = charges.swap_remove(index);
                    let units = random.below(taken.len() as u64 + 1);
                    ledger.refund(&taken, units, now);
                    balance.refund(&Ask::charge(&key, taken.len() as u64), decision.receipt(), units);
                    eventually("it is given back", async || state(&server) == ledger.state()).await;
                }
                6 if random.below(3) > 0 => {
                    ledger.debit(units);
                    let status = handle.charge("bought", "alice", units).await.unwrap();
                    assert_eq!(status.decision().remaining(), ledger.left(), "{context}");
                }
                6 => {
                    ledger.forgive();
                    let _ = handle.reset("bought", "alice").await.unwrap();
                }
                _ => {}
            }
            assert_eq!(state(&server), ledger.state(), "{context}");
        }
    }
}

#[tokio::test]
async fn one_reference_is_entered_once() {
    let server = RedisServer::start();
    let layers = [(); 2].map(|()| {
        let bucket = RateLimiter::new(TokenBucket::new(Quota::per_day(100)), RedisStore::new(&redis(&server), "api"));
        let window = RateLimiter::new(FixedWindow::new(Quota::per_day(100)), RedisStore::new(&redis(&server), "week"));
        let policies = [
            Policy::new("api", bucket).key(User::key()),
            Policy::new("week", window).key(User::key()),
            Policy::new("bought", balance(&server)).key(User::key()),
        ];
        RateLimitLayer::new(policies).handle()
    });
    for round in 0..5_u64 {
        let payment = Credit::units(10).reference(format!("invoice-{round}"));
        let job = Debit::units(3).reference(format!("job-{round}"));
        let credits = (0..8).map(|task| layers[task % 2].credit("bought", "alice", payment.clone()));
        let entered = join_all(credits).await.into_iter().filter(|status| !status.as_ref().unwrap().is_repeated());
        assert_eq!(entered.count(), 1);
        for policy in ["bought", "api", "week"] {
            let charges = (0..8).map(|task| layers[task % 2].charge(policy, "alice", job.clone()));
            let entered = join_all(charges).await.into_iter().filter(|status| !status.as_ref().unwrap().is_repeated());
            assert_eq!(entered.count(), 1, "{policy}");
        }
        let left = async |policy: &str| layers[1].peek(policy, "alice").await.unwrap().decision().remaining();
        assert_eq!(left("bought").await, (round + 1) * 7);
        assert_eq!([left("api").await, left("week").await], [100 - (round + 1) * 3; 2]);
    }
}

/// Charges by hand beyond the limit, for policies that do not let requests owe anything.
#[tokio::test]
async fn all_processes_see_a_debt_by_hand() {
    let server = RedisServer::start();
    let [first, second] = [(); 2].map(|()| {
        let bucket = RateLimiter::new(TokenBucket::new(Quota::per_day(10)), RedisStore::new(&redis(&server), "api"));
        RateLimitLayer::new(Policy::new("api", bucket).key(User::key())).handle()
    });
    let job = || Debit::units(30).reference("job-4711");
    let status = first.charge("api", "alice", job()).await.unwrap();
    assert_eq!((status.decision().remaining(), status.is_repeated()), (0, false));
    for handle in [&first, &second] {
        let days = 86_400 * 3;
        let wait = handle.peek("api", "alice").await.unwrap().decision().reset_after();
        assert!(wait <= Duration::from_secs(days) && wait > Duration::from_secs(days - 600), "{wait:?}");
        assert!(handle.charge("api", "alice", job()).await.unwrap().is_repeated());
    }
    let _ = second.reset("api", "alice").await.unwrap();
    assert_eq!(first.peek("api", "alice").await.unwrap().decision().remaining(), 10);
    assert!(second.charge("api", "alice", job()).await.unwrap().is_repeated(), "a reset forgets no reference");
    let error = first.credit("api", "alice", Credit::units(5)).await.unwrap_err();
    assert!(error.is_unsupported() && error.to_string().contains("`or_else`"), "{error}");
    let _ = first.allow("api", "alice", HOUR, "a migration").await.unwrap();
    let error = second.charge("api", "alice", 1).await.unwrap_err().to_string();
    assert!(error.contains("allowed by hand"), "{error}");
}

/// Units are gone at their millisecond, and keys with their last lot.
#[tokio::test]
async fn lots_and_keys_expire_on_time() {
    let server = RedisServer::start();
    let balance = balance(&server);
    let key = PartitionKey::from("alice");
    let millis = || {
        let time = server.run::<[u64; 2]>(&["TIME"]);
        time[0] * 1_000 + time[1] / 1_000
    };
    let mut span = 100;
    let (end, at) = loop {
        let end = millis() + span;
        let at = UNIX_EPOCH + Duration::from_millis(end);
        // On a busy machine, it may have expired before the call arrives.
        if balance.credit(&key, Credit::units(5).expires_at(at)).await.is_ok() {
            break (end, at);
        }
        span *= 2;
    };
    let _ = balance.credit(&key, Credit::units(2).expires_in(HOUR)).await.unwrap();
    let name = server.run::<Vec<String>>(&["KEYS", "*:bought:l"]).pop().unwrap();
    let lasts = server.run::<i64>(&["PTTL", &name]);
    // The end is rounded up to a millisecond.
    assert!(3_500_000 < lasts && lasts <= 3_600_001, "{lasts}");
    loop {
        let (before, left, after) = (millis(), left(&balance, &key).await, millis());
        match left {
            7 => assert!(before < end, "{before} is not before {end}"),
            2 => {
                assert!(after >= end, "{after} is before {end}");
                break;
            }
            other => panic!("{other} are left"),
        }
    }
    let _ = balance.credit(&key, Credit::units(1)).await.unwrap();
    assert!(server.run::<i64>(&["PTTL", &name]) > 1 << 40, "a lot never expires");
    let taken = charge(&balance, &key, 3).await;
    assert!(taken.is_allowed() && server.run::<Vec<String>>(&["KEYS", "*"]).is_empty(), "nothing is left");
    balance.refund(&Ask::charge(&key, 3), taken.receipt(), 3);
    eventually("it is given back", async || left(&balance, &key).await == 3).await;
    assert_eq!(state(&server).0.values().sum::<u64>(), 3);
    assert!(server.run::<i64>(&["PTTL", &name]) > 1 << 40);
    let error = balance.credit(&key, Credit::units(1).expires_at(at)).await.unwrap_err().to_string();
    assert!(error.contains("expired already"), "{error}");
}

#[tokio::test]
async fn a_request_dropped_meanwhile_keeps_its_units() {
    let server = RedisServer::start();
    let balance = balance(&server);
    let key = PartitionKey::from("alice");
    let _ = balance.credit(&key, Credit::units(5)).await.unwrap();
    for _ in 0..20 {
        let answer = balance.decide(&Ask::charge(&key, 5)).decided();
        tokio::select! {
            biased;
            () = async { tokio::task::yield_now().await; tokio::task::yield_now().await } => {}
            // The server was faster.
            decision = answer => balance.refund(&Ask::charge(&key, 5), decision.unwrap().receipt(), 5),
        }
        eventually("it is given back", async || left(&balance, &key).await == 5).await;
    }
    // It is charged even so.
    drop(balance.decide(&Ask::charge(&key, 9).to(Mode::UpTo)));
    eventually("it is charged", async || left(&balance, &key).await == 0).await;
}

/// A foreign value is an error.
#[tokio::test]
async fn lots_are_bounded() {
    let server = RedisServer::start();
    let balance = balance(&server);
    let key = PartitionKey::from("alice");
    let lot = |number: u32| Credit::units(1).expires_in(HOUR * number);
    for number in 1..=64 {
        let _ = balance.credit(&key, lot(number)).await.unwrap();
    }
    let error = balance.credit(&key, lot(65).reference("x")).await.unwrap_err().to_string();
    assert!(error.contains("the end of a day"), "{error}");
    assert!(balance.credit(&key, Credit::units(Quota::MAX_UNITS)).await.is_err());
    assert!(charge(&balance, &key, 64).await.is_allowed());
    assert_eq!(balance.credit(&key, lot(65).reference("x")).await.unwrap().remaining(), 1, "it was not entered before");
    let name = server.run::<Vec<String>>(&["KEYS", "*:bought:l"]).pop().unwrap();
    server.run::<()>(&["HSET", &name, "other", "1"]);
    let error = balance.acquire(&key, 1).await.unwrap_err();
    assert!(format!("{error:?}").contains("holds no balance"), "{error:?}");
}

/// So that no advertised wait outlasts its units.
#[tokio::test]
async fn a_charge_reports_its_units_lifetime() {
    let server = RedisServer::start();
    let balance = balance(&server);
    let key = PartitionKey::from("alice");
    for (units, hours) in [(5, 1), (3, 2)] {
        let _ = balance.credit(&key, Credit::units(units).expires_in(HOUR * hours)).await.unwrap();
    }
    // A cost of four needs a unit from the first lot, and a cost of one does not.
    for (cost, hours) in [(4, 1), (1, 2)] {
        let lasts = charge(&balance, &key, cost).await.reset_after();
        // The server's clock, by which a lot ends, is not the clock by which the span is counted.
        let most = HOUR * hours + Duration::from_secs(1);
        assert!(lasts > HOUR * (hours - 1) && lasts <= most, "{cost} units: {lasts:?}");
    }
    let _ = balance.credit(&key, Credit::units(4)).await.unwrap();
    assert_eq!(charge(&balance, &key, 4).await.reset_after(), Duration::ZERO, "they never expire");
    assert!(!charge(&balance, &key, 5).await.is_allowed());
}

#[tokio::test]
async fn its_modes_match_their_description() {
    let server = RedisServer::start();
    let balance = balance(&server);
    for key in ["asked in all modes", "asked in one mode"] {
        let _ = balance.credit(&key.into(), Credit::units(20)).await.unwrap();
    }
    check_modes(&balance).await;
    assert!(balance.peek(&"alice".into(), 1).await.unwrap_err().is_unsupported());
    assert!(balance.inherit(&SharedBalance::new(redis(&server), "bought")).is_none(), "another connection");
}
