//! Delays that grow with a key's use, on paused time: against a naive model, and in order.

use std::convert::Infallible;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, Request, Response};
use http_body_util::Full;
use tokio::time::{Instant, advance, sleep};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::limiter::{Answer, Ask, Mode, Pending, Receipt};
use tower_sluice::testing::{Random, seeds};
use tower_sluice::{Decision, Limiter, LimiterExt, PartitionKey, Policy, Quota, RateLimitLayer, SlowDown};

use super::leaky_queue::{key, pending, ready};
use crate::support::effort::rounds;
use crate::support::queue::settle;
use crate::support::trace::Trace;

const MS: u64 = 1_000_000;
const MAX_WAITERS: usize = 4;

/// Times are in nanoseconds. One unit leaks per interval.
#[derive(Clone, Copy, Debug)]
struct Rules {
    interval: u64,
    burst: u64,
    free: u64,
    step: u64,
    max_delay: u64,
}

struct Waiter {
    key: usize,
    number: u64,
    since: u64,
    turn: u64,
    cost: u64,
    paid_at: u64,
}

/// The naive model: all waiters in one list, and for each key the instant at which its level is zero.
struct Model {
    rules: Rules,
    paid_at: [u64; 2],
    waiters: Vec<Waiter>,
}

impl Model {
    /// Returns the delay of an arrival, if it is accepted.
    fn delay(&self, key: usize, now: u64, cost: u64, longest: u64) -> Option<u64> {
        let Rules { interval, burst, free, step, max_delay } = self.rules;
        let owed = self.paid_at[key].saturating_sub(now) + cost * interval;
        let delay = (owed.div_ceil(interval).saturating_sub(free) * step).min(max_delay);
        let last = self.waiters.iter().filter(|waiter| waiter.key == key).map(|waiter| waiter.turn).max();
        let turn = (now + delay).max(last.unwrap_or(0));
        let has_room = self.waiters.iter().filter(|waiter| waiter.turn > now).count() < MAX_WAITERS;
        let is_accepted = owed <= burst * interval && turn - now <= longest && (has_room || turn == now);
        is_accepted.then(|| turn - now)
    }

    /// Charges a request that is accepted. Returns when its charge is paid.
    fn charge(&mut self, key: usize, number: u64, now: u64, cost: u64, delay: u64) -> u64 {
        let paid_at = self.paid_at[key].max(now) + cost * self.rules.interval;
        self.paid_at[key] = paid_at;
        if delay > 0 {
            self.waiters.push(Waiter { key, number, since: now, turn: now + delay, cost, paid_at });
        }
        paid_at
    }

    fn refund(&mut self, key: usize, now: u64, cost: u64, paid_at: u64) {
        self.paid_at[key] -= paid_at.saturating_sub(now).min(cost * self.rules.interval).min(self.paid_at[key]);
    }

    fn change(&mut self, now: u64, rules: Rules) {
        let convert = |at: u64| match (at.saturating_sub(now) * rules.interval).div_ceil(self.rules.interval) {
            0 => 0,
            owed => now + owed,
        };
        self.paid_at = self.paid_at.map(convert);
        for waiter in &mut self.waiters {
            waiter.paid_at = convert(waiter.paid_at);
            waiter.turn = waiter.turn.min(waiter.since + rules.max_delay);
        }
        self.rules = rules;
    }
}

/// A request that waits, and has not seen its turn yet.
struct Ticket {
    key: usize,
    number: u64,
    pending: Pending,
}

/// A charge that may be refunded.
struct Charged {
    key: usize,
    cost: u64,
    paid_at: u64,
    receipt: Receipt,
}

struct Trial {
    seed: u64,
    random: Random,
    slow: SlowDown,
    model: Model,
    tickets: Vec<Ticket>,
    charged: Vec<Charged>,
    start: Instant,
}

fn random_rules(random: &mut Random) -> Rules {
    Rules {
        interval: random.pick(&[3, 7, 10]) * MS,
        burst: random.pick(&[1, 4, 6, 9]),
        free: random.pick(&[0, 1, 2, 4]),
        step: random.pick(&[0, 2, 5, 5, 11]) * MS,
        max_delay: random.pick(&[0, 8, 20, 20, 100]) * MS,
    }
}

fn slow_down(rules: Rules) -> SlowDown {
    SlowDown::new(Quota::per(1, Duration::from_nanos(rules.interval)).burst(rules.burst))
        .free(rules.free)
        .step(Duration::from_nanos(rules.step))
        .max_delay(Duration::from_nanos(rules.max_delay))
        .max_waiters(MAX_WAITERS)
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap()
}

impl Trial {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let rules = random_rules(&mut random);
        let model = Model { rules, paid_at: [0; 2], waiters: Vec::new() };
        let slow = slow_down(rules);
        Self { seed, random, slow, model, tickets: Vec::new(), charged: Vec::new(), start: Instant::now() }
    }

    fn now(&self) -> u64 {
        nanos(self.start.elapsed())
    }

    fn arrive(&mut self, number: u64) {
        let key = usize::from(self.random.below(3) == 0);
        let id = PartitionKey::from(key as u64);
        let cost = self.random.pick(&[1, 1, 1, 1, 2, 3]);
        // A turn that comes when the patience ends comes too late.
        let longest = if self.random.below(4) == 0 { self.random.below(30) * MS } else { u64::MAX };
        let patience = (longest < u64::MAX).then(|| Duration::from_nanos(longest + 1));
        let is_shadow = patience.is_none() && self.random.below(6) == 0;
        let now = self.now();
        let expected = self.model.delay(key, now, cost, longest);
        let peeked = ready(self.slow.decide(&Ask::peek(&id, cost).within(patience)));
        self.compare(&peeked, expected, (key, now, cost, longest));
        let mode = if is_shadow { Mode::Shadow } else { Mode::Charge };
        let answer = self.slow.decide(&Ask::charge(&id, cost).within(patience).to(mode));
        let Some(delay) = expected else { return self.compare(&ready(answer), None, (key, now, cost, longest)) };
        let paid_at = self.model.charge(key, number, now, cost, delay);
        match answer {
            Answer::Ready(decision) => {
                let decision = decision.expect("open");
                assert!(delay == 0 || is_shadow, "{self:?}: {number} must wait");
                self.compare(&decision, expected, (key, now, cost, longest));
                if delay == 0 {
                    self.charged.push(Charged { key, cost, paid_at, receipt: decision.receipt() });
                }
            }
            Answer::Pending(pending) => {
                assert!(delay > 0 && !is_shadow, "{self:?}: {number} must not wait");
                self.tickets.push(Ticket { key, number, pending });
            }
        }
    }

    /// Compares a decision to the model's delay. A rejection's wait must be long enough, and not a nanosecond longer.
    fn compare(&self, decision: &Decision, expected: Option<u64>, arrival: (usize, u64, u64, u64)) {
        let (key, now, cost, longest) = arrival;
        let is_accepted_after = |wait| self.model.delay(key, now + wait, cost, longest).is_some();
        let delay = decision.is_allowed().then(|| nanos(decision.delay()));
        assert_eq!(delay, expected, "{self:?}: {arrival:?}");
        match decision.retry_after().map(nanos) {
            _ if expected.is_some() => {}
            Some(wait) => assert!(is_accepted_after(wait) && !is_accepted_after(wait - 1), "{self:?}: {wait} ns"),
            None => assert!(!is_accepted_after(1_000_000 * MS), "{self:?}: no wait, but a retry is accepted"),
        }
    }

    /// Polls all tickets: exactly those whose turn has come in the model depart.
    fn poll_tickets(&mut self) {
        let now = self.now();
        for mut ticket in std::mem::take(&mut self.tickets) {
            let in_model = |waiter: &&Waiter| waiter.number == ticket.number;
            let waiter = self.model.waiters.iter().find(in_model).expect("in the model until it has departed");
            match (&mut ticket.pending).now_or_never() {
                None => {
                    assert!(waiter.turn > now, "{self:?}: {} is late", ticket.number);
                    self.tickets.push(ticket);
                }
                Some(decision) => {
                    let decision = decision.expect("open");
                    assert!(waiter.turn <= now, "{self:?}: {} is early", ticket.number);
                    assert_eq!(nanos(decision.delay()), now - waiter.since, "{self:?}: {}", ticket.number);
                    let &Waiter { key, cost, paid_at, .. } = waiter;
                    self.charged.push(Charged { key, cost, paid_at, receipt: decision.receipt() });
                }
            }
        }
        self.model.waiters.retain(|waiter| waiter.turn > now);
        assert_eq!(self.slow.waiting(), self.model.waiters.len(), "{self:?}");
        self.slow.check_invariants();
    }

    async fn pass_time(&mut self, millis: u64) {
        for _ in 0..millis {
            advance(Duration::from_millis(1)).await;
            settle().await;
            self.poll_tickets();
        }
    }

    fn cancel(&mut self) {
        let index = usize::try_from(self.random.below(self.tickets.len() as u64)).unwrap();
        let Ticket { key, number, pending } = self.tickets.swap_remove(index);
        drop(pending);
        let index = self.model.waiters.iter().position(|waiter| waiter.number == number).unwrap();
        let Waiter { cost, paid_at, .. } = self.model.waiters.remove(index);
        let now = self.now();
        self.model.refund(key, now, cost, paid_at);
    }

    fn refund(&mut self) {
        let index = usize::try_from(self.random.below(self.charged.len() as u64)).unwrap();
        let Charged { key, cost, paid_at, receipt } = self.charged.swap_remove(index);
        self.slow.refund(&Ask::charge(&PartitionKey::from(key as u64), cost), receipt, cost);
        let now = self.now();
        self.model.refund(key, now, cost, paid_at);
    }

    fn change(&mut self) {
        let rules = random_rules(&mut self.random);
        let heir = slow_down(rules);
        assert!(heir.inherit(&self.slow).is_some(), "{self:?}");
        self.slow = heir;
        let now = self.now();
        self.model.change(now, rules);
        // `change.rs` has receipts from before a change.
        self.charged.clear();
    }

    async fn run(mut self) {
        for number in 0..40 {
            match self.random.below(20) {
                0..=11 => self.arrive(number),
                12..=13 if !self.tickets.is_empty() => self.cancel(),
                14 if !self.charged.is_empty() => self.refund(),
                15 => self.change(),
                _ => {
                    let millis = self.random.below(9);
                    self.pass_time(millis).await;
                }
            }
            self.poll_tickets();
        }
        self.pass_time(101).await;
        assert_eq!((self.tickets.len(), self.slow.waiting()), (0, 0), "{self:?}");
    }
}

impl fmt::Debug for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {} ({:?}) at {} ns", self.seed, self.model.rules, self.now())
    }
}

#[tokio::test(start_paused = true)]
async fn random_schedules_follow_the_model() {
    for seed in seeds(rounds(1_500, 100_000)) {
        Trial::new(seed).run().await;
    }
}

fn ten_per_second() -> SlowDown {
    SlowDown::new(Quota::per_second(10).burst(20))
        .free(5)
        .step(Duration::from_millis(100))
        .max_delay(Duration::from_secs(1))
}

/// Requests for 20 keys arrive at random times; all that pass depart in the order in which their key sent them.
#[tokio::test(start_paused = true)]
async fn a_key_departs_in_arrival_order() {
    let mut delayed = 0;
    let mut trace = Trace::of(rounds(5, 200));
    while trace.goes_on([("requests that are delayed", delayed > 1_000)]) {
        let seed = trace.seed();
        let mut random = Random::new(seed);
        let slow = ten_per_second();
        let (sender, mut departures) = tokio::sync::mpsc::unbounded_channel();
        for number in 0..1_200 {
            let client = random.below(20);
            let answer = slow.decide(&Ask::charge(&PartitionKey::from(client), 1));
            let sender = sender.clone();
            // A few leave before their turn.
            let leaves_after = (random.below(10) == 0).then(|| Duration::from_millis(random.below(300)));
            tokio::spawn(async move {
                let decided = tokio::time::timeout(leaves_after.unwrap_or(Duration::MAX), answer.decided());
                if let Ok(decision) = decided.await {
                    let decision = decision.expect("open");
                    if decision.is_allowed() {
                        sender.send((client, number, decision.delay())).unwrap();
                    }
                }
            });
            let millis = random.pick(&[0, 0, 0, 1, 4]);
            sleep(Duration::from_millis(millis)).await;
        }
        drop(sender);
        let mut last = [None; 20];
        while let Some((client, number, delay)) = departures.recv().await {
            let before = last[usize::try_from(client).unwrap()].replace(number);
            assert!(before < Some(number), "seed {seed}: {number} of client {client} overtook {before:?}");
            assert!(delay <= Duration::from_millis(1_001), "seed {seed}: {number} waited {delay:?}");
            delayed += u32::from(!delay.is_zero());
        }
        assert_eq!(slow.waiting(), 0);
    }
}

/// A free request waits for its own key's earlier ones, and for no other key.
#[tokio::test(start_paused = true)]
async fn a_newly_free_request_overtakes_none() {
    let slow = SlowDown::new(Quota::per_second(100).burst(4)).free(2).step(Duration::from_millis(500));
    let requests: Vec<_> = (0..4).map(|_| slow.decide(&Ask::charge(&key("a"), 1)).decided()).collect();
    // The level is zero again, and two wait: until 500 and 1,000 ms.
    sleep(Duration::from_millis(100)).await;
    let free = ready(slow.decide(&Ask::peek(&key("a"), 1)));
    assert_eq!(free.delay(), Duration::from_millis(900));
    assert_eq!(ready(slow.decide(&Ask::peek(&key("b"), 1))).delay(), Duration::ZERO);
    let patience = Some(Duration::from_millis(900));
    let rejected = ready(slow.decide(&Ask::peek(&key("a"), 1).within(patience)));
    assert_eq!(rejected.retry_after(), Some(Duration::from_nanos(1)), "it must be less than the patience");
    assert_eq!((free.remaining(), rejected.remaining()), (3, 0), "none remains for the impatient");
    drop(requests);
    assert_eq!(ready(slow.decide(&Ask::peek(&key("a"), 1))).delay(), Duration::ZERO);
}

/// A script that waits for each response before it sends the next request ends up at the quota's rate.
#[tokio::test(start_paused = true)]
async fn a_sequential_client_settles_at_the_rate() {
    let slow = ten_per_second();
    let start = Instant::now();
    for _ in 0..500 {
        assert!(slow.acquire(&key("script"), 1).await.unwrap().is_allowed());
    }
    let elapsed = start.elapsed().as_millis();
    // Five or six of 500 were free, and the others came at ten per second.
    assert!((49_000..=50_000).contains(&elapsed), "{elapsed} ms");
}

/// The refund is rounded down, never up: a level is in thirds of a nanosecond here, and a waiter has whole ones.
#[tokio::test(start_paused = true)]
async fn a_leaving_waiter_returns_its_unleaked_charge() {
    let slow = SlowDown::new(Quota::per_second(3)).free(0).step(Duration::from_secs(1));
    let reset = || ready(slow.decide(&Ask::peek(&key("a"), 0))).reset_after().as_nanos();
    let [first, second] = [(); 2].map(|()| pending(slow.decide(&Ask::charge(&key("a"), 1))));
    assert_eq!(reset(), 666_666_667);
    sleep(Duration::from_millis(100)).await;
    drop(first);
    assert_eq!(reset(), 333_333_334, "the charge of the second");
    drop(second);
    assert!(reset() <= 1);
    assert_eq!(slow.waiting(), 0);
}

/// `remaining` counts the requests that would not be rejected now: those that need not wait, and those that find room.
#[tokio::test(start_paused = true)]
async fn as_many_requests_pass_as_remain() {
    let slow = SlowDown::new(Quota::per_second(10).burst(9)).free(2).max_waiters(3);
    assert_eq!(slow.describe().terms().unwrap().quota().unwrap().max_burst(), 5);
    let mut requests = Vec::new();
    for remaining in [5, 5, 0] {
        let seen = ready(slow.decide(&Ask::peek(&key("a"), 0)));
        assert_eq!((seen.limit(), seen.remaining()), (5, remaining));
        for _ in 0..remaining {
            requests.push(slow.decide(&Ask::charge(&key("a"), 1)).decided());
        }
        let rejected = ready(slow.decide(&Ask::charge(&key("a"), 1)));
        assert!(!rejected.is_allowed() && rejected.remaining() == 0);
        if requests.len() == 5 {
            // All have departed, and the level is zero.
            sleep(Duration::from_secs(4)).await;
            settle().await;
        }
    }
}

/// A refund takes units that were charged before the change, and at most those that have not leaked yet.
#[tokio::test(start_paused = true)]
async fn charges_before_a_change_are_refunded() {
    let slow = SlowDown::new(Quota::per_second(1).burst(4)).free(2);
    let spent = ready(slow.decide(&Ask::charge(&key("a"), 2)));
    let waits = pending(slow.decide(&Ask::charge(&key("a"), 1)));
    sleep(Duration::from_millis(500)).await;
    let fast = SlowDown::new(Quota::per_second(10).burst(4)).free(2);
    assert!(fast.inherit(&slow).is_some());
    let reset = || ready(fast.decide(&Ask::peek(&key("a"), 0))).reset_after();
    assert_eq!(reset(), Duration::from_millis(250));
    drop(waits);
    assert_eq!(reset(), Duration::from_millis(150));
    fast.refund(&Ask::charge(&key("a"), 2), spent.receipt(), 2);
    assert_eq!(reset(), Duration::ZERO);
}

/// The waiters still depart in order.
#[tokio::test(start_paused = true)]
async fn a_shorter_delay_releases_waiters_sooner() {
    let slow = SlowDown::new(Quota::per_second(1).burst(9)).free(1).step(Duration::from_secs(2));
    let first = ready(slow.decide(&Ask::charge(&key("a"), 1)));
    assert_eq!(first.delay(), Duration::ZERO);
    let waits: Vec<_> = (0..3).map(|_| tokio::spawn(slow.decide(&Ask::charge(&key("a"), 1)).decided())).collect();
    sleep(Duration::from_secs(1)).await;
    let gentle = SlowDown::new(Quota::per_second(1).burst(9)).free(1).max_delay(Duration::from_secs(3));
    assert!(gentle.inherit(&slow).is_some());
    let mut delays = Vec::new();
    for wait in waits {
        delays.push(wait.await.unwrap().unwrap().delay().as_secs());
    }
    assert_eq!(delays, [2, 3, 3]);
    assert!(slow.inherit(&super::leaky_queue::every_10_ms()).is_none(), "another limiter");
}

/// A key is idle when its level is zero and its waiters are gone.
#[tokio::test(start_paused = true)]
async fn keys_without_room_are_rejected_until_idle() {
    let slow = SlowDown::new(Quota::per_second(10).burst(3)).free(1).step(Duration::from_secs(1)).max_keys(1);
    let _now = ready(slow.decide(&Ask::charge(&key("a"), 1)));
    let waits = pending(slow.decide(&Ask::charge(&key("a"), 1)));
    let rejected = ready(slow.decide(&Ask::charge(&key("b"), 1)));
    assert_eq!(rejected.retry_after(), Some(Duration::from_secs(1)));
    assert!(waits.await.unwrap().is_allowed());
    assert!(ready(slow.decide(&Ask::charge(&key("b"), 1))).is_allowed());
    let table = slow.stats().table.unwrap();
    assert_eq!((table.capacity, table.live_keys, table.turned_away), (1, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn an_oversized_cost_charges_the_rest() {
    let slow = SlowDown::new(Quota::per_second(1).burst(5)).free(2).step(Duration::from_millis(100));
    let _now = ready(slow.decide(&Ask::charge(&key("a"), 2)));
    let rejected = ready(slow.decide(&Ask::charge(&key("a"), 4)));
    assert_eq!((rejected.remaining(), rejected.retry_after()), (3, Some(Duration::from_secs(1))));
    let part = ready(slow.decide(&Ask::charge(&key("a"), 4).to(Mode::UpTo)));
    assert_eq!((part.is_allowed(), part.remaining(), part.delay()), (true, 0, Duration::from_millis(300)));
    // A third of a second, rounded up.
    let thirds = SlowDown::new(Quota::per_second(3).burst(1)).free(1);
    let _now = ready(thirds.decide(&Ask::charge(&key("a"), 1)));
    let rejected = ready(thirds.decide(&Ask::charge(&key("a"), 1)));
    assert_eq!(rejected.retry_after(), Some(Duration::from_nanos(333_333_334)));
    let never = ready(slow.decide(&Ask::charge(&key("b"), 6)));
    assert_eq!((never.is_allowed(), never.retry_after()), (false, None));
}

#[tokio::test(start_paused = true)]
async fn closing_ends_all_waits() {
    let slow = ten_per_second().free(0);
    let waits = pending(slow.decide(&Ask::charge(&key("a"), 1)));
    slow.close();
    assert_eq!(waits.await.unwrap_err().to_string(), "the queue was closed");
    assert!(matches!(slow.decide(&Ask::charge(&key("a"), 1)), Answer::Ready(Err(_))));
    assert_eq!(slow.waiting(), 0);
}

/// A waiter whose runtime was shut down continues where it is polled next.
#[test]
fn waiters_outlive_anothers_runtime() {
    let first = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let second = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let slow = SlowDown::new(Quota::per_hour(9)).free(0).step(Duration::from_millis(20));
    let join_on = |runtime: &tokio::runtime::Runtime| {
        let _guard = runtime.enter();
        pending(slow.decide(&Ask::charge(&key("a"), 1)))
    };
    let waiting = [join_on(&first), join_on(&second), join_on(&first)];
    drop(first);
    for waiter in waiting {
        assert!(second.block_on(waiter).unwrap().is_allowed());
    }
    assert_eq!(slow.waiting(), 0);
    // Outside any runtime, only a request that has to wait is an error.
    let Answer::Ready(Err(error)) = slow.decide(&Ask::charge(&key("a"), 1)) else { panic!("it cannot wait") };
    assert!(error.to_string().contains("within a tokio runtime"), "{error}");
}

/// Sends four requests at once. Returns each status, and the milliseconds until it came; and the last response's
/// fields.
async fn send_four(layer: &RateLimitLayer) -> (Vec<(u16, u128)>, HeaderMap) {
    let hello = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("hello"))) });
    let service = layer.layer(hello);
    let start = Instant::now();
    let send = || {
        let call = service.clone().oneshot(Request::new(()));
        tokio::spawn(async move { (call.await.unwrap(), start.elapsed().as_millis()) })
    };
    let mut outcomes = Vec::new();
    let mut last = HeaderMap::new();
    for sent in [send(), send(), send(), send()] {
        let (response, at) = sent.await.unwrap();
        outcomes.push((response.status().as_u16(), at));
        last = response.into_parts().0.headers;
    }
    (outcomes, last)
}

/// A shadow delays no request.
#[tokio::test(start_paused = true)]
async fn clients_see_delays_and_then_429() {
    let slow = || SlowDown::new(Quota::per_second(1).burst(3)).free(1).step(Duration::from_millis(100));
    let policy = || Policy::new("slow", slow()).status(http::StatusCode::TOO_MANY_REQUESTS);
    let layer = RateLimitLayer::new(policy());
    let (outcomes, rejected) = send_four(&layer).await;
    assert_eq!(outcomes, [(200, 0), (200, 100), (200, 200), (429, 0)]);
    let field = |name: &str| rejected[name].to_str().unwrap();
    assert_eq!(field("ratelimit-policy"), "\"slow\";q=3;w=3");
    assert_eq!(field("ratelimit"), "\"slow\";r=0;t=1");
    assert_eq!(field("retry-after"), "1");

    // The levels and the policy are kept, and the next two units wait for the new step.
    sleep(Duration::from_millis(2_800)).await;
    let gentle =
        Policy::new("slow", slow().step(Duration::from_millis(10))).status(http::StatusCode::TOO_MANY_REQUESTS);
    layer.handle().replace(gentle).unwrap();
    assert_eq!(send_four(&layer).await.0, [(200, 0), (200, 10), (200, 20), (429, 0)]);

    let shadow = RateLimitLayer::new(policy().shadow());
    assert_eq!(send_four(&shadow).await.0, [(200, 0); 4]);
    assert_eq!(shadow.shadow_rejected("slow"), Some(1));
    assert_eq!(shadow.backlog("slow").unwrap().waiting(), 2);
    sleep(Duration::from_millis(201)).await;
    assert_eq!(shadow.backlog("slow").unwrap().waiting(), 0);
}
