//! Queues whose quota and bounds change while requests wait in them, against a naive model on paused time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_sluice::testing::Random;
use tower_sluice::{Ask, Decision, LeakyQueue, Limiter, PartitionKey, Quota};

/// Times are in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Rules {
    rate: u64,
    burst: u64,
    capacity: usize,
    max_wait: u64,
}

impl Rules {
    fn queue(self) -> LeakyQueue {
        let quota = Quota::per_second(u32::try_from(self.rate).unwrap()).burst(u32::try_from(self.burst).unwrap());
        LeakyQueue::new(quota).capacity(self.capacity).max_wait(Duration::from_millis(self.max_wait))
    }

    /// Returns the time until a level, in thousandths of a token, has fallen so low that one may depart.
    fn wait(self, level: u64) -> u64 {
        level.saturating_sub((self.burst - 1) * 1_000).div_ceil(self.rate)
    }
}

#[derive(Clone, Copy)]
struct Waiter {
    id: usize,
    cost: u64,
    since: u64,
    until: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Left { waited: u64 },
    Refused { retry: Duration },
}

/// When, which waiter, and its answer.
type Event = (u64, usize, Outcome);

#[derive(Default)]
struct Fifo {
    level: u64,
    at: u64,
    waiters: VecDeque<Waiter>,
}

impl Fifo {
    fn drain(&mut self, rules: Rules, now: u64) {
        self.level = self.level.saturating_sub((now - self.at) * rules.rate);
        self.at = now;
    }

    fn tick(&mut self, rules: Rules, now: u64, events: &mut Vec<Event>) {
        while let Some(head) = self.waiters.front().copied() {
            let leaves = self.at + rules.wait(self.level);
            if leaves > now {
                break;
            }
            self.drain(rules, leaves);
            self.level += head.cost * 1_000;
            self.waiters.pop_front();
            events.push((leaves, head.id, Outcome::Left { waited: leaves - head.since }));
        }
        self.drain(rules, now);
    }

    /// Returns when an arrival with this longest wait would be let in.
    fn accepted_at(&self, rules: Rules, now: u64, max_wait: u64) -> u64 {
        let backlog: u64 = self.waiters.iter().map(|waiter| waiter.cost * 1_000).sum();
        let by_wait = (now + rules.wait(self.level + backlog)).saturating_sub(max_wait);
        let is_full = self.waiters.len() >= rules.capacity && (rules.wait(self.level) > 0 || !self.waiters.is_empty());
        by_wait.max(if is_full { now + rules.wait(self.level) } else { 0 })
    }

    fn arrive(&mut self, rules: Rules, now: u64, id: usize, cost: u64, events: &mut Vec<Event>) {
        let accepted_at = self.accepted_at(rules, now, rules.max_wait);
        if self.waiters.is_empty() && rules.wait(self.level) == 0 {
            self.level += cost * 1_000;
            events.push((now, id, Outcome::Left { waited: 0 }));
        } else if accepted_at > now {
            events.push((now, id, Outcome::Refused { retry: Duration::from_millis(accepted_at - now) }));
        } else {
            self.waiters.push_back(Waiter { id, cost, since: now, until: now + rules.max_wait });
        }
    }

    /// Returns the waiters that are rejected.
    fn change(&mut self, rules: Rules, now: u64, events: &mut Vec<Event>) -> Vec<Waiter> {
        let (mut ahead, mut rejected) = (self.level, Vec::new());
        for mut waiter in std::mem::take(&mut self.waiters) {
            waiter.until = waiter.until.min(waiter.since + rules.max_wait);
            if self.waiters.len() < rules.capacity && now + rules.wait(ahead) <= waiter.until.max(now) {
                ahead += waiter.cost * 1_000;
                self.waiters.push_back(waiter);
            } else {
                rejected.push(waiter);
            }
        }
        self.tick(rules, now, events);
        rejected
    }

    /// Returns the answer of a rejected waiter, when it is polled.
    fn answer(&self, rules: Rules, now: u64, waiter: Waiter) -> Event {
        let accepted_at = self.accepted_at(rules, now, waiter.until - waiter.since);
        let retry = Duration::from_millis(accepted_at.saturating_sub(now)).max(Duration::from_nanos(1));
        (now, waiter.id, Outcome::Refused { retry })
    }
}

impl Rules {
    fn random(random: &mut Random) -> Self {
        // In a tenth of a second, all of these drain whole tenths of a token, which take whole milliseconds at any.
        Self {
            rate: random.pick(&[1, 2, 5, 10]),
            burst: random.pick(&[1, 1, 2, 4]),
            capacity: random.pick(&[0, 2, 5, 30]),
            max_wait: random.pick(&[3_000, 5_000, 60_000]),
        }
    }
}

const KEYS: usize = 3;

#[tokio::test(start_paused = true)]
async fn waiters_follow_the_model_through_all_changes() {
    for seed in 1..=60_u64 {
        let mut random = Random::new(seed);
        let start = Instant::now();
        let mut rules = Rules::random(&mut random);
        let mut queue = Arc::new(rules.queue());
        let mut older = Arc::clone(&queue);
        let mut fifos: [Fifo; KEYS] = Default::default();
        let seen: Arc<Mutex<Vec<Event>>> = Arc::default();
        for step in 0..300 {
            let context = format!("seed {seed}, step {step}, {rules:?}");
            let now = step * 100;
            let (mut expected, mut rejected) = (Vec::new(), [const { Vec::new() }; KEYS]);
            fifos.iter_mut().for_each(|fifo| fifo.tick(rules, now, &mut expected));
            if random.below(12) == 0 {
                rules = Rules::random(&mut random);
                let next = Arc::new(rules.queue());
                assert!(next.inherit(&*queue).is_some(), "{context}");
                rejected = fifos.each_mut().map(|fifo| fifo.change(rules, now, &mut expected));
                older = std::mem::replace(&mut queue, next);
            }
            for arrival in 0..usize::try_from(random.below(3)).unwrap() {
                let id = usize::try_from(step).unwrap() * 10 + arrival;
                let (key, cost) = (usize::try_from(random.below(KEYS as u64)).unwrap(), 1 + random.below(2));
                fifos[key].arrive(rules, now, id, cost, &mut expected);
                let asked = if random.below(4) == 0 { &older } else { &queue };
                let pending =
                    asked.decide(&Ask::charge(&PartitionKey::from(key as u64), u32::try_from(cost).unwrap())).decided();
                let seen = Arc::clone(&seen);
                tokio::spawn(async move {
                    let event = outcome(&pending.await.unwrap());
                    let at = u64::try_from(start.elapsed().as_millis()).unwrap();
                    seen.lock().unwrap().push((at, id, event));
                });
            }
            // Waiters that are due by now, and those that were answered since the last step.
            for _ in 0..200 {
                tokio::task::yield_now().await;
            }
            for (fifo, rejected) in fifos.iter().zip(rejected) {
                expected.extend(rejected.into_iter().map(|waiter| fifo.answer(rules, now, waiter)));
            }
            let mut seen: Vec<Event> = std::mem::take(&mut *seen.lock().unwrap());
            seen.sort_unstable();
            expected.sort_unstable();
            assert_eq!(seen, expected, "{context}");
            let waiting: usize = fifos.iter().map(|fifo| fifo.waiters.len()).sum();
            assert_eq!([queue.waiting(), older.waiting()], [waiting; 2], "{context}");
            sleep(Duration::from_millis(100)).await;
        }
    }
}

fn outcome(decision: &Decision) -> Outcome {
    match decision.retry_after() {
        None => Outcome::Left { waited: u64::try_from(decision.delay().as_millis()).unwrap() },
        Some(retry) => Outcome::Refused { retry },
    }
}

/// A charge from before a change is refunded after it, in tokens, and no more than is still owed.
#[tokio::test(start_paused = true)]
async fn charges_from_before_a_change_are_refunded_after_it() {
    let key = PartitionKey::from("key");
    let slow = LeakyQueue::new(Quota::per_second(1).burst(4)).capacity(0);
    let spent = slow.decide(&Ask::charge(&key, 3)).decided().await.unwrap();
    sleep(Duration::from_millis(500)).await;
    let fast = LeakyQueue::new(Quota::per_second(10).burst(2)).capacity(0);
    assert!(fast.inherit(&slow).is_some());
    // Two and a half are owed, and the next may depart when one is.
    let rejected = fast.decide(&Ask::charge(&key, 1)).decided().await.unwrap();
    assert_eq!(rejected.retry_after(), Some(Duration::from_millis(150)));
    fast.refund(&key, spent.receipt(), 3);
    assert_eq!(fast.decide(&Ask::peek(&key, 0)).at_once().unwrap().reset_after(), Duration::ZERO);
    // Of another charge, after two more changes, nothing is refunded.
    let spent = fast.decide(&Ask::charge(&key, 1)).decided().await.unwrap();
    let other = LeakyQueue::new(Quota::per_second(1));
    assert!(other.inherit(&fast).is_some());
    let last = LeakyQueue::new(Quota::per_second(2));
    assert!(last.inherit(&other).is_some());
    last.refund(&key, spent.receipt(), 1);
    assert_eq!(last.decide(&Ask::peek(&key, 0)).at_once().unwrap().reset_after(), Duration::from_millis(500));
    let used = LeakyQueue::new(Quota::per_second(1));
    assert!(used.decide(&Ask::charge(&key, 1)).decided().await.unwrap().is_allowed());
    assert!(used.inherit(&last).is_none(), "it has a schedule of its own");
    assert!(fast.inherit(&last).is_some(), "it has the same, from before");
}

/// No waiter sleeps past a turn that comes sooner now, and none waits for one that is too late.
#[tokio::test(start_paused = true)]
async fn a_raised_rate_helps_present_waiters_at_once() {
    let key = PartitionKey::from("key");
    let slow = LeakyQueue::new(Quota::per_hour(1)).capacity(5).max_wait(Duration::from_secs(86_400));
    let start = Instant::now();
    assert!(slow.decide(&Ask::charge(&key, 1)).decided().await.unwrap().is_allowed());
    let waits: Vec<_> = (0..3).map(|_| tokio::spawn(slow.decide(&Ask::charge(&key, 1)).decided())).collect();
    sleep(Duration::from_secs(1)).await;
    let fast = LeakyQueue::new(Quota::per_second(1)).capacity(5);
    assert!(fast.inherit(&slow).is_some());
    for (n, wait) in waits.into_iter().enumerate() {
        // All but a 3,600th of the first token is still owed.
        let decision = wait.await.unwrap().unwrap();
        assert!(decision.is_allowed());
        let passed = start.elapsed().as_millis();
        assert!((1_999..=2_001).contains(&(passed - n as u128 * 1_000)), "{n} after {passed} ms");
    }
    assert_eq!((fast.waiting(), slow.waiting()), (0, 0));
}
