//! A request that waits in its key's line, and asks the server while it is the first.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, sleep_until};

use super::super::{closed, rejected};
use super::lines::{CountedWaiter, KeyLine, LineChange, NoPlace};
use super::pace::{AskingPace, OVERDUE};
use super::process::{Process, RemoteWanted};
use crate::limiter::WaitBounds;
use crate::store::remote::InFlight;
use crate::values::{Decision, LimiterError};

impl<S: InFlight> Process<S> {
    /// Takes a key's units, and waits for them if `bounds` allow it. `is_own_limit` says whether the limit is the key's
    /// own, which stays when the limiter's changes.
    ///
    /// A request that is dropped leaves its line, and the next waiter is the first. If it was asking the server, the
    /// call goes on in the background, and the units that it takes are released.
    pub(super) async fn take_or_wait(
        self: Arc<Self>,
        wanted: RemoteWanted,
        is_own_limit: bool,
        bounds: WaitBounds,
    ) -> Result<Decision, LimiterError> {
        // Checked first, since tokio's timer panics outside of a runtime.
        self.runtime()?;
        let RemoteWanted { tag, cost, limit } = wanted;
        let since = Instant::now();
        let (pace, left) = if cost > 0 && cost <= limit && self.lines.has(tag) {
            // It overtakes no waiter.
            (AskingPace::unknown(since), 0)
        } else {
            let decision = self.take(wanted).await?;
            if !decision.is_until_released() {
                return Ok(decision);
            }
            (AskingPace::rejected(decision.remaining(), Instant::now()), decision.remaining())
        };
        match self.lines.join(tag, &bounds, pace) {
            Ok(place) => {
                let longest = bounds.max_wait.saturating_sub(since.elapsed());
                // Boxed, since most requests need not wait.
                let decision = Box::pin(self.wait(place, wanted, is_own_limit, longest)).await?;
                Ok(if decision.is_allowed() { decision.with_delay(since.elapsed()) } else { decision })
            }
            Err(NoPlace::Full) => Ok(rejected(limit, left)),
            Err(NoPlace::Closed) => Err(closed()),
        }
    }

    /// Waits in line, and then asks until the units are there or the time is over.
    pub(super) async fn wait(
        self: &Arc<Self>,
        mut place: CountedWaiter,
        mut wanted: RemoteWanted,
        is_own_limit: bool,
        longest: Duration,
    ) -> Result<Decision, LimiterError> {
        let line = Arc::clone(&place.line);
        let mut timeout = pin!(sleep(longest));
        let mut turn = pin!(line.turn.lock());
        // From here on, the turn is handed on however the wait ends.
        let _turn = loop {
            tokio::select! {
                biased;
                change = next_change(&mut place.changes) => wanted.adopt(change, is_own_limit)?,
                turn = &mut turn => break turn,
                () = &mut timeout => return Ok(rejected(wanted.limit, 0)),
                () = sleep(OVERDUE) => {
                    // If both were late, a first waiter on this runtime is polled before this one continues.
                    yield_now().await;
                    if line.pace().is_overdue(self.call_timeout(), Instant::now()) {
                        if let Some(decision) = self.ask(&line, wanted).await? {
                            return Ok(decision);
                        }
                    }
                }
            }
        };
        loop {
            if line.pace().is_due(wanted.cost, Instant::now()) {
                if let Some(decision) = self.ask(&line, wanted).await? {
                    return Ok(decision);
                }
            }
            let next = line.pace().next();
            tokio::select! {
                biased;
                change = next_change(&mut place.changes) => {
                    wanted.adopt(change, is_own_limit)?;
                    line.pace().hurry();
                }
                () = line.released.notified() => line.pace().released(Instant::now()),
                () = &mut timeout => return Ok(rejected(wanted.limit, 0)),
                () = sleep_until(next) => {}
            }
        }
    }

    /// Asks for the units once. Returns a decision if they were free.
    async fn ask(self: &Arc<Self>, line: &KeyLine, wanted: RemoteWanted) -> Result<Option<Decision>, LimiterError> {
        line.pace().ask(Instant::now());
        match self.take(wanted).await {
            Ok(decision) if decision.is_allowed() => {
                line.pace().served(decision.remaining(), Instant::now());
                Ok(Some(decision))
            }
            Ok(decision) => {
                line.pace().answered(decision.remaining(), Instant::now());
                Ok(None)
            }
            Err(error) => {
                // The next waiter asks at once, instead of waiting to find out.
                line.pace().hurry();
                Err(error)
            }
        }
    }
}

impl RemoteWanted {
    /// Asks under another limit from now on, unless it asks under its key's own.
    fn adopt(&mut self, change: LineChange, is_own_limit: bool) -> Result<(), LimiterError> {
        if change.is_closed {
            return Err(closed());
        }
        // A request that can never fit under the new limit passes when it is alone, as in memory.
        if !is_own_limit {
            self.limit = change.limit.max(self.cost);
        }
        Ok(())
    }
}

async fn next_change(changes: &mut watch::Receiver<LineChange>) -> LineChange {
    changes.changed().await.expect("the sender is in the process, which the waiter keeps");
    *changes.borrow_and_update()
}
