//! A session: a log's requests, asked of several configurations by one clock.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::runtime::{self, Runtime};
use tokio::time::{self, Instant};

use super::{Answered, Arrival, LineHead, LogClock, Logged, Needs, Replay, RouteReplay, Sent, Waiter, note_answer};
use crate::counts::LogCounts;
use crate::log::{Entry, Place, Unreadable};
use crate::path::Target;

/// A waiting request. Resolves to the index of its configuration, its waiter and its answer.
type Waiting = Pin<Box<dyn Future<Output = (usize, Waiter, Answered)>>>;

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
    pub(super) answers: Option<Vec<(u64, u16, u64)>>,
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

    /// Sends a request to one configuration's limits, and keeps its future if it waits.
    fn send(&mut self, index: usize, line: &Logged<'_, '_>, arrival: Arrival) {
        match self.replays[index].send(&mut self.request, line, arrival) {
            Sent::Answered(_status) => {
                #[cfg(test)]
                self.keep_answer(index, arrival.place.line, _status);
            }
            Sent::Unlimited => {}
            Sent::Waiting(waiting) => {
                self.waiting.push(Box::pin(waiting.map(move |(waiter, answered)| (index, waiter, answered))));
            }
        }
    }

    /// Sets the clock to the first request's time.
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

    /// Answers the waiting requests that are due until `target`, the instant of `nanos`.
    async fn wait_until(&mut self, target: Instant, nanos: u64) {
        if !self.waiting.is_empty() {
            // Timers fire at whole milliseconds.
            let whole = self.clock.instant(nanos / 1_000_000 * 1_000_000).unwrap_or(target);
            loop {
                tokio::select! {
                    biased;
                    Some(answered) = self.waiting.next() => self.note_departure(&answered),
                    () = time::sleep_until(whole) => break,
                }
            }
        }
        let rest = target.saturating_duration_since(Instant::now());
        time::advance(rest).await;
        while let Some(Some(answered)) = self.waiting.next().now_or_never() {
            self.note_departure(&answered);
        }
    }

    /// Counts the answer to a request that has waited.
    fn note_departure(&mut self, (index, waiter, answered): &(usize, Waiter, Answered)) {
        let now = self.clock.nanos();
        #[cfg(test)]
        self.keep_answer(*index, waiter.arrival.place.line, answered.status);
        let RouteReplay { limits, policies, .. } = &mut self.replays[*index].limited[waiter.route];
        let Some(limits) = limits else { return };
        for (policy, key) in policies.iter_mut().zip(&waiter.keys) {
            note_answer(policy, key.as_ref(), limits, waiter.arrival, answered, now);
        }
    }

    #[cfg(test)]
    fn keep_answer(&mut self, index: usize, line: u64, status: u16) {
        let now = self.clock.nanos();
        if let Some(answers) = self.answers.as_mut().filter(|_| index == 0) {
            answers.push((line, status, now));
        }
    }

    /// Lets the waiting requests depart, and completes the counts.
    pub(crate) fn finish(&mut self) {
        self.runtime().block_on(async {
            while let Some(answered) = self.waiting.next().await {
                self.note_departure(&answered);
            }
        });
        let routes = self.replays.iter_mut().flat_map(|replay| &mut replay.limited);
        routes.flat_map(|route| &mut route.policies).for_each(|policy| policy.keys.settle());
    }
}
