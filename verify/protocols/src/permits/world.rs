//! The states of all parts, and every step that a part can make.

use std::time::Duration;

use super::entry::{CallEnd, LocalEntry, PATIENCE_DIVISOR, Release, Renewal};
use super::server::{Moved, Script, Server};
use crate::values::time::Timestamp;

/// In ticks.
pub(super) const LEASE: u8 = 4;

/// A tick is a nanosecond for the counts, which read `NOW` at all times.
const NOW: u64 = 100;

/// Greater ages are alike, because the longest age that counts distinguish is a lease and a quarter.
const OLDEST: u64 = LEASE as u64 + (LEASE as u64 / PATIENCE_DIVISOR as u64) + 1;

/// A process with this many calls under way does not begin a request. Otherwise, there could be any number, since a
/// release does not wait for anything.
const MOST_CALLS: usize = 2;

/// The settings for a model.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub(super) processes: u8,
    pub(super) limit: u64,
    /// How many requests a process has at a time, asking or in flight.
    pub(super) requests: u64,
    /// Whether a request passes in its own process when its call fails.
    pub(super) has_fallback: bool,
    /// Whether the calls of running processes take no time: far fewer states.
    pub(super) calls_are_instant: bool,
    /// Whether a step reads and swaps, as on records, so that a late swap's data is dated by its read. Otherwise it is
    /// a script.
    pub(super) reads_and_swaps: bool,
    /// Whether the second process asks in every tick while it has nothing in flight. The others begin this many
    /// requests.
    pub(super) waiter: Option<u8>,
    pub(super) faults: Faults,
    pub(super) flaw: Option<Flaw>,
    /// The bounds that the properties claim.
    pub(super) bounds: Bounds,
}

/// How often each fault happens, at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Faults {
    /// A call, its answer, or the connection before the call was sent is lost.
    pub(super) losses: u8,
    /// A call or its answer takes long enough for its caller to give up.
    pub(super) delays: u8,
    pub(super) crashes: u8,
    /// `SIGSTOP`: the process's clock goes on.
    pub(super) stops: u8,
    /// A suspended machine, whose monotonic clock stands still.
    pub(super) suspensions: u8,
    /// The server loses all its data.
    pub(super) data_losses: u8,
}

/// In units, and in ticks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// The units above the limit that may be in flight.
    pub(super) excess: u64,
    /// Ticks without a fault after which the server counts exactly the requests in flight.
    pub(super) repair: u8,
    /// Ticks after a crash, or after a call has run although its caller had given up. Only the end of a lease frees
    /// units that no process knows of.
    pub(super) late_repair: u8,
    /// Ticks for which a unit is free until a waiter has it.
    pub(super) wait: u8,
}

/// A protocol rule that is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    /// The server admits one unit more.
    LimitIsHigher,
    /// Nobody renews.
    NoRenewal,
    /// A renewal leaves although calls on the earlier field are under way.
    RenewalDoesNotWait,
    /// A renewal writes the process's units into its one field.
    OneFieldPerProcess,
    /// A renewal replaces units that calls have added to the new field before it.
    RenewalReplaces,
    /// A renewal leaves the earlier fields.
    OlderFieldsStay,
    /// A release subtracts without checking the field.
    ReleaseUnchecked,
    /// The end of a lease follows the clock of a process that is behind.
    LeaseDatedByProcess,
    /// If a call's answer is lost, the caller takes the call for one which has not run.
    LostIsNotRun,
    /// A process that starts again uses its old name, and begins its numbers again.
    NameIsReused,
    /// A call without an answer is sent once more.
    SentTwice,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) server: Server,
    pub(super) processes: Vec<Process>,
    /// In order, since the network keeps none.
    pub(super) calls: Vec<Call>,
    /// The faults that may still happen.
    faults: Faults,
    /// The requests that the other processes still begin beside a waiter.
    begins: u8,
    /// Ticks since the last fault was over, as far as the bounds distinguish them.
    pub(super) calm: u8,
    /// Whether a process has crashed, or a call has run after its caller had given up, since the server last agreed.
    pub(super) is_left_over: bool,
    /// Ticks for which a unit is free while the waiter has none.
    pub(super) waited: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Process {
    pub(super) is: Is,
    /// The name by which the server knows it.
    pub(super) name: u8,
    /// `LocalCounts` for one key.
    pub(super) entry: Option<LocalEntry>,
    /// `LocalCounts::numbers`.
    last_number: u64,
    has_asked: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Is {
    Running,
    Stopped,
    Suspended,
    Dead,
}

/// A call under way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Call {
    /// Its name.
    process: u8,
    number: u64,
    script: Script,
    stage: Stage,
    is_slow: bool,
    /// Ticks since it was sent.
    age: u8,
    /// Whether its caller lives, and has not given up.
    is_awaited: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Stage {
    Sent,
    Ran(bool),
    Lost,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A request asks the server.
    Ask(usize),
    /// A request in flight is over.
    End(usize),
    /// The renewer looks at the key.
    Look(usize),
    /// The server runs a call, whose read was this many ticks ago.
    Run(usize, u8),
    /// The answer to a call arrives.
    Answer(usize),
    /// The caller gives up.
    GiveUp(usize),
    /// A call was not sent, as its caller knows.
    Refuse(usize),
    Lose(usize),
    Delay(usize),
    Crash(usize),
    Start(usize),
    Stop(usize),
    Suspend(usize),
    GoOn(usize),
    LoseData,
    Tick,
}

fn lease() -> Duration {
    Duration::from_nanos(LEASE.into())
}

fn now() -> Timestamp {
    Timestamp::from_nanos(NOW)
}

impl World {
    pub(super) fn new(config: &Config) -> Self {
        let process = |name| Process { is: Is::Running, name, entry: None, last_number: 0, has_asked: false };
        Self {
            server: Server::default(),
            processes: (0..config.processes).map(process).collect(),
            calls: Vec::new(),
            faults: config.faults,
            begins: config.waiter.unwrap_or(0),
            calm: 0,
            is_left_over: false,
            waited: 0,
        }
    }

    /// The units that are really in flight.
    pub(super) fn in_flight(&self) -> u64 {
        self.processes.iter().map(Process::units).sum()
    }

    fn process_of(&self, call: &Call) -> Option<usize> {
        let index = self.processes.iter().position(|process| process.name == call.process)?;
        call.is_awaited.then_some(index)
    }

    fn is_awake(&self, call: &Call) -> bool {
        self.process_of(call).is_some_and(|index| self.processes[index].is == Is::Running)
    }

    fn asking(&self, index: usize) -> u64 {
        let is_its = |call: &&Call| call.script == Script::Take && self.process_of(call) == Some(index);
        self.calls.iter().filter(is_its).count() as u64
    }

    /// Whether `Renewer::renew_due` waits for a call.
    fn is_renewing(&self, index: usize) -> bool {
        let is_renewal = |call: &Call| matches!(call.script, Script::Renew(_)) && self.process_of(call) == Some(index);
        self.calls.iter().any(is_renewal)
    }

    /// `Process::rejection` in `src/concurrency/shared/process.rs`: the process's own units leave room.
    fn asks(&self, config: &Config, index: usize) -> bool {
        let process = &self.processes[index];
        let may_begin = match config.waiter {
            Some(_) if index == 1 => process.units() == 0 && !process.has_asked,
            Some(_) => self.begins > 0,
            None => true,
        };
        process.is == Is::Running
            && process.units() < config.limit
            && process.units() + self.asking(index) < config.requests
            && self.calls.iter().filter(|call| call.process == process.name).count() < MOST_CALLS
            && may_begin
    }

    pub(super) fn steps(&self, config: &Config, steps: &mut Vec<Step>) {
        for (index, process) in self.processes.iter().enumerate() {
            match process.is {
                Is::Running => {
                    if self.asks(config, index) {
                        steps.push(Step::Ask(index));
                    }
                    if process.units() > 0 {
                        steps.push(Step::End(index));
                    }
                    if process.has_work(config) && !self.is_renewing(index) {
                        steps.push(Step::Look(index));
                    }
                    if self.faults.crashes > 0 {
                        steps.push(Step::Crash(index));
                    }
                    if self.faults.stops > 0 {
                        steps.push(Step::Stop(index));
                    }
                    if self.faults.suspensions > 0 {
                        steps.push(Step::Suspend(index));
                    }
                }
                Is::Stopped | Is::Suspended => steps.push(Step::GoOn(index)),
                Is::Dead => steps.push(Step::Start(index)),
            }
        }
        for (index, call) in self.calls.iter().enumerate() {
            let is_awake = self.is_awake(call);
            if call.stage == Stage::Sent {
                let longest = if config.reads_and_swaps { call.age } else { 0 };
                steps.extend((0..=longest).map(|ago| Step::Run(index, ago)));
            }
            if let Stage::Ran(_) = call.stage {
                if is_awake {
                    steps.push(Step::Answer(index));
                }
            }
            if is_awake && (call.age > 0 || call.stage == Stage::Lost) {
                steps.push(Step::GiveUp(index));
            }
            if call.is_awaited && call.stage != Stage::Lost && self.faults.losses > 0 {
                steps.push(Step::Lose(index));
                if is_awake && call.stage == Stage::Sent {
                    steps.push(Step::Refuse(index));
                }
            }
            if call.is_awaited && !call.is_slow && call.stage != Stage::Lost && self.faults.delays > 0 {
                steps.push(Step::Delay(index));
            }
            // A call that nobody waits for need not run.
            if !call.is_awaited {
                steps.push(Step::Lose(index));
            }
        }
        if self.faults.data_losses > 0 {
            steps.push(Step::LoseData);
        }
        if self.may_tick(config) {
            steps.push(Step::Tick);
        }
    }

    /// Steps that are not late are done before time passes.
    fn may_tick(&self, config: &Config) -> bool {
        let call_is_done = |call: &Call| {
            let may_last = call.stage == Stage::Lost || call.is_slow;
            match self.process_of(call).map(|index| self.processes[index].is) {
                None => true,
                Some(Is::Running) => may_last && call.age == 0,
                Some(_) => may_last || call.stage != Stage::Sent,
            }
        };
        let process_is_done = |index: usize| {
            let process = &self.processes[index];
            let waits = config.waiter.is_some() && index == 1 && self.asks(config, index);
            process.is != Is::Running || !process.has_work(config) && !waits
        };
        self.calls.iter().all(call_is_done) && (0..self.processes.len()).all(process_is_done)
    }

    pub(super) fn after(&self, config: &Config, step: &Step) -> Self {
        let mut next = self.clone();
        next.step(config, step);
        let awake = |world: &Self| world.calls.iter().position(|call| config.calls_are_instant && world.is_awake(call));
        while let Some(index) = awake(&next) {
            let has_run = matches!(next.calls[index].stage, Stage::Ran(_));
            next.step(config, &if has_run { Step::Answer(index) } else { Step::Run(index, 0) });
        }
        next.normalise(config);
        next
    }

    fn step(&mut self, config: &Config, step: &Step) {
        match *step {
            Step::Ask(index) => self.ask(config, index),
            Step::End(index) => self.end(index),
            Step::Look(index) => self.look(config, index),
            Step::Run(index, ago) => self.run(config, index, ago),
            Step::Answer(index) => {
                let call = self.calls.remove(index);
                let Stage::Ran(answer) = call.stage else { unreachable!("it has not run") };
                self.finish(config, &call, Some(answer), CallEnd::Ran);
            }
            Step::GiveUp(index) => self.give_up(config, index),
            Step::Refuse(index) => {
                self.faults.losses -= 1;
                self.calm = 0;
                let call = self.calls.remove(index);
                self.finish(config, &call, None, CallEnd::NotRun);
            }
            Step::Lose(index) if self.calls[index].is_awaited => {
                self.faults.losses -= 1;
                self.calm = 0;
                self.calls[index].stage = Stage::Lost;
            }
            Step::Lose(index) => drop(self.calls.remove(index)),
            Step::Delay(index) => {
                self.faults.delays -= 1;
                self.calm = 0;
                self.calls[index].is_slow = true;
            }
            Step::Crash(index) => {
                self.faults.crashes -= 1;
                (self.calm, self.is_left_over) = (0, true);
                self.crash(index);
            }
            Step::Start(index) => self.start(config, index),
            Step::Stop(index) => {
                self.faults.stops -= 1;
                self.processes[index].is = Is::Stopped;
            }
            Step::Suspend(index) => {
                self.faults.suspensions -= 1;
                self.processes[index].is = Is::Suspended;
            }
            Step::GoOn(index) => {
                self.calm = 0;
                self.processes[index].is = Is::Running;
            }
            Step::LoseData => {
                self.faults.data_losses -= 1;
                self.calm = 0;
                self.server.0.clear();
            }
            Step::Tick => self.tick(config),
        }
    }

    fn send(&mut self, process: u8, number: u64, script: Script) {
        self.calls.push(Call { process, number, script, stage: Stage::Sent, is_slow: false, age: 0, is_awaited: true });
    }

    fn send_release(&mut self, process: u8, release: Option<Release>) {
        if let Some(Release { number, units }) = release {
            self.send(process, number, Script::Release(u8::try_from(units).unwrap()));
        }
    }

    /// `Process::call_take` until the call is sent, and `LocalCounts::begin`.
    fn ask(&mut self, config: &Config, index: usize) {
        if config.waiter.is_some() && index != 1 {
            self.begins -= 1;
        }
        let process = &mut self.processes[index];
        process.has_asked = true;
        let number = process.entry().begin(now());
        let name = process.name;
        self.send(name, number, Script::Take);
    }

    /// `Process::release`.
    fn end(&mut self, index: usize) {
        let process = &mut self.processes[index];
        let name = process.name;
        let release = process.change(|entry| entry.release(1));
        self.send_release(name, release);
    }

    /// `Renewer::renew_due`, and `LocalCounts::due`.
    fn look(&mut self, config: &Config, index: usize) {
        let process = &mut self.processes[index];
        let (name, mut last_number) = (process.name, process.last_number);
        let renewal = process.change(|entry| {
            entry.forget_ended_lease(now(), lease());
            let mut next_number = || {
                last_number += 1;
                last_number
            };
            if config.flaw != Some(Flaw::RenewalDoesNotWait) {
                return entry.renew(next_number, now(), lease());
            }
            let calls = entry.calls + entry.older_calls;
            let renewal = entry.is_due(now(), lease()).then(|| {
                (entry.calls, entry.older_calls) = (0, 0);
                entry.renew(&mut next_number, now(), lease())
            })?;
            entry.older_calls += calls;
            renewal
        });
        process.last_number = last_number;
        if let Some(renewal) = renewal {
            self.send(name, renewal.number, Script::Renew(Moved::of(renewal)));
        }
    }

    fn run(&mut self, config: &Config, index: usize, ago: u8) {
        let Call { process, number, script, is_awaited, .. } = self.calls[index];
        let answer = self.server.run(process, number, script, ago, config);
        if is_awaited {
            self.calls[index].stage = Stage::Ran(answer);
        } else {
            self.calls.remove(index);
            (self.calm, self.is_left_over) = (0, true);
        }
    }

    /// The timeout in `Process::call`, or the end of its connection. The call that was sent may run later.
    fn give_up(&mut self, config: &Config, index: usize) {
        let mut call = self.calls.remove(index);
        let flaw = config.flaw;
        let end = if flaw == Some(Flaw::LostIsNotRun) { CallEnd::NotRun } else { CallEnd::Unknown };
        self.finish(config, &call.clone(), None, end);
        if call.stage == Stage::Sent || flaw == Some(Flaw::SentTwice) {
            (call.is_awaited, call.stage) = (false, Stage::Sent);
            self.calls.push(call);
        }
    }

    /// The steps after the call in `Process::call_take`, `release_on_server` and `renew`.
    fn finish(&mut self, config: &Config, call: &Call, answer: Option<bool>, end: CallEnd) {
        let Call { process: name, number, script, .. } = *call;
        let index = self.process_of(call).expect("it is awaited");
        let process = &mut self.processes[index];
        let release = match script {
            Script::Take => {
                if answer == Some(true) {
                    self.waited = 0;
                    process.change(|entry| entry.took(number, 1));
                } else {
                    process.change(|entry| entry.took_none(number, end));
                }
                // `SharedConcurrency::fall_back`, `LocalCounts::take_here`
                if answer.is_none() && config.has_fallback && process.units() < config.limit {
                    process.entry().units += 1;
                }
                None
            }
            Script::Release(_) => {
                let not_run = answer.is_none() && config.flaw == Some(Flaw::LostIsNotRun);
                let end = if answer == Some(true) || not_run { CallEnd::Ran } else { CallEnd::Unknown };
                process.change(|entry| entry.released(number, end));
                None
            }
            Script::Renew(Moved { units, age }) => {
                let end = if answer.is_some() { CallEnd::Ran } else { CallEnd::Unknown };
                let renewal = Renewal { number, units, sent: Timestamp::from_nanos(NOW - u64::from(age)) };
                process.change(|entry| entry.renewed(renewal, end))
            }
        };
        self.send_release(name, release);
    }

    /// `kill -9`: requests and counts are gone, but calls that were sent may still run.
    fn crash(&mut self, index: usize) {
        let name = self.processes[index].name;
        self.processes[index].is = Is::Dead;
        self.processes[index].entry = None;
        for call in self.calls.iter_mut().filter(|call| call.process == name) {
            call.is_awaited = false;
        }
        self.calls.retain(|call| call.is_awaited || call.stage == Stage::Sent);
    }

    /// `Process::new`: under another name.
    fn start(&mut self, config: &Config, index: usize) {
        let process = &mut self.processes[index];
        process.is = Is::Running;
        process.last_number = 0;
        if config.flaw != Some(Flaw::NameIsReused) {
            process.name += config.processes;
        }
    }

    fn tick(&mut self, config: &Config) {
        let is_troubled = self.processes.iter().any(|process| matches!(process.is, Is::Stopped | Is::Suspended))
            || self.calls.iter().any(|call| call.is_slow || call.stage == Stage::Lost || !call.is_awaited);
        let most = config.bounds.repair.max(config.bounds.late_repair) + 1;
        self.calm = if is_troubled { 0 } else { (self.calm + 1).min(most) };
        let waits = config.waiter.is_some() && self.processes[1].is == Is::Running && self.processes[1].units() == 0;
        let is_free = waits && !is_troubled && self.in_flight() < config.limit;
        self.waited = if is_free { (self.waited + 1).min(config.bounds.wait + 1) } else { 0 };
        self.server.tick();
        let sleeping: Vec<u8> =
            self.processes.iter().filter(|it| it.is == Is::Suspended).map(|process| process.name).collect();
        for process in &mut self.processes {
            process.has_asked = false;
            if process.is != Is::Suspended {
                process.grow_older();
            }
        }
        for call in &mut self.calls {
            // If nobody awaits a call, only its read's date counts.
            if call.is_awaited || config.reads_and_swaps {
                call.age = (call.age + 1).min(if config.reads_and_swaps { LEASE } else { 2 });
            }
            if let Script::Renew(moved) = &mut call.script {
                let is_counted = call.is_awaited && !sleeping.contains(&call.process);
                moved.age = (moved.age + u8::from(is_counted)).min(6);
            }
        }
    }

    /// Whether nothing is under way or left to do.
    pub(super) fn is_quiet(&self, config: &Config) -> bool {
        let is_done = |process: &Process| match process.is {
            Is::Running => !process.has_work(config),
            Is::Dead => true,
            Is::Stopped | Is::Suspended => false,
        };
        self.calls.is_empty() && self.processes.iter().all(is_done)
    }

    /// Whether the server counts each process's units.
    pub(super) fn agrees(&self) -> bool {
        let counts_it = |process: &Process| self.server.of(process.name) == i8::try_from(process.units()).unwrap();
        let known: i8 = self.processes.iter().map(|process| self.server.of(process.name)).sum();
        self.processes.iter().all(counts_it) && self.server.total() == known
    }

    /// Merges states that differ only in their field numbers, in the order of calls, or in values without effect.
    fn normalise(&mut self, config: &Config) {
        if self.is_quiet(config) && self.agrees() {
            self.is_left_over = false;
        }
        let mut all: Vec<(u8, u64)> = self.server.0.keys().copied().collect();
        all.extend(self.calls.iter().map(|call| (call.process, call.number)));
        all.extend(self.processes.iter().filter_map(|it| it.entry.map(|entry| (it.name, entry.number))));
        all.extend(
            self.processes
                .iter()
                .filter(|it| it.entry.is_none() && it.last_number > 0)
                .map(|it| (it.name, it.last_number)),
        );
        all.sort_unstable();
        all.dedup();
        let rank = |name: u8, number: u64| {
            if number == 0 {
                0
            } else {
                1 + all.iter().filter(|other| other.0 == name && other.1 > 0 && other.1 < number).count() as u64
            }
        };
        self.server.0 = std::mem::take(&mut self.server.0)
            .into_iter()
            .map(|((name, number), field)| ((name, rank(name, number)), field))
            .collect();
        for call in &mut self.calls {
            call.number = rank(call.process, call.number);
        }
        self.calls.sort_unstable();
        for process in &mut self.processes {
            let name = process.name;
            if let Some(entry) = &mut process.entry {
                entry.number = rank(name, entry.number);
                process.last_number = entry.number;
            } else {
                process.last_number = rank(name, process.last_number);
            }
        }
    }
}

impl Process {
    pub(super) fn units(&self) -> u64 {
        self.entry.map_or(0, |entry| entry.units)
    }

    /// The entry that `LocalCounts::begin` and `take_here` find or make.
    fn entry(&mut self) -> &mut LocalEntry {
        let number = self.last_number + 1;
        if self.entry.is_none() {
            self.last_number = number;
        }
        self.entry.get_or_insert_with(|| LocalEntry::new(number, now()))
    }

    /// `LocalCounts::change`.
    fn change<T: Default>(&mut self, change: impl FnOnce(&mut LocalEntry) -> T) -> T {
        let Some(entry) = self.entry.as_mut() else { return T::default() };
        let changed = change(entry);
        if entry.is_over() {
            self.entry = None;
        }
        changed
    }

    /// Whether the renewer would change something.
    fn has_work(&self, config: &Config) -> bool {
        let Some(entry) = self.entry else { return false };
        let mut looked_at = entry;
        looked_at.forget_ended_lease(now(), lease());
        config.flaw != Some(Flaw::NoRenewal) && (looked_at != entry || entry.is_due(now(), lease()))
    }

    /// The process's clock advances by a tick.
    fn grow_older(&mut self) {
        let Some(entry) = &mut self.entry else { return };
        let older = |since: Timestamp| Timestamp::from_nanos((since.as_nanos() - 1).max(NOW - OLDEST));
        (entry.exact, entry.leased) = (older(entry.exact), older(entry.leased));
        if let Some(renewal) = &mut entry.renewal {
            renewal.since = older(renewal.since);
        }
    }
}
