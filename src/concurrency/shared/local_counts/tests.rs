//! Random schedules: two processes, and a server whose calls run in any order, late, or never.

use super::*;
use crate::store::remote::tag::Tags;
use crate::testing::Random;
use crate::util::effort::rounds;
use crate::util::trace::Trace;
use crate::values::PartitionKey;

const LIMIT: u64 = 6;
const LEASE: Duration = Duration::from_secs(16);
/// A sixteenth of a lease, in which a call has time enough.
const TICK: Duration = Duration::from_secs(1);

#[derive(Clone, Copy)]
enum Call {
    Take(u64),
    Release(u64),
    Renew(Renewal),
}

/// A call that was sent.
struct Sent {
    process: usize,
    number: u64,
    call: Call,
    began: Timestamp,
    /// Set once it has run.
    answer: Option<bool>,
    /// Whether its caller has given up.
    is_given_up: bool,
}

/// The server, with the effects of its steps: units and the end of their lease, by process and number.
#[derive(Default)]
struct Server(HashMap<(usize, u64), (u64, Timestamp)>);

impl Server {
    fn total(&self) -> u64 {
        self.0.values().map(|(units, _)| units).sum()
    }

    fn add(&mut self, field: (usize, u64), units: u64, now: Timestamp) {
        let held = self.0.entry(field).or_insert((0, now));
        *held = (held.0 + units, now.saturating_add(LEASE));
    }

    fn run(&mut self, sent: &Sent, now: Timestamp) -> bool {
        let total = self.total();
        let field = (sent.process, sent.number);
        match sent.call {
            Call::Take(units) if total + units > LIMIT => return false,
            Call::Take(units) => self.add(field, units, now),
            Call::Release(units) => match self.0.get_mut(&field).filter(|(held, _)| *held >= units) {
                Some((held, _)) => *held -= units,
                None => return false,
            },
            Call::Renew(Renewal { units, .. }) => {
                self.0.retain(|(process, number), _| *process != sent.process || *number >= sent.number);
                self.add(field, units, now);
            }
        }
        true
    }
}

fn at_second(seconds: u64) -> Timestamp {
    Timestamp::from_nanos(seconds * 1_000_000_000)
}

struct World {
    random: Random,
    tag: KeyTag,
    now: Timestamp,
    processes: [LocalCounts; 2],
    server: Server,
    sent: Vec<Sent>,
    /// The units of requests in flight, by process, and whether the server has admitted them.
    requests: Vec<(usize, u64, bool)>,
    /// Whether the server has lost data, or a lease of units that are held has ended, since no renewal came through.
    has_lost: bool,
}

impl World {
    fn new(random: Random) -> Self {
        let tag = Tags::new(b"").of(&PartitionKey::from("a"));
        let processes = [LocalCounts::new(), LocalCounts::new()];
        let server = Server::default();
        let sent = Vec::new();
        let requests = Vec::new();
        let now = Timestamp::from_nanos(0);
        Self { random, tag, now, processes, server, sent, requests, has_lost: false }
    }

    fn send(&mut self, process: usize, number: u64, call: Call) {
        self.sent.push(Sent { process, number, call, began: self.now, answer: None, is_given_up: false });
    }

    fn send_release(&mut self, process: usize, release: Option<Release>) {
        if let Some(Release { number, units }) = release {
            self.send(process, number, Call::Release(units));
        }
    }

    fn arrive(&mut self, process: usize) {
        let units = 1 + self.random.below(2);
        let number = self.processes[process].begin(self.tag, self.now);
        self.send(process, number, Call::Take(units));
    }

    fn fall_back(&mut self, process: usize) {
        if self.processes[process].take_here(self.tag, 1, LIMIT, self.now).is_ok() {
            self.requests.push((process, 1, false));
        }
    }

    fn end_request(&mut self, index: usize) {
        let (process, units, _) = self.requests.swap_remove(index);
        let release = self.processes[process].release(self.tag, units);
        self.send_release(process, release);
    }

    fn run_on_server(&mut self, index: usize) {
        if self.sent[index].answer.is_none() {
            self.sent[index].answer = Some(self.server.run(&self.sent[index], self.now));
            if self.sent[index].is_given_up {
                self.sent.swap_remove(index);
            }
        }
    }

    /// Reports the answer to the caller. Without an answer, the caller gives up, and the call may run later.
    fn end_call(&mut self, index: usize) {
        let Sent { process, number, call, answer, is_given_up, .. } = self.sent[index];
        if is_given_up {
            return;
        }
        let counts = &self.processes[process];
        let end = if answer.is_some() { CallEnd::Ran } else { CallEnd::Unknown };
        let release = match call {
            Call::Take(units) if answer == Some(true) => {
                counts.took(self.tag, number, units);
                self.requests.push((process, units, true));
                None
            }
            Call::Take(_) => {
                counts.took_none(self.tag, number, end);
                None
            }
            Call::Release(_) => {
                counts.released(self.tag, number, if answer == Some(true) { CallEnd::Ran } else { CallEnd::Unknown });
                None
            }
            Call::Renew(renewal) => counts.renewed(self.tag, renewal, end),
        };
        self.send_release(process, release);
        match answer {
            Some(_) => drop(self.sent.swap_remove(index)),
            None => self.sent[index].is_given_up = true,
        }
    }

    /// Time passes, and calls that take too long are given up.
    fn tick(&mut self) {
        self.now = self.now.saturating_add(TICK);
        let now = self.now;
        let tag = self.tag;
        let processes = &self.processes;
        self.server.0.retain(|(process, _), (_, end)| {
            let has_ended = *end <= now;
            self.has_lost |= has_ended && processes[*process].units(tag) > 0;
            !has_ended
        });
        for index in (0..self.sent.len()).rev() {
            if now.saturating_since(self.sent[index].began) >= LEASE / PATIENCE_DIVISOR - TICK {
                self.end_call(index);
            }
        }
        for process in 0..2 {
            for tag in self.processes[process].due(self.now, LEASE) {
                if let Some(renewal) = self.processes[process].renew(tag, self.now, LEASE) {
                    self.send(process, renewal.number, Call::Renew(renewal));
                }
            }
        }
    }

    fn step(&mut self) {
        let process = self.random.below(2) as usize;
        let call = (!self.sent.is_empty()).then(|| self.random.below(self.sent.len() as u64) as usize);
        match (self.random.below(100), call) {
            (0..=19, _) => self.arrive(process),
            (20..=21, _) => self.fall_back(process),
            (22..=39, _) if !self.requests.is_empty() => {
                let index = self.random.below(self.requests.len() as u64) as usize;
                self.end_request(index);
            }
            (40..=64, Some(index)) => self.run_on_server(index),
            (65..=87, Some(index)) if self.sent[index].answer.is_some() => self.end_call(index),
            (88, Some(index)) => self.end_call(index),
            (89..=98, _) => self.tick(),
            (99, _) if self.random.below(20) == 0 => {
                self.server.0.clear();
                self.has_lost = true;
            }
            _ => {}
        }
    }

    /// Without a loss of data, the server has at least the units that it has admitted, so it never admits too many.
    fn check(&self) {
        for process in 0..2 {
            let requests = self.requests.iter().filter(|(holder, ..)| *holder == process);
            let held = requests.map(|(_, units, _)| units).sum::<u64>();
            assert_eq!(self.processes[process].units(self.tag), held);
        }
        if !self.has_lost {
            let admitted = self.requests.iter().filter(|request| request.2).map(|request| request.1).sum::<u64>();
            assert!(admitted <= LIMIT, "{admitted} units in flight");
        }
    }

    /// Lets all calls come to an end, and all renewals.
    fn settle(&mut self) {
        for _ in 0..3 * 16 {
            while let Some(index) = self.sent.iter().position(|sent| sent.answer.is_none()) {
                self.run_on_server(index);
            }
            for index in (0..self.sent.len()).rev() {
                self.end_call(index);
            }
            self.tick();
        }
    }

    fn check_settled(&self) {
        let held: u64 = self.requests.iter().map(|request| request.1).sum();
        assert_eq!(self.server.total(), held, "after all renewals");
    }
}

/// After a renewal, it counts exactly.
#[test]
fn the_server_never_counts_too_little() {
    let mut world = World::new(Random::of_trial(0));
    let mut complete = 0;
    let mut trace = Trace::of(rounds(200, 3_000));
    while trace.goes_on([("rounds in which the server loses nothing", complete > 60)]) {
        let round = trace.step();
        for _ in 0..150 {
            world.step();
            world.check();
        }
        complete += usize::from(!world.has_lost);
        world.settle();
        world.check_settled();
        while !world.requests.is_empty() {
            world.end_request(0);
        }
        world.settle();
        assert_eq!(world.server.total(), 0);
        assert!(world.processes.iter().all(LocalCounts::is_empty), "round {round}: a key without units is forgotten");
        world.has_lost = false;
    }
    println!("nothing was lost in {complete} rounds");
}

#[test]
fn units_are_renewed_after_half_a_lease() {
    let counts = LocalCounts::new();
    let tag = Tags::new(b"").of(&PartitionKey::from("a"));
    let number = counts.begin(tag, at_second(0));
    counts.took(tag, number, 3);
    assert!(counts.due(at_second(7), LEASE).is_empty() && counts.renew(tag, at_second(7), LEASE).is_none());
    assert_eq!(counts.due(at_second(8), LEASE), [tag]);

    // A call on the earlier field is waited for, but not for ever: its runtime may be blocked.
    let blocked = counts.begin(tag, at_second(8));
    assert!(counts.renew(tag, at_second(8), LEASE).is_none());
    let newer = counts.begin(tag, at_second(9));
    assert!(newer > blocked);
    counts.took(tag, newer, 1);
    assert!(counts.due(at_second(11), LEASE).is_empty());
    // Not released on the server: the renewal moves one unit fewer.
    assert_eq!(counts.release(tag, 1), None);
    let renewal = counts.renew(tag, at_second(12), LEASE).unwrap();
    assert_eq!((renewal.number, renewal.units), (newer, 2));
    assert_eq!(counts.release(tag, 2), None);
    assert_eq!(counts.renewed(tag, renewal, CallEnd::Ran), Some(Release { number: newer, units: 2 }));
    counts.released(tag, newer, CallEnd::Ran);
    assert_eq!(counts.units(tag), 1);

    // A further renewal reports the units that the blocked call took after all.
    counts.took(tag, blocked, 2);
    let renewal = counts.renew(tag, at_second(13), LEASE).unwrap();
    assert_eq!(renewal.units, 3);
}

#[test]
fn a_lost_renewal_is_replaced() {
    let counts = LocalCounts::new();
    let tag = Tags::new(b"").of(&PartitionKey::from("a"));
    let number = counts.begin(tag, at_second(0));
    counts.took(tag, number, 2);
    let lost = counts.renew(tag, at_second(8), LEASE).unwrap();
    assert!(counts.renew(tag, at_second(11), LEASE).is_none());
    let second = counts.renew(tag, at_second(12), LEASE).unwrap();
    assert!(second.number > lost.number && second.units == 2);
    // The first one comes back after all: its result is out of date.
    assert_eq!(counts.renewed(tag, lost, CallEnd::Ran), None);
    assert!(counts.due(at_second(15), LEASE).is_empty(), "the second is still under way");
    assert_eq!(counts.renewed(tag, second, CallEnd::Ran), None);
    assert_eq!(counts.release(tag, 2), Some(Release { number: second.number, units: 2 }));
}

#[test]
fn uncertain_calls_are_renewed_at_once() {
    let counts = LocalCounts::new();
    let tag = Tags::new(b"").of(&PartitionKey::from("a"));
    let number = counts.begin(tag, at_second(0));
    counts.took(tag, number, 1);
    let release = counts.release(tag, 1).unwrap();
    assert!(counts.due(at_second(1), LEASE).is_empty(), "the call is under way");
    counts.released(tag, release.number, CallEnd::Unknown);
    for second in 1..4 {
        let renewal = counts.renew(tag, at_second(second), LEASE).expect("the server may still count one");
        assert_eq!(renewal.units, 0);
        let end = if second < 3 { CallEnd::Unknown } else { CallEnd::Ran };
        assert_eq!(counts.renewed(tag, renewal, end), None);
    }
    assert!(counts.is_empty());
}

#[test]
fn unitless_failures_end_with_their_lease() {
    let counts = LocalCounts::new();
    let tag = Tags::new(b"").of(&PartitionKey::from("a"));
    let number = counts.begin(tag, at_second(0));
    counts.took_none(tag, number, CallEnd::Unknown);
    assert_eq!(counts.due(at_second(1), LEASE), [tag], "the server may have taken units");
    assert!(counts.due(at_second(21), LEASE).is_empty());
    assert!(counts.is_empty());
    let number = counts.begin(tag, at_second(30));
    counts.took_none(tag, number, CallEnd::NotRun);
    assert!(counts.is_empty());
}
