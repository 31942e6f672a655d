//! The callers: requests in several kinds, and the checks on each answer.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::redis::Value;
use smallvec::smallvec;
use tokio::time::{Instant, timeout};
use tower_sluice::algorithm::{Algorithm, GcraState, TokenBucket};
use tower_sluice::internal::remote::testing::{Claim, Formula, MemberDecision, ReadDescription as _, ReadQuota as _};
use tower_sluice::limiter::{Ask, Mode};
use tower_sluice::{Limiter as _, PartitionKey, Quota, RateLimiter};

use super::network::{Network, PanicWatch};
use super::plan::Plan;
use super::server::ADD;
use crate::connection::Redis;
use crate::script::{Key, KeyNames, ScriptCall};
use crate::store::{RedisStore, RedisTable};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Few keys with many requests each, which are used up.
    Hot,
    /// Many keys.
    Many,
    /// A key without other requests.
    Fresh,
    /// A script that adds a unique number to a key without other requests.
    Add,
    /// Two limiters at once, on two nodes of a cluster.
    Two,
    /// A charge that a lease may pay.
    Leased,
    /// Two limiters on one node. The first that has room is charged.
    Either,
}

pub(super) const KINDS: [Kind; 7] =
    [Kind::Hot, Kind::Many, Kind::Fresh, Kind::Add, Kind::Two, Kind::Leased, Kind::Either];

/// The costs of requests are multiples of this, which does not fit into 32 bits.
const UNIT: u64 = 10_000_000_000;

/// A process's limiter.
pub(super) struct Limiter {
    name: &'static str,
    bucket: TokenBucket,
    table: RateLimiter<TokenBucket, RedisTable<GcraState>>,
}

impl Limiter {
    fn new(redis: &Redis, name: &'static str, quota: Quota) -> Self {
        Self::with_store(name, quota, RedisStore::new(redis, name))
    }

    fn with_store(name: &'static str, quota: Quota, store: RedisStore) -> Self {
        let bucket = TokenBucket::new(quota);
        Self { name, bucket, table: RateLimiter::new(bucket, store) }
    }

    /// Returns the microseconds after which [`UNIT`] is paid off. They are whole for the limits below.
    fn price(&self) -> u64 {
        self.bucket.quota().time_of(UNIT).as_micros() as u64
    }

    fn capacity(&self) -> u64 {
        self.bucket.quota().max_burst() / UNIT * self.price()
    }
}

pub(super) struct Process {
    pub(super) redis: Redis,
    hot: Limiter,
    many: Limiter,
    other: Limiter,
    leased: Limiter,
}

impl Process {
    fn new(redis: Redis) -> Self {
        let quota = |limit: u64, burst: u64| Quota::per_second(limit * UNIT).burst(burst * UNIT);
        let plenty = quota(10_000, 10_000);
        let leasing = RedisStore::new(&redis, "leased").leasing(16, Duration::from_millis(300));
        let leased = Limiter::with_store("leased", quota(200, 100), leasing);
        Self {
            hot: Limiter::new(&redis, "hot", quota(50, 20)),
            many: Limiter::new(&redis, "many", plenty),
            other: Limiter::new(&redis, "other", plenty),
            leased,
            redis,
        }
    }
}

/// The state that all callers share.
pub(super) struct Callers {
    pub(super) network: Arc<Network>,
    pub(super) processes: Vec<Process>,
    timeout: Duration,
    book: Mutex<Book>,
}

/// The records of the checks.
#[derive(Default)]
pub(super) struct Book {
    pub(super) problems: Vec<String>,
    numbers: u64,
    /// By key: the cost of all requests, and of the requests that the servers admitted, in microseconds.
    asked: BTreeMap<Vec<u8>, u64>,
    admitted: BTreeMap<Vec<u8>, u64>,
    /// By process and key: the debt from the local fallback's admissions, and when it was computed.
    local: BTreeMap<(usize, Vec<u8>), (u64, Instant)>,
    /// By process and shard: until when a request waited that came while the circuit breaker was open.
    waited: BTreeMap<(usize, usize), Instant>,
    /// By process and shard: the arrival times of requests that need a call each.
    pub(super) came: BTreeMap<(usize, usize), Vec<Instant>>,
    pub(super) failures: u64,
    pub(super) requests: u64,
}

impl Callers {
    pub(super) fn new(network: &Arc<Network>, plan: &Plan) -> Arc<Self> {
        let open = |process| {
            let builder = match plan.shards {
                0 => Redis::single("redis://10.0.0.1:6379"),
                count => Redis::cluster((1..=count).map(|at| format!("redis://10.0.0.{at}:6379"))),
            };
            let builder = builder.timeout(plan.timeout).connect_timeout(plan.connect_timeout);
            Process::new(builder.over(network.connector(process)).open().expect("the addresses are right"))
        };
        let processes = (0..plan.processes).map(open).collect();
        Arc::new(Self { network: Arc::clone(network), processes, timeout: plan.timeout, book: Mutex::default() })
    }

    pub(super) fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a request. Its caller may give up. Returns whether the servers have answered it.
    pub(super) async fn request(self: Arc<Self>, process: usize, kind: Kind, give_up: Option<Duration>) -> bool {
        let _watch = PanicWatch(&self.network);
        let number = {
            let mut book = self.book();
            book.numbers += 1;
            book.requests += 1;
            book.numbers
        };
        let (name, cost) = match kind {
            Kind::Hot | Kind::Leased | Kind::Either => (format!("hot {}", number % 4), 1 + (number % 7 / 6)),
            Kind::Many | Kind::Two => (format!("one of many {}", number % 61), 1),
            Kind::Fresh | Kind::Add => (format!("fresh {number}"), 1 + (number % 97)),
        };
        let slot = self.key("many", &name).slot();
        let shard = self.network.lock().shard_of(slot);
        let began = Instant::now();
        let redis = &self.processes[process].redis;
        let is_failing = || kind != Kind::Two && redis.is_failing(|| slot);
        let mut was_failing = is_failing();
        if matches!(kind, Kind::Many | Kind::Fresh | Kind::Add) {
            self.book().came.entry((process, shard)).or_default().push(began);
        }
        let asks = async {
            match kind {
                Kind::Add => self.add(process, number, &name).await,
                Kind::Two => self.ask_two(process, &name, number).await,
                Kind::Either => self.ask_either(process, &name).await,
                _ => self.ask(process, kind, &name, cost).await,
            }
        };
        let mut asks = pin!(timeout(give_up.unwrap_or(self.timeout * 100), asks));
        let answered = match timeout(Duration::from_millis(1), &mut asks).await {
            Ok(answered) => answered.ok(),
            Err(_) => {
                // The breaker may have closed as the request came.
                was_failing &= is_failing();
                asks.await.ok()
            }
        };
        self.network.lock().note(format_args!("process {process}: {kind:?} {number}: {answered:?}"));
        let now = Instant::now();
        let mut book = self.book();
        let waited = now - began;
        // Documented: a decision takes no longer than the timeout. The timers are 1 ms apart.
        if waited > self.timeout + Duration::from_millis(2) {
            book.problems.push(format!("LATE: {kind:?} {number} took {waited:?}"));
        }
        // While the breaker is open, one request at a time probes the node, and all others are answered at once.
        if was_failing && waited > Duration::from_millis(1) {
            let until = book.waited.insert((process, shard), now);
            if until.is_some_and(|until| began < until) {
                book.problems.push(format!("SLOW: {kind:?} {number} waited {waited:?} behind a probe"));
            }
        }
        if answered == Some(false) {
            book.failures += 1;
        }
        answered == Some(true)
    }

    fn key(&self, limiter: &str, name: &str) -> Key {
        let names = KeyNames::new("sluice", limiter, b"");
        names.key(names.tag(&PartitionKey::from(name)), 'b')
    }

    fn ask_for(&self, key: &Key, micros: u64) {
        *self.book().asked.entry(key.as_str().as_bytes().to_vec()).or_default() += micros;
    }

    async fn add(&self, process: usize, number: u64, name: &str) -> bool {
        let key = self.key("add", name);
        self.ask_for(&key, number);
        let call = ScriptCall { script: &ADD, keys: smallvec![key], args: smallvec![number], texts: Vec::new() };
        match self.processes[process].redis.call(&call).await {
            Ok(answer) => {
                if answer != Value::Int(i64::try_from(number).unwrap()) {
                    self.book().problems.push(format!("MIXED UP: {number} was answered {answer:?}"));
                }
                true
            }
            Err(_) => false,
        }
    }

    async fn ask(&self, process: usize, kind: Kind, name: &str, cost: u64) -> bool {
        let this = &self.processes[process];
        let limiter = match kind {
            Kind::Hot => &this.hot,
            Kind::Leased => &this.leased,
            _ => &this.many,
        };
        let key = self.key(limiter.name, name);
        let price = cost * limiter.price();
        let partition = PartitionKey::from(name);
        let ask = Ask::charge(&partition, cost * UNIT);
        if kind != Kind::Leased {
            self.ask_for(&key, price);
        }
        let answer = limiter.table.decide(&ask).decided().await;
        let text = key.as_str().as_bytes().to_vec();
        match answer {
            Ok(decision) => {
                if kind == Kind::Fresh && decision.remaining() != (10_000 - cost) * UNIT {
                    let problem = format!("MIXED UP: {name} of {cost} was answered {decision:?}");
                    self.book().problems.push(problem);
                }
                if decision.is_allowed() {
                    *self.book().admitted.entry(text).or_default() += price;
                }
                true
            }
            Err(_) => {
                let fallback = limiter.table.decide(&ask.to(Mode::Fallback)).decided().await;
                if kind == Kind::Hot && fallback.expect("it needs no server").is_allowed() {
                    self.admit_locally(process, text, price, limiter.capacity());
                }
                false
            }
        }
    }

    /// Counts the admissions by a process's fallback, at most the limit. So over an outage and the recovery, *n*
    /// processes and the servers admit at most *n* + 1 times the limit.
    fn admit_locally(&self, process: usize, key: Vec<u8>, price: u64, capacity: u64) {
        let now = Instant::now();
        let mut book = self.book();
        let (owed, since) = book.local.get(&(process, key.clone())).copied().unwrap_or((0, now));
        let owed = owed.saturating_sub((now - since).as_micros() as u64) + price;
        // The table's ticks may be off by a thousandth.
        if owed > capacity + capacity / 1_000 {
            book.problems.push(format!("TOO MANY: the fallback of process {process} owes {owed} of {capacity} µs"));
        }
        book.local.insert((process, key), (owed, now));
    }

    /// Returns a name like this whose key is on this shard, or on the last shard if there are fewer.
    fn name_in(&self, shard: usize, name: &str) -> String {
        let state = self.network.lock();
        let shard = shard.min(state.shards.len() - 1);
        let mut names = (0..).map(|number| format!("{name} {number}"));
        names.find(|name| state.shard_of(self.key("many", name).slot()) == shard).expect("one of many is")
    }

    /// Notes a call to the second of two nodes. It is made if the first node answers.
    fn note_second(&self, process: usize, slot: u16, now: Instant) {
        let mut state = self.network.lock();
        let first = state.shards[0].primary;
        let shard = state.shard_of(slot);
        let is_first_dead = state.link(process, first).dead.is_some_and(|(_, until)| now < until);
        drop(state);
        if shard > 0 && !is_first_dead {
            self.book().came.entry((process, shard)).or_default().push(now);
        }
    }

    /// Returns a call's parts: limiters, and the names of their keys.
    fn claims(&self, parts: [(&Limiter, &str); 2]) -> [Box<dyn Claim>; 2] {
        parts.map(|(limiter, name)| {
            self.ask_for(&self.key(limiter.name, name), limiter.price());
            let description = limiter.table.describe();
            let batching = description.batches().expect("Redis decides on several at once");
            batching.claim(&Ask::charge(&PartitionKey::from(name), UNIT)).expect("no lease pays")
        })
    }

    fn note_admitted(&self, (limiter, name): (&Limiter, &str)) {
        let text = self.key(limiter.name, name).as_str().as_bytes().to_vec();
        *self.book().admitted.entry(text).or_default() += limiter.price();
    }

    /// Asks two limiters for keys with one name, which are on one node.
    async fn ask_either(&self, process: usize, name: &str) -> bool {
        let this = &self.processes[process];
        let parts = [(&this.hot, name), (&this.many, name)];
        let [first, second] = self.claims(parts);
        let either = Formula::Any(vec![Formula::Member(0), Formula::Member(1)]);
        let answers = first.decide_by(vec![second], either).await;
        let members: Vec<MemberDecision> = answers.iter().flatten().flatten().copied().collect();
        let are_answered = members.len() == 2;
        if are_answered {
            // After a step in the server's clock, both may have no room.
            let first = members.iter().position(|member| member.decision.is_allowed());
            for (index, (part, member)) in parts.into_iter().zip(members).enumerate() {
                if member.is_charged {
                    self.note_admitted(part);
                }
                if member.is_charged != (first == Some(index)) {
                    self.book().problems.push(format!("NOT THE FIRST: of {name}, {answers:?}"));
                }
            }
        }
        are_answered
    }

    async fn ask_two(&self, process: usize, name: &str, number: u64) -> bool {
        let this = &self.processes[process];
        // The second key is on another node than the first, and its node never has a first key.
        let first = self.name_in(0, name);
        let second = self.name_in(1 + number as usize % 2, "other");
        let name = first.as_str();
        self.note_second(process, self.key("other", &second).slot(), Instant::now());
        let parts = [(&this.many, name), (&this.other, second.as_str())];
        let [first, second] = self.claims(parts);
        let answers = first.decide_all(vec![second]).await;
        let is_admitted = answers.iter().all(|answer| answer.as_ref().is_ok_and(|it| it.is_allowed()));
        if is_admitted {
            parts.into_iter().for_each(|part| self.note_admitted(part));
        }
        answers.iter().all(Result::is_ok)
    }

    /// Checks at the end that no call was made twice, and that all admitted requests were charged.
    pub(super) fn settle(&self) {
        let charged = self.network.lock().charged.clone();
        let mut book = self.book();
        let mut problems = Vec::new();
        for (key, charged) in &charged {
            let asked = book.asked.get(key).copied().unwrap_or(0);
            if *charged > asked && !key.ends_with(b":leased:b") {
                problems.push(format!("TWICE: {} was charged {charged} of {asked}", String::from_utf8_lossy(key)));
            }
        }
        for (key, admitted) in &book.admitted {
            let charged = charged.get(key).copied().unwrap_or(0);
            if *admitted > charged {
                problems.push(format!("UNPAID: {} had {admitted}, paid {charged}", String::from_utf8_lossy(key)));
            }
        }
        book.problems.extend(problems);
    }
}
