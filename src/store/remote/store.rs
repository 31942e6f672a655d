//! [`RemoteStore`]: the settings of a limiter over a [`Backend`].

use std::fmt;
use std::time::Duration;

use super::any_records::AnyRecords;
use super::backend::Backend;
use super::leases::Leases;
use super::records::{LimiterRecords, Records};
use super::table::RemoteTable;
use super::tag::Tags;
use crate::algorithm::Algorithm;
use crate::store::OpenStore;

/// The settings of a limiter whose keys are on a server, where all processes that name it alike share them.
///
/// The [`Backend`] knows the server. The rest is here, and is the same for all backends.
///
/// # Cost
///
/// One call per decision, also of cost 0. Requests for one key that come while a call for it is in flight on their
/// runtime share the next call: they may wait for the time of two calls, and at most for the timeout. A key that is
/// used up costs one call per advertised wait, or per half a second if the wait is longer. Its other requests are
/// rejected from a table of 1.1 MiB in this process.
///
/// # Accuracy
///
/// The accuracy of the algorithm, by the clock of the backend. A refund or a reset by another process is noticed here
/// within half a second and the time of one call, if the key is known here as used up: until then, its requests are
/// rejected although a unit is free.
///
/// # When the server is out of reach
///
/// A [decision](crate::Limiter::decide) fails within the [timeout](Backend::timeout). The policy
/// [says](crate::FailureMode) what happens to the request then. For the [local
/// fallback](crate::FailureMode::LocalFallback) this store also counts the units that the server admits, in a
/// [`MemoryStore`](crate::store::MemoryStore) for 65,536 keys. The fallback only counts up: units that are refunded on
/// the server stay charged there, until time has paid them off. Units that fallbacks admit are not reported to the
/// server: over an outage and the recovery, *n* processes admit up to *n* + 1 times the quota.
///
/// # Cancel safety
///
/// A request that is dropped while it is being decided may have been charged. A lease that its call takes is kept all
/// the same.
#[must_use]
pub struct RemoteStore<B> {
    pub(super) backend: B,
    pub(super) tags: Tags,
    pub(super) leases: Option<Leases>,
    pub(super) coalesces: bool,
    pub(super) records: Option<LimiterRecords<AnyRecords>>,
}

impl<B> RemoteStore<B> {
    /// Creates the settings of one limiter, whose keys `backend` keeps.
    pub fn new(backend: B) -> Self {
        Self::tagged(backend, Tags::new(b""))
    }

    pub(crate) const fn tagged(backend: B, tags: Tags) -> Self {
        Self { backend, tags, leases: None, coalesces: true, records: None }
    }

    /// Keeps readers of the server's data from finding the keys behind the [names](super::Target::name) by trying.
    /// Processes that share budgets must agree on it.
    pub fn secret(self, secret: &[u8]) -> Self {
        Self { tags: Tags::new(secret), ..self }
    }

    /// Takes units in advance (a lease) from keys in demand, and spends them without calls: for up to `most` requests
    /// at a time, within `lifetime`. A second is a good lifetime.
    ///
    /// The size of a lease follows the demand of this process. A key with less than one request per `lifetime` gets no
    /// lease. The first lease is for the requests that wait for the call, and each further one is twice as large if the
    /// last was spent. A lease takes at most half of the remaining units. Where a layer charges several policies in one
    /// call, a key in demand is charged by itself: from its lease, or in a call that takes a lease.
    ///
    /// # Accuracy
    ///
    /// Units are charged when they are taken, so the total spent never exceeds the limit. But units that were charged
    /// earlier may be spent later: in an interval of length *t*, up to burst + rate × (*t* + `lifetime`) is admitted.
    /// Leases of several processes that end unspent can add to that once their refunds come out of order: up to the
    /// units of these leases. Time for which a machine is suspended adds to its `lifetime`. And no process can spend
    /// the units of another one's lease: up to `most` requests per process and key lie idle for up to `lifetime`. The
    /// next call of the lease's process refunds them; without such a call, they are forfeited. Do not use leases for
    /// policies whose charges depend on the [response](crate::Policy::charge_when): a leased charge is refunded whole,
    /// and to the lease that it came from, or not at all.
    ///
    /// # Memory
    ///
    /// 1.1 MiB, for the leases of 8,192 keys. Beyond, the leases that end first are forfeited.
    ///
    /// # Panics
    ///
    /// If `most` or `lifetime` is zero, or `most` is greater than 1,024.
    #[track_caller]
    pub fn leasing(mut self, most: u32, lifetime: Duration) -> Self {
        assert!((1..=Leases::MOST).contains(&most), "a lease must be for 1 to {} requests, not {most}", Leases::MOST);
        assert!(!lifetime.is_zero(), "a lease must be for some time");
        self.leases = Some(Leases::new(most, lifetime));
        self
    }

    /// Lets no request wait for another one's call for the same key: requests that come while a call for it is in
    /// flight are decided side by side, instead of one batch after the other. That is sooner by up to a round trip, and
    /// at the cost of the server.
    pub fn without_coalescing(self) -> Self {
        Self { coalesces: false, ..self }
    }

    /// Keeps there, under this name, what processes share beside the states of keys: the records of requests whose
    /// [retries are free](crate::ChargeOnce), the list of [who is rejected most](crate::LimitsHandle::offenders), and
    /// that a key [has crossed](crate::Policy::on_crossing) a share of its limit. Limiters that share records need
    /// different names. Without this, each process has its own.
    ///
    /// # Cost
    ///
    /// A request with an idempotency key takes one call more, and a free retry six; its record is written in the
    /// background by two. A process that rejects requests writes its list once a second at most, and a look at it takes
    /// a call for each process that has rejected any in this hour or the last.
    pub fn records(self, records: impl Records, name: &str) -> Self {
        Self { records: Some(LimiterRecords::new(AnyRecords::new(records), name)), ..self }
    }

    /// The backend.
    #[must_use]
    pub const fn backend(&self) -> &B {
        &self.backend
    }
}

impl<A: Algorithm + Clone, B: Backend<A>> OpenStore<A> for RemoteStore<B> {
    type Table = RemoteTable<A::State, B>;

    /// # Panics
    ///
    /// If the backend [cannot keep](Backend::check_fit) this quota.
    #[track_caller]
    fn open(self, algorithm: &A) -> Self::Table {
        RemoteTable::new(self, algorithm)
    }
}

impl<B: fmt::Debug> fmt::Debug for RemoteStore<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteStore").field("backend", &self.backend).finish_non_exhaustive()
    }
}
