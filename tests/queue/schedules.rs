//! A hundred thousand random schedules of arrivals, departures, cancellations and a close, against a queue
//! that is a naive model.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::{Instant, advance};
use tower_sluice::testing::Random;
use tower_sluice::{Ask, Check, Decision, LeakyQueue, Limiter, LimiterError, PartitionKey, Pending, Quota};

const MS: u64 = 1_000_000;
const INTERVAL: u64 = 7 * MS;

#[derive(Clone, Copy, Debug)]
struct Settings {
    burst: u64,
    capacity: usize,
    max_wait: u64,
}

/// The FIFO of one key, in nanoseconds.
#[derive(Default)]
struct Fifo {
    paid_until: u64,
    waiters: Vec<Waiter>,
    /// The outcomes of waiters that have not seen them yet.
    outcomes: BTreeMap<usize, Outcome>,
}

#[derive(Clone, Copy)]
struct Waiter {
    number: usize,
    since: u64,
}

#[derive(Clone, Copy, Debug)]
enum Outcome {
    Turn { delay: u64, paid_until: u64 },
    Closed,
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Passes,
    Waits { delay: u64 },
    Refused { wait: u64 },
}

impl Fifo {
    const fn leaves(&self, settings: Settings, ahead: u64) -> u64 {
        (self.paid_until + ahead * INTERVAL).saturating_sub((settings.burst - 1) * INTERVAL)
    }

    fn judge(&self, settings: Settings, now: u64, patience: u64) -> Answer {
        let head = self.leaves(settings, 0);
        if self.waiters.is_empty() && head <= now {
            return Answer::Passes;
        }
        let turn = self.leaves(settings, self.waiters.len() as u64);
        let too_long = (turn - now).saturating_sub(patience);
        let has_place = self.waiters.len() < settings.capacity;
        let wait = if has_place { too_long } else { too_long.max(head - now) };
        if wait == 0 { Answer::Waits { delay: turn - now } } else { Answer::Refused { wait } }
    }

    fn arrive(&mut self, settings: Settings, now: u64, patience: u64, number: usize) -> Answer {
        let answer = self.judge(settings, now, patience);
        match answer {
            Answer::Passes => self.paid_until = self.paid_until.max(now) + INTERVAL,
            Answer::Waits { .. } => self.waiters.push(Waiter { number, since: now }),
            Answer::Refused { .. } => {}
        }
        answer
    }

    fn tick(&mut self, settings: Settings, now: u64) {
        while self.leaves(settings, 0) <= now && !self.waiters.is_empty() {
            let waiter = self.waiters.remove(0);
            // Only fifty milliseconds are caught up on.
            self.paid_until = self.paid_until.max(now.saturating_sub(50 * MS)) + INTERVAL;
            let outcome = Outcome::Turn { delay: now - waiter.since, paid_until: self.paid_until };
            self.outcomes.insert(waiter.number, outcome);
        }
    }

    fn cancel(&mut self, settings: Settings, now: u64, number: usize) {
        self.waiters.retain(|waiter| waiter.number != number);
        if let Some(Outcome::Turn { paid_until, .. }) = self.outcomes.remove(&number) {
            // The next gets what is not spent yet of its interval.
            self.paid_until -= INTERVAL.min(paid_until.saturating_sub(now));
            self.tick(settings, now);
        }
    }

    fn close(&mut self) {
        let waiters = self.waiters.drain(..);
        self.outcomes.extend(waiters.map(|waiter| (waiter.number, Outcome::Closed)));
    }
}

struct Ticket {
    fifo: usize,
    number: usize,
    pending: Pending,
    /// Not polled, although its turn may have come.
    sleeps: bool,
}

struct Trial {
    seed: u64,
    settings: Settings,
    queue: LeakyQueue,
    fifos: [Fifo; 2],
    tickets: Vec<Ticket>,
    start: Instant,
}

async fn settle() {
    for _ in 0..4 {
        tokio::task::yield_now().await;
    }
}

impl Trial {
    fn new(seed: u64, random: &mut Random) -> Self {
        let settings = Settings {
            burst: random.pick(&[1, 1, 2, 4]),
            capacity: random.pick(&[0, 1, 3, 3, 5]),
            max_wait: random.pick(&[5, 14, 25, 25, 60]) * MS,
        };
        let quota = Quota::new(1, Duration::from_nanos(INTERVAL)).unwrap();
        let queue = LeakyQueue::new(quota.burst(u32::try_from(settings.burst).unwrap()))
            .capacity(settings.capacity)
            .max_wait(Duration::from_nanos(settings.max_wait));
        Self { seed, settings, queue, fifos: Default::default(), tickets: Vec::new(), start: Instant::now() }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap()
    }

    fn arrive(&mut self, number: usize, random: &mut Random) {
        let fifo = usize::from(random.below(3) == 0);
        let key = PartitionKey::from(fifo as u64);
        let patience = (random.below(3) == 0).then(|| random.below(40) * MS);
        let longest = patience.map_or(u64::MAX, |patience| patience.saturating_sub(1)).min(self.settings.max_wait);
        let patience = patience.map(Duration::from_nanos);
        let now = self.now();
        let foretold = self.queue.decide(&Ask::peek(&key, 1).within(patience)).at_once().expect("open");
        let expected = self.fifos[fifo].arrive(self.settings, now, longest, number);
        let seen = |decision: &Decision| match decision.retry_after() {
            Some(wait) => Answer::Refused { wait: u64::try_from(wait.as_nanos()).unwrap() },
            None if decision.delay().is_zero() => Answer::Passes,
            None => Answer::Waits { delay: u64::try_from(decision.delay().as_nanos()).unwrap() },
        };
        assert_eq!(seen(&foretold), expected, "{self:?}, {number}, foretold");
        match self.queue.decide(&Ask::charge(&key, 1).within(patience)) {
            Check::Ready(decision) => assert_eq!(seen(&decision.unwrap()), expected, "{self:?}, {number}"),
            Check::Pending(pending) => {
                assert!(matches!(expected, Answer::Waits { .. }), "{self:?}: {number} waits, but {expected:?}");
                self.tickets.push(Ticket { fifo, number, pending, sleeps: random.below(6) == 0 });
            }
        }
    }

    /// Polls all tickets that are awake; each must have the outcome of the model, and no other.
    fn look(&mut self) {
        for mut ticket in std::mem::take(&mut self.tickets) {
            if ticket.sleeps {
                self.tickets.push(ticket);
                continue;
            }
            let outcome = self.fifos[ticket.fifo].outcomes.remove(&ticket.number);
            match ((&mut ticket.pending).now_or_never(), outcome) {
                (None, None) => self.tickets.push(ticket),
                (Some(answer), Some(outcome)) => self.compare(&ticket, &answer, outcome),
                (answer, outcome) => panic!("{self:?}: {} got {answer:?}, expected {outcome:?}", ticket.number),
            }
        }
        let waiting: usize = self.fifos.iter().map(|fifo| fifo.waiters.len()).sum();
        assert_eq!(self.queue.waiting(), waiting, "{self:?}");
    }

    fn compare(&self, ticket: &Ticket, answer: &Result<Decision, LimiterError>, outcome: Outcome) {
        let is_same = match (answer.as_ref(), outcome) {
            (Ok(decision), Outcome::Turn { delay, .. }) => {
                decision.is_allowed() && decision.delay() == Duration::from_nanos(delay)
            }
            (Err(error), Outcome::Closed) => error.to_string() == "the queue was closed",
            _ => false,
        };
        assert!(is_same, "{self:?}: {} got {answer:?}, expected {outcome:?}", ticket.number);
    }

    async fn pass_time(&mut self, millis: u64) {
        for _ in 0..millis {
            advance(Duration::from_millis(1)).await;
            settle().await;
            let now = self.now();
            self.fifos.iter_mut().for_each(|fifo| fifo.tick(self.settings, now));
            self.look();
        }
    }

    fn cancel(&mut self, index: usize) {
        let ticket = self.tickets.swap_remove(index);
        drop(ticket.pending);
        let now = self.now();
        self.fifos[ticket.fifo].cancel(self.settings, now, ticket.number);
        self.look();
    }
}

impl std::fmt::Debug for Trial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "seed {} ({:?}) at {} ns", self.seed, self.settings, self.now())
    }
}

async fn try_out(seed: u64) {
    let mut random = Random::new(seed);
    let mut trial = Trial::new(seed, &mut random);
    let closes = (random.below(4) == 0).then(|| random.below(30));
    for number in 0..30 {
        match random.below(8) {
            0..=3 => {
                trial.arrive(number, &mut random);
                trial.look();
            }
            4 if !trial.tickets.is_empty() => {
                let index = random.below(trial.tickets.len() as u64);
                trial.cancel(usize::try_from(index).unwrap());
            }
            5 if !trial.tickets.is_empty() => {
                let index = random.below(trial.tickets.len() as u64);
                trial.tickets[usize::try_from(index).unwrap()].sleeps ^= true;
                trial.look();
            }
            _ => trial.pass_time(random.below(9)).await,
        }
        if closes == Some(number as u64) {
            trial.queue.close();
            trial.fifos.iter_mut().for_each(Fifo::close);
            trial.look();
            assert!(matches!(trial.queue.decide(&Ask::charge(&0_u64.into(), 1)), Check::Ready(Err(_))), "{trial:?}");
            assert_eq!(trial.queue.waiting(), 0);
            break;
        }
    }
    if random.below(2) == 0 {
        // All that are left get their outcomes within the longest wait and the timer's tick.
        trial.tickets.iter_mut().for_each(|ticket| ticket.sleeps = false);
        trial.pass_time(trial.settings.max_wait / MS + 2).await;
        assert_eq!(trial.tickets.len(), 0, "{trial:?}");
    }
    trial.tickets.clear();
    assert_eq!(trial.queue.waiting(), 0, "{trial:?}");
}

#[tokio::test(start_paused = true)]
async fn a_hundred_thousand_schedules_follow_the_model() {
    for seed in 0..100_000 {
        try_out(seed).await;
    }
}
