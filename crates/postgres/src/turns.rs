//! [`Turns`]: this process has at most one statement in flight for a key.
//!
//! A statement that locks rows waits until no other statement by this process has one of its keys. Otherwise a process
//! with many connections would let many statements wait for one row on the server, each with a connection, and those on
//! several keys with locks on other rows.

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// The keys of statements that are in flight, or wait for their turn.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<Queues>);

#[derive(Debug, Default)]
struct Queues {
    /// For each key, the statements in their order. The first has its turn.
    by_key: HashMap<String, VecDeque<u64>>,
    /// By the numbers of waiting statements: for how many keys each waits, and the sender that wakes it.
    waiting: HashMap<u64, (usize, oneshot::Sender<()>)>,
    next: u64,
}

/// A statement's turn, or its place in the queues while it waits. Dropped when the statement has ended.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Arc<Turns>,
    number: u64,
    keys: Vec<String>,
}

impl Turns {
    /// Waits for a statement's turn on these keys, which are all different.
    ///
    /// The statement joins the queues for all its keys in one step. So it waits only for earlier ones, and statements
    /// do not wait for each other in a circle.
    pub(crate) async fn take(self: &Arc<Self>, keys: Vec<String>) -> Turn {
        let (turn, told) = self.join(keys);
        if let Some(told) = told {
            // The sender is dropped only with the turn.
            let _ = told.await;
        }
        turn
    }

    fn join(self: &Arc<Self>, keys: Vec<String>) -> (Turn, Option<oneshot::Receiver<()>>) {
        let mut queues = self.lock();
        let number = queues.next;
        queues.next += 1;
        let mut missing = 0;
        for key in &keys {
            let queue = queues.by_key.entry(key.clone()).or_default();
            missing += usize::from(!queue.is_empty());
            queue.push_back(number);
        }
        let told = (missing > 0).then(|| {
            let (sender, told) = oneshot::channel();
            queues.waiting.insert(number, (missing, sender));
            told
        });
        drop(queues);
        (Turn { turns: Arc::clone(self), number, keys }, told)
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queues {
    /// Removes a statement from a key's queue. If the next one has all its keys now, returns the sender that wakes it.
    fn leave(&mut self, key: &str, number: u64) -> Option<oneshot::Sender<()>> {
        let queue = self.by_key.get_mut(key)?;
        let was_first = queue.front() == Some(&number);
        if was_first {
            queue.pop_front();
        } else {
            queue.retain(|other| *other != number);
        }
        let Some(next) = queue.front().copied() else {
            self.by_key.remove(key);
            return None;
        };
        let Entry::Occupied(mut waiting) = self.waiting.entry(next) else { return None };
        if !was_first {
            return None;
        }
        waiting.get_mut().0 -= 1;
        (waiting.get().0 == 0).then(|| waiting.remove().1)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut queues = self.turns.lock();
        let gave_up = queues.waiting.remove(&self.number);
        let told: Vec<_> = self.keys.iter().filter_map(|key| queues.leave(key, self.number)).collect();
        drop(queues);
        drop(gave_up);
        for next in told {
            let _ = next.send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn keys(names: &str) -> Vec<String> {
        names.chars().map(String::from).collect()
    }

    fn poll(turn: Pin<&mut impl Future<Output = Turn>>) -> Poll<Turn> {
        turn.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn statements_on_a_key_take_turns() {
        let turns = Arc::new(Turns::default());
        let mut waits: Vec<_> = ["a", "ab", "b", "c"].iter().map(|names| Box::pin(turns.take(keys(names)))).collect();
        let first = poll(waits[0].as_mut());
        assert!(first.is_ready());
        assert!(poll(waits[1].as_mut()).is_pending());
        assert!(poll(waits[2].as_mut()).is_pending(), "behind the statement that waits for `a`");
        assert!(poll(waits[3].as_mut()).is_ready());
        drop(first);
        let second = poll(waits[1].as_mut());
        assert!(second.is_ready() && poll(waits[2].as_mut()).is_pending());
        drop(second);
        assert!(poll(waits[2].as_mut()).is_ready());
        drop(waits);
        assert!(turns.lock().by_key.is_empty() && turns.lock().waiting.is_empty());
    }

    #[test]
    fn a_cancelled_statement_leaves_its_queues() {
        let turns = Arc::new(Turns::default());
        let mut first = pin!(turns.take(keys("a")));
        let first = poll(first.as_mut());
        let mut third = pin!(turns.take(keys("ab")));
        {
            let mut second = pin!(turns.take(keys("b")));
            let second = poll(second.as_mut());
            let mut cancelled = pin!(turns.take(keys("ab")));
            assert!(poll(cancelled.as_mut()).is_pending() && poll(third.as_mut()).is_pending());
            drop(second);
        }
        assert!(poll(third.as_mut()).is_pending(), "`a` is taken");
        drop(first);
        assert!(poll(third.as_mut()).is_ready());
        assert!(turns.lock().by_key.is_empty() && turns.lock().waiting.is_empty());
    }
}
