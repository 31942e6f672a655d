//! Receipts: a charge's record for its refund.
//!
//! Each issuer encodes its receipts with its own [`Proof`] type, which is private to the module that issues and reads
//! it. So no issuer reads another's receipt, and no bits have two meanings.
//!
//! We rejected an enum over the proofs because of its size: a [`Decision`](super::Decision) must fit into one cache
//! line, which leaves 20 bytes for a receipt. An enum takes 32, since its widest proof has 16 bytes and is aligned to
//! 16, and `changes` and `origin` would come on top. A packed struct with the proof as a number takes 20.

use std::time::Duration;

use crate::values::{Exception, OverrideReason};

/// A charge's record for its refund, so that the refund returns at most the unpaid part. Opaque: only its issuer can
/// read it.
///
/// # Accuracy
///
/// A bucket refunds exactly if a key's charges are refunded in reverse order. If an earlier charge is refunded before
/// later ones, each later refund may be too large, by up to the earlier refund.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, packed(4))]
pub struct Receipt {
    value: u128,
    /// The number of changes before the charge that void older receipts, modulo 2^16: key resets, or changes to a
    /// queue's quota.
    changes: u16,
    issuer: Issuer,
    origin: Origin,
}

const _: () = assert!(size_of::<Receipt>() == 20, "a decision has no room for more");

/// The charge and its issuer. In a receipt that is not the limiter's own, the issuer is the limiter that made the
/// charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Limiter,
    /// The local fallback, in place of a server that failed.
    Fallback,
    /// The budget for free retries, in place of the limit: see [`ChargingOnce`](super::ChargingOnce).
    FreeRetry,
    /// Nobody: the key is banned. The value is the [exception](Receipt::exception).
    Ban,
    /// Nobody: the key is allowed by hand. The value is the [exception](Receipt::exception).
    Allowance,
    /// Nobody: the server is overloaded.
    Shed,
    /// Nobody: the key's quota is suspended.
    Suspended,
}

/// The issuer of a receipt, which determines the [`Proof`] in it.
///
/// A closed list: each issuer in this crate has its own number, and all limiters outside the crate share
/// [`Custom`](Self::Custom). So code outside can't read this crate's receipts, and can't make one. A custom limiter
/// only ever gets back the receipts that it issued, so one number is enough for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Issuer {
    Nobody,
    /// A custom limiter, algorithm or store.
    Custom,
    Bucket,
    Window,
    MemoryBucket,
    Queue,
    Lease,
    Concurrency,
    Overload,
    Balance,
}

/// The content in the receipts from one kind of issuer.
pub(crate) trait Proof: Sized {
    const ISSUER: Issuer;

    fn into_value(self) -> u128;

    /// Decodes a value that [`into_value`](Self::into_value) returned.
    fn from_value(value: u128) -> Self;
}

impl Receipt {
    /// The receipt if nothing was charged, or if the charge cannot be refunded.
    pub const NONE: Self = Self::issued(Issuer::Nobody, 0);

    /// A mark in place of a receipt, in the decision by which an overloaded server rejects a request: nothing was
    /// charged.
    pub(crate) const SHED: Self = Self { origin: Origin::Shed, ..Self::NONE };

    /// A mark in place of a receipt, in the decision on a key whose quota is suspended: nothing was charged.
    pub(crate) const SUSPENDED: Self = Self { origin: Origin::Suspended, ..Self::NONE };

    /// Whether this is the mark [`SUSPENDED`](Self::SUSPENDED).
    pub(crate) const fn is_suspended(self) -> bool {
        matches!(self.origin, Origin::Suspended)
    }

    /// Whether this is the mark [`SHED`](Self::SHED).
    pub(crate) const fn is_shed(self) -> bool {
        matches!(self.origin, Origin::Shed)
    }

    /// A mark in place of a receipt, in the decision on a key that is banned or allowed: nothing was charged.
    pub(crate) fn for_exception(exception: &Exception) -> Self {
        let origin = if exception.is_ban { Origin::Ban } else { Origin::Allowance };
        let nanos = u64::try_from(exception.left.as_nanos()).unwrap_or(u64::MAX);
        let value = u128::from(exception.reason.number()) << 64 | u128::from(nanos);
        Self { value, origin, ..Self::NONE }
    }

    /// The key's ban or allowance, if this [marks](Self::for_exception) one.
    pub(crate) fn exception(self) -> Option<Exception> {
        let is_ban = match self.origin {
            Origin::Ban => true,
            Origin::Allowance => false,
            Origin::Limiter | Origin::Fallback | Origin::FreeRetry | Origin::Shed | Origin::Suspended => {
                return None;
            }
        };
        #[allow(clippy::cast_possible_truncation, reason = "each part is read by itself")]
        let (number, nanos) = ((self.value >> 64) as u16, self.value as u64);
        Some(Exception { is_ban, left: Duration::from_nanos(nanos), reason: OverrideReason::from_number(number) })
    }

    /// A receipt from a custom limiter, algorithm or store. Only the issuer knows the meaning of `value`.
    #[must_use]
    pub const fn new(value: u128) -> Self {
        Self::issued(Issuer::Custom, value)
    }

    /// The value given to [`Receipt::new`]; `None` for a receipt that was issued by this crate.
    #[must_use]
    pub const fn value(self) -> Option<u128> {
        match self.issuer {
            Issuer::Custom => Some(self.value),
            _ => None,
        }
    }

    #[inline(always)]
    const fn issued(issuer: Issuer, value: u128) -> Self {
        Self { value, changes: 0, issuer, origin: Origin::Limiter }
    }

    #[inline(always)]
    pub(crate) fn from_proof<P: Proof>(proof: P) -> Self {
        Self::issued(P::ISSUER, proof.into_value())
    }

    /// The content; `None` if another issuer wrote it, or if it is marked as a charge by the [local
    /// fallback](Self::mark_fallback) or to the [free-retry budget](Self::mark_free_retry).
    pub(crate) fn read<P: Proof>(self) -> Option<P> {
        (self.issuer == P::ISSUER && matches!(self.origin, Origin::Limiter)).then(|| P::from_value(self.value))
    }

    /// Whether nothing was charged, so that there is nothing to refund.
    #[must_use]
    pub fn is_none(self) -> bool {
        self.issuer == Issuer::Nobody
    }

    pub(crate) const fn changes(self) -> u16 {
        self.changes
    }

    /// Sets the number of changes before the charge.
    pub(crate) fn after(self, changes: u16) -> Self {
        if self.is_none() { self } else { Self { changes, ..self } }
    }

    /// Marks the charge as made by the local fallback, so that it is not refunded on the server, which never made it.
    pub(crate) fn mark_fallback(self) -> Self {
        if self.is_none() { self } else { Self { origin: Origin::Fallback, ..self } }
    }

    /// The receipt without the mark from [`mark_fallback`](Self::mark_fallback), if it has that mark.
    pub(crate) fn unmark_fallback(self) -> Option<Self> {
        matches!(self.origin, Origin::Fallback).then_some(Self { origin: Origin::Limiter, ..self })
    }

    /// Marks the charge as made to the free-retry budget, so that it is not refunded to the limit, which never made it.
    pub(crate) fn mark_free_retry(self) -> Self {
        Self { origin: Origin::FreeRetry, ..self }
    }

    /// Whether [`mark_free_retry`](Self::mark_free_retry) has marked it.
    pub(crate) const fn is_free_retry(self) -> bool {
        matches!(self.origin, Origin::FreeRetry)
    }

    /// The receipt without the mark from [`mark_free_retry`](Self::mark_free_retry), for a refund to the budget.
    pub(crate) fn unmark_free_retry(self) -> Option<Self> {
        self.is_free_retry().then_some(Self { origin: Origin::Limiter, ..self })
    }
}

impl Default for Receipt {
    fn default() -> Self {
        Self::NONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Mine(u128);

    impl Proof for Mine {
        const ISSUER: Issuer = Issuer::Bucket;

        fn into_value(self) -> u128 {
            self.0
        }

        fn from_value(value: u128) -> Self {
            Self(value)
        }
    }

    struct Another;

    impl Proof for Another {
        const ISSUER: Issuer = Issuer::Window;

        fn into_value(self) -> u128 {
            0
        }

        fn from_value(_: u128) -> Self {
            Self
        }
    }

    #[test]
    fn only_the_issuer_reads_a_receipt() {
        for value in [0, 1, u128::MAX] {
            let marked = Receipt::from_proof(Mine(value)).after(u16::MAX).mark_fallback();
            assert_eq!((marked.changes(), marked.value()), (u16::MAX, None));
            assert!(marked.read::<Mine>().is_none(), "it would be refunded on the server");
            let receipt = marked.unmark_fallback().unwrap();
            assert_eq!(receipt.read::<Mine>().unwrap().0, value);
            assert!(receipt.read::<Another>().is_none() && receipt.unmark_fallback().is_none());
            assert_eq!(receipt.after(0), Receipt::from_proof(Mine(value)));
            let custom = Receipt::new(value);
            assert_eq!(custom.value(), Some(value));
            assert!(custom.read::<Mine>().is_none() && custom != Receipt::NONE);
        }
    }

    #[test]
    fn free_retry_receipts_refund_only_their_budget() {
        let receipt = Receipt::from_proof(Mine(7));
        let free = receipt.mark_free_retry();
        assert!(free.is_free_retry() && !receipt.is_free_retry());
        assert!(free.read::<Mine>().is_none() && free.unmark_fallback().is_none());
        assert_eq!(free.unmark_free_retry(), Some(receipt));
        assert_eq!(receipt.unmark_free_retry(), None);
        assert_eq!(receipt.mark_fallback().unmark_free_retry(), None);
    }

    #[test]
    fn exception_marks_have_end_and_reason() {
        let reason = OverrideReason::new("scrapes").unwrap();
        for is_ban in [true, false] {
            let exception = Exception { is_ban, left: Duration::from_nanos(7), reason };
            let mark = Receipt::for_exception(&exception);
            assert_eq!(mark.exception(), Some(exception));
            assert!(
                mark.is_none() && mark.value().is_none() && mark.mark_fallback() == mark,
                "there is nothing to refund"
            );
        }
        assert_eq!(Receipt::NONE.exception(), None);
    }

    #[test]
    fn nothing_charged_is_never_marked() {
        assert_eq!(Receipt::NONE.after(7).mark_fallback(), Receipt::default());
        assert_eq!(Receipt::NONE.value(), None);
    }
}
