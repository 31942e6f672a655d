//! [`RetryCharger`]: a request and its retries are charged once.
//!
//! `on_server` asks a server that decides on retries in the call that charges. Otherwise, `over_records` keeps the
//! request records and the budgets for free retries as [`Records`](super::Records).

mod on_server;
pub(crate) mod over_records;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::runtime::Handle;

pub(super) use self::on_server::describe;
pub use self::on_server::{ChargeRetries, ChargedOnce, FreeRetry, RetryRecord};
pub(super) use self::over_records::RecordKeeper;
use super::backend::Backend;
use super::query::{KeyQuery, StoreInner};
use crate::algorithm::{Algorithm, TokenBucket};
use crate::store::{MemoryStore, MemoryTable};
use crate::values::{Answer, Ask, ChargingOnce, Decision, LimiterError, PartitionKey, Pending, Quota, Receipt, Retry};

/// Charges each of one limiter's requests once, retries included.
pub(super) struct RetryCharger<A: Algorithm, B, K> {
    inner: Arc<StoreInner<A::State, B>>,
    algorithm: A,
    keeper: K,
    lookups: Lookups,
}

/// Keeps the request records, and the budgets for free retries. The futures outlive their callers.
pub(super) trait RetryKeeper<A: Algorithm, B>: Send + Sync + 'static {
    /// Decides on a request. If it is a free retry, reports when its record ends.
    fn decide(&self, query: KeyQuery<A, B>, cost: u64, retry: &Retry) -> Pending;

    /// Records that a request is over. If it fails, its retries are charged.
    fn begin(&self, key: &PartitionKey, retry: &Retry) -> Background;

    /// Returns a free retry, and its cost by the budget's receipt. If it fails, the next retry is charged.
    fn put_back(&self, key: &PartitionKey, retry: &Retry, receipt: Receipt, cost: u64) -> Background;
}

/// A call for which no request waits.
type Background = Pin<Box<dyn Future<Output = Result<(), LimiterError>> + Send>>;

impl<A: Algorithm + Clone, B: Backend<A>, K: RetryKeeper<A, B>> RetryCharger<A, B, K> {
    pub(super) fn new(inner: Arc<StoreInner<A::State, B>>, algorithm: A, keeper: K) -> Self {
        Self { inner, algorithm, keeper, lookups: Lookups::new() }
    }
}

impl<A: Algorithm + Clone, B: Backend<A>, K: RetryKeeper<A, B>> ChargingOnce for RetryCharger<A, B, K> {
    fn decide(&self, ask: &Ask<'_>, retry: &Retry) -> Answer {
        if ask.is_suspended() {
            return Decision::suspended().into();
        }
        let query = match KeyQuery::for_ask(&self.inner, &self.algorithm, ask) {
            Ok(query) => query,
            Err(error) => return Answer::Ready(Err(error)),
        };
        // The negative cache knows no records, so it decides only on requests beyond the look-ups.
        if let Some(rejection) = query.peek_rejection(ask.cost()).filter(|_| !self.lookups.admit(ask.key())) {
            return rejection.into();
        }
        Answer::Pending(self.keeper.decide(query, ask.cost(), retry))
    }

    fn begin(&self, key: &PartitionKey, retry: &Retry) {
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(self.keeper.begin(key, retry));
        }
    }

    fn put_back(&self, key: &PartitionKey, retry: &Retry, receipt: Receipt, cost: u64) {
        if let (Ok(runtime), Some(receipt)) = (Handle::try_current(), receipt.unmark_free_retry()) {
            runtime.spawn(self.keeper.put_back(key, retry, receipt, cost));
        }
    }
}

/// Limits the calls for requests whose key is known to be used up, in case they are free retries: 10 per second and
/// key, and 100 at once. Otherwise a client could turn each rejection into a call, with an idempotency key. A retry
/// beyond the limit is rejected, and is not used up.
struct Lookups {
    limit: TokenBucket,
    keys: MemoryTable<<TokenBucket as Algorithm>::State>,
}

impl Lookups {
    /// Keys that are evicted for others have all their look-ups again.
    fn new() -> Self {
        Self {
            limit: TokenBucket::new(Quota::per_second(10).burst(100)),
            keys: MemoryStore::with_capacity(8_192).table(),
        }
    }

    fn admit(&self, key: &PartitionKey) -> bool {
        let decision: Decision = self.keys.charge(&self.limit, &Ask::charge(key, 1));
        decision.is_allowed()
    }
}
