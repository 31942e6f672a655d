//! [`RemoteStore`]: a limiter's settings over a [`Backend`].

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
/// Each decision takes one call, even at cost 0. Requests for one key that come while a call for it is in flight on
/// their runtime share the next call, so they may wait as long as two calls take, and at most for the timeout. A
/// used-up key costs one call per advertised wait, or per half second if the wait is longer. Its other requests are
/// rejected from a 1.1 MiB table in this process.
///
/// # Accuracy
///
/// The algorithm's accuracy, by the backend's clock. If this process knows the key as used up, it notices a refund or a
/// reset by another process within half a second and one call. Until then, its requests are rejected although a unit is
/// free.
///
/// # When the server is out of reach
///
/// A [decision](crate::Limiter::decide) fails within the [timeout](Backend::timeout). The policy
/// [decides](crate::FailureMode) on the request then. For the [local fallback](crate::FailureMode::LocalFallback) this
/// store also counts the units that the server admits, in a [`MemoryStore`](crate::store::MemoryStore) for 65,536 keys.
/// The fallback only counts up: units that are refunded on the server stay charged there, until time has paid them off.
/// Units that fallbacks admit are not reported to the server: over an outage and the recovery, *n* processes admit up
/// to *n* + 1 times the quota.
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

    /// Takes units in advance (a lease) from keys in demand, and spends them without calls, for up to `most` requests
    /// at a time, within `lifetime`. A second is a good lifetime.
    ///
    /// A lease's size follows this process's demand. A key with less than one request per `lifetime` gets no lease. The
    /// first lease is for the requests that wait for the call, and each further one is twice as large if the last was
    /// spent. A lease takes at most half the remaining units. Where a layer charges several policies in one call, a key
    /// in demand is charged by itself: from its lease, or in a call that takes a lease.
    ///
    /// # Accuracy
    ///
    /// Units are charged when they are taken, so the total spent never exceeds the limit. But units that were charged
    /// earlier may be spent later: in an interval of length *t*, up to burst + rate × (*t* + `lifetime`) is admitted.
    /// If several processes' leases end unspent, they can add to that once their refunds come out of order, up to the
    /// units in these leases. Time for which a machine is suspended adds to its `lifetime`. And no process can spend
    /// the units in another one's lease, so up to `most` requests per process and key lie idle for up to `lifetime`.
    /// The next call by the lease's process refunds them; without such a call, they are forfeited. Do not use leases
    /// for policies whose charges depend on the [response](crate::Policy::charge_when): a leased charge is refunded
    /// whole, and to the lease that it came from, or not at all.
    ///
    /// # Memory
    ///
    /// 1.1 MiB, for leases on 8,192 keys. If there are more, the leases that end first are forfeited.
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

    /// Lets no request wait for another one's call for the same key. Requests that come while a call for it is in
    /// flight are decided side by side, and not one batch after the other. That is sooner by up to a round trip, but
    /// costs the server more.
    pub fn without_coalescing(self) -> Self {
        Self { coalesces: false, ..self }
    }

    /// Keeps the data that processes share beside the keys' states in `records`, under this name: the records for
    /// requests whose [retries are free](crate::ChargeOnce), the list of the [most rejected
    /// keys](crate::LimitsHandle::offenders), and whether a key [has crossed](crate::Policy::on_crossing) a share of
    /// its limit. Limiters that share records need different names. Without this, each process has its own.
    ///
    /// # Cost
    ///
    /// A request with an idempotency key takes one call more, and a free retry six; the background task that writes its
    /// record takes two. A process that rejects requests writes its list once a second at most, and reading it takes a
    /// call for each process that has rejected any in this hour or the last.
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
