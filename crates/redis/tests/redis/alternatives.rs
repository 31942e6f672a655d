//! Random trees of policies, some in memory and some on Redis, against a naive ledger.

use std::convert::Infallible;
use std::future::ready;
use std::time::Duration;

use http::{Request, Response};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::TokenBucket;
use tower_sluice::key::User;
use tower_sluice::{Policy, Quota, RateLimitLayer, RateLimiter, Verdict};
use tower_sluice_redis::{Redis, RedisStore};

use crate::support::cases::cases;
use crate::support::clients::PLENTY;
use crate::support::effort::rounds;
use crate::support::redis::RedisServer;
use crate::support::timing::eventually;
use crate::support::tree::{Tree, trees};

/// Buckets that time does not fill while a test runs: each unit takes a year.
#[derive(Clone, Copy, Debug)]
struct Member {
    limit: u64,
    is_on_redis: bool,
}

const YEARS: Duration = Duration::from_secs(8 * 365 * 86_400);

fn name(member: usize) -> String {
    format!("m{member}")
}

/// Each process has its own budgets in memory, and shares those on Redis.
fn process(tree: &Tree, members: &[Member], redis: &Redis, run: u64) -> RateLimitLayer {
    let policy = |at: usize| {
        let Member { limit, is_on_redis } = members[at];
        let bucket = TokenBucket::new(Quota::per(1, YEARS).burst(limit));
        let policy = if is_on_redis {
            let store = RedisStore::new(redis, &format!("{run}-{}", name(at)));
            Policy::new(name(at), RateLimiter::new(bucket, store))
        } else {
            Policy::new(name(at), RateLimiter::in_memory(bucket))
        };
        policy.key(User::key()).cost_fn(|request| *request.extensions().get().unwrap())
    };
    RateLimitLayer::builder(tree.policies(&policy)).verdict().build()
}

/// The names of the policies that a request was charged to, or `None` if it is rejected.
async fn send(layer: &RateLimitLayer, cost: u64) -> Option<Vec<String>> {
    let mut request = Request::new(());
    request.extensions_mut().insert(User::new("alice"));
    request.extensions_mut().insert(cost);
    let echo = service_fn(|_| ready(Ok::<_, Infallible>(Response::new(String::new()))));
    let response = layer.layer(echo).oneshot(request).await.unwrap();
    let verdict = response.extensions().get::<Verdict>().unwrap();
    let charged = verdict.policies().iter().filter(|policy| policy.decision().is_allowed());
    let mut names: Vec<_> = charged.map(|policy| policy.name().to_owned()).collect();
    names.sort();
    verdict.is_allowed().then_some(names)
}

/// Waits until a policy reports that a key has these units left, because refunds on Redis are made in the background.
async fn await_left(layer: &RateLimitLayer, member: usize, left: u64) {
    let limits = layer.handle();
    eventually("the policy has the units of the ledger", async || {
        limits.peek(&name(member), "alice").await.unwrap().decision().remaining() == left
    })
    .await;
}

async fn compare(tree: &Tree, members: &[Member], requests: &[(usize, u64)], redis: &Redis, run: u64) {
    let processes = [process(tree, members, redis, run), process(tree, members, redis, run)];
    // By process; on Redis, both have the same.
    let mut used = [vec![0; members.len()], vec![0; members.len()]];
    for (at, cost) in requests {
        let wait = |member: usize| Some(u64::from(used[*at][member] + cost > members[member].limit));
        let charged = (tree.wait(&wait) == Some(0)).then(|| tree.charged(&wait));
        let mut names: Option<Vec<_>> = charged.as_ref().map(|charged| charged.iter().copied().map(name).collect());
        names.iter_mut().for_each(|names| names.sort());
        assert_eq!(send(&processes[*at], *cost).await, names, "{cost} units, after {used:?}");
        for member in charged.into_iter().flatten() {
            let of_both = members[member].is_on_redis;
            used.iter_mut().enumerate().filter(|(process, _)| of_both || process == at).for_each(|(_, used)| {
                used[member] += cost;
            });
        }
        for (member, it) in members.iter().enumerate() {
            await_left(&processes[*at], member, it.limit - used[*at][member]).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_trees_match_a_naive_ledger() {
    let server = RedisServer::start();
    let redis = Redis::single(server.url()).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap();
    let member = (1..8_u64, any::<bool>()).prop_map(|(limit, is_on_redis)| Member { limit, is_on_redis });
    let requests = prop::collection::vec((0..2_usize, 1..4_u64), 1..30);
    let trials = (trees(), prop::collection::vec(member, 8), requests);
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..cases(0) });
    for run in 0..rounds(150, 3_000) {
        let (tree, members, requests) = trials.new_tree(&mut runner).unwrap().current();
        compare(&tree, &members[..tree.size()], &requests, &redis, run as u64).await;
    }
}
