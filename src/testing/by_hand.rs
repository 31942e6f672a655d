//! The conformance suite for backends that enter charges by hand with their references.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Random;
use super::limiter::assert_same;
use crate::algorithm::Algorithm;
use crate::store::remote::accounts::Reference;
use crate::store::remote::by_hand::charge_by_hand;
use crate::store::remote::tag::Tags;
use crate::store::remote::{Applied, CallLimits, ChargeByHand, KeyRead, Replacement, Standing, Target, Transition};
use crate::values::time::Timestamp;
use crate::values::{Decision, PartitionKey, REFERENCE_KEPT};

/// Checks a backend that enters charges by hand: over random charges to four keys with random references, the states
/// match the algorithm, and a reference is entered once for each key; a key that has changed since it was read is not
/// replaced, and the reference is not remembered then; if eight tasks replace a key at once after reading it, one
/// succeeds, and only its reference is known; and if eight charge with one reference at once, one succeeds.
///
/// The keys of `backend` are all new. Takes some 2,000 calls. The decisions may differ from the algorithm's by the
/// tolerance of a [limiter](super::check_limiter).
///
/// # Panics
///
/// At the first step that breaks the contract, or if a call fails. The message says how.
pub async fn check_charges_by_hand<A, B>(algorithm: A, backend: B, seed: u64)
where
    A: Algorithm + Clone,
    B: ChargeByHand<A>,
{
    let server = Arc::new(Server { algorithm, backend });
    check_trace(&server, &mut Random::new(seed)).await;
    check_changed_keys(&server).await;
    for round in 0..10 {
        check_replacements_at_once(&server, round).await;
        check_references_at_once(&server, round).await;
    }
}

struct Server<A, B> {
    algorithm: A,
    backend: B,
}

/// Long enough for a machine that is busy.
fn limits() -> CallLimits {
    CallLimits::until(Instant::now() + Duration::from_secs(60))
}

fn reference(name: &str) -> Reference {
    Reference::of_charge(&Tags::new(b""), name)
}

/// A key's content, at the server's time.
struct Content<S> {
    now: Timestamp,
    standing: Standing,
    state: Option<S>,
}

impl<S: Copy> Content<S> {
    fn of(applied: &Applied<S>) -> Self {
        Self { now: applied.now, standing: applied.standing, state: applied.old }
    }

    /// This content at another time.
    fn at(&self, now: Timestamp) -> Self {
        let standing = if self.standing.is_in_force(now) { self.standing } else { Standing::default() };
        Self { now, standing, state: self.state }
    }

    fn decide<A: Algorithm<State = S>>(&self, algorithm: &A, cost: u64) -> Decision {
        let Self { now, standing, state } = *self;
        standing.decide(algorithm, state, now, cost).unwrap_or_else(|| algorithm.decide(state, now, cost).0)
    }
}

impl<A: Algorithm + Clone, B: ChargeByHand<A>> Server<A, B> {
    fn target(&self, key: &str) -> Target<'_, A> {
        let tag = Tags::new(b"").of(&PartitionKey::from(key));
        Target::new(&self.algorithm, None, self.algorithm.quota(), tag)
    }

    async fn read(&self, key: &str, reference: Option<Reference>) -> KeyRead<A::State, B::Version> {
        self.backend.read_key(&self.target(key), reference, limits()).await.expect("no read fails")
    }

    async fn content(&self, key: &str) -> Content<A::State> {
        let KeyRead { now, standing, state, .. } = self.read(key, None).await;
        Content { now, standing, state }.at(now)
    }

    /// Replaces a key, which then owes another unit.
    async fn replace(&self, key: &str, read: KeyRead<A::State, B::Version>, reference: Option<Reference>) -> bool {
        let KeyRead { now: read_at, state, standing, version, .. } = read;
        let (standing, state) = standing.charge(&self.algorithm, state, read_at, 1);
        let state = state.expect("the key is charged");
        let replacement = Replacement { read_at, version, state, standing, reference, known_for: REFERENCE_KEPT };
        let replaced = self.backend.replace_key(&self.target(key), replacement, limits()).await;
        replaced.expect("no replacement fails")
    }

    async fn charge(&self, key: &str, reference: Option<Reference>, units: u64) -> (Applied<A::State>, bool) {
        let charged = charge_by_hand(&self.backend, &self.target(key), reference, units, limits()).await;
        charged.expect("no charge fails")
    }

    fn assert_same(&self, found: &Content<A::State>, expected: &Content<A::State>, context: &str) {
        let quota = self.algorithm.quota();
        let tolerance = quota.time_of(quota.max_burst()) / (1 << 30) + Duration::from_micros(2);
        for cost in [0, 1] {
            let [found, expected] = [found, expected].map(|content| content.decide(&self.algorithm, cost));
            assert_same(&found, &expected, tolerance, context);
        }
    }
}

/// After each step, the key is read again, so that no inaccuracy adds up.
async fn check_trace<A: Algorithm + Clone, B: ChargeByHand<A>>(server: &Server<A, B>, random: &mut Random) {
    let algorithm = &server.algorithm;
    let most = algorithm.max_cost();
    let mut known = HashSet::new();
    for step in 0..200 {
        let key = random.pick(&["a", "b", "c", "d"]);
        let name = (random.below(4) > 0).then(|| format!("reference-{}", random.below(40)));
        let units = random.pick(&[1, 1, 2, most, most.saturating_mul(3)]);
        let before = server.content(key).await;
        let context = format!("step {step}: {units} units of {key}, {name:?}");
        if random.below(4) == 0 {
            let charge = Transition::Charge { cost: 1, count: 1 };
            let applied = server.backend.apply(&server.target(key), charge, limits()).await.expect("no call fails");
            server.assert_same(&Content::of(&applied), &before.at(applied.now), &context);
            continue;
        }
        let is_new = name.as_ref().is_none_or(|name| known.insert((key, name.clone())));
        let (applied, is_repeated) = server.charge(key, name.as_deref().map(reference), units).await;
        let expected = before.at(applied.now);
        let (standing, state) = expected.standing.charge(algorithm, expected.state, applied.now, units);
        let expected = if is_new { Content { standing, state, ..expected } } else { expected };
        assert_eq!(is_repeated, !is_new, "{context}: a reference is entered once");
        server.assert_same(&Content::of(&applied), &expected, &context);
        let after = server.content(key).await;
        server.assert_same(&after, &expected.at(after.now), &context);
    }
}

async fn check_changed_keys<A: Algorithm + Clone, B: ChargeByHand<A>>(server: &Server<A, B>) {
    let [first, second] = ["first", "second"].map(|name| Some(reference(name)));
    let nothing = [server.read("changed", first).await, server.read("changed", first).await];
    assert!(nothing.iter().all(|read| read.state.is_none() && !read.is_known), "the key is new");
    let [nothing, stale] = nothing;
    assert!(server.replace("changed", nothing, first).await, "it has not changed");
    assert!(server.read("changed", first).await.is_known, "the reference is remembered with the key");
    assert!(!server.read("other", first).await.is_known, "it is known for this key only");
    assert!(!server.replace("changed", stale, second).await, "the key was made meanwhile");
    let stale = server.read("changed", second).await;
    assert!(!stale.is_known, "a replacement that was not made leaves no reference");
    assert!(!server.charge("changed", None, 1).await.1, "without a reference, it is entered each time");
    assert!(!server.replace("changed", stale, second).await, "the key was replaced meanwhile");
    let read = [server.read("changed", second).await, server.read("changed", second).await];
    assert!(!read[0].is_known, "a replacement that was not made leaves no reference");
    let [read, again] = read;
    assert!(!server.replace("changed", read, first).await, "the reference is known");
    assert!(server.replace("changed", again, second).await, "a replacement that was not made leaves the key");
    let stale = server.read("changed", None).await;
    let reset = server.backend.apply(&server.target("changed"), Transition::Reset, limits()).await;
    let _ = reset.expect("no call fails");
    assert!(!server.replace("changed", stale, None).await, "the key is gone");
    let nothing = server.read("changed", first).await;
    assert!(nothing.state.is_none() && nothing.is_known, "a reset leaves the references");
    assert!(!server.replace("changed", nothing, first).await, "the reference is known");
    assert!(server.read("changed", None).await.state.is_none(), "a replacement that was not made makes no key");
}

const TASKS: usize = 8;

/// All have read the key before one of them replaces it: a new key in even rounds.
async fn check_replacements_at_once<A: Algorithm + Clone, B: ChargeByHand<A>>(server: &Arc<Server<A, B>>, round: u32) {
    let key = format!("replaced-{}", round / 2);
    let have_read = Arc::new(Barrier::new(TASKS));
    let named = move |task: usize| Some(reference(&format!("{round}-{task}")));
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (server, key, have_read) = (Arc::clone(server), key.clone(), Arc::clone(&have_read));
        tasks.spawn(async move {
            let read = server.read(&key, named(task)).await;
            have_read.wait().await;
            (task, server.replace(&key, read, named(task)).await)
        });
    }
    let replaced: Vec<_> = tasks.join_all().await.into_iter().filter(|(_, is_replaced)| *is_replaced).collect();
    assert_eq!(replaced.len(), 1, "round {round}: of {TASKS} replacements of what was read, one is made");
    for task in 0..TASKS {
        let is_known = server.read(&key, named(task)).await.is_known;
        assert_eq!(is_known, task == replaced[0].0, "round {round}: the reference of the one that was made is known");
    }
}

async fn check_references_at_once<A: Algorithm + Clone, B: ChargeByHand<A>>(server: &Arc<Server<A, B>>, round: u32) {
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let server = Arc::clone(server);
        tasks.spawn(async move {
            let reference = Some(reference(&format!("job-{round}")));
            server.charge(&format!("charged-{}", round / 2), reference, 1).await.1
        });
    }
    let entered = tasks.join_all().await.into_iter().filter(|is_repeated| !is_repeated).count();
    assert_eq!(entered, 1, "round {round}: of {TASKS} charges with one reference, one is entered");
}
