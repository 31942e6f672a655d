//! Random schedules of arrivals, departures, cancellations, refunds, changes to the rules and to the keys' own quotas,
//! and a close, against a naive model.

use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::{Instant, advance};
use tower_sluice::limiter::{Answer, Ask, Mode, Pending, Receipt};
use tower_sluice::testing::Random;
use tower_sluice::{Decision, LeakyQueue, Limiter, LimiterError, PartitionKey, Quota};

use super::oracle::{Arrival, Oracle, Outcome, PERIOD, Rules};
use crate::support::effort::rounds;
use crate::support::queue::settle;
use crate::support::trace::Trace;

const MS: u64 = 1_000_000;

/// A request that waits.
struct Ticket {
    key: usize,
    number: usize,
    cost: u64,
    pending: Pending,
    /// Not polled, although its turn may have come.
    sleeps: bool,
}

/// A request that departed, and may be refunded.
struct Departed {
    key: usize,
    number: usize,
    cost: u64,
    receipt: Receipt,
}

struct Trial {
    seed: u64,
    random: Random,
    /// Whether keys have their own quotas, which change.
    has_own_quotas: bool,
    /// The queue in force and the one before it, which share a schedule.
    queues: [LeakyQueue; 2],
    oracles: [Oracle; 2],
    tickets: Vec<Ticket>,
    departed: Vec<Departed>,
    start: Instant,
}

fn key(number: usize) -> PartitionKey {
    PartitionKey::from(number as u64)
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap()
}

fn arrival(decision: &Decision) -> Arrival {
    match decision.delay() {
        _ if !decision.is_allowed() => Arrival::Rejected { retry_after: decision.retry_after().map(nanos) },
        Duration::ZERO => Arrival::Departs,
        delay => Arrival::Waits { delay: nanos(delay) },
    }
}

fn random_rules(random: &mut Random) -> Rules {
    Rules {
        limit: random.pick(&[1, 1, 2, 3]),
        burst: random.pick(&[1, 1, 2, 4]),
        capacity: random.pick(&[0, 1, 3, 3, 5]),
        max_wait: random.pick(&[5, 14, 25, 25, 60]) * MS,
    }
}

fn queue(rules: Rules) -> LeakyQueue {
    let quota = Quota::per(rules.limit, Duration::from_nanos(PERIOD));
    LeakyQueue::new(quota.burst(rules.burst)).max_queue(rules.capacity).max_wait(Duration::from_nanos(rules.max_wait))
}

impl Trial {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let rules = random_rules(&mut random);
        let queues = [queue(rules), queue(rules)];
        assert!(queues[0].inherit(&queues[1]).is_some());
        let oracles = [Oracle::new(rules), Oracle::new(rules)];
        let has_own_quotas = random.below(2) == 0;
        Self {
            seed,
            random,
            has_own_quotas,
            queues,
            oracles,
            tickets: Vec::new(),
            departed: Vec::new(),
            start: Instant::now(),
        }
    }

    fn now(&self) -> u64 {
        nanos(self.start.elapsed())
    }

    fn arrive(&mut self, number: usize) {
        let key_number = usize::from(self.random.below(3) == 0);
        let key = key(key_number);
        let cost = self.random.pick(&[0, 1, 1, 1, 1, 1, 2, 5]);
        let patience = (self.random.below(3) == 0).then(|| self.random.below(40) * MS);
        // A turn that comes when the patience ends comes too late.
        let longest = patience.map_or(u64::MAX, |patience| patience.saturating_sub(1));
        let patience = patience.map(Duration::from_nanos);
        let now = self.now();
        if self.has_own_quotas && self.random.below(3) == 0 {
            let own = (self.random.pick(&[1, 2, 3]), self.random.pick(&[1, 1, 2, 4]));
            let own = (self.random.below(4) > 0).then_some(own);
            self.oracles[key_number].ask_under(now, own);
        }
        let own = self.oracles[key_number].own;
        let quota = own.map(|(limit, burst)| Quota::per(limit, Duration::from_nanos(PERIOD)).burst(burst));
        let queue = &self.queues[usize::from(self.random.below(4) == 0)];
        let charge = Ask::charge(&key, cost).under(quota);
        let predicted = queue.decide(&charge.to(Mode::Peek).within(patience)).at_once().expect("open");
        let expected = self.oracles[key_number].check(now, cost, longest);
        assert_eq!(arrival(&predicted), expected, "{self:?}: {number}, predicted");
        if self.random.below(8) == 0 {
            // A shadow accepts any wait.
            let decision = queue.decide(&charge.to(Mode::Shadow)).at_once().expect("open");
            let expected = self.oracles[key_number].arrive(now, number, cost, u64::MAX);
            assert_eq!(arrival(&decision), expected, "{self:?}: {number}, a shadow");
            return;
        }
        self.oracles[key_number].arrive(now, number, cost, longest);
        match queue.decide(&charge.within(patience)) {
            Answer::Ready(decision) => {
                let decision = decision.expect("open");
                assert_eq!(arrival(&decision), expected, "{self:?}: {number}");
                if decision.is_allowed() {
                    self.departed.push(Departed { key: key_number, number, cost, receipt: decision.receipt() });
                }
            }
            Answer::Pending(pending) => {
                assert!(matches!(expected, Arrival::Waits { .. }), "{self:?}: {number} waits, but {expected:?}");
                let sleeps = self.random.below(6) == 0;
                self.tickets.push(Ticket { key: key_number, number, cost, pending, sleeps });
            }
        }
    }

    /// Polls all tickets that are awake: each must have the outcome that the model predicts, and no other.
    fn poll_tickets(&mut self) {
        for mut ticket in std::mem::take(&mut self.tickets) {
            if ticket.sleeps {
                self.tickets.push(ticket);
                continue;
            }
            let outcome = self.oracles[ticket.key].take_outcome(ticket.number);
            match ((&mut ticket.pending).now_or_never(), outcome) {
                (None, None) => self.tickets.push(ticket),
                (Some(answer), Some(outcome)) => self.compare(&ticket, &answer, outcome),
                (answer, outcome) => panic!("{self:?}: {} got {answer:?}, not {outcome:?}", ticket.number),
            }
        }
        let waiting: usize = self.oracles.iter().map(Oracle::waiting).sum();
        assert_eq!(self.queues.each_ref().map(LeakyQueue::waiting), [waiting; 2], "{self:?}");
        self.queues[0].check_invariants();
    }

    fn compare(&mut self, ticket: &Ticket, answer: &Result<Decision, LimiterError>, outcome: Outcome) {
        let is_same = match (answer, outcome) {
            (Ok(decision), Outcome::Departed { delay }) => {
                let &Ticket { key, number, cost, .. } = ticket;
                self.departed.push(Departed { key, number, cost, receipt: decision.receipt() });
                decision.is_allowed() && decision.delay() == Duration::from_nanos(delay)
            }
            (Ok(decision), Outcome::Displaced { cost, patience, own }) => {
                let oracle = &self.oracles[ticket.key];
                // The answer that an arrival would get now; the wait is at least a nanosecond, since it must come
                // again.
                let is_that_of = |oracle: &Oracle| {
                    let retry_after = match oracle.check(self.now(), cost, patience) {
                        Arrival::Rejected { retry_after } => retry_after,
                        Arrival::Departs | Arrival::Waits { .. } => Some(1),
                    };
                    arrival(decision) == Arrival::Rejected { retry_after }
                };
                // A key that owes nothing is forgotten. Then the waiter knows only the quota under which it was
                // displaced, and no later one.
                is_that_of(oracle) || oracle.is_idle(self.now()) && is_that_of(&Oracle::idle(oracle.rules, own))
            }
            (Err(error), Outcome::Closed) => error.to_string() == "the queue was closed",
            _ => false,
        };
        assert!(is_same, "{self:?}: {} got {answer:?}, not {outcome:?}", ticket.number);
    }

    async fn pass_time(&mut self, millis: u64) {
        for _ in 0..millis {
            advance(Duration::from_millis(1)).await;
            settle().await;
            let now = self.now();
            self.oracles.iter_mut().for_each(|oracle| oracle.release(now));
            self.poll_tickets();
        }
    }

    fn index_below(&mut self, len: usize) -> usize {
        usize::try_from(self.random.below(len as u64)).unwrap()
    }

    fn cancel(&mut self) {
        let index = self.index_below(self.tickets.len());
        let Ticket { key, number, pending, .. } = self.tickets.swap_remove(index);
        drop(pending);
        let now = self.now();
        self.oracles[key].leave(now, number);
    }

    fn refund(&mut self) {
        let index = self.index_below(self.departed.len());
        let Departed { key: key_number, number, cost, receipt } = self.departed.swap_remove(index);
        self.queues[0].refund(&Ask::charge(&key(key_number), cost), receipt, cost);
        let now = self.now();
        self.oracles[key_number].refund(now, number);
    }

    fn change(&mut self) {
        let rules = random_rules(&mut self.random);
        let next = queue(rules);
        assert!(next.inherit(&self.queues[0]).is_some(), "{self:?}");
        let now = self.now();
        self.oracles.iter_mut().for_each(|oracle| oracle.change(now, rules));
        self.queues.swap(0, 1);
        self.queues[0] = next;
    }

    fn close(&mut self) {
        self.queues[0].close();
        self.oracles.iter_mut().for_each(Oracle::close);
        self.poll_tickets();
        assert!(matches!(self.queues[0].decide(&Ask::charge(&key(0), 1)), Answer::Ready(Err(_))), "{self:?}");
    }

    fn is_undefined(&self) -> bool {
        let now = self.now();
        self.oracles.iter().any(|oracle| oracle.is_undefined(now))
    }

    /// Returns whether it ran to its end.
    async fn run(mut self) -> bool {
        let closes_at = (self.random.below(4) == 0).then(|| self.random.below(30));
        for number in 0..30 {
            match self.random.below(24) {
                0..=11 => self.arrive(number),
                12..=14 if !self.tickets.is_empty() => self.cancel(),
                15..=17 if !self.tickets.is_empty() => {
                    let index = self.index_below(self.tickets.len());
                    self.tickets[index].sleeps ^= true;
                }
                18 if !self.departed.is_empty() => self.refund(),
                19 => self.change(),
                _ => {
                    let millis = self.random.below(9);
                    self.pass_time(millis).await;
                }
            }
            self.poll_tickets();
            if self.is_undefined() {
                return false;
            }
            if closes_at == Some(number as u64) {
                self.close();
                break;
            }
        }
        if self.random.below(2) == 0 {
            // All remaining tickets get their outcomes within the longest wait and the timer's tick.
            self.tickets.iter_mut().for_each(|ticket| ticket.sleeps = false);
            self.pass_time(self.oracles[0].rules.max_wait / MS + 2).await;
            assert_eq!((self.tickets.len(), self.queues[0].waiting()), (0, 0), "{self:?}");
        }
        true
    }
}

impl std::fmt::Debug for Trial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "seed {} ({:?}) at {} ns", self.seed, self.oracles[0].rules, self.now())
    }
}

#[tokio::test(start_paused = true)]
async fn random_schedules_follow_the_model() {
    let trials = rounds(3_000, 200_000);
    let mut ended = 0;
    let mut trace = Trace::of(trials);
    while trace.goes_on([("trials that come to their end", ended > trials * 3 / 4)]) {
        ended += usize::from(Trial::new(trace.seed()).run().await);
    }
}
