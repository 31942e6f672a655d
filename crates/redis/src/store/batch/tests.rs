//! Decisions by a formula, on real servers.

use std::collections::HashSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use tower_sluice::algorithm::{Algorithm, GcraState, TokenBucket};
use tower_sluice::internal::remote::testing::ReadDescription as _;
use tower_sluice::internal::remote::testing::{Claim, Formula, MemberDecision};
use tower_sluice::limiter::Ask;
use tower_sluice::testing::seed_of;
use tower_sluice::{Decision, Limiter as _, LimiterError, PartitionKey, Quota, RateLimiter};

use crate::connection::Redis;
use crate::script::KeyNames;
use crate::script::random::Xorshift;
use crate::store::{RedisStore, RedisTable};
use crate::support::servers::{RedisCluster, RedisServer};
use crate::support::timing::eventually;

const PLENTY: Duration = Duration::from_secs(10);

fn open(server: &RedisServer) -> Redis {
    Redis::single(server.url()).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap()
}

/// A limiter whose budgets do not grow while a test runs.
struct Limiter {
    bucket: TokenBucket,
    table: RateLimiter<TokenBucket, RedisTable<GcraState>>,
}

impl Limiter {
    fn new(redis: &Redis, name: &str, limit: u64) -> Self {
        let bucket = TokenBucket::new(Quota::per(limit, Duration::from_secs(1_000 * 86_400)));
        Self { bucket, table: RateLimiter::new(bucket, RedisStore::new(redis, name)) }
    }

    fn claim(&self, key: &str, cost: u64) -> Box<dyn Claim> {
        self.claim_under(key, cost, None)
    }

    fn claim_under(&self, key: &str, cost: u64, quota: Option<Quota>) -> Box<dyn Claim> {
        let description = self.table.describe();
        let key = PartitionKey::from(key);
        let claim = description.batches().unwrap().claim(&Ask::charge(&key, cost).under(quota));
        claim.expect("no lease pays")
    }
}

fn member(member: usize) -> Formula {
    Formula::Member(member)
}

fn any<const N: usize>(parts: [Formula; N]) -> Formula {
    Formula::Any(parts.into())
}

fn all<const N: usize>(parts: [Formula; N]) -> Formula {
    Formula::All(parts.into())
}

/// A member's fate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Charged, with this number of units left.
    Charged(u64),
    /// It has room, and was not charged. This number of units is left.
    Peeked(u64),
    Rejected,
    NotAsked,
}

use Fate::{Charged, NotAsked, Peeked, Rejected};

fn fates(answers: Vec<Option<Result<MemberDecision, LimiterError>>>) -> Vec<Fate> {
    let fate = |answer: Option<_>| match answer {
        None => NotAsked,
        Some(Err(error)) => panic!("{error:?}"),
        Some(Ok(member)) => {
            let MemberDecision { decision, is_charged } = member;
            assert!(!is_charged || decision.is_allowed());
            match (is_charged, decision.is_allowed()) {
                (true, _) => Charged(decision.remaining()),
                (false, true) => Peeked(decision.remaining()),
                (false, false) => Rejected,
            }
        }
    };
    answers.into_iter().map(fate).collect()
}

async fn decide<const N: usize>(claims: [Box<dyn Claim>; N], formula: &Formula) -> [Fate; N] {
    let mut claims = Vec::from(claims);
    let first = claims.remove(0);
    fates(first.decide_by(claims, formula.clone()).await).try_into().unwrap()
}

/// Returns how many scripts were run, once the server knows the script.
fn calls(server: &RedisServer) -> u64 {
    let stat = server.info("cmdstat_evalsha");
    stat.strip_prefix("calls=").and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
}

#[tokio::test]
async fn one_call_decides_on_one_servers_alternatives() {
    let server = RedisServer::start();
    let redis = open(&server);
    let [included, overage, shared] =
        [("included", 3), ("overage", 2), ("shared", 5)].map(|(name, limit)| Limiter::new(&redis, name, limit));
    let claims = || [included.claim("a", 1), overage.claim("a", 1), shared.claim("all", 1)];
    let formula = all([any([member(0), member(1)]), member(2)]);
    assert_eq!(decide(claims(), &formula).await, [Charged(2), Peeked(2), Charged(4)]);
    let before = calls(&server);
    assert_eq!(decide(claims(), &formula).await, [Charged(1), Peeked(2), Charged(3)]);
    assert_eq!(decide(claims(), &formula).await, [Charged(0), Peeked(2), Charged(2)]);
    assert_eq!(decide(claims(), &formula).await, [Rejected, Charged(1), Charged(1)]);
    // The greater cost fits nowhere, and charges nothing.
    let greater = [included.claim("a", 2), overage.claim("a", 2), shared.claim("all", 1)];
    assert_eq!(decide(greater, &formula).await, [Rejected, Rejected, Peeked(1)]);
    assert_eq!(decide(claims(), &formula).await, [Rejected, Charged(0), Charged(0)]);
    assert_eq!(decide(claims(), &formula).await, [Rejected, Rejected, Rejected]);
    // There is room in the first part, but not in the second.
    let other = [included.claim("b", 1), overage.claim("b", 1), shared.claim("all", 1)];
    assert_eq!(decide(other, &formula).await, [Peeked(3), Peeked(2), Rejected]);
    assert_eq!(calls(&server) - before, 7);
}

/// Eight processes exceed no limit, and only requests for which too little is included charge the overage.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn included_units_precede_the_overage() {
    let server = RedisServer::start();
    let process = async |seed: u64| {
        let redis = open(&server);
        let [included, overage] =
            [("included", 100), ("overage", 60)].map(|(name, limit)| Limiter::new(&redis, name, limit));
        let either = any([member(0), member(1)]);
        let mut random = Xorshift::from_seed(seed_of(seed));
        let mut charged = [0, 0];
        for _ in 0..20 {
            // Up to three at a time, which share calls.
            let costs: Vec<u64> = (0..=random.below(3)).map(|_| random.pick(&[1, 1, 1, 2, 3])).collect();
            let requests =
                costs.iter().map(|cost| decide([included.claim("a", *cost), overage.claim("a", *cost)], &either));
            for (cost, fates) in costs.iter().zip(join_all(requests).await) {
                match fates {
                    [Charged(_), _] => charged[0] += cost,
                    [Rejected, Charged(_)] => charged[1] += cost,
                    [Rejected, Rejected] => {}
                    other => panic!("{other:?}"),
                }
            }
        }
        // The remaining units are too few for a cost above 1.
        while let [Charged(_), _] = decide([included.claim("a", 1), overage.claim("a", 0)], &either).await {
            charged[0] += 1;
        }
        while let [_, Charged(_)] = decide([included.claim("a", 1), overage.claim("a", 1)], &either).await {
            charged[1] += 1;
        }
        charged
    };
    let charged = join_all((1..=8).map(process)).await;
    let total = |index: usize| charged.iter().map(|charged| charged[index]).sum::<u64>();
    assert_eq!((total(0), total(1)), (100, 60), "{charged:?}");
}

#[tokio::test]
async fn requests_with_equal_alternatives_share_calls() {
    let server = RedisServer::start();
    let redis = open(&server);
    let [included, overage] = [("included", 1), ("overage", 1)].map(|(name, limit)| Limiter::new(&redis, name, limit));
    let either = any([member(0), member(1)]);
    let keys: Vec<String> = (0..65).map(|number| format!("client {number}")).collect();
    let ask = |key: &String| decide([included.claim(key, 1), overage.claim(key, 1)], &either);
    assert_eq!(ask(&"first".to_owned()).await, [Charged(0), Peeked(1)]);
    let before = calls(&server);
    for (round, expected) in [(1, [Charged(0), Peeked(1)]), (2, [Rejected, Charged(0)]), (3, [Rejected, Rejected])] {
        assert_eq!(join_all(keys.iter().map(ask)).await, [expected; 65]);
        // One alone, and 64 requests with two keys each in bundles of 32 keys.
        assert_eq!(calls(&server) - before, 5 * round);
    }
    // All at once for one key: each is decided after the other.
    let fates = join_all((0..30).map(|_| ask(&"one".to_owned()))).await;
    assert_eq!(fates[..2], [[Charged(0), Peeked(1)], [Rejected, Charged(0)]]);
    assert!(fates[2..].iter().all(|fates| *fates == [Rejected, Rejected]), "{fates:?}");
}

/// Claims for one key cannot share a call: the second is not decided.
#[tokio::test]
async fn a_call_has_each_key_once() {
    let server = RedisServer::start();
    let limiter = Limiter::new(&open(&server), "limiter", 3);
    let claims = || [limiter.claim("a", 2), limiter.claim("a", 1)];
    assert_eq!(decide(claims(), &any([member(0), member(1)])).await, [Charged(1), NotAsked]);
    // The remaining unit is not taken: the second member decides in another call.
    assert_eq!(decide(claims(), &any([member(0), member(1)])).await, [Rejected, NotAsked]);
    assert_eq!(decide([limiter.claim("a", 1)], &member(0)).await, [Charged(0)]);
}

#[tokio::test]
async fn bans_have_no_room_and_allowances_do() {
    let server = RedisServer::start();
    let redis = open(&server);
    let [included, overage] = [("included", 3), ("overage", 3)].map(|(name, limit)| Limiter::new(&redis, name, limit));
    let either = any([member(0), member(1)]);
    let claims = || [included.claim("a", 1), overage.claim("a", 1)];
    assert_eq!(decide(claims(), &either).await, [Charged(2), Peeked(3)]);
    let [name]: [String; 1] = server.run::<Vec<String>>(&["KEYS", "*:included:*"]).try_into().unwrap();
    let state: String = server.run(&["GET", &name]);
    let later = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() + 86_400_000_000;
    server.run::<()>(&["SET", &name, &format!("!{later}:0:0:!{state}")]);
    assert_eq!(decide(claims(), &either).await, [Rejected, Charged(2)]);
    assert_eq!(decide(claims(), &all([member(0), member(1)])).await, [Rejected, Peeked(2)]);
    // A key that is allowed passes, with any cost.
    server.run::<()>(&["SET", &name, &format!("!0:0:{later}:!{state}")]);
    let fates = decide([included.claim("a", 9), overage.claim("a", 1)], &either).await;
    assert!(matches!(fates, [Charged(_), Peeked(2)]), "{fates:?}");
    let fates = decide([included.claim("a", 9), overage.claim("a", 1)], &all([member(0), member(1)])).await;
    assert!(matches!(fates, [Charged(_), Charged(1)]), "{fates:?}");
    // The allowance charges nothing.
    server.run::<()>(&["SET", &name, &state]);
    assert_eq!(decide(claims(), &either).await, [Charged(1), Peeked(1)]);
}

/// A quota that changes is converted first, so that its units are used up before others are.
#[tokio::test]
async fn a_keys_alternatives_follow_its_quota() {
    let server = RedisServer::start();
    let redis = open(&server);
    let [included, overage] = [("included", 3), ("overage", 9)].map(|(name, limit)| Limiter::new(&redis, name, limit));
    let either = any([member(0), member(1)]);
    let ask =
        async |quota, cost| decide([included.claim_under("a", cost, quota), overage.claim("a", cost)], &either).await;
    assert_eq!(ask(None, 3).await, [Charged(0), Peeked(9)]);
    let plan = Some(Quota::per(10, included.bucket.quota().period()));
    assert_eq!(ask(plan, 3).await, [Charged(4), Peeked(9)]);
    assert_eq!(ask(plan, 5).await, [Rejected, Charged(4)]);
    assert_eq!(ask(plan, 4).await, [Charged(0), Peeked(4)]);
}

/// Members outside the call count as members with room, and a call charges only the members that are chosen in that
/// case.
#[tokio::test]
async fn other_nodes_members_need_other_calls() {
    let cluster = RedisCluster::start(3, 0);
    let redis = Redis::cluster(cluster.urls()).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap();
    let [one, two] = [("one", 1), ("two", 1)].map(|(name, limit)| Limiter::new(&redis, name, limit));
    let mut used = HashSet::new();
    // A name whose keys are on this node.
    let mut on = |node: usize| {
        let names = KeyNames::new("sluice", "one", b"");
        let slot = |name: &String| names.key(names.tag(&PartitionKey::from(name.as_str())), 'b').slot();
        let name = (0..).map(|number| format!("key {number}"));
        let mut name = name.filter(|name| cluster.owner_of(slot(name)) == node && !used.contains(name));
        let name = name.next().unwrap();
        used.insert(name.clone());
        name
    };
    let (here, there) = (on(0), on(1));
    let claims = || [one.claim(&here, 1), one.claim(&there, 1), two.claim(&here, 1)];
    let three = any([member(0), member(1), member(2)]);
    assert_eq!(decide(claims(), &three).await, [Charged(0), NotAsked, Peeked(1)]);
    // The second member has room, as far as this call knows: the third is not charged.
    assert_eq!(decide(claims(), &three).await, [Rejected, NotAsked, Peeked(1)]);
    assert_eq!(
        decide(claims(), &all([any([member(0), member(1)]), member(2)])).await,
        [Rejected, NotAsked, Charged(0)]
    );
    assert_eq!(decide(claims(), &all([member(0), member(1), member(2)])).await, [Rejected, NotAsked, Rejected]);
    // With the other node's key first.
    let claims = || [one.claim(&there, 1), one.claim(&here, 1), two.claim(&here, 1)];
    assert_eq!(decide(claims(), &all([member(0), member(1)])).await, [Charged(0), NotAsked, NotAsked]);
    // Keys in one slot share a call, and keys on one node only if they are in one slot.
    let claims = [one.claim(&on(2), 1), two.claim(&on(2), 1)];
    assert_eq!(decide(claims, &any([member(0), member(1)])).await, [Charged(0), NotAsked]);
}

/// The node wants a call's keys in one slot, and answers that once. Then the first member is decided alone.
#[tokio::test]
async fn a_clusters_only_node_decides_the_first() {
    let server = RedisServer::with(&["--cluster-enabled", "yes"]);
    server.run::<()>(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    let redis = open(&server);
    let limiter = Limiter::new(&redis, "limiter", 1);
    let ask = async |first: &str| {
        let first = limiter.claim(first, 1);
        first.decide_by(vec![limiter.claim("other", 1)], any([member(0), member(1)])).await
    };
    eventually("the cluster is well", async || ask("probe").await[0].as_ref().is_some_and(Result::is_ok)).await;
    for key in ["a", "b"] {
        assert_eq!(fates(ask(key).await), [Charged(0), NotAsked]);
        assert_eq!(fates(ask(key).await), [Rejected, NotAsked]);
    }
}

/// Six choices between two members are more than a call lists, so the last members are left to another call.
#[tokio::test]
async fn members_beyond_the_listed_alternatives_wait() {
    let server = RedisServer::start();
    let redis = open(&server);
    let limiter = Limiter::new(&redis, "limiter", 1);
    let keys: Vec<String> = (0..12).map(|number| number.to_string()).collect();
    let mut claims: Vec<_> = keys.iter().map(|key| limiter.claim(key, 1)).collect();
    let pair = |index: usize| any([member(2 * index), member(2 * index + 1)]);
    let first = claims.remove(0);
    let fates = fates(first.decide_by(claims, Formula::All((0..6).map(pair).collect())).await);
    assert_eq!(fates[..10], [Charged(0), Peeked(1)].repeat(5));
    assert_eq!(fates[10..], [NotAsked, NotAsked]);
}

#[tokio::test]
async fn a_lost_server_fails_the_calls_members() {
    let mut server = RedisServer::start();
    let redis = open(&server);
    let limiter = Limiter::new(&redis, "limiter", 1);
    let ask = async || {
        let first = limiter.claim("a", 1);
        first.decide_by(vec![limiter.claim("b", 1), limiter.claim("a", 1)], any([0, 1, 2].map(member))).await
    };
    assert_eq!(fates(ask().await), [Charged(0), Peeked(1), NotAsked]);
    server.kill();
    let answers = ask().await;
    assert!(matches!(answers[..], [Some(Err(_)), Some(Err(_)), None]), "{answers:?}");
}

/// The others are charged, too: an allowance once made the call read all keys if the cost was beyond the limit.
#[tokio::test]
async fn an_allowance_leaves_other_limits_in_force() {
    let server = RedisServer::start();
    let redis = open(&server);
    let [allowed, other] = [("allowed", 1), ("other", 2)].map(|(name, limit)| Limiter::new(&redis, name, limit));
    assert_eq!(decide([allowed.claim("a", 1)], &member(0)).await, [Charged(0)]);
    let [name]: [String; 1] = server.run::<Vec<String>>(&["KEYS", "*:allowed:*"]).try_into().unwrap();
    let later = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() + 86_400_000_000;
    server.run::<()>(&["SET", &name, &format!("!0:0:{later}:!")]);
    for expected in [true, true, false] {
        let answers = allowed.claim("a", 5).decide_all(vec![other.claim("a", 1)]).await;
        let are_allowed = answers.iter().all(|answer| answer.as_ref().is_ok_and(Decision::is_allowed));
        assert_eq!(are_allowed, expected, "{answers:?}");
    }
}
