//! Replays a log: its lines drive the layers of a configuration, and its times the clock.

mod answer;
mod clock;
mod request;
mod routes;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use http::{Extensions, Request, Response};
use http_body::Body;
use tokio::runtime::{self, Runtime};
use tokio::time::{self, Instant};
use tower::{Layer, Service};
use tower_sluice::headers::{RateLimitFields, WaitFields};
use tower_sluice::key::{CookieKey, KeyExtractor, QueryKey};
use tower_sluice::layer::{RateLimit, RateLimitLayerBuilder};
use tower_sluice::rejection::RejectionFormat;
use tower_sluice::{LimitsHandle, PartitionKey, RateLimitLayer, RequestHead, Verdict};
use tower_sluice_config::{Config, ConfigError};

use self::answer::Answer;
pub(crate) use self::clock::LogClock;
pub(crate) use self::request::{Needs, Requests};
pub(crate) use self::routes::{Routes, pattern};
use crate::log::{Entry, Place, Unreadable};
use crate::path::Target;
use crate::report::{LogReport, PolicyReport, WithoutKey};
use crate::words::FileWords;
use crate::{serve, stores};

/// The layers of one configuration, and what they did.
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
    /// Kept, since its layers use it.
    _config: Config,
}

/// One route.
pub(crate) struct RouteReplay {
    pub(crate) paths: Vec<String>,
    limits: Option<Limits>,
    pub(crate) policies: Vec<PolicyReport>,
}

/// The layer of a route, around its answers.
struct Limits {
    service: RateLimit<Answer>,
    handle: LimitsHandle,
    /// Empty, for the keys of the next request.
    keys: Vec<Option<PartitionKey>>,
}

impl Limits {
    fn new(layer: &RateLimitLayer) -> Self {
        Self { service: layer.layer(Answer::default()), handle: layer.handle(), keys: Vec::new() }
    }
}

/// A request of the log, and its target as all configurations read it.
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

/// A request on its arrival.
struct Arrived {
    arrival: Arrival,
    route: usize,
    /// The key that each policy makes of it, in the order of the reports.
    keys: Vec<Option<PartitionKey>>,
    /// Whether its demand was noted.
    is_noted: bool,
}

/// The answer to a request.
struct Answered {
    status: u16,
    /// With the verdict.
    extensions: Extensions,
}

impl Replay {
    /// Reads a configuration.
    ///
    /// # Errors
    ///
    /// If it has a mistake.
    pub(crate) fn new(file: &str, text: &str, clock: &LogClock) -> Result<Self, ConfigError> {
        let config =
            stores::reader().replay(clock.clone()).keys(serve::descriptor_key).layers(set_up).parse(file, text)?;
        let words = FileWords::parse(file, text).routes();
        let routes = Routes::new(file, &words, &config)?;
        let mut delays = false;
        let mut limited = Vec::new();
        for (route, words) in config.routes().iter().zip(words) {
            let limits = route.layer().map(Limits::new);
            let statuses = limits.as_ref().map(|limits| limits.handle.policies()).unwrap_or_default();
            delays |= statuses.iter().any(|status| status.delays());
            // In the order of the file.
            let policies = words.policies.into_iter().map(|words| {
                let terms =
                    statuses.iter().find(|status| status.name() == words.name).and_then(|status| status.terms());
                PolicyReport::new(words, terms)
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

    /// Sends a request into the layer of its route. Returns its future if it waits.
    fn send(
        &mut self,
        requests: &mut Requests,
        line: &Logged<'_, '_>,
        mut request: Request<()>,
        arrival: Arrival,
    ) -> Sent {
        let Logged { entry, target } = line;
        let Some((route, matched)) = target.as_ref().and_then(|target| self.routes.find(target)) else {
            self.unmatched += 1;
            return Sent::Unlimited;
        };
        let RouteReplay { limits, policies, .. } = &mut self.limited[route];
        let Some(Limits { service, handle, keys }) = limits else {
            self.unlimited += 1;
            return Sent::Unlimited;
        };
        if self.needs.matched {
            request::set_matched(&mut request, matched);
        }
        keys.clear();
        keys.extend(policies.iter().map(|policy| handle.key(policy.name(), &request).ok()));
        if keys.iter().any(Option::is_none) {
            note_missing_parts(policies, keys, entry, &request);
        }
        let answer = service.get_mut();
        (answer.status, answer.length) = (entry.status, entry.length);
        let mut response = service.call(request);
        let mut context = Context::from_waker(Waker::noop());
        let mut arrived = Arrived { arrival, route, keys: std::mem::take(keys), is_noted: false };
        match Pin::new(&mut response).poll(&mut context) {
            Poll::Ready(Ok(response)) => {
                let answered = Answered::of(response);
                record(policies, handle, &arrived, &answered, arrival.nanos);
                *keys = arrived.keys;
                let answer = service.get_mut();
                requests.reuse(std::mem::take(&mut answer.request));
                answer.response = answered.extensions;
                answer.response.clear();
                Sent::Answered(answered.status)
            }
            Poll::Pending => {
                for (policy, key) in policies.iter_mut().zip(&arrived.keys) {
                    key.iter().for_each(|key| policy.note_demand(key, arrival.nanos));
                }
                arrived.is_noted = true;
                Sent::Waiting(Box::pin(async move {
                    let Ok(response) = response.await;
                    (arrived, Answered::of(response))
                }))
            }
        }
    }
}

/// A request that was sent.
enum Sent {
    /// No policy limits it.
    Unlimited,
    /// With this status.
    Answered(u16),
    Waiting(Pin<Box<dyn Future<Output = (Arrived, Answered)>>>),
}

impl Answered {
    fn of<B: Body + Unpin>(mut response: Response<B>) -> Self {
        // Some limits count the bytes of the body, or until its end.
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(Ok(_))) = Pin::new(response.body_mut()).poll_frame(&mut context) {}
        Self { status: response.status().as_u16(), extensions: std::mem::take(response.extensions_mut()) }
    }
}

/// Notes what a line lacks for the keys of the policies that can make none.
#[cold]
fn note_missing_parts(
    policies: &mut [PolicyReport],
    keys: &[Option<PartitionKey>],
    entry: &Entry<'_>,
    request: &Request<()>,
) {
    let head = RequestHead::from(request);
    let has_header = |name: &str| entry.headers.iter().any(|(other, _)| other.eq_ignore_ascii_case(name));
    for (policy, _) in policies.iter_mut().zip(keys).filter(|(_, key)| key.is_none()) {
        policy.note_missing_parts(|part| match part.split_once(':') {
            Some(("header", name)) => !has_header(name.trim()),
            Some(("cookie", name)) => CookieKey::new(name.trim().to_owned()).extract(&head).is_err(),
            Some(("query", name)) => QueryKey::new(name.trim().to_owned()).extract(&head).is_err(),
            None if part == "client-ip" => entry.client.is_none(),
            None if part == "user" => entry.user.is_none(),
            _ => !matches!(part, "global" | "path" | "method"),
        });
    }
}

/// Sets up a layer: a replay reads verdicts, and nobody reads the rest of its responses.
fn set_up(layer: RateLimitLayerBuilder) -> RateLimitLayerBuilder {
    layer
        .verdict()
        .fields(RateLimitFields::none())
        .wait_fields(WaitFields::new().without_exact_wait())
        .rejection_format(&RejectionFormat::Empty)
}

/// Counts a request with each policy of its route.
fn record(policies: &mut [PolicyReport], handle: &LimitsHandle, arrived: &Arrived, answered: &Answered, now: u64) {
    let Some(verdict) = answered.extensions.get::<Verdict>() else { return };
    let Arrival { nanos, place } = arrived.arrival;
    for (policy, key) in policies.iter_mut().zip(&arrived.keys) {
        let decided = verdict.policies().iter().find(|decided| decided.name() == policy.name());
        let Some(key) = key else {
            let WithoutKey { rejected, not_limited, without_address } = &mut policy.without_key;
            let is_rejected = !verdict.is_allowed() && verdict.policies().is_empty();
            *match answered.status {
                400 if is_rejected => rejected,
                _ if is_rejected => without_address,
                _ => not_limited,
            } += 1;
            continue;
        };
        // A policy that did not decide on an admitted request does not apply to it.
        if !arrived.is_noted && (decided.is_some() || !verdict.is_allowed()) {
            policy.note_demand(key, nanos);
        }
        let Some(decided) = decided.filter(|decided| !decided.is_passed_over()) else { continue };
        let decision = decided.decision();
        if decision.is_allowed() {
            // The others would have admitted a request that one rejects, and were not charged.
            if verdict.is_allowed() {
                policy.note_admitted(decision.delay(), now);
            }
        } else {
            policy.note_rejected(key, now, place, |policy| handle.key_text(policy, key).ok());
        }
    }
}

/// A request that waits for its turn: its number, when it arrived, and in the end its answer.
type Waiting = Pin<Box<dyn Future<Output = (usize, Arrived, Answered)>>>;

/// A log that is being replayed against some configurations.
pub(crate) struct Session {
    /// Its clock is paused, so that requests that wait do so by the log's clock. It runs only when that clock moves.
    runtime: Rc<Runtime>,
    clock: LogClock,
    pub(crate) replays: Vec<Replay>,
    waiting: FuturesUnordered<Waiting>,
    delays: bool,
    requests: Requests,
    now: u64,
    pub(crate) log: LogReport,
    /// The line, the status and the time of each answer of the first configuration, for tests.
    #[cfg(test)]
    pub(crate) answers: Option<Vec<(u64, u16, u64)>>,
}

impl Session {
    /// # Errors
    ///
    /// If there can be no runtime.
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
            requests: Requests::new(needs),
            now: 0,
            log: LogReport::default(),
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
        self.requests.needs.headers
    }

    /// Replays one request.
    ///
    /// # Errors
    ///
    /// If it is no request of HTTP.
    pub(crate) fn replay(&mut self, entry: &Entry<'_>, place: Place) -> Result<(), Unreadable> {
        let logged = Logged { entry, target: Target::read(&entry.target) };
        let request = self.requests.build(entry, logged.target.as_ref())?;
        if self.log.requests == 0 {
            self.start(entry.nanos);
        }
        if entry.nanos > self.now {
            self.advance(entry.nanos);
        } else if entry.nanos < self.now {
            // Requests come in order, unless memory was short.
            self.log.disorder.late.note(self.now - entry.nanos);
        }
        let arrival = Arrival { nanos: self.now, place };
        for index in 1..self.replays.len() {
            self.send(index, &logged, request.clone(), arrival);
        }
        self.send(0, &logged, request, arrival);
        self.log.note_request(self.now, entry.client);
        Ok(())
    }

    fn send(&mut self, index: usize, line: &Logged<'_, '_>, request: Request<()>, arrival: Arrival) {
        match self.replays[index].send(&mut self.requests, line, request, arrival) {
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

    /// Moves the clock forward. Requests whose turn comes until then are answered at their turn.
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
        record(policies, &limits.handle, arrived, answered, now);
    }

    #[cfg(test)]
    fn note_answer(&mut self, index: usize, line: u64, status: u16) {
        let now = self.clock.nanos();
        if let Some(answers) = self.answers.as_mut().filter(|_| index == 0) {
            answers.push((line, status, now));
        }
    }

    /// Lets the requests that wait have their turns.
    pub(crate) fn finish(&mut self) {
        self.runtime().block_on(async {
            while let Some(answered) = self.waiting.next().await {
                self.record(&answered);
            }
        });
    }
}
