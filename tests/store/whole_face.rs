//! The whole public face of a store, over a map behind a mutex, as a package outside of this one would write it: limits
//! over time, decisions on several keys, and records. It passes all suites.

use std::any::Any;
use std::collections::HashMap;
use std::future::ready;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tower_sluice::algorithm::{Algorithm, FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::limiter::Credit;
use tower_sluice::store::remote::{
    Alternatives, Applied, Backend, CallLimits, Joint, JointAnswer, JointBackend, JointCharge, Record, Records,
    RemoteStore, Standing, Target, Transition,
};
use tower_sluice::testing::{check_accounts, check_backend, check_joint_backend, check_records, seed_of};
use tower_sluice::time::{Clock, ManualClock, Monotonic, Timestamp};
use tower_sluice::{LimiterError, LimiterExt, Quota, RateLimiter, SharedBalance, SharedConcurrency, SharedQueue};

/// The server. Clones are the same.
#[derive(Clone)]
struct MapServer {
    content: Arc<Mutex<Content>>,
    clock: ManualClock,
}

#[derive(Default)]
struct Content {
    states: HashMap<String, KeptState>,
    records: HashMap<String, (Vec<u8>, Timestamp)>,
}

/// The standing of a key, and its state, whose type its limiter knows.
#[derive(Default)]
struct KeptState {
    standing: Standing,
    state: Option<Box<dyn Any + Send>>,
}

impl MapServer {
    fn new(clock: ManualClock) -> Self {
        Self { content: Arc::default(), clock }
    }

    fn lock(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeptState {
    fn of<S: Copy + 'static>(&self) -> Option<S> {
        self.state.as_ref().and_then(|state| state.downcast_ref()).copied()
    }

    fn set<S: Send + 'static>(&mut self, state: Option<S>) {
        self.state = state.map(|state| Box::new(state) as Box<dyn Any + Send>);
    }
}

impl<A: Algorithm + Clone> Backend<A> for MapServer {
    fn apply(
        &self,
        target: &Target<'_, A>,
        transition: Transition,
        _limits: CallLimits,
    ) -> impl Future<Output = Result<Applied<A::State>, LimiterError>> + Send {
        let (algorithm, now) = (target.algorithm(), self.clock.now());
        let mut content = self.lock();
        let kept = content.states.entry(target.name()).or_default();
        if !kept.standing.is_in_force(now) {
            kept.standing = Standing::default();
        }
        let (standing, old) = (kept.standing, kept.of::<A::State>());
        let is_in_force = standing.is_in_force(now);
        let mut applied = Applied { now, old, standing, kept: None, charged: 0 };
        match transition {
            Transition::Charge { cost, count } if !is_in_force => {
                let mut state = old;
                while applied.charged < count {
                    let (_, Some(next)) = algorithm.decide(state, now, cost) else { break };
                    (state, applied.charged) = (Some(next), applied.charged + 1);
                }
                kept.set(state);
            }
            Transition::Refund { cost, receipt } if !is_in_force => {
                kept.set(old.map(|state| algorithm.refund(state, now, cost, receipt)));
            }
            Transition::Reset => {
                content.states.remove(&target.name());
                applied = Applied { old: None, standing: Standing::default(), ..applied };
            }
            Transition::Ban { span, .. } => {
                kept.standing = standing.ban(now, span);
                applied.standing = kept.standing;
            }
            Transition::Override(by_hand) => {
                kept.standing = standing.overridden(now, by_hand);
                applied.standing = kept.standing;
            }
            Transition::Owe { units } => {
                let (standing, state) = standing.charge(algorithm, old, now, units);
                kept.standing = standing;
                kept.set(state);
                applied = Applied { old: state, standing, ..applied };
            }
            _ => {}
        }
        ready(Ok(applied))
    }

    fn timeout(&self) -> Duration {
        Duration::MAX
    }

    fn shares_keys_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.content, &other.content)
    }

    fn keeps_standing(&self, _: &A) -> bool {
        true
    }

    fn joint(&self) -> Option<Joint<A, Self>> {
        Some(Joint::new())
    }
}

/// A key in a call, whatever its algorithm.
struct MapPart {
    name: String,
    /// The state after a charge; `None` without room.
    charge: Charge,
    /// The key as it was before.
    read: Option<(Timestamp, KeptState, bool)>,
    copy: fn(&KeptState) -> KeptState,
}

type Charge = Box<dyn Fn(&KeptState, Timestamp) -> Option<KeptState> + Send>;

fn copy<S: Copy + Send + 'static>(kept: &KeptState) -> KeptState {
    let mut copy = KeptState { standing: kept.standing, state: None };
    copy.set(kept.of::<S>());
    copy
}

impl JointBackend for MapServer {
    type Part = MapPart;
    type Caller = Self;

    fn server(&self) -> usize {
        Arc::as_ptr(&self.content).addr()
    }

    fn deadline(&self) -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    fn caller(&self) -> Self {
        self.clone()
    }

    fn can_share_a_call(&self, one: &MapPart, other: &MapPart) -> bool {
        one.name != other.name
    }

    fn decide(
        caller: &Self,
        parts: &mut [&mut MapPart],
        alternatives: Option<&Alternatives>,
        _limits: CallLimits,
    ) -> impl Future<Output = Result<JointAnswer, LimiterError>> + Send {
        let (sent, now) = (Monotonic.now(), caller.clock.now());
        let mut content = caller.lock();
        let mut after = Vec::new();
        for part in parts.iter_mut() {
            let kept = content.states.entry(part.name.clone()).or_default();
            after.push((part.charge)(kept, now));
            part.read = Some((now, (part.copy)(kept), false));
        }
        let all: Vec<usize> = (0..parts.len()).collect();
        let mut sets: Vec<&[usize]> = alternatives.iter().flat_map(|alternatives| alternatives.sets()).collect();
        if alternatives.is_some() && sets.is_empty() {
            sets.push(&all);
        }
        let chosen = sets.iter().position(|set| set.iter().all(|index| after[*index].is_some()));
        for index in chosen.map_or(&[][..], |number| sets[number]) {
            if let (Some(after), Some(read)) = (after[*index].take(), parts[*index].read.as_mut()) {
                content.states.insert(parts[*index].name.clone(), after);
                read.2 = true;
            }
        }
        let charged = chosen.map_or(0, |number| u32::try_from(number + 1).expect("few sets"));
        ready(Ok(JointAnswer { charged, now, sent }))
    }
}

impl<A: Algorithm + Clone> JointCharge<A> for MapServer {
    fn part(&self, target: &Target<'_, A>, cost: u64) -> MapPart {
        let algorithm = target.algorithm().clone();
        let charge = move |kept: &KeptState, now| {
            if kept.standing.is_in_force(now) {
                return kept.standing.is_allowed(now).then(|| copy::<A::State>(kept));
            }
            let (_, next) = algorithm.decide(kept.of(), now, cost);
            let mut after = KeptState::default();
            after.set(Some(next?));
            Some(after)
        };
        MapPart { name: target.name(), charge: Box::new(charge), read: None, copy: copy::<A::State> }
    }

    fn read_part(&self, _: &Target<'_, A>, part: &MapPart) -> Result<Applied<A::State>, LimiterError> {
        let (now, kept, is_charged) = part.read.as_ref().ok_or_else(|| LimiterError::new("the key was not read"))?;
        let standing = if kept.standing.is_in_force(*now) { kept.standing } else { Standing::default() };
        let charged = u32::from(*is_charged && !standing.is_in_force(*now));
        Ok(Applied { now: *now, old: kept.of(), standing, kept: None, charged })
    }
}

impl Records for MapServer {
    fn read(&self, name: &str, _: CallLimits) -> impl Future<Output = Result<Record, LimiterError>> + Send {
        let now = self.clock.now();
        let value = self.lock().records.get(name).filter(|(_, until)| *until > now).map(|(value, _)| value.clone());
        ready(Ok(Record { value, now }))
    }

    fn swap(
        &self,
        name: &str,
        old: Option<&[u8]>,
        new: Option<&[u8]>,
        lifetime: Duration,
        _: CallLimits,
    ) -> impl Future<Output = Result<bool, LimiterError>> + Send {
        let now = self.clock.now();
        let mut content = self.lock();
        let present = content.records.get(name).filter(|(_, until)| *until > now).map(|(value, _)| &value[..]);
        let is_unchanged = present == old;
        if is_unchanged {
            match new {
                Some(new) => drop(content.records.insert(name.into(), (new.into(), now.saturating_add(lifetime)))),
                None => drop(content.records.remove(name)),
            }
        }
        ready(Ok(is_unchanged))
    }

    fn timeout(&self) -> Duration {
        Duration::MAX
    }

    fn shares_records_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.content, &other.content)
    }
}

async fn check<A: Algorithm + Clone>(algorithm: A, seed: u64) {
    check_backend(algorithm.clone(), seed_of(seed), MapServer::new).await;
    check_joint_backend(algorithm, seed_of(seed), MapServer::new).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_over_time_pass_the_suites() {
    let quota = Quota::per(7, Duration::from_secs(60));
    check(TokenBucket::new(quota.burst(9)), 41).await;
    check(FixedWindow::new(quota), 42).await;
    check(SlidingWindow::new(quota), 43).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_pass_the_suites() {
    let server = || MapServer::new(ManualClock::starting_at(Timestamp::from_nanos(1 << 60)));
    check_records(server(), seed_of(44)).await;
    check_accounts(server(), seed_of(45)).await;
}

/// Each request panicked: this server has no timeout, and the sum of that and the time has no end.
#[tokio::test]
async fn limiters_work_without_a_timeout() {
    let (server, quota) =
        (MapServer::new(ManualClock::starting_at(Timestamp::from_nanos(1 << 60))), Quota::per_second(9));
    let store = RemoteStore::new(server.clone()).records(server.clone(), "pace");
    let bought = SharedBalance::new(server.clone(), "bought");
    assert_eq!(bought.credit(&"a".into(), Credit::units(5)).await.unwrap().remaining(), 5);
    let pace = RateLimiter::new(TokenBucket::new(quota), store);
    assert!(pace.acquire(&"a".into(), 1).await.unwrap().is_allowed());
    let in_flight = SharedConcurrency::new(server.clone(), "in-flight", 1);
    assert!(in_flight.acquire(&"a".into(), 1).await.unwrap().is_allowed());
    let queue = SharedQueue::new(server, "queue", quota);
    assert!(queue.acquire(&"a".into(), 1).await.unwrap().is_allowed());
}
