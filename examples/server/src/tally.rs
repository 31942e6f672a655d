//! Counts the requests to each route, and remembers the newest ones for the page.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use serde_json::{Map, Value, json};
use tower_sluice::Verdict;

/// How many requests to a route are remembered. A lane on the page has no room for more.
const REMEMBERED: usize = 500;

/// The field by which the page recognises the request that its visitor has sent.
const OWN: &str = "x-own";

/// One route's request counts since the start.
pub(crate) struct Tally {
    started: Instant,
    offered: AtomicU64,
    admitted: AtomicU64,
    /// Admitted requests that waited before.
    delayed: AtomicU64,
    rejected: AtomicU64,
    /// Requests whose clients disconnected before the response.
    left: AtomicU64,
    /// The response to the last request that was rejected.
    last_rejection: Mutex<Option<(StatusCode, HeaderMap)>>,
    newest: Mutex<Newest>,
}

/// The newest requests, numbered in arrival order.
#[derive(Default)]
struct Newest {
    /// The first remembered request's number.
    first: u64,
    arrivals: VecDeque<Arrival>,
}

/// A request, with times in milliseconds since the start.
struct Arrival {
    at: u64,
    is_own: bool,
    /// `None` while it waits.
    result: Option<(&'static str, u64)>,
}

impl Tally {
    pub(crate) fn new(started: Instant) -> Self {
        let [offered, admitted, delayed, rejected, left] = Default::default();
        let last_rejection = Mutex::default();
        let newest = Mutex::default();
        Self { started, offered, admitted, delayed, rejected, left, last_rejection, newest }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis().try_into().unwrap_or(u64::MAX)
    }

    fn newest(&self) -> MutexGuard<'_, Newest> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers an arrival. Returns its number.
    fn remember(&self, is_own: bool) -> u64 {
        let mut newest = self.newest();
        newest.arrivals.push_back(Arrival { at: self.now_ms(), is_own, result: None });
        if newest.arrivals.len() > REMEMBERED {
            newest.arrivals.pop_front();
            newest.first += 1;
        }
        newest.first + newest.arrivals.len() as u64 - 1
    }

    /// Remembers the result for the arrival with this number, unless newer arrivals have taken its place.
    fn complete(&self, number: u64, result: &'static str) {
        let now = self.now_ms();
        let mut newest = self.newest();
        let index = number.checked_sub(newest.first).and_then(|index| usize::try_from(index).ok());
        if let Some(arrival) = index.and_then(|index| newest.arrivals.get_mut(index)) {
            arrival.result = Some((result, now));
        }
    }

    /// Returns the requests that wait or got their result at `since` or later. Each has its number, its arrival, its
    /// result with the time, and whether the page's visitor sent it.
    pub(crate) fn requests(&self, since: u64) -> Vec<Value> {
        let newest = self.newest();
        let is_new = |arrival: &Arrival| arrival.result.is_none_or(|(_, at)| at >= since);
        let numbered = (newest.first..).zip(&newest.arrivals).filter(|(_, arrival)| is_new(arrival));
        numbered
            .map(|(number, arrival)| {
                let (result, at) = arrival.result.unzip();
                json!([number, arrival.at, result.unwrap_or("waiting"), at, arrival.is_own])
            })
            .collect()
    }

    /// Returns the counts by their names.
    pub(crate) fn counts(&self) -> [(&'static str, u64); 5] {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        [
            ("offered", read(&self.offered)),
            ("admitted", read(&self.admitted)),
            ("delayed", read(&self.delayed)),
            ("rejected", read(&self.rejected)),
            ("left", read(&self.left)),
        ]
    }

    /// Returns the last rejection's status and fields.
    pub(crate) fn last_rejection(&self) -> Option<Value> {
        let last = self.last_rejection.lock().unwrap_or_else(PoisonError::into_inner).clone();
        last.map(|(status, headers)| {
            let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned().into();
            let fields: Map<_, _> = headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
            json!({ "status": status.as_u16(), "fields": fields })
        })
    }
}

fn add_one(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

/// Counts a route's requests. It runs outside the route's layer.
pub(crate) async fn count(State(tally): State<Arc<Tally>>, request: Request, next: Next) -> Response {
    add_one(&tally.offered);
    let number = tally.remember(request.headers().contains_key(OWN));
    let unanswered = Unanswered { tally: &tally, number };
    let response = next.run(request).await;
    // The response is here, so the request must not count as left. If the client disconnects before, this future is
    // dropped at the await, and `unanswered` with it.
    std::mem::forget(unanswered);
    let verdict = response.extensions().get::<Verdict>();
    // A route without policies has no layer, and so no verdict. A handler's error is not a rejection.
    if !verdict.is_none_or(Verdict::is_allowed) {
        let rejection = Some((response.status(), response.headers().clone()));
        *tally.last_rejection.lock().unwrap_or_else(PoisonError::into_inner) = rejection;
        add_one(&tally.rejected);
        tally.complete(number, "rejected");
        return response;
    }
    add_one(&tally.admitted);
    let mut policies = verdict.iter().flat_map(|verdict| verdict.policies());
    let has_waited = policies.any(|policy| !policy.is_shadow() && !policy.decision().delay().is_zero());
    if has_waited {
        add_one(&tally.delayed);
    }
    tally.complete(number, if has_waited { "delayed" } else { "admitted" });
    response
}

/// Counts a request as left when it is dropped.
struct Unanswered<'a> {
    tally: &'a Tally,
    number: u64,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        add_one(&self.tally.left);
        self.tally.complete(self.number, "left");
    }
}
