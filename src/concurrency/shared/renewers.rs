//! [`Renewers`]: the tasks that renew the leases of units in flight.

use std::sync::Arc;

use crate::util::lock::Lock;
use crate::util::wake::let_others_take;
use crate::values::time::{Clock, Monotonic};
use tokio::runtime::{Handle, Id};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::process::Process;
use crate::store::remote::InFlight;

/// The runtimes that renew: one task on each runtime on which requests were admitted, until nothing is in flight. A
/// runtime that is blocked leaves the work to the others.
#[derive(Default)]
pub(super) struct Renewers(Lock<Vec<(Id, Handle)>>);

/// How often in a lease a renewer looks for keys that are due. A renewal is due after half a lease, so a renewal that
/// fails at once has seven further attempts; if calls time out, there are fewer.
const LOOKS_PER_LEASE: u32 = 16;

/// The most renewals under way on a runtime at a time: few compared to the requests' calls.
const AT_A_TIME: usize = 32;

impl Renewers {
    /// Starts a task on this runtime, unless it has one.
    pub(super) fn start<S: InFlight>(process: &Arc<Process<S>>, runtime: &Handle) {
        let mut runtimes = process.renewers.0.lock();
        if runtimes.iter().all(|(id, _)| *id != runtime.id()) {
            runtimes.push((runtime.id(), runtime.clone()));
            drop(runtimes);
            runtime.spawn(Renewer { process: Arc::clone(process), runtime: Some(runtime.id()) }.run());
            let_others_take();
        }
    }

    /// A runtime that renews.
    pub(super) fn any(&self) -> Option<Handle> {
        self.0.lock().last().map(|(_, runtime)| runtime.clone())
    }
}

/// One runtime's task.
struct Renewer<S: InFlight> {
    process: Arc<Process<S>>,
    /// Taken when it leaves the list.
    runtime: Option<Id>,
}

impl<S: InFlight> Renewer<S> {
    async fn run(mut self) {
        loop {
            sleep(self.process.lease() / LOOKS_PER_LEASE).await;
            self.renew_due().await;
            if self.leaves_if_idle() {
                return;
            }
        }
    }

    async fn renew_due(&self) {
        let counts = &self.process.counts;
        let lease = self.process.lease();
        let mut due = counts.due(Monotonic.now(), lease).into_iter();
        let mut calls = JoinSet::new();
        loop {
            while calls.len() < AT_A_TIME {
                let Some(tag) = due.next() else { break };
                if let Some(renewal) = counts.renew(tag, Monotonic.now(), lease) {
                    calls.spawn(Arc::clone(&self.process).renew(tag, renewal));
                }
            }
            if calls.join_next().await.is_none() {
                return;
            }
        }
    }

    /// Leaves the list if nothing is in flight. Decided under the list's lock, which a request takes after it was
    /// counted: either this sees the request, or the request finds no task on this runtime and starts one.
    fn leaves_if_idle(&mut self) -> bool {
        let mut runtimes = self.process.renewers.0.lock();
        let is_idle = self.process.counts.is_empty();
        if is_idle {
            let id = self.runtime.take();
            runtimes.retain(|(runtime, _)| Some(*runtime) != id);
        }
        is_idle
    }
}

impl<S: InFlight> Drop for Renewer<S> {
    fn drop(&mut self) {
        // Its runtime was shut down.
        if let Some(id) = self.runtime.take() {
            self.process.renewers.0.lock().retain(|(runtime, _)| *runtime != id);
        }
    }
}
