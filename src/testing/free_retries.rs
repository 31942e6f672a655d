//! The conformance suite for backends that decide on retries in the call that charges.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Random;
use super::limiter::assert_same;
use crate::algorithm::Algorithm;
use crate::store::remote::free_retries::over_records::Budget;
use crate::store::remote::records::Step;
use crate::store::remote::tag::Tags;
use crate::store::remote::{
    Applied, CallLimits, ChargeRetries, ChargedOnce, FreeRetry, RetryRecord, Standing, Target, Transition,
};
use crate::values::time::Timestamp;
use crate::values::{Decision, Override, PartitionKey, Receipt, Retry};

/// Checks a backend that decides on retries in the call that charges: over random requests on two keys, a request is
/// free if it has a free retry left, its key is not banned, and its budget has room; free requests leave their key as
/// it is, and all others charge it; and if eight retries come at once, only the free ones that are left are free.
///
/// The keys of `backend` are all new. `algorithm` has a quota of two units at least that restores nothing while this
/// runs, such as one per day. Takes some 2,000 calls.
///
/// # Panics
///
/// At the first step that breaks the contract, or if a call fails. The message says how.
pub async fn check_free_retries<A, B>(algorithm: A, backend: B, seed: u64)
where
    A: Algorithm + Clone,
    B: ChargeRetries<A>,
{
    let server = Arc::new(Server { algorithm, backend });
    check_trace(&server, &mut Random::new(seed)).await;
    for round in 0..10 {
        check_retries_at_once(&server, round).await;
    }
}

const WITHIN: Duration = Duration::from_secs(24 * 3_600);

struct Server<A, B> {
    algorithm: A,
    backend: B,
}

/// Long enough for a machine that is busy.
fn limits() -> CallLimits {
    CallLimits::until(Instant::now() + Duration::from_secs(60))
}

/// A key's content, at a server time.
#[derive(Clone, Copy)]
struct Content<S> {
    standing: Standing,
    state: Option<S>,
}

impl<S: Copy> Content<S> {
    fn of(applied: &Applied<S>) -> Self {
        Self { standing: applied.standing, state: applied.old }
    }

    fn decide<A: Algorithm<State = S>>(self, algorithm: &A, now: Timestamp, cost: u64) -> (Decision, Option<S>) {
        match self.standing.decide(algorithm, self.state, now, cost) {
            Some(decision) => (decision, None),
            None => algorithm.decide(self.state, now, cost),
        }
    }
}

impl<A: Algorithm + Clone, B: ChargeRetries<A>> Server<A, B> {
    fn target(&self, key: &str) -> Target<'_, A> {
        let tag = Tags::new(b"").of(&PartitionKey::from(key));
        Target::new(&self.algorithm, None, self.algorithm.quota(), tag)
    }

    fn record(&self, request: &str, free_retries: u32) -> RetryRecord {
        let (request, budget) = (PartitionKey::from(request), self.algorithm.quota());
        RetryRecord::new(&Tags::new(b""), &Retry { request, within: WITHIN, free_retries, budget, record_ends: None })
    }

    fn budget(&self) -> Budget {
        Budget::new(self.algorithm.kind(), self.algorithm.quota())
    }

    async fn apply(&self, key: &str, transition: Transition) -> Applied<A::State> {
        self.backend.apply(&self.target(key), transition, limits()).await.expect("no call fails")
    }

    async fn charge(&self, key: &str, cost: u64, record: &RetryRecord) -> ChargedOnce<A::State> {
        let charged = self.backend.charge_once(&self.target(key), cost, record, limits()).await;
        charged.expect("no call fails")
    }

    async fn begin(&self, key: &str, record: &RetryRecord) {
        self.backend.begin_record(&self.target(key), record, limits()).await.expect("no call fails");
    }

    fn assert_same(
        &self,
        now: Timestamp,
        found: Content<A::State>,
        expected: Content<A::State>,
        cost: u64,
        context: &str,
    ) {
        let quota = self.algorithm.quota();
        let tolerance = quota.time_of(quota.max_burst()) / (1 << 30) + Duration::from_micros(2);
        let [found, expected] = [found, expected].map(|content| content.decide(&self.algorithm, now, cost).0);
        assert_same(&found, &expected, tolerance, context);
    }
}

/// The expected content on the server, besides key states.
#[derive(Default)]
struct Model {
    /// The free retries that requests have left.
    left: HashMap<String, u32>,
    /// The states of the keys' budgets.
    budgets: HashMap<&'static str, Vec<u8>>,
    taken: Vec<(&'static str, RetryRecord, String, u64, Receipt)>,
}

async fn check_trace<A: Algorithm + Clone, B: ChargeRetries<A>>(server: &Server<A, B>, random: &mut Random) {
    let (algorithm, budget) = (&server.algorithm, server.budget());
    let most = algorithm.max_cost();
    let mut model = Model::default();
    for step in 0..400 {
        let key = random.pick(&["a", "b"]);
        let request = format!("{key}-{}", random.below(12));
        let record = server.record(&request, 2);
        let cost = random.pick(&[1, 1, 2.min(most), most, most.saturating_add(1)]);
        let context = format!("step {step}: {cost} units of {request}");
        match random.below(16) {
            0 if server.backend.keeps_standing(algorithm) => {
                let ban = Transition::Ban { span: Duration::from_secs(3_600), growth: None };
                let _ = server.apply(key, random.pick(&[ban, Transition::Override(Override::Lift)])).await;
            }
            1..4 => {
                server.begin(key, &record).await;
                model.left.entry(request).or_insert(2);
            }
            4 if !model.taken.is_empty() => {
                let index = usize::try_from(random.below(model.taken.len() as u64)).expect("few");
                let (key, record, request, cost, receipt) = model.taken.swap_remove(index);
                let now = server.apply(key, Transition::Read).await.now;
                let target = server.target(key);
                let put_back = server.backend.put_back(&target, &record, cost, receipt, limits());
                put_back.await.expect("no call fails");
                let old = model.budgets.get(key).map(Vec::as_slice);
                if let Step::Write((), Some(state), _) = budget.refund(old, now, cost, receipt).expect("a state") {
                    model.budgets.insert(key, state);
                }
                model.left.entry(request).and_modify(|left| *left = 2.min(*left + 1));
            }
            5 => drop(server.apply(key, Transition::Reset).await),
            _ => {
                let before = Content::of(&server.apply(key, Transition::Read).await);
                let ChargedOnce { applied, free } = server.charge(key, cost, &record).await;
                let now = applied.now;
                let is_banned = before.standing.banned_until > now;
                let old = model.budgets.get(key).map(Vec::as_slice);
                let has_left = !is_banned && model.left.get(&request).is_some_and(|left| *left > 0);
                let charge = budget.charge(old, now, cost).expect("a state");
                let is_free = has_left
                    && matches!(&charge, Step::Write(decision, ..) | Step::Leave(decision) if decision.is_allowed());
                assert_eq!(
                    free.is_some(),
                    is_free,
                    "{context}: free retries are limited by the record, a ban, and the budget"
                );
                server.assert_same(now, Content::of(&applied), before, cost, &context);
                let (decision, next) = before.decide(algorithm, now, cost);
                let mut expected = before;
                if let Some(FreeRetry { receipt, record_left }) = free {
                    assert!(!record_left.is_zero() && record_left <= WITHIN, "{context}: {record_left:?}");
                    if let Step::Write(_, Some(state), _) = charge {
                        model.budgets.insert(key, state);
                    }
                    model.left.entry(request.clone()).and_modify(|left| *left -= 1);
                    model.taken.push((key, record, request, cost, receipt));
                } else {
                    assert_eq!(applied.charged, u32::from(next.is_some()), "{context}: {decision:?}");
                    expected.state = next.or(before.state);
                }
                let after = server.apply(key, Transition::Read).await;
                server.assert_same(after.now, Content::of(&after), expected, 1, &context);
            }
        }
    }
}

const TASKS: u64 = 8;

async fn check_retries_at_once<A: Algorithm + Clone, B: ChargeRetries<A>>(server: &Arc<Server<A, B>>, round: u32) {
    let key = format!("at-once-{round}");
    server.begin(&key, &server.record(&key, 2)).await;
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (server, key) = (Arc::clone(server), key.clone());
        tasks.spawn(async move { server.charge(&key, 1, &server.record(&key, 2)).await.free.is_some() });
    }
    let free = tasks.join_all().await.into_iter().filter(|is_free| *is_free).count();
    assert_eq!(free, 2, "round {round}: of {TASKS} retries at once, as many are free as may be");
}
