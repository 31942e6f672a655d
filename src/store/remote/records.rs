//! [`Records`]: small values on a server, each replaced as a whole, and the changes that limiters make to them.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::{Instant, timeout_at};

use super::attempts::Attempts;
use super::backend::{CallLimits, GaveUp};
use super::limiter_keys::LimiterKeys;
use super::server::Server;
use super::tag::KeyTag;
use crate::util::lock::Lock;
use crate::values::time::Timestamp;
use crate::values::{LimiterError, PartitionKey};

/// A server that keeps small values under names, and replaces a value only if it has not changed since it was read.
///
/// Limiters whose state does not belong to an [algorithm](crate::algorithm::Algorithm) work over any server that can do
/// this: requests in flight, queues, balances, free retries. A [`KeyValue`](super::KeyValue) store implements it by way
/// of [`KeyValueRecords`](super::KeyValueRecords).
///
/// # Contract
///
/// - [`swap`](Self::swap) is one atomic step over all processes.
/// - [`read`](Self::read) returns the value that was written last, and the time. One record's times do not decrease:
///   they are by the server's clock, or by clocks that are kept synchronised.
/// - A record is kept for its lifetime, and may be forgotten then. If a record is forgotten earlier, so is its limit.
/// - A failure is an error. A swap that failed may have been applied, and is not sent again.
/// - Both return before the deadline, even if the server does not answer. [`Calls`](super::Calls) ensures this.
///
/// `testing::check_records` (feature `test-util`) tests yours.
pub trait Records: Server {
    /// Reads a record. Names are short: the limiter's name, and less than 64 characters of base64url, `:` and `-`.
    ///
    /// # Errors
    ///
    /// If the server does not answer.
    fn read(&self, name: &str, limits: CallLimits) -> impl Future<Output = Result<Record, LimiterError>> + Send;

    /// Replaces a record's value, if it is still `old`, and returns whether it was. `None` stands for no value, so as
    /// `new`, it deletes the record. The new value may be forgotten after `lifetime`; [`Duration::MAX`] is for ever.
    ///
    /// # Errors
    ///
    /// If the server does not answer. Then the value may have been replaced.
    fn swap(
        &self,
        name: &str,
        old: Option<&[u8]>,
        new: Option<&[u8]>,
        lifetime: Duration,
        limits: CallLimits,
    ) -> impl Future<Output = Result<bool, LimiterError>> + Send;
}

/// Shares the server.
impl<R: Records> Records for Arc<R> {
    fn read(&self, name: &str, limits: CallLimits) -> impl Future<Output = Result<Record, LimiterError>> + Send {
        R::read(self, name, limits)
    }

    fn swap(
        &self,
        name: &str,
        old: Option<&[u8]>,
        new: Option<&[u8]>,
        lifetime: Duration,
        limits: CallLimits,
    ) -> impl Future<Output = Result<bool, LimiterError>> + Send {
        R::swap(self, name, old, new, lifetime, limits)
    }
}

/// A record as it was read.
#[derive(Clone, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "a server writes all of it")]
pub struct Record {
    /// The value. `None` if the record does not exist, or if its lifetime is over.
    pub value: Option<Vec<u8>>,
    /// The time, in nanoseconds since the Unix epoch.
    pub now: Timestamp,
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { value, now } = self;
        f.debug_struct("Record").field("bytes", &value.as_ref().map(Vec::len)).field("now", now).finish()
    }
}

/// The outcome of a step in a [change].
pub(crate) enum Step<T> {
    /// Nothing is written.
    Leave(T),
    /// This value replaces it, for this lifetime. `None` deletes it.
    Write(T, Option<Vec<u8>>, Duration),
}

/// Why a step on the server was not made, as far as this process knows.
#[derive(Debug)]
#[allow(clippy::exhaustive_enums, reason = "a step either may have been made, or has not")]
pub enum Unchanged {
    /// It was certainly not made, so nothing was written.
    NotWritten(LimiterError),
    /// It may have been made, or may yet be, because the answer did not come, or cannot be read.
    Unknown(LimiterError),
}

impl From<Unchanged> for LimiterError {
    fn from(unchanged: Unchanged) -> Self {
        match unchanged {
            Unchanged::NotWritten(error) | Unchanged::Unknown(error) => error,
        }
    }
}

/// A change that was made.
pub(crate) struct Changed<T> {
    pub(crate) result: T,
    /// The server's time by which it was computed.
    pub(crate) now: Timestamp,
}

/// One limiter's records, and this process's requests that change them.
pub(crate) struct LimiterRecords<R> {
    records: R,
    keys: LimiterKeys,
}

impl<R: Records> LimiterRecords<R> {
    /// Keeps the keys for the limiter that is called `limiter`.
    pub(crate) fn new(records: R, limiter: &str) -> Self {
        let keys = LimiterKeys::new(records.secret(), limiter);
        Self { records, keys }
    }

    pub(crate) const fn records(&self) -> &R {
        &self.records
    }

    pub(crate) fn tag(&self, key: &PartitionKey) -> KeyTag {
        self.keys.tag(key)
    }

    /// The name of a key's record. `kind` separates a key's records.
    pub(crate) fn name(&self, tag: KeyTag, kind: char) -> String {
        self.keys.key(tag).record(kind)
    }

    /// The name of one of several records with this kind.
    pub(crate) fn name_of_part(&self, tag: KeyTag, kind: char, part: impl fmt::Display) -> String {
        self.keys.key(tag).record_of(kind, part)
    }

    /// The name of a record that does not belong to a key.
    pub(crate) fn item(&self, item: &str) -> String {
        self.keys.item(item)
    }

    /// Makes a [change] to the record with this name, in its turn.
    pub(crate) async fn change_named<T>(
        &self,
        name: String,
        deadline: Instant,
        step: impl FnMut(Option<&[u8]>, Timestamp) -> Result<Step<T>, LimiterError>,
    ) -> Result<Changed<T>, Unchanged> {
        change(&self.records, Some(self.keys.turns()), &name, deadline, step).await
    }
}

/// Reads a record, lets `step` decide, and writes the value that it returns. Tries again if another process was faster.
/// This process's requests for one record take turns, first come, first served, since otherwise they would only make
/// each other's attempts fail. Without turns, this goes before all requests that wait for theirs.
///
/// Takes two calls, or one if nothing is written.
pub(crate) async fn change<R: Records, T>(
    records: &R,
    turns: Option<&Turns>,
    name: &str,
    deadline: Instant,
    mut step: impl FnMut(Option<&[u8]>, Timestamp) -> Result<Step<T>, LimiterError>,
) -> Result<Changed<T>, Unchanged> {
    let limits = CallLimits { deadline, requests: 1 };
    let gave_up = |reason| Unchanged::NotWritten(records.gave_up(reason));
    let _turn = match turns {
        Some(turns) => Some(turns.take_in_half(name, deadline).await.map_err(gave_up)?),
        None => None,
    };
    let mut attempts = Attempts::new(deadline);
    loop {
        let Record { value, now } = records.read(name, limits).await.map_err(Unchanged::NotWritten)?;
        let (result, new, lifetime) = match step(value.as_deref(), now).map_err(Unchanged::NotWritten)? {
            Step::Leave(result) => return Ok(Changed { result, now }),
            Step::Write(result, new, lifetime) => (result, new, lifetime),
        };
        let is_same = value == new && value.is_none();
        let swapped = async { records.swap(name, value.as_deref(), new.as_deref(), lifetime, limits).await };
        if is_same || swapped.await.map_err(Unchanged::Unknown)? {
            return Ok(Changed { result, now });
        }
        attempts.lost().await.map_err(gave_up)?;
    }
}

/// The records that this process's requests change now, by their names.
#[derive(Default)]
pub(crate) struct Turns(Arc<Changing>);

type Changing = Lock<HashMap<Arc<str>, Arc<Mutex<()>>>>;

/// A request's turn, which ends when this is dropped.
pub(crate) struct Turn {
    all: Arc<Changing>,
    name: Arc<str>,
    held: Option<OwnedMutexGuard<()>>,
}

impl Turns {
    /// Waits behind earlier requests for this record, for at most half the time until `deadline`, because a request
    /// that got its turn later would not have time for its calls, and would change the record after it gave up.
    pub(crate) async fn take_in_half(&self, name: &str, deadline: Instant) -> Result<Turn, GaveUp> {
        let now = Instant::now();
        self.take(name, now + deadline.saturating_duration_since(now) / 2).await
    }

    /// Waits behind earlier requests for this record, until `deadline` at most.
    pub(crate) async fn take(&self, name: &str, deadline: Instant) -> Result<Turn, GaveUp> {
        timeout_at(deadline, self.wait(name)).await.map_err(|_| GaveUp::TimedOut)
    }

    async fn wait(&self, name: &str) -> Turn {
        // Made before the wait, so that a request that gives up does not leave an entry either.
        let mut turn = Turn { all: Arc::clone(&self.0), name: name.into(), held: None };
        let mutex = Arc::clone(self.0.lock().entry(Arc::clone(&turn.name)).or_default());
        turn.held = Some(mutex.lock_owned().await);
        turn
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        drop(self.held.take());
        let mut all = self.all.lock();
        // Copies are made under this lock only, so the last one is seen.
        if all.get(&self.name).is_some_and(|mutex| Arc::strong_count(mutex) == 1) {
            all.remove(&self.name);
        }
    }
}
