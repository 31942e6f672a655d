//! Replays a log: its lines drive the layers of a configuration, and its times the clock.

mod answer;
mod clock;
mod request;
mod routes;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use http::{Request, Response};
use http_body::Body;
use smallvec::SmallVec;
use tower::{Layer, Service};
use tower_sluice::config::{Config, ConfigError};
use tower_sluice::headers::RateLimitFields;
use tower_sluice::layer::RateLimitLayerBuilder;
use tower_sluice::{LimitsHandle, PartitionKey, RateLimitLayer, Verdict};

use self::answer::Answer;
pub(crate) use self::clock::LogClock;
pub(crate) use self::request::{Needs, build};
pub(crate) use self::routes::Routes;
use crate::log::{Entry, Unreadable};
use crate::report::{LogReport, PolicyReport};
use crate::words::PolicyWords;

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
    limits: Option<(RateLimitLayer, LimitsHandle)>,
    pub(crate) policies: Vec<PolicyReport>,
}

/// A request on its arrival.
struct Arrived {
    route: usize,
    nanos: u64,
    line: u64,
    /// The key that each policy makes of it, in the order of the reports.
    keys: SmallVec<[Option<PartitionKey>; 2]>,
    /// Whether its demand was noted.
    is_noted: bool,
}

/// The answer to a request.
pub(crate) struct Answered {
    pub(crate) status: u16,
    pub(crate) verdict: Option<Verdict>,
}

impl Replay {
    /// Reads a configuration.
    ///
    /// # Errors
    ///
    /// If it has a mistake.
    pub(crate) fn new(file: &str, text: &str, clock: &LogClock) -> Result<Self, ConfigError> {
        // Nobody reads the fields of the responses.
        let set_up = |layer: RateLimitLayerBuilder| layer.verdict().fields(RateLimitFields::none());
        let config = Config::reader().replay(clock.clone()).layers(set_up).parse(file, text)?;
        let routes = Routes::new(file, &config)?;
        let words = PolicyWords::of_file(text);
        let mut delays = false;
        let mut limited = Vec::new();
        for (route, words) in config.routes().iter().zip(words) {
            let limits = route.layer().map(|layer| (layer.clone(), layer.handle()));
            let statuses = limits.as_ref().map(|(_, handle)| handle.policies()).unwrap_or_default();
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
    fn send(&mut self, entry: &Entry<'_>, mut request: Request<()>, nanos: u64, line: u64) -> Sent {
        let Some((route, matched)) = self.routes.find(request.uri().path()) else {
            self.unmatched += 1;
            return Sent::Unlimited;
        };
        let replay = &mut self.limited[route];
        let Some((layer, handle)) = &replay.limits else {
            self.unlimited += 1;
            return Sent::Unlimited;
        };
        if self.needs.matched {
            request::set_matched(&mut request, matched);
        }
        let keys = replay.policies.iter().map(|policy| handle.key(policy.name(), &request).ok()).collect();
        let mut arrived = Arrived { route, nanos, line, keys, is_noted: false };
        let mut service = layer.layer(Answer { status: entry.status, length: entry.length });
        let mut response = service.call(request);
        let mut context = Context::from_waker(Waker::noop());
        match Pin::new(&mut response).poll(&mut context) {
            Poll::Ready(Ok(response)) => {
                let answered = Answered::of(response);
                replay.record(&arrived, &answered, nanos);
                Sent::Answered(answered)
            }
            Poll::Pending => {
                for (policy, key) in replay.policies.iter_mut().zip(&arrived.keys) {
                    key.iter().for_each(|key| policy.note_demand(key, nanos));
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
    Answered(Answered),
    Waiting(Pin<Box<dyn Future<Output = (Arrived, Answered)>>>),
}

impl Answered {
    fn of<B: Body + Unpin>(response: Response<B>) -> Self {
        let (mut head, mut body) = response.into_parts();
        // Some limits count the bytes of the body, or until its end.
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(Ok(_))) = Pin::new(&mut body).poll_frame(&mut context) {}
        Self { status: head.status.as_u16(), verdict: head.extensions.remove() }
    }
}

impl RouteReplay {
    /// Counts a request with each policy.
    fn record(&mut self, arrived: &Arrived, answered: &Answered, now: u64) {
        let Some((verdict, (_, handle))) = answered.verdict.as_ref().zip(self.limits.as_ref()) else { return };
        for (policy, key) in self.policies.iter_mut().zip(&arrived.keys) {
            let decided = verdict.policies().iter().find(|decided| decided.name() == policy.name());
            let Some(key) = key else {
                // A policy that skips such requests is not the one that rejects them.
                if !verdict.is_allowed() && answered.status == 400 && verdict.policies().is_empty() {
                    policy.note_missing_key();
                }
                continue;
            };
            // A policy that did not decide on an admitted request does not apply to it.
            if !arrived.is_noted && (decided.is_some() || !verdict.is_allowed()) {
                policy.note_demand(key, arrived.nanos);
            }
            let Some(decided) = decided.filter(|decided| !decided.is_passed_over()) else { continue };
            let decision = decided.decision();
            if decision.is_allowed() {
                // The others would have admitted a request that one rejects, and were not charged.
                if verdict.is_allowed() {
                    policy.note_admitted(decision.delay(), now);
                }
            } else {
                let name = policy.name().to_owned();
                policy.note_rejected(key, now, arrived.line, || handle.key_text(&name, key).ok().flatten());
            }
        }
    }
}

/// A request that waits for its turn: its number, when it arrived, and in the end its answer.
type Waiting = Pin<Box<dyn Future<Output = (usize, Arrived, Answered)>>>;

/// A log that is being replayed against some configurations.
pub(crate) struct Session {
    clock: LogClock,
    pub(crate) replays: Vec<Replay>,
    waiting: FuturesUnordered<Waiting>,
    delays: bool,
    needs: Needs,
    now: u64,
    pub(crate) log: LogReport,
    /// The line, the status and the time of each answer of the first configuration, for tests.
    #[cfg(test)]
    pub(crate) answers: Option<Vec<(u64, u16, u64)>>,
}

impl Session {
    pub(crate) fn new(clock: LogClock, replays: Vec<Replay>) -> Self {
        let delays = replays.iter().any(|replay| replay.delays);
        let needs = replays.iter().map(|replay| replay.needs).reduce(Needs::or).unwrap_or_else(|| Needs::of_file(""));
        Self {
            clock,
            replays,
            waiting: FuturesUnordered::new(),
            delays,
            needs,
            now: 0,
            log: LogReport::default(),
            #[cfg(test)]
            answers: None,
        }
    }

    /// Replays one request.
    ///
    /// # Errors
    ///
    /// If it is no request of HTTP.
    pub(crate) async fn replay(&mut self, entry: &Entry<'_>, line: u64) -> Result<(), Unreadable> {
        let mut built = Some(build(entry, self.needs)?);
        if self.log.requests == 0 {
            self.start(entry.nanos);
        }
        if entry.nanos > self.now {
            self.advance(entry.nanos).await;
        } else if entry.nanos < self.now {
            self.log.note_past(entry.nanos, self.now);
        }
        for index in 0..self.replays.len() {
            let request = built.take().map_or_else(|| build(entry, self.needs), Ok)?;
            match self.replays[index].send(entry, request, self.now, line) {
                Sent::Answered(_answered) => {
                    #[cfg(test)]
                    self.note_answer(index, line, &_answered);
                }
                Sent::Unlimited => {}
                Sent::Waiting(waiting) => {
                    self.waiting.push(Box::pin(waiting.map(move |(arrived, answered)| (index, arrived, answered))));
                }
            }
        }
        self.log.note_request(self.now);
        Ok(())
    }

    fn start(&mut self, nanos: u64) {
        self.now = nanos;
        self.clock.set(nanos);
        if self.delays {
            self.clock.follow_tokio(nanos);
        }
    }

    /// Moves the clock forward. Requests whose turn comes until then are answered at their turn.
    async fn advance(&mut self, nanos: u64) {
        self.now = nanos;
        self.clock.set(nanos);
        let Some(target) = self.clock.instant(nanos) else { return };
        if !self.waiting.is_empty() {
            // Timers fire at whole milliseconds.
            let whole = self.clock.instant(nanos / 1_000_000 * 1_000_000).unwrap_or(target);
            loop {
                tokio::select! {
                    biased;
                    Some(answered) = self.waiting.next() => self.record(&answered),
                    () = tokio::time::sleep_until(whole) => break,
                }
            }
        }
        let rest = target.saturating_duration_since(tokio::time::Instant::now());
        tokio::time::advance(rest).await;
        while let Some(Some(answered)) = self.waiting.next().now_or_never() {
            self.record(&answered);
        }
    }

    fn record(&mut self, (index, arrived, answered): &(usize, Arrived, Answered)) {
        let now = self.clock.nanos();
        #[cfg(test)]
        self.note_answer(*index, arrived.line, answered);
        self.replays[*index].limited[arrived.route].record(arrived, answered, now);
    }

    #[cfg(test)]
    fn note_answer(&mut self, index: usize, line: u64, answered: &Answered) {
        let now = self.clock.nanos();
        if let Some(answers) = self.answers.as_mut().filter(|_| index == 0) {
            answers.push((line, answered.status, now));
        }
    }

    /// Lets the requests that wait have their turns.
    pub(crate) async fn finish(&mut self) {
        while let Some(answered) = self.waiting.next().await {
            self.record(&answered);
        }
    }
}
