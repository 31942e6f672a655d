//! Simulates a sample from a load: which requests cost a call, and how many DynamoDB writes that is.

use std::cmp::Reverse;
use std::collections::hash_map::{Entry, HashMap};
use std::collections::{BTreeMap, BinaryHeap};

use super::load::Load;
use super::process::{Known, LeaseAction, Seen};
use super::sample::{Request, Sample};
use super::server::{Hint, Key, Kind, Limit, Reply, Server};
use super::tally::{Rates, Tally};
use super::traffic::Traffic;

/// How many requests are simulated and counted, in about the time that it takes to read this.
const REQUESTS: f64 = 300_000.0;

/// How many followers one call decides on at most.
const BATCH: u32 = 256;

/// The costs that a load causes on its server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Estimate {
    pub(crate) all: Rates,
    /// For the hottest key alone.
    pub(crate) hottest: Rates,
    pub(crate) limit: Limit,
    /// How many requests were counted.
    pub(crate) counted: u64,
}

struct Simulation {
    load: Load,
    sample: Sample,
    traffic: Traffic,
    server: Server,
    /// By set, and within it by process.
    known: Vec<Known>,
    flights: HashMap<(u32, Key), Flight>,
    /// When calls in flight end: time, a unique number, process and key.
    answers: BinaryHeap<Reverse<(u64, u64, u32, Key)>>,
    calls: u64,
    begin: u64,
    tallies: BTreeMap<usize, Tally>,
    hottest: Tally,
}

/// A call in flight, and the requests that wait for the next one.
struct Flight {
    /// For the band, the set and whether it is counted.
    request: Request,
    requests: u32,
    extra: u32,
    sent: u64,
    reply: Reply,
    followers: u32,
}

/// Simulates a load. Equal seeds give equal estimates.
pub(crate) fn estimate(load: &Load, seed: u64) -> Estimate {
    let traffic = Traffic::of(load);
    let limit = traffic.limit(load);
    let sample = Sample::new(traffic, seed);
    let lifetime = load.lease.map_or(0.0, |lease| lease.lifetime.as_secs_f64());
    let mut seconds = (REQUESTS / sample.rate()).max(2.0 + 2.0 * lifetime);
    let window = limit.period() as f64 / 1e9;
    if limit.kind == Kind::FixedWindow && window < 60.0 {
        // Whole windows, since a window's end differs from its beginning.
        seconds = (seconds / window).ceil() * window;
    }
    let begin = seconds * 0.5 * 1e9;
    let mut simulation = Simulation {
        load: *load,
        known: vec![Known::default(); sample.sets as usize * load.processes as usize],
        sample,
        traffic,
        server: Server::new(limit),
        flights: HashMap::new(),
        answers: BinaryHeap::new(),
        calls: 0,
        begin: begin as u64,
        tallies: BTreeMap::new(),
        hottest: Tally::default(),
    };
    simulation.run((begin + seconds * 1e9) as u64);
    simulation.estimate()
}

impl Simulation {
    fn run(&mut self, end: u64) {
        loop {
            let request = self.sample.next();
            while self.answers.peek().is_some_and(|next| next.0.0 <= request.at) {
                let Some(Reverse((at, _, process, key))) = self.answers.pop() else { break };
                self.answer(process, key, at);
            }
            if request.at > end {
                return;
            }
            let process = self.sample.below(self.load.processes);
            self.count(&request, request.at, |tally| tally.requests += 1);
            self.arrive(process, request);
        }
    }

    /// Decides on a request, by its process's knowledge or by a call.
    fn arrive(&mut self, process: u32, request: Request) {
        let (key, now, limit, leasing) = (request.key(), request.at, self.server.limit, self.load.lease);
        let known = self.known(process, request.set);
        if leasing.is_some() && known.spend(key, now) {
            return;
        }
        if known.rejects(key, limit, now, true) {
            return self.count(&request, now, |tally| tally.rejected += 1);
        }
        match self.flights.entry((process, key)) {
            Entry::Occupied(mut flight) => flight.get_mut().followers += 1,
            Entry::Vacant(_) => self.call(process, request, 1, 0, now),
        }
    }

    /// Makes a call that decides on `requests` requests. They are decided on when it is sent.
    fn call(&mut self, process: u32, request: Request, requests: u32, followers: u32, now: u64) {
        let (key, limit) = (request.key(), self.server.limit);
        let known = &mut self.known[(request.set * self.load.processes + process) as usize];
        let action = match self.load.lease {
            Some(leasing) => known.lease_action(key, leasing, now),
            None => LeaseAction::More(0),
        };
        let mut tally = Tally::default();
        let extra = match action {
            LeaseAction::More(extra) => extra,
            LeaseAction::Refund(left) => {
                self.server.refund(key, left);
                (tally.calls, tally.writes) = (1, 1);
                0
            }
        };
        let share = self.traffic.rate_of(request.rank) * limit.interval as f64 / 1e9;
        let count = requests + extra;
        let reply = self.server.charge(key, now, count, share);
        tally.calls += 1;
        tally.decided += u64::from(count);
        tally.rejected = requests.saturating_sub(reply.admitted).into();
        let hint = known.hint(key);
        Hint::charge(hint, limit, now, count, reply, &mut tally);
        known.set_hint(key, Hint::after(hint, now, reply));
        self.count(&request, now, |counts| counts.add(&tally));

        let flight = Flight { request, requests, extra, sent: now, reply, followers };
        self.flights.insert((process, key), flight);
        self.calls += 1;
        let round_trip = u64::try_from(self.load.round_trip.as_nanos()).unwrap_or(u64::MAX);
        self.answers.push(Reverse((now.saturating_add(round_trip), self.calls, process, key)));
    }

    /// Notes a call's result, and answers the requests that wait for the next one.
    fn answer(&mut self, process: u32, key: Key, now: u64) {
        let Some(flight) = self.flights.remove(&(process, key)) else { return };
        let Flight { request, requests, extra, sent, reply, mut followers } = flight;
        let (limit, leasing) = (self.server.limit, self.load.lease);
        let known = self.known(process, request.set);
        let seen = Seen { sent, answered: now, state: reply.new };
        known.learn(key, limit, seen);
        if let Some(leasing) = leasing.filter(|_| reply.admitted > 0) {
            known.hold(key, reply.admitted.saturating_sub(requests), extra, seen, leasing, limit);
        }
        while followers > 0 {
            let known = self.known(process, request.set);
            if leasing.is_some() && known.spend(key, now) {
                followers -= 1;
            } else if known.rejects(key, limit, now, false) {
                followers -= 1;
                self.count(&request, now, |tally| tally.rejected += 1);
            } else {
                let batch = followers.min(BATCH);
                return self.call(process, request, batch, followers - batch, now);
            }
        }
    }

    fn known(&mut self, process: u32, set: u32) -> &mut Known {
        &mut self.known[(set * self.load.processes + process) as usize]
    }

    fn count(&mut self, request: &Request, now: u64, change: impl Fn(&mut Tally)) {
        if now >= self.begin && request.is_counted {
            change(self.tallies.entry(request.band).or_default());
            if request.rank == 1 {
                change(&mut self.hottest);
            }
        }
    }

    fn estimate(&self) -> Estimate {
        let (mut all, mut covered) = (Rates::default(), 0.0);
        for (band, tally) in &self.tallies {
            let rate = self.sample.bands[*band].rate;
            all += tally.scaled(rate);
            covered += if tally.requests > 0 { rate } else { 0.0 };
        }
        // If no request in the sample stands for a part, it is assumed to be like the rest.
        let all = all.times(self.load.rate as f64 / covered);
        let hottest = self.traffic.rate_of(1);
        let counted = self.tallies.values().map(|tally| tally.requests).sum();
        Estimate {
            all,
            // If all keys are alike, the first may not be in the sample.
            hottest: match self.hottest.requests {
                0 => all.times(hottest / all.requests),
                _ => self.hottest.scaled(hottest),
            },
            limit: self.server.limit,
            counted,
        }
    }
}
