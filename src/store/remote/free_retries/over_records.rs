//! Request records, and budgets for free retries, over [`Records`].
//!
//! | record | value |
//! |---|---|
//! | of a request that is over | when its retries end to be free, in nanoseconds, and how many are left |
//! | of a key | its budget of free retries, a [portable](crate::algorithm::Portable) state |
//!
//! No step changes two records at once. A free retry first takes the budget, and then its request's record. If a
//! process dies in between, it has taken some of the budget, and no request passes uncounted.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Background, RetryKeeper};
use crate::algorithm::{Algorithm, FixedWindow, Kind, Portable, SlidingWindow, TokenBucket};
use crate::store::remote::any_records::AnyRecords;
use crate::store::remote::backend::{Backend, CallLimits};
use crate::store::remote::query::{Answered, KeyQuery};
use crate::store::remote::records::{LimiterRecords, Record, Records, Step};
use crate::store::remote::server::deadline_of;
use crate::values::time::{Clock, Monotonic, Timestamp};
use crate::values::{Decision, LimiterError, PartitionKey, Pending, Quota, Receipt, Retry};

/// The record for a request that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Over {
    /// From then on, by the server's clock, its retries are charged.
    until: Timestamp,
    /// The free retries that are left.
    left: u32,
}

impl Over {
    fn to_bytes(self) -> Vec<u8> {
        [&[1][..], &self.until.as_nanos().to_be_bytes(), &self.left.to_be_bytes()].concat()
    }

    /// `None` for another version's record. Its retries are charged then.
    fn read(bytes: &[u8], now: Timestamp) -> Option<Self> {
        let (1, rest) = bytes.split_first().map(|(version, rest)| (*version, rest))? else { return None };
        let (until, left) = rest.split_first_chunk()?;
        let until = Timestamp::from_nanos(u64::from_be_bytes(*until));
        let left = u32::from_be_bytes(left.try_into().ok()?);
        (until > now).then_some(Self { until, left })
    }

    fn written<T>(self, result: T, now: Timestamp) -> Step<T> {
        Step::Write(result, Some(self.to_bytes()), self.until.saturating_since(now))
    }
}

/// A budget's algorithm: windows for windows, and otherwise a bucket.
#[derive(Clone, Copy)]
pub(crate) enum Budget {
    Bucket(TokenBucket),
    Fixed(FixedWindow),
    Sliding(SlidingWindow),
}

impl Budget {
    pub(crate) fn new(kind: Kind, quota: Quota) -> Self {
        match kind {
            Kind::FixedWindow { .. } => Self::Fixed(FixedWindow::new(quota)),
            Kind::SlidingWindow { .. } => Self::Sliding(SlidingWindow::new(quota)),
            Kind::Bucket { .. } | Kind::Other => Self::Bucket(TokenBucket::new(quota)),
        }
    }

    /// Separates the records for budgets with different states.
    const fn letter(self) -> char {
        match self {
            Self::Bucket(_) => 'u',
            Self::Fixed(_) => 'v',
            Self::Sliding(_) => 'w',
        }
    }

    pub(crate) fn charge(&self, old: Option<&[u8]>, now: Timestamp, cost: u64) -> Result<Step<Decision>, LimiterError> {
        match self {
            Self::Bucket(bucket) => charge(bucket, old, now, cost),
            Self::Fixed(window) => charge(window, old, now, cost),
            Self::Sliding(window) => charge(window, old, now, cost),
        }
    }

    pub(crate) fn refund(
        &self,
        old: Option<&[u8]>,
        now: Timestamp,
        cost: u64,
        receipt: Receipt,
    ) -> Result<Step<()>, LimiterError> {
        match self {
            Self::Bucket(bucket) => refund(bucket, old, now, cost, receipt),
            Self::Fixed(window) => refund(window, old, now, cost, receipt),
            Self::Sliding(window) => refund(window, old, now, cost, receipt),
        }
    }
}

fn state_of<A: Portable>(algorithm: &A, old: Option<&[u8]>, now: Timestamp) -> Result<Option<A::State>, LimiterError> {
    let read = |bytes| algorithm.from_bytes(bytes, now);
    old.map(read).transpose().map_err(|unknown| LimiterError::new(unknown.to_string()).with_source(unknown))
}

fn written<A: Portable, T>(algorithm: &A, result: T, state: &A::State, now: Timestamp) -> Step<T> {
    let lifetime = algorithm.expires_at(state).saturating_since(now);
    Step::Write(result, Some(algorithm.to_bytes(state)), lifetime)
}

fn charge<A: Portable>(
    algorithm: &A,
    old: Option<&[u8]>,
    now: Timestamp,
    cost: u64,
) -> Result<Step<Decision>, LimiterError> {
    Ok(match algorithm.decide(state_of(algorithm, old, now)?, now, cost) {
        (decision, Some(state)) if decision.is_allowed() => written(algorithm, decision, &state, now),
        (decision, _) => Step::Leave(decision),
    })
}

fn refund<A: Portable>(
    algorithm: &A,
    old: Option<&[u8]>,
    now: Timestamp,
    cost: u64,
    receipt: Receipt,
) -> Result<Step<()>, LimiterError> {
    let Some(state) = state_of(algorithm, old, now)? else { return Ok(Step::Leave(())) };
    Ok(written(algorithm, (), &algorithm.refund(state, now, cost, receipt), now))
}

/// Keeps one limiter's records and budgets.
pub(in crate::store::remote) struct RecordKeeper {
    records: Arc<LimiterRecords<AnyRecords>>,
    kind: Kind,
}

impl RecordKeeper {
    pub(in crate::store::remote) fn new(records: Arc<LimiterRecords<AnyRecords>>, algorithm: &impl Algorithm) -> Self {
        Self { records, kind: algorithm.kind() }
    }

    fn pass(&self, key: &PartitionKey, retry: &Retry) -> Pass {
        let tag = self.records.tag(key);
        let budget = Budget::new(self.kind, retry.budget);
        Pass {
            records: Arc::clone(&self.records),
            budget_name: self.records.name(tag, budget.letter()),
            record: self.records.name(self.records.tag(&retry.request), 'o'),
            budget,
            free_retries: retry.free_retries,
            within: retry.within,
        }
    }
}

/// A request's and its retries' records on the server.
struct Pass {
    records: Arc<LimiterRecords<AnyRecords>>,
    record: String,
    budget: Budget,
    budget_name: String,
    free_retries: u32,
    within: Duration,
}

impl Pass {
    fn deadline(&self) -> Instant {
        deadline_of(self.records.records())
    }

    /// Takes a free retry, if the request has one left and the budget admits it. Returns the budget's receipt.
    async fn take(&self, cost: u64, deadline: Instant) -> Result<Option<Receipt>, LimiterError> {
        let charge = |old: Option<&[u8]>, now| self.budget.charge(old, now, cost);
        let charged = self.records.change_named(self.budget_name.clone(), deadline, charge).await?.result;
        if !charged.is_allowed() {
            return Ok(None);
        }
        let take = |old: Option<&[u8]>, now| {
            let over = old.and_then(|bytes| Over::read(bytes, now)).filter(|over| over.left > 0);
            Ok(match over {
                Some(over) => Over { left: over.left - 1, ..over }.written(true, now),
                None => Step::Leave(false),
            })
        };
        if self.records.change_named(self.record.clone(), deadline, take).await?.result {
            return Ok(Some(charged.receipt()));
        }
        // Another retry was faster.
        self.refund(cost, charged.receipt()).await?;
        Ok(None)
    }

    async fn refund(&self, cost: u64, receipt: Receipt) -> Result<(), LimiterError> {
        let refund = |old: Option<&[u8]>, now| self.budget.refund(old, now, cost, receipt);
        self.records.change_named(self.budget_name.clone(), self.deadline(), refund).await?;
        Ok(())
    }

    /// Records that the request is over.
    async fn begin(&self) -> Result<(), LimiterError> {
        let begin = |old: Option<&[u8]>, now: Timestamp| {
            let begun = Over { until: now.saturating_add(self.within), left: self.free_retries };
            let is_recorded = old.is_some_and(|bytes| Over::read(bytes, now).is_some());
            Ok(if is_recorded { Step::Leave(()) } else { begun.written((), now) })
        };
        self.records.change_named(self.record.clone(), self.deadline(), begin).await?;
        Ok(())
    }

    /// Returns a free retry to the record, if that is still there.
    async fn raise(&self) -> Result<(), LimiterError> {
        let raise = |old: Option<&[u8]>, now| {
            let over = old.and_then(|bytes| Over::read(bytes, now)).filter(|over| over.left < self.free_retries);
            Ok(match over {
                Some(over) => Over { left: over.left + 1, ..over }.written((), now),
                None => Step::Leave(()),
            })
        };
        self.records.change_named(self.record.clone(), self.deadline(), raise).await?;
        Ok(())
    }
}

impl<A: Algorithm + Clone, B: Backend<A>> RetryKeeper<A, B> for RecordKeeper {
    /// A request that is not a retry takes one call more than without. A free retry takes six calls: the record, the
    /// key, and two for the budget and the record each.
    fn decide(&self, query: KeyQuery<A, B>, cost: u64, retry: &Retry) -> Pending {
        let pass = self.pass(&query.key, retry);
        let ends = retry.record_ends.clone();
        Box::pin(async move {
            let deadline = query.deadline();
            let sent = Monotonic.now();
            let limits = CallLimits::until(deadline);
            let Record { value, now } = pass.records.records().read(&pass.record, limits).await?;
            let over = value.and_then(|bytes| Over::read(&bytes, now)).filter(|over| over.left > 0);
            let Some(over) = over else { return query.decide_alone(cost, deadline).await };
            if let Some(decision) = pass_free(&query, &pass, cost, deadline).await? {
                if let Some(ends) = ends {
                    // Never later than the record ends on the server.
                    let _ = ends.set(sent.saturating_add(over.until.saturating_since(now)));
                }
                return Ok(decision);
            }
            query.decide_alone(cost, deadline).await
        })
    }

    fn begin(&self, key: &PartitionKey, retry: &Retry) -> Background {
        let pass = self.pass(key, retry);
        Box::pin(async move { pass.begin().await })
    }

    fn put_back(&self, key: &PartitionKey, retry: &Retry, receipt: Receipt, cost: u64) -> Background {
        let pass = self.pass(key, retry);
        Box::pin(async move {
            // One after the other, so that no retry takes the record before the budget has the units for it.
            pass.refund(cost, receipt).await?;
            pass.raise().await
        })
    }
}

/// Lets a retry pass, with the key's numbers as they were without a charge. Returns `None` if it must be charged. A
/// banned key is rejected.
async fn pass_free<A: Algorithm + Clone, B: Backend<A>>(
    query: &KeyQuery<A, B>,
    pass: &Pass,
    cost: u64,
    deadline: Instant,
) -> Result<Option<Decision>, LimiterError> {
    let unchanged: Answered = query.clone().peek(0).await;
    let unchanged = unchanged?;
    if unchanged.ban().is_some() {
        return query.clone().peek(cost).await.map(Some);
    }
    let receipt = pass.take(cost, deadline).await?;
    Ok(receipt.map(|receipt| unchanged.with_receipt(receipt.mark_free_retry())))
}
