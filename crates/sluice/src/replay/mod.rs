//! Replays a log: its lines drive a configuration's limits, and its times the clock.

mod answer;
mod clock;
mod request;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::runtime::{self, Runtime};
use tokio::time::{self, Instant};
use tower_sluice::direct::{Admission, Http};
use tower_sluice::headers::RateLimitFields;
use tower_sluice::key::{CookieKey, KeyExtractor, QueryKey};
use tower_sluice::layer::RateLimitLayerBuilder;
use tower_sluice::rejection::PolicyVerdict;
use tower_sluice::{LimitsHandle, PartitionKey, Rejection, RequestHead, Verdict};
use tower_sluice_config::{Config, ConfigError};

use self::answer::Answer;
pub(crate) use self::clock::LogClock;
pub(crate) use self::request::{LineHead, Needs};
use crate::counts::{LogCounts, PolicyCounts, WithoutKey};
use crate::log::{Entry, Place, Unreadable};
use crate::path::Target;
use crate::routes::Routes;
use crate::words::FileWords;
use crate::{descriptors, stores};

/// One configuration's limits, and the counts of each one's decisions.
pub(crate) struct Replay {
    pub(crate) file: String,
    routes: Routes,
    pub(crate) limited: Vec<RouteReplay>,
    /// Requests whose path is in no route.
    pub(crate) unmatched: u64,
    /// Requests to routes without a policy.
    pub(crate) unlimited: u64,
    /// Whether requests may wait.
    delays: bool,
    needs: Needs,
    /// Kept alive for its layers.
    _config: Config,
}

/// One route.
pub(crate) struct RouteReplay {
    pub(crate) paths: Vec<String>,
    limits: Option<LimitsHandle>,
    pub(crate) policies: Vec<PolicyCounts>,
}

/// A request in the log, and its target as all configurations read it.
struct Logged<'a, 'b> {
    entry: &'a Entry<'b>,
    target: Option<Target<'a>>,
}

/// When a request came.
#[derive(Clone, Copy)]
struct Arrival {
    nanos: u64,
    place: Place,
}

/// A request that waits.
struct Arrived {
    arrival: Arrival,
    route: usize,
    /// The key that each policy extracts, in the order of the counts.
    keys: Vec<Option<PartitionKey>>,
}

/// The answer to a request.
struct Answered {
    status: u16,
    verdict: Option<Verdict>,
}

impl Answered {
    /// Answers an admitted request as the log says, and a rejected one with its rejection.
    fn of(decided: Result<Admission<Http>, Box<Rejection>>, answer: Answer) -> Self {
        match decided {
            Ok(admission) => Self { status: answer.status, verdict: answer.end(admission) },
            Err(rejection) => Self { status: rejection.status().as_u16(), verdict: Some(rejection.verdict().clone()) },
        }
    }
}

impl Replay {
    /// Reads a configuration.
    ///
    /// # Errors
    ///
    /// If it has a mistake.
    pub(crate) fn new(file: &str, text: &str, clock: &LogClock) -> Result<Self, ConfigError> {
        let config =
            stores::reader().replay(clock.clone()).keys(descriptors::read_key).layers(set_up).parse(file, text)?;
        let words = FileWords::parse(file, text).routes();
        let routes = Routes::new(file, &words, &config)?;
        let mut delays = false;
        let mut limited = Vec::new();
        for (route, words) in config.routes().iter().zip(words) {
            let limits = route.layer().map(|layer| layer.handle());
            let statuses = limits.as_ref().map(LimitsHandle::policies).unwrap_or_default();
            delays |= statuses.iter().any(|status| status.delays());
            // In the file's order.
            let policies = words.policies.into_iter().map(|words| {
                let terms =
                    statuses.iter().find(|status| status.name() == words.name).and_then(|status| status.terms());
                PolicyCounts::new(words, terms)
            });
            limited.push(RouteReplay { paths: route.paths().to_vec(), limits, policies: policies.collect() });
        }
        Ok(Self {
            file: file.to_owned(),
            routes,
            limited,
            unmatched: 0,
            unlimited: 0,
            delays,
            needs: Needs::of_file(text),
            _config: config,
        })
    }

    /// Asks the route's limits about a request. Returns its future if it waits.
    fn send(&mut self, request: &mut LineHead, line: &Logged<'_, '_>, arrival: Arrival) -> Sent {
        let Logged { entry, target } = line;
        let Some((route, matched)) = target.as_ref().and_then(|target| self.routes.find(target)) else {
            self.unmatched += 1;
            return Sent::Unlimited;
        };
        let RouteReplay { limits, policies, .. } = &mut self.limited[route];
        let Some(limits) = limits else {
            self.unlimited += 1;
            return Sent::Unlimited;
        };
        request.set_matched(matched);
        let head = request.head();
        let answer = Answer { status: entry.status, length: entry.length };
        let key = |policy: &mut PolicyCounts| {
            let key = limits.key(policy.name(), head).ok();
            if key.is_none() {
                note_missing_parts(policy, entry, &head);
            }
            key
        };
        let deciding = limits.decide(&head);
        if deciding.is_waiting() {
            let keys: Vec<_> = policies.iter_mut().map(key).collect();
            for (policy, key) in policies.iter_mut().zip(&keys) {
                key.iter().for_each(|key| policy.note_demand(key, arrival.nanos));
            }
            let arrived = Arrived { arrival, route, keys };
            return Sent::Waiting(Box::pin(async move { (arrived, Answered::of(deciding.await, answer)) }));
        }
        let answered = Answered::of(deciding.at_once().expect("it does not wait"), answer);
        if let Some(verdict) = &answered.verdict {
            for policy in policies {
                let key = key(policy);
                // A policy that did not decide on an admitted request does not apply to it.
                let applies = !verdict.is_allowed() || decided_by(policy, verdict).is_some();
                if let Some(key) = key.as_ref().filter(|_| applies) {
                    policy.note_demand(key, arrival.nanos);
                }
                record(policy, key.as_ref(), limits, arrival, &answered, arrival.nanos);
            }
        }
        Sent::Answered(answered.status)
    }
}

/// A request that was sent.
enum Sent {
    /// No policy limits it.
    Unlimited,
    /// Answered, with this status.
    Answered(u16),
    Waiting(Pin<Box<dyn Future<Output = (Arrived, Answered)>>>),
}

/// Notes the parts in a policy's key that a line lacks.
#[cold]
fn note_missing_parts(policy: &mut PolicyCounts, entry: &Entry<'_>, head: &RequestHead<'_>) {
    let has_header = |name: &str| entry.headers.iter().any(|(other, _)| other.eq_ignore_ascii_case(name));
    policy.note_missing_parts(|part| match part.split_once(':') {
        Some(("header", name)) => !has_header(name.trim()),
        Some(("cookie", name)) => CookieKey::new(name.trim().to_owned()).extract(head).is_err(),
        Some(("query", name)) => QueryKey::new(name.trim().to_owned()).extract(head).is_err(),
        None if part == "client-ip" => entry.client.is_none(),
        None if part == "user" => entry.user.is_none(),
        _ => !matches!(part, "global" | "path" | "method"),
    });
}

/// Sets up a layer for a replay, which reads verdicts but no response fields.
fn set_up(layer: RateLimitLayerBuilder) -> RateLimitLayerBuilder {
    layer.verdict().fields(RateLimitFields::none())
}

/// Returns a policy's decision, if it has decided.
fn decided_by<'a>(policy: &PolicyCounts, verdict: &'a Verdict) -> Option<&'a PolicyVerdict> {
    verdict.policies().iter().find(|decided| decided.name() == policy.name())
}

/// Counts an answered request under one policy of its route, with the key that the policy extracts.
fn record(
    policy: &mut PolicyCounts,
    key: Option<&PartitionKey>,
    limits: &LimitsHandle,
    Arrival { place, .. }: Arrival,
    answered: &Answered,
    now: u64,
) {
    let Some(verdict) = &answered.verdict else { return };
    let Some(key) = key else {
        let WithoutKey { rejected, not_limited, without_address } = &mut policy.without_key;
        let is_rejected = !verdict.is_allowed() && verdict.policies().is_empty();
        *match answered.status {
            400 if is_rejected => rejected,
            _ if is_rejected => without_address,
            _ => not_limited,
        } += 1;
        return;
    };
    let Some(decided) = decided_by(policy, verdict).filter(|decided| !decided.is_passed_over()) else { return };
    let decision = decided.decision();
    if decision.is_allowed() {
        // If another policy rejected the request, this one was not charged.
        if verdict.is_allowed() {
            policy.note_admitted(decision.delay(), now);
        }
    } else {
        policy.note_rejected(key, now, place, |policy| limits.key_text(policy, key).ok());
    }
}

/// A waiting request. Resolves to the index of its configuration, its arrival and its answer.
type Waiting = Pin<Box<dyn Future<Output = (usize, Arrived, Answered)>>>;

/// A log that is being replayed against some configurations.
pub(crate) struct Session {
    /// Its clock is paused, so waiting requests follow the log's clock. It runs only when that clock moves.
    runtime: Rc<Runtime>,
    clock: LogClock,
    pub(crate) replays: Vec<Replay>,
    waiting: FuturesUnordered<Waiting>,
    delays: bool,
    request: LineHead,
    now: u64,
    pub(crate) log: LogCounts,
    /// The first configuration's answers, for tests: line, status and time.
    #[cfg(test)]
    pub(crate) answers: Option<Vec<(u64, u16, u64)>>,
}

impl Session {
    /// # Errors
    ///
    /// If the runtime cannot be built.
    pub(crate) fn new(clock: LogClock, replays: Vec<Replay>) -> io::Result<Self> {
        let runtime = runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
        let delays = replays.iter().any(|replay| replay.delays);
        let needs = replays.iter().map(|replay| replay.needs).reduce(Needs::or).unwrap_or_else(|| Needs::of_file(""));
        Ok(Self {
            runtime: Rc::new(runtime),
            clock,
            replays,
            waiting: FuturesUnordered::new(),
            delays,
            request: LineHead::new(needs),
            now: 0,
            log: LogCounts::default(),
            #[cfg(test)]
            answers: None,
        })
    }

    /// The runtime that has to be [entered](Runtime::enter) while requests are replayed.
    pub(crate) fn runtime(&self) -> Rc<Runtime> {
        Rc::clone(&self.runtime)
    }

    /// Whether a policy may read header fields.
    pub(crate) const fn reads_headers(&self) -> bool {
        self.request.has_headers()
    }

    /// Replays one request.
    ///
    /// # Errors
    ///
    /// If it isn't an HTTP request.
    pub(crate) fn replay(&mut self, entry: &Entry<'_>, place: Place) -> Result<(), Unreadable> {
        let logged = Logged { entry, target: Target::read(&entry.target) };
        self.request.read(entry, logged.target.as_ref())?;
        if self.log.requests == 0 {
            self.start(entry.nanos);
        }
        if entry.nanos > self.now {
            self.advance(entry.nanos);
        } else if entry.nanos < self.now {
            // The log reader sorts lines within a window. If memory for it was short, a line may come late. It is
            // replayed at the present time, and counted.
            self.log.disorder.late.note(self.now - entry.nanos);
        }
        let arrival = Arrival { nanos: self.now, place };
        for index in 0..self.replays.len() {
            self.send(index, &logged, arrival);
        }
        self.log.note_request(self.now, entry.client);
        Ok(())
    }

    fn send(&mut self, index: usize, line: &Logged<'_, '_>, arrival: Arrival) {
        match self.replays[index].send(&mut self.request, line, arrival) {
            Sent::Answered(_status) => {
                #[cfg(test)]
                self.note_answer(index, arrival.place.line, _status);
            }
            Sent::Unlimited => {}
            Sent::Waiting(waiting) => {
                self.waiting.push(Box::pin(waiting.map(move |(arrived, answered)| (index, arrived, answered))));
            }
        }
    }

    fn start(&mut self, nanos: u64) {
        self.now = nanos;
        self.clock.set(nanos);
        if self.delays {
            self.clock.follow_tokio(nanos);
        }
    }

    /// Moves the clock forward. Requests that are due until then are answered at their time.
    fn advance(&mut self, nanos: u64) {
        self.now = nanos;
        self.clock.set(nanos);
        if let Some(target) = self.clock.instant(nanos) {
            self.runtime().block_on(self.wait_until(target, nanos));
        }
    }

    /// `target` is the instant of `nanos`.
    async fn wait_until(&mut self, target: Instant, nanos: u64) {
        if !self.waiting.is_empty() {
            // Timers fire at whole milliseconds.
            let whole = self.clock.instant(nanos / 1_000_000 * 1_000_000).unwrap_or(target);
            loop {
                tokio::select! {
                    biased;
                    Some(answered) = self.waiting.next() => self.record(&answered),
                    () = time::sleep_until(whole) => break,
                }
            }
        }
        let rest = target.saturating_duration_since(Instant::now());
        time::advance(rest).await;
        while let Some(Some(answered)) = self.waiting.next().now_or_never() {
            self.record(&answered);
        }
    }

    fn record(&mut self, (index, arrived, answered): &(usize, Arrived, Answered)) {
        let now = self.clock.nanos();
        #[cfg(test)]
        self.note_answer(*index, arrived.arrival.place.line, answered.status);
        let RouteReplay { limits, policies, .. } = &mut self.replays[*index].limited[arrived.route];
        let Some(limits) = limits else { return };
        for (policy, key) in policies.iter_mut().zip(&arrived.keys) {
            record(policy, key.as_ref(), limits, arrived.arrival, answered, now);
        }
    }

    #[cfg(test)]
    fn note_answer(&mut self, index: usize, line: u64, status: u16) {
        let now = self.clock.nanos();
        if let Some(answers) = self.answers.as_mut().filter(|_| index == 0) {
            answers.push((line, status, now));
        }
    }

    /// Lets the waiting requests depart, and completes the counts.
    pub(crate) fn finish(&mut self) {
        self.runtime().block_on(async {
            while let Some(answered) = self.waiting.next().await {
                self.record(&answered);
            }
        });
        let routes = self.replays.iter_mut().flat_map(|replay| &mut replay.limited);
        routes.flat_map(|route| &mut route.policies).for_each(|policy| policy.keys.settle());
    }
}
