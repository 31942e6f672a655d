//! Runs a plan against a contender, and records each request's fate.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use http::{HeaderValue, Request, StatusCode};
use http_body::Body;
use tokio::runtime::Builder;
use tokio::time::Duration;
use tower::ServiceExt;

use crate::contenders::{Contender, Entrance};
use crate::job::Job;
use crate::plan::{Arrivals, Plan};
use crate::server::Server;
use crate::time::{Epoch, SECOND};

/// A request's fate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fate {
    /// Answered with 200, to the end of the body.
    Answered,
    /// Answered with another status, or with an error.
    Refused,
    /// The client gave up.
    GivenUp,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) job: Job,
    pub(crate) arrived: u64,
    pub(crate) left: u64,
    pub(crate) fate: Fate,
}

impl Record {
    /// Whether the client could use the answer.
    pub(crate) fn is_good(&self) -> bool {
        self.fate == Fate::Answered && self.left - self.arrived <= self.job.deadline()
    }
}

/// All data about a run.
#[derive(Debug)]
pub(crate) struct Trace {
    pub(crate) plan: Plan,
    pub(crate) records: Vec<Record>,
    /// For each second, the mean number of requests in the server.
    pub(crate) inside: Vec<f64>,
}

/// Runs a plan. Equal seeds give equal traces.
pub(crate) fn run(plan: &Plan, contender: &dyn Contender, seed: u64) -> Trace {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        // All tasks that are ready run before the clock moves on.
        .event_interval(u32::MAX)
        .build()
        .expect("a runtime with a timer");
    let trace = runtime.block_on(drive(plan, contender, seed));
    drop(runtime);
    trace
}

async fn drive(plan: &Plan, contender: &dyn Contender, seed: u64) -> Trace {
    let epoch = Epoch::begin();
    let server = Server::new(plan.clone(), epoch);
    let entrance = contender.protect(server.clone());
    let records = Arc::new(Mutex::new(Vec::new()));
    let mut arrivals = Arrivals::new(seed);
    let mut arrival = arrivals.next(plan);
    // The last arrivals are answered, or given up.
    let end = plan.end() + plan.patience + SECOND;
    loop {
        let next = [arrival.as_ref().map(|(at, _)| *at), server.next_event(), Some(end)];
        let next = next.into_iter().flatten().min().unwrap_or(end);
        if !epoch.approach(next, server.changed()).await {
            continue;
        }
        if next >= end {
            break;
        }
        server.work();
        if let Some((at, job)) = arrival.filter(|(at, _)| *at <= epoch.now()) {
            let record = Record { job, arrived: at, left: at, fate: Fate::Refused };
            let note = Note { record, records: Arc::clone(&records) };
            tokio::spawn(visit(entrance.clone(), note, epoch, plan.patience));
            arrival = arrivals.next(plan);
        }
        tokio::task::yield_now().await;
    }
    let records = std::mem::take(&mut *records.lock().unwrap_or_else(PoisonError::into_inner));
    Trace { plan: plan.clone(), records, inside: server.mean_load() }
}

const TENANTS: [&str; 10] = ["greedy", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];

/// A client: sends a request, reads the answer to its end, and gives up after a while.
async fn visit(entrance: Entrance, mut note: Note, epoch: Epoch, patience: u64) {
    let job = note.record.job;
    let mut request = Request::new(());
    request.headers_mut().insert("x-api-key", HeaderValue::from_static(TENANTS[usize::from(job.tenant)]));
    request.extensions_mut().insert(job);
    let answer = async {
        let Ok(response) = entrance.oneshot(request).await else { return Fate::Refused };
        let (head, mut body) = response.into_parts();
        while poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await.is_some() {}
        if head.status == StatusCode::OK { Fate::Answered } else { Fate::Refused }
    };
    note.record.fate = tokio::time::timeout(Duration::from_nanos(patience), answer).await.unwrap_or(Fate::GivenUp);
    note.record.left = epoch.now();
}

/// Records a request when it is dropped: a contender that panics has refused it.
struct Note {
    record: Record,
    records: Arc<Mutex<Vec<Record>>>,
}

impl Drop for Note {
    fn drop(&mut self) {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).push(self.record);
    }
}
