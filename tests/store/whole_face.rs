//! A store's whole public interface, over a map behind a mutex, as an outside package would write it: limits over time,
//! decisions on several keys, charges by hand, and records. It passes all suites, and limiters work over it.

mod suites;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tower_sluice::LimiterError;
use tower_sluice::algorithm::Portable;
use tower_sluice::store::remote::accounts::Reference;
use tower_sluice::store::remote::{
    Alternatives, Applied, Backend, CallLimits, ChargeByHand, JointAnswer, JointBackend, JointCharge, KeyRead, Parts,
    Record, Records, Replacement, Server, Standing, Target, Transition,
};
use tower_sluice::time::{Clock, ManualClock, Monotonic, Timestamp};

/// The server. Clones share its content.
#[derive(Clone)]
struct MapServer {
    content: Arc<Mutex<Content>>,
    clock: ManualClock,
}

#[derive(Default)]
struct Content {
    keys: HashMap<String, Kept>,
    records: HashMap<String, (Vec<u8>, Timestamp)>,
}

/// A key's stored values: its standing, and its state's bytes.
#[derive(Clone, Default, PartialEq)]
struct Kept {
    standing: Standing,
    state: Option<Vec<u8>>,
}

type Answer<T> = Result<T, LimiterError>;

type ReadKey<S> = Answer<KeyRead<S, Kept>>;

impl MapServer {
    fn new(clock: ManualClock) -> Self {
        Self { content: Arc::default(), clock }
    }

    fn lock(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Content {
    /// A key's state at `now`.
    fn kept(&self, name: &str, now: Timestamp) -> Kept {
        let mut kept = self.keys.get(name).cloned().unwrap_or_default();
        if !kept.standing.is_in_force(now) {
            kept.standing = Standing::default();
        }
        kept
    }

    fn record(&self, name: &str, now: Timestamp) -> Option<&[u8]> {
        self.records.get(name).filter(|(_, until)| *until > now).map(|(value, _)| &value[..])
    }
}

impl Kept {
    fn new<A: Portable>(algorithm: &A, standing: Standing, state: Option<A::State>) -> Self {
        Self { standing, state: state.map(|state| algorithm.to_bytes(&state)) }
    }

    /// The state; while the key owes something, at the time when the debt ends.
    fn state<A: Portable>(&self, algorithm: &A, now: Timestamp) -> Option<A::State> {
        let state = |bytes: &Vec<u8>| algorithm.from_bytes(bytes, now.max(self.standing.owing_until));
        self.state.as_ref().map(|bytes| state(bytes).expect("a state of this algorithm"))
    }
}

impl<A: Portable + Clone> Backend<A> for MapServer {
    async fn apply(&self, target: &Target<'_, A>, transition: Transition, _: CallLimits) -> Answer<Applied<A::State>> {
        let (algorithm, name, now) = (target.algorithm(), target.name(), self.clock.now());
        let mut content = self.lock();
        let kept = content.kept(&name, now);
        let old = kept.state(algorithm, now);
        let is_in_force = kept.standing.is_in_force(now);
        let mut applied = Applied { now, old, standing: kept.standing, kept: None, charged: 0 };
        let mut after = old;
        match transition {
            Transition::Charge { cost, count } if !is_in_force => {
                while applied.charged < count {
                    let (_, Some(next)) = algorithm.decide(after, now, cost) else { break };
                    (after, applied.charged) = (Some(next), applied.charged + 1);
                }
            }
            Transition::Refund { cost, receipt } if !is_in_force => {
                after = old.map(|state| algorithm.refund(state, now, cost, receipt));
            }
            Transition::Reset => {
                after = None;
                applied = Applied { old: None, standing: Standing::default(), ..applied };
            }
            Transition::Ban { span, .. } => applied.standing = kept.standing.ban(now, span),
            Transition::Override(by_hand) => applied.standing = kept.standing.overridden(now, by_hand),
            Transition::Owe { units } => {
                (applied.standing, after) = kept.standing.charge(algorithm, old, now, units);
                applied.old = after;
            }
            _ => {}
        }
        content.keys.insert(name, Kept::new(algorithm, applied.standing, after));
        Ok(applied)
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

    fn parts(&self) -> Parts<A, Self> {
        Parts::none().joint().by_hand()
    }
}

/// A key in a call, with any algorithm.
struct MapPart {
    name: String,
    /// Returns the key's state after a charge; `None` without room.
    charge: Charge,
    /// The time of the read, the state before it, and whether the key was charged.
    read: Option<(Timestamp, Kept, bool)>,
}

type Charge = Box<dyn Fn(&Kept, Timestamp) -> Option<Kept> + Send>;

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

    async fn decide(
        caller: &Self,
        parts: &mut [&mut MapPart],
        alternatives: Option<&Alternatives>,
        _: CallLimits,
    ) -> Answer<JointAnswer> {
        let (sent, now) = (Monotonic.now(), caller.clock.now());
        let mut content = caller.lock();
        let kept: Vec<Kept> = parts.iter().map(|part| content.kept(&part.name, now)).collect();
        let after: Vec<_> = parts.iter().zip(&kept).map(|(part, kept)| (part.charge)(kept, now)).collect();
        let all: Vec<usize> = (0..parts.len()).collect();
        let mut sets: Vec<&[usize]> = alternatives.iter().flat_map(|alternatives| alternatives.sets()).collect();
        if alternatives.is_some() && sets.is_empty() {
            sets.push(&all);
        }
        let chosen = sets.iter().position(|set| set.iter().all(|index| after[*index].is_some()));
        let charged = chosen.map_or(&[][..], |number| sets[number]);
        for (index, (part, (kept, after))) in parts.iter_mut().zip(kept.into_iter().zip(after)).enumerate() {
            let after = after.filter(|_| charged.contains(&index));
            part.read = Some((now, kept, after.is_some()));
            content.keys.extend(after.map(|after| (part.name.clone(), after)));
        }
        let charged = chosen.map_or(0, |number| u32::try_from(number + 1).expect("few sets"));
        Ok(JointAnswer { charged, now, sent })
    }
}

impl<A: Portable + Clone> JointCharge<A> for MapServer {
    fn part(&self, target: &Target<'_, A>, cost: u64) -> MapPart {
        let algorithm = target.algorithm().clone();
        let charge = move |kept: &Kept, now| {
            if kept.standing.is_in_force(now) {
                return kept.standing.is_allowed(now).then(|| kept.clone());
            }
            let (_, next) = algorithm.decide(kept.state(&algorithm, now), now, cost);
            Some(Kept::new(&algorithm, kept.standing, Some(next?)))
        };
        MapPart { name: target.name(), charge: Box::new(charge), read: None }
    }

    fn read_part(&self, target: &Target<'_, A>, part: &MapPart) -> Answer<Applied<A::State>> {
        let (now, kept, is_charged) = part.read.as_ref().ok_or_else(|| LimiterError::new("the key was not read"))?;
        let (now, standing) = (*now, kept.standing);
        let charged = u32::from(*is_charged && !standing.is_in_force(now));
        Ok(Applied { now, old: kept.state(target.algorithm(), now), standing, kept: None, charged })
    }
}

/// A reference is a record.
impl<A: Portable + Clone> ChargeByHand<A> for MapServer {
    type Version = Kept;

    async fn read_key(&self, key: &Target<'_, A>, of: Option<Reference>, _: CallLimits) -> ReadKey<A::State> {
        let (now, content) = (self.clock.now(), self.lock());
        let kept = content.kept(&key.name(), now);
        let is_known = of.is_some_and(|reference| content.record(&named(key, reference), now).is_some());
        let state = kept.state(key.algorithm(), now);
        Ok(KeyRead { now, state, standing: kept.standing, is_known, version: kept })
    }

    async fn replace_key(&self, key: &Target<'_, A>, new: Replacement<A::State, Kept>, _: CallLimits) -> Answer<bool> {
        let (name, now, mut content) = (key.name(), self.clock.now(), self.lock());
        let reference = new.reference.map(|reference| named(key, reference));
        let is_known = reference.as_ref().is_some_and(|name| content.record(name, now).is_some());
        if is_known || content.kept(&name, now) != new.version {
            return Ok(false);
        }
        content.keys.insert(name, Kept::new(key.algorithm(), new.standing, Some(new.state)));
        let until = now.saturating_add(new.known_for);
        content.records.extend(reference.map(|name| (name, (Vec::new(), until))));
        Ok(true)
    }
}

fn named<A>(key: &Target<'_, A>, reference: Reference) -> String {
    format!("{}:{}", key.name(), reference.tag())
}

impl Records for MapServer {
    async fn read(&self, name: &str, _: CallLimits) -> Answer<Record> {
        let now = self.clock.now();
        Ok(Record { value: self.lock().record(name, now).map(<[u8]>::to_vec), now })
    }

    async fn swap(
        &self,
        name: &str,
        old: Option<&[u8]>,
        new: Option<&[u8]>,
        life: Duration,
        _: CallLimits,
    ) -> Answer<bool> {
        let (now, mut content) = (self.clock.now(), self.lock());
        let is_unchanged = content.record(name, now) == old;
        if is_unchanged {
            match new {
                Some(new) => drop(content.records.insert(name.into(), (new.into(), now.saturating_add(life)))),
                None => drop(content.records.remove(name)),
            }
        }
        Ok(is_unchanged)
    }
}

impl Server for MapServer {
    fn timeout(&self) -> Duration {
        Duration::MAX
    }

    fn is_same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.content, &other.content)
    }
}
