//! [`Hold`]: a limiter's units that are held until a request is over; and [`Permit`], the answer if you take them
//! without a layer.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::limiter::Limiter;
use crate::limiter::traits::Downcast;
use crate::values::{Ask, Decision, PartitionKey, Receipt, RequestEnd};

/// Units in flight, if the limiter's requests [hold](crate::limiter::Description::holding) them. Releases them when it
/// is dropped.
///
/// It keeps the limiter that was charged: after a live change, the units are released where they were taken.
pub(crate) struct Hold<L: Deref<Target: Limiter> = Arc<dyn Limiter>> {
    limiter: L,
    key: PartitionKey,
    receipt: Receipt,
    units: u64,
    end: HoldEnd,
    /// Whether to release the units when this is dropped.
    releases: bool,
}

/// How the units end.
#[derive(Clone, Copy)]
enum HoldEnd {
    /// They are released: this is how the request is over.
    Released(RequestEnd),
    /// The charge is taken back, as if it had never been made.
    Refunded,
    /// Their limiter has [taken them back](crate::values::WatchesBodies).
    TakenBack,
}

impl<L: Deref<Target: Limiter>> Hold<L> {
    /// Holds an admission's units, until this is dropped.
    pub(crate) fn new(limiter: L, key: &PartitionKey, admission: &Decision, units: u64) -> Self {
        Self::keeping(limiter, key, admission, units, true)
    }

    /// Holds an admission's units for this key, until this is dropped.
    #[inline(always)]
    pub(crate) fn of_key(limiter: L, key: PartitionKey, admission: &Decision, units: u64) -> Self {
        let end = HoldEnd::Released(RequestEnd::Served);
        Self { limiter, key, receipt: admission.receipt(), units, end, releases: true }
    }

    #[inline(always)]
    fn keeping(limiter: L, key: &PartitionKey, admission: &Decision, units: u64, releases: bool) -> Self {
        let end = HoldEnd::Released(RequestEnd::Served);
        Self { limiter, key: key.clone(), receipt: admission.receipt(), units, end, releases }
    }
}

impl<L: Deref<Target: Limiter>> Hold<L> {
    /// Sets how the request is over: served, unless this is called. `None`: the charge is taken back, as if it had
    /// never been made.
    pub(crate) const fn end_as(&mut self, end: Option<RequestEnd>) {
        self.end = match (self.end, end) {
            (HoldEnd::TakenBack, _) => HoldEnd::TakenBack,
            (_, Some(end)) => HoldEnd::Released(end),
            (_, None) => HoldEnd::Refunded,
        };
    }

    /// Notes that the limiter has taken the units back.
    pub(crate) const fn note_taken_back(&mut self) {
        self.end = HoldEnd::TakenBack;
    }

    /// Whether these are units from this limiter.
    pub(crate) fn is_of(&self, limiter: &Arc<dyn Limiter>) -> bool {
        std::ptr::addr_eq(&raw const *self.limiter, Arc::as_ptr(limiter))
    }

    pub(crate) const fn units(&self) -> u64 {
        self.units
    }

    pub(crate) const fn key(&self) -> &PartitionKey {
        &self.key
    }

    /// Ends a request whose units its limiter has taken back.
    #[cold]
    #[inline(never)]
    fn end_taken_back(&self) {
        if let Some(watcher) = self.limiter.describe().watcher_of((*self.limiter).as_any()) {
            watcher.end(&self.key, self.units, self.receipt);
        }
    }
}

impl<L: Deref<Target: Limiter>> Drop for Hold<L> {
    fn drop(&mut self) {
        if self.releases {
            let charged = Ask::charge(&self.key, self.units);
            match self.end {
                HoldEnd::Released(end) => self.limiter.release(&charged, self.receipt, self.units, end),
                HoldEnd::Refunded => self.limiter.refund(&charged, self.receipt, self.units),
                HoldEnd::TakenBack => self.end_taken_back(),
            }
        }
    }
}

impl<L: Deref<Target: Limiter>> fmt::Debug for Hold<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").field("units", &self.units).finish_non_exhaustive()
    }
}

/// The answer to [`acquire`](crate::LimiterExt::acquire): the [decision](Decision), and the units, if the limiter's
/// requests [hold](crate::limiter::Description::holds) them. Dropped, it releases them.
///
/// A rejection holds nothing; see [`admitted`](Self::admitted). `L` is a reference to the limiter, or an `Arc` of it.
///
/// Dropping the permit of a [`Concurrency`](crate::Concurrency) is one atomic operation, and takes a lock if others
/// wait for the units. Units on Redis are released in the background, by one call.
#[must_use = "units in flight are released when the permit is dropped"]
#[doc(alias("semaphore", "guard"))]
pub struct Permit<L: Deref<Target: Limiter>> {
    decision: Decision,
    /// `None` for a rejection.
    charge: Option<Hold<L>>,
}

impl<L: Deref<Target: Limiter>> Permit<L> {
    /// A limiter's answer to a request for `units` units, which are held if `holds` says so.
    #[inline(always)]
    pub(crate) fn new(limiter: L, key: &PartitionKey, units: u64, decision: Decision, holds: bool) -> Self {
        let charge = decision.is_allowed().then(|| Hold::keeping(limiter, key, &decision, units, holds));
        Self { decision, charge }
    }

    /// Returns the permit, unless the request was rejected.
    #[inline]
    pub fn admitted(self) -> Option<Self> {
        self.decision.is_allowed().then_some(self)
    }

    /// Takes the charge back, as far as it is still owed: for work that was not done. Does nothing for a rejection.
    pub fn refund(mut self) {
        if let Some(charge) = &mut self.charge {
            (charge.releases, charge.end) = (true, HoldEnd::Refunded);
        }
    }

    /// Records how the request is over, for limiters that [learn](crate::Limiter::release) from it: served, unless this
    /// is called. The units stay held until the permit is dropped.
    pub fn end_as(&mut self, end: RequestEnd) {
        if let Some(charge) = &mut self.charge {
            charge.end = HoldEnd::Released(end);
        }
    }

    /// The units that it holds: zero for a rejection, and for a limiter whose requests hold nothing.
    #[must_use]
    pub fn units(&self) -> u64 {
        self.charge.as_ref().filter(|charge| charge.releases).map_or(0, |charge| charge.units)
    }
}

impl<L: Deref<Target: Limiter>> Deref for Permit<L> {
    type Target = Decision;

    fn deref(&self) -> &Decision {
        &self.decision
    }
}

impl<L: Deref<Target: Limiter>> Borrow<Decision> for Permit<L> {
    fn borrow(&self) -> &Decision {
        &self.decision
    }
}

impl<L: Deref<Target: Limiter>> fmt::Debug for Permit<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("decision", &self.decision).field("units", &self.units()).finish()
    }
}
