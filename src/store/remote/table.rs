//! [`RemoteTable`]: one limiter's keys on a server, and this process's knowledge about them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::any_records::AnyRecords;
use super::backend::{Backend, Transition};
use super::free_retries::{RecordKeeper, RetryCharger};
use super::leases::LeaseReceipt;
use super::negative_cache::NegativeCache;
use super::query::{KeyQuery, StoreInner};
use super::records::LimiterRecords;
use super::shared_reports::SharedReports;
use super::single_flight::SingleFlight;
use super::store::RemoteStore;
use crate::algorithm::Algorithm;
use crate::store::{MemoryStore, SharingStats, Stats, next_table_number};
use crate::values::{
    Answer, Ask, BanGrowth, Decision, Description, Heritage, Inheritance, KeepsStanding, Mode, Override, PartitionKey,
    Pending, Receipt,
};

/// The keys of one [`RateLimiter`](crate::RateLimiter) on a server, and this process's knowledge about them. Made from
/// a [`RemoteStore`]; clones share both.
pub struct RemoteTable<S, B> {
    coalesces: bool,
    inner: Arc<StoreInner<S, B>>,
    /// The records for data that processes share beside the keys' states.
    records: Option<Arc<LimiterRecords<AnyRecords>>>,
}

impl<S, B> Clone for RemoteTable<S, B> {
    fn clone(&self) -> Self {
        Self { coalesces: self.coalesces, inner: Arc::clone(&self.inner), records: self.records.clone() }
    }
}

impl<S: Copy + Send + 'static, B> RemoteTable<S, B> {
    #[track_caller]
    pub(super) fn new<A: Algorithm<State = S> + Clone>(store: RemoteStore<B>, algorithm: &A) -> Self
    where
        B: Backend<A>,
    {
        let RemoteStore { backend, tags, leases, coalesces, records } = store;
        if let Err(problem) = backend.check_fit(algorithm) {
            panic!("{problem}");
        }
        backend.note_quotas(algorithm.quota(), None);
        let inner = StoreInner {
            backend,
            tags,
            fallback: MemoryStore::default().table(),
            negative_cache: NegativeCache::new(),
            single_flight: Arc::new(SingleFlight::new()),
            leases,
            number: next_table_number(),
        };
        Self { coalesces, inner: Arc::new(inner), records: records.map(Arc::new) }
    }
}

/// Changes the standings of one limiter's keys.
struct StandingKeeper<A: Algorithm, B> {
    inner: Arc<StoreInner<A::State, B>>,
    algorithm: A,
}

impl<A: Algorithm + Clone, B: Backend<A>> StandingKeeper<A, B> {
    fn change(&self, ask: &Ask<'_>, change: Transition) -> Pending {
        let query = KeyQuery::for_ask(&self.inner, &self.algorithm, ask);
        Box::pin(async move { query?.change_standing(change).await })
    }
}

impl<A: Algorithm + Clone, B: Backend<A>> KeepsStanding for StandingKeeper<A, B> {
    fn ban(&self, key: &PartitionKey, span: Duration, growth: Option<BanGrowth>) -> Pending {
        self.change(&Ask::peek(key, 1), Transition::Ban { span, growth })
    }

    fn override_key(&self, key: &PartitionKey, by_hand: Override) -> Pending {
        self.change(&Ask::peek(key, 1), Transition::Override(by_hand))
    }

    /// The fallback counts it, too, as long as units are left there.
    fn owe(&self, ask: &Ask<'_>) -> Pending {
        let _ = self.inner.fallback.charge_up_to(&self.algorithm, ask);
        self.change(ask, Transition::Owe { units: ask.cost() })
    }
}

impl<S: Copy + Send + 'static, B> RemoteTable<S, B> {
    pub(crate) fn decide<A: Algorithm<State = S> + Clone>(&self, algorithm: &A, ask: &Ask<'_>) -> Answer
    where
        B: Backend<A>,
    {
        if ask.mode() == Mode::Fallback {
            let decision: Decision = self.inner.fallback.charge(algorithm, ask);
            return decision.with_receipt(decision.receipt().mark_fallback()).into();
        }
        // A suspended quota's key is not even read.
        if ask.is_suspended() && ask.mode() != Mode::Reset {
            return Decision::suspended().into();
        }
        let query = match KeyQuery::for_ask(&self.inner, algorithm, ask) {
            Ok(query) => query,
            Err(error) => return Answer::Ready(Err(error)),
        };
        let cost = ask.cost();
        match ask.mode() {
            Mode::UpTo => query.charge_up_to(cost),
            // One round trip. Other processes notice within half a second and one of their calls.
            Mode::Reset => Answer::Pending(Box::pin(query.reset())),
            // Without a call, only a cached rejection and an admission from a lease are known.
            Mode::Peek => match query.peek_lease(cost).or_else(|| query.peek_rejection(cost)) {
                Some(decision) => decision.into(),
                None => Answer::Pending(Box::pin(query.peek(cost))),
            },
            // Reports a key's remaining units, and charges nothing.
            Mode::Charge if ask.keeps_quota() && cost == 0 => Answer::Pending(Box::pin(query.look())),
            Mode::Charge | Mode::Shadow | Mode::Fallback => {
                match query.spend_lease(cost).or_else(|| query.cached_rejection(cost)) {
                    Some(decision) => decision.into(),
                    None if self.coalesces => Answer::Pending(Box::pin(query.decide_coalesced(cost))),
                    None => Answer::Pending(Box::pin(async move { query.decide_alone(cost, query.deadline()).await })),
                }
            }
        }
    }

    /// Refunds a charge, under the quota that its question had: on the server in the background, by one call. If that
    /// fails, the charge stays.
    pub(crate) fn refund<A: Algorithm<State = S> + Clone>(
        &self,
        algorithm: &A,
        charged: &Ask<'_>,
        receipt: Receipt,
        units: u64,
    ) where
        B: Backend<A>,
    {
        if let Some(receipt) = receipt.unmark_fallback() {
            return self.inner.fallback.shared().refund(algorithm, charged, receipt, units);
        }
        // If the server cannot keep the quota, the charge was not made there.
        let Some(query) = KeyQuery::for_ask(&self.inner, algorithm, charged).ok().filter(|_| !receipt.is_none()) else {
            return;
        };
        match receipt.read::<LeaseReceipt>() {
            Some(lease) => query.return_to_lease(units, lease),
            None => query.refund_in_background(units, receipt),
        }
    }

    /// Prepares the local fallback. On the server, the first question under a key's own quota stores that quota with
    /// the key.
    pub(crate) fn take_quotas<A: Algorithm<State = S>>(&self, algorithm: &A) {
        self.inner.fallback.shared().take_quotas(algorithm);
    }

    pub(crate) fn describe<A: Algorithm<State = S> + Clone>(&self, algorithm: &A) -> Description
    where
        B: Backend<A>,
    {
        let mut description = Description::new().answering_all();
        if let Some(records) = &self.records {
            let keeper = RecordKeeper::new(Arc::clone(records), algorithm);
            let retries = RetryCharger::new(Arc::clone(&self.inner), algorithm.clone(), keeper);
            description = description.charging_once(retries).sharing_reports(SharedReports::new(Arc::clone(records)));
        }
        if self.inner.backend.keeps_standing(algorithm) {
            let keeper = StandingKeeper { inner: Arc::clone(&self.inner), algorithm: algorithm.clone() };
            description = description.keeping_standing(keeper);
        }
        self.inner.backend.parts().describe(&self.inner, algorithm, description)
    }

    /// Inherits from a table whose backend [keeps the same keys](Backend::shares_keys_with): the keys on the server
    /// stay as they are. Leases are forfeited.
    pub(crate) fn inherit<A: Algorithm<State = S> + Clone>(
        &self,
        algorithm: &Arc<A>,
        heritage: &Heritage,
    ) -> Option<Inheritance<Self>>
    where
        B: Backend<A>,
    {
        let predecessor: Arc<Arc<StoreInner<S, B>>> = heritage.downcast()?;
        if !self.inner.backend.shares_keys_with(&predecessor.backend) {
            return None;
        }
        self.inner.backend.note_quotas(algorithm.quota(), Some(&predecessor.backend));
        // A fallback that cannot inherit in place fills up by the units that are admitted from now on.
        let fallback = self.inner.fallback.inherit(algorithm, &predecessor.fallback.shared().heritage(&**algorithm));
        Some(Inheritance::in_place().and_then(fallback.and_then(|fallback| fallback.finish)))
    }

    pub(crate) fn heritage(&self) -> Heritage
    where
        B: Send + Sync + 'static,
    {
        Heritage::new(Arc::new(Arc::clone(&self.inner)))
    }

    pub(crate) fn stats<A: Algorithm<State = S>>(&self) -> Stats
    where
        B: Backend<A>,
    {
        let sharing = SharingStats { number: Some(self.inner.number), ..self.inner.backend.stats() };
        Stats { sharing: Some(sharing), nodes: self.inner.backend.health(), ..Stats::default() }
    }
}

impl<S, B: fmt::Debug> fmt::Debug for RemoteTable<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteTable").field("backend", &self.inner.backend).finish_non_exhaustive()
    }
}
