//! [`KeyLines`]: one process's requests that wait for units, in a line for each key.
//!
//! A key's waiters do not line up for its units, which the server has, but for the right to ask for them: a tokio
//! mutex, which is handed on first come, first served, also when a waiter is dropped. Its holder is the first waiter.
//! If the holder does not ask for more than a second, its runtime is blocked, and another waiter asks.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};

use crate::limiter::WaitBounds;
use crate::store::remote::tag::KeyTag;
use crate::util::lock::Lock;
use crate::util::wake::let_others_take;
use tokio::sync::{Notify, watch};

use super::pace::AskingPace;

/// The lines of all keys. A key has one while its requests wait.
pub(super) struct KeyLines {
    lines: Lock<HashMap<KeyTag, LineEntry>>,
    /// The waiters of all keys. Changed under the lock, and read without.
    waiting: AtomicUsize,
    changes: watch::Sender<LineChange>,
}

struct LineEntry {
    line: Arc<KeyLine>,
    waiters: usize,
}

/// One key's line.
pub(super) struct KeyLine {
    /// Held by the first waiter.
    pub(super) turn: tokio::sync::Mutex<()>,
    pace: Lock<AskingPace>,
    /// Signals that this process has released units of the key. A signal is stored until the first waiter looks, so
    /// that it misses no release while it asks the server.
    pub(super) released: Notify,
}

/// A change that applies to all waiters.
#[derive(Clone, Copy, Default)]
pub(super) struct LineChange {
    /// The last heir's limit.
    pub(super) limit: u64,
    pub(super) is_closed: bool,
}

/// Why a request cannot wait.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoPlace {
    /// The line, or the process, has the most waiters that it may have.
    Full,
    Closed,
}

impl KeyLines {
    pub(super) fn new() -> Self {
        Self { lines: Lock::default(), waiting: AtomicUsize::new(0), changes: watch::Sender::default() }
    }

    /// Whether requests of a key wait.
    pub(super) fn has(&self, tag: KeyTag) -> bool {
        self.waiting() > 0 && self.lines.lock().contains_key(&tag)
    }

    /// The number of requests that wait.
    pub(super) fn waiting(&self) -> usize {
        // Relaxed: no other memory is published by it. A request that misses a line in the making asks the server, as
        // if it had arrived before.
        self.waiting.load(Ordering::Relaxed)
    }

    /// Counts a request that begins to wait. A new line gets this pace.
    pub(super) fn join(
        self: &Arc<Self>,
        tag: KeyTag,
        bounds: &WaitBounds,
        pace: AskingPace,
    ) -> Result<CountedWaiter, NoPlace> {
        let changes = self.changes.subscribe();
        if changes.borrow().is_closed {
            return Err(NoPlace::Closed);
        }
        let mut lines = self.lines.lock();
        let waiters = lines.get(&tag).map_or(0, |entry| entry.waiters);
        if waiters >= bounds.max_queue || self.waiting() >= bounds.max_waiters {
            return Err(NoPlace::Full);
        }
        let entry = lines.entry(tag).or_insert_with(|| LineEntry { line: Arc::new(KeyLine::new(pace)), waiters: 0 });
        entry.waiters += 1;
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Ok(CountedWaiter { lines: Arc::clone(self), tag, line: Arc::clone(&entry.line), changes })
    }

    /// Lets a key's first waiter ask now, because units were released.
    pub(super) fn released(&self, tag: KeyTag) {
        if self.waiting() > 0 {
            let line = self.lines.lock().get(&tag).map(|entry| Arc::clone(&entry.line));
            if let Some(line) = line {
                line.released.notify_one();
                let_others_take();
            }
        }
    }

    /// Applies another limit to all waiters.
    pub(super) fn change_limit(&self, limit: u64) {
        self.changes.send_modify(|change| change.limit = limit);
    }

    /// Ends all waits, and lets no request wait any more.
    pub(super) fn close(&self) {
        self.changes.send_modify(|change| change.is_closed = true);
    }
}

impl KeyLine {
    fn new(pace: AskingPace) -> Self {
        Self { turn: tokio::sync::Mutex::new(()), pace: Lock::new(pace), released: Notify::new() }
    }

    /// Never locked across an await.
    pub(super) fn pace(&self) -> MutexGuard<'_, AskingPace> {
        self.pace.lock()
    }
}

/// Counts a waiter while it waits.
pub(super) struct CountedWaiter {
    lines: Arc<KeyLines>,
    tag: KeyTag,
    pub(super) line: Arc<KeyLine>,
    /// The changes since its arrival.
    pub(super) changes: watch::Receiver<LineChange>,
}

impl Drop for CountedWaiter {
    fn drop(&mut self) {
        let mut lines = self.lines.lines.lock();
        self.lines.waiting.fetch_sub(1, Ordering::Relaxed);
        if let Slot::Occupied(mut entry) = lines.entry(self.tag) {
            entry.get_mut().waiters -= 1;
            if entry.get().waiters == 0 {
                entry.remove();
            }
        }
    }
}
