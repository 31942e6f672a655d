//! Servers that decide on a retry in the call that charges.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::{Background, RetryCharger, RetryKeeper};
use crate::algorithm::Algorithm;
use crate::store::remote::backend::{Applied, Backend, CallLimits, Target};
use crate::store::remote::negative_cache::Observation;
use crate::store::remote::query::{KeyQuery, StoreInner};
use crate::store::remote::tag::{KeyTag, Tags};
use crate::values::time::{Clock, Monotonic};
use crate::values::{Description, LimiterError, PartitionKey, Pending, Quota, Receipt, Retry};

/// A server that decides on a possible retry in the call that charges it, for policies that [charge retries
/// once](crate::ChargeOnce).
///
/// It is first a [`Backend`]. [`Parts::free_retries`](crate::store::remote::Parts::free_retries) announces it to the
/// store. Without it, free retries are [records](crate::store::remote::RemoteStore::records), which take more calls, or
/// each process has its own.
///
/// # Contract
///
/// The server has a record for each request that is over, with its remaining free retries, and a budget of free retries
/// for each key. A budget's state belongs to the limiter's algorithm, if that is a window with a fixed length, and
/// otherwise to a [`TokenBucket`](crate::algorithm::TokenBucket), under the quota in the [`RetryRecord`].
///
/// - [`charge_once`](Self::charge_once) is one atomic step over all processes. If the request's record has a free retry
///   left, the key is not banned, and the budget admits the cost, then one retry is taken from the record, the budget
///   is charged, and the key is only read. Otherwise the key is charged as by a
///   [charge](crate::store::remote::Transition::Charge) for one request, or only read if the cost can never be
///   admitted.
/// - [`begin_record`](Self::begin_record) leaves an existing record and its end unchanged.
/// - [`put_back`](Self::put_back) returns the cost to the budget before the free retry to the record, so that no retry
///   takes the record before the budget has the units for it. It need not be atomic.
/// - A failure is an error. A call that failed may have been carried out, and is not sent again.
/// - All return before the deadline, even if the server does not answer.
///
/// `testing::check_free_retries` (feature `test-util`) tests yours.
pub trait ChargeRetries<A: Algorithm>: Backend<A> {
    /// Decides on a request. The cost is at least 1, and may be above [`Algorithm::max_cost`].
    ///
    /// # Errors
    ///
    /// If the server does not answer, if its answer is inconclusive, or if it cannot keep the budget.
    fn charge_once(
        &self,
        target: &Target<'_, A>,
        cost: u64,
        record: &RetryRecord,
        limits: CallLimits,
    ) -> impl Future<Output = Result<ChargedOnce<A::State>, LimiterError>> + Send;

    /// Records that a charged request is over, so that its retries are free, as often and as long as the record says.
    ///
    /// # Errors
    ///
    /// If the server does not answer. Then its retries may be charged.
    fn begin_record(
        &self,
        target: &Target<'_, A>,
        record: &RetryRecord,
        limits: CallLimits,
    ) -> impl Future<Output = Result<(), LimiterError>> + Send;

    /// Returns a free retry that was not used: `cost` to the budget, by the budget's receipt, and the retry to the
    /// record, if that exists and has fewer than at its beginning.
    ///
    /// # Errors
    ///
    /// If the server does not answer. Then the next retry may be charged.
    fn put_back(
        &self,
        target: &Target<'_, A>,
        record: &RetryRecord,
        cost: u64,
        receipt: Receipt,
        limits: CallLimits,
    ) -> impl Future<Output = Result<(), LimiterError>> + Send;
}

/// A request's record, whose name its retries share.
#[derive(Clone, Debug)]
pub struct RetryRecord {
    tag: KeyTag,
    budget: Quota,
    free_retries: u32,
    within: Duration,
}

impl RetryRecord {
    pub(crate) fn new(tags: &Tags, retry: &Retry) -> Self {
        let Retry { request, within, free_retries, budget, .. } = retry;
        Self { tag: tags.of(request), budget: *budget, free_retries: *free_retries, within: *within }
    }

    /// Returns its hash, like a [key's](Target::tag).
    #[must_use]
    pub const fn tag(&self) -> KeyTag {
        self.tag
    }

    /// The quota for the key's budget of free retries.
    pub const fn budget(&self) -> Quota {
        self.budget
    }

    /// The number of free retries that it begins with.
    #[must_use]
    pub const fn free_retries(&self) -> u32 {
        self.free_retries
    }

    /// How long it lives from its beginning.
    #[must_use]
    pub const fn within(&self) -> Duration {
        self.within
    }
}

/// The outcome of a request that may be a retry.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_structs, reason = "a server writes all of it")]
pub struct ChargedOnce<S> {
    /// The key, as after a [charge](crate::store::remote::Transition::Charge) for one request, or, if the retry is
    /// free, as after a [read](crate::store::remote::Transition::Read).
    pub applied: Applied<S>,
    /// The retry that was taken, if it is free.
    pub free: Option<FreeRetry>,
}

/// A free retry that was taken.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_structs, reason = "a server writes all of it")]
pub struct FreeRetry {
    /// The budget's receipt.
    pub receipt: Receipt,
    /// How long the record lives from now on.
    pub record_left: Duration,
}

/// Lets a limiter decide on retries in the call that charges.
pub(in crate::store::remote) fn describe<A: Algorithm + Clone, B: ChargeRetries<A>>(
    limiter: &Arc<StoreInner<A::State, B>>,
    algorithm: &A,
    description: Description,
) -> Description {
    let keeper = ServerKeeper { inner: Arc::clone(limiter), algorithm: algorithm.clone() };
    description.charging_once(RetryCharger::new(Arc::clone(limiter), algorithm.clone(), keeper))
}

/// Keeps records and budgets on the server, beside the keys' states.
struct ServerKeeper<A: Algorithm, B> {
    inner: Arc<StoreInner<A::State, B>>,
    algorithm: A,
}

/// The record for one of a key's requests, for a call in the background.
struct Place<A: Algorithm, B> {
    inner: Arc<StoreInner<A::State, B>>,
    algorithm: A,
    tag: KeyTag,
    record: RetryRecord,
}

impl<A: Algorithm + Clone, B: ChargeRetries<A>> ServerKeeper<A, B> {
    fn place(&self, key: &PartitionKey, retry: &Retry) -> Place<A, B> {
        let inner = Arc::clone(&self.inner);
        let (tag, record) = (inner.tags.of(key), RetryRecord::new(&inner.tags, retry));
        Place { inner, algorithm: self.algorithm.clone(), tag, record }
    }
}

impl<A: Algorithm, B: ChargeRetries<A>> Place<A, B> {
    fn target(&self) -> Target<'_, A> {
        Target::new(&self.algorithm, None, self.algorithm.quota(), self.tag)
    }

    fn limits(&self) -> CallLimits {
        CallLimits::within(self.inner.backend.timeout())
    }
}

impl<A: Algorithm + Clone, B: ChargeRetries<A>> RetryKeeper<A, B> for ServerKeeper<A, B> {
    /// Makes its own call, because no lease pays, and no other request shares it.
    fn decide(&self, query: KeyQuery<A, B>, cost: u64, retry: &Retry) -> Pending {
        let record = RetryRecord::new(&self.inner.tags, retry);
        let ends = retry.record_ends.clone();
        Box::pin(async move {
            let (sent, limits) = (Monotonic.now(), CallLimits::until(query.deadline()));
            let backend = &query.inner.backend;
            let ChargedOnce { applied, free } = backend.charge_once(&query.target(), cost, &record, limits).await?;
            let seen = Observation { server: applied.now, sent, answered: Monotonic.now() };
            let Some(FreeRetry { receipt, record_left }) = free else {
                let recorded = query.record_charge(&applied, seen, cost, 1);
                return Ok(recorded.map_err(|disagreement| backend.gave_up(disagreement))?.0[0]);
            };
            if let Some(ends) = ends {
                // Never later than the record ends on the server.
                let _ = ends.set(sent.saturating_add(record_left));
            }
            Ok(query.record_read(&applied, seen, cost).with_receipt(receipt.mark_free_retry()))
        })
    }

    fn begin(&self, key: &PartitionKey, retry: &Retry) -> Background {
        let place = self.place(key, retry);
        Box::pin(async move { place.inner.backend.begin_record(&place.target(), &place.record, place.limits()).await })
    }

    fn put_back(&self, key: &PartitionKey, retry: &Retry, receipt: Receipt, cost: u64) -> Background {
        let place = self.place(key, retry);
        Box::pin(async move {
            place.inner.backend.put_back(&place.target(), &place.record, cost, receipt, place.limits()).await
        })
    }
}
