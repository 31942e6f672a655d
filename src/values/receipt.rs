//! Proofs of payment.
//!
//! Each issuer has a type of its own for what it writes, a [`Proof`], which is private to where it is written and read: so nobody
//! reads what another wrote, nor do two choose the same bits for two meanings. An enum of these types would say the same, but has
//! no room beside its tag for both marks, and a [`Decision`](super::Decision) is one cache line. Hence one value, with the name of
//! its issuer and the marks beside; packed, or alignment would take twelve bytes more.

/// What a refund must know of a charge, so that it gives back no more than is still owed for it. Opaque: only what issued a
/// receipt can read it.
///
/// With a bucket, that is exact if the charges of a key are undone the last one first. If an earlier
/// one is undone and later ones as well, each of those may get back too much, by up to what was given
/// back for the earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, packed(4))]
pub struct Receipt {
    value: u128,
    /// How often that had changed which makes the value void, modulo 2^16: resets of the key, or changes of a queue's quota.
    changes: u16,
    issuer: Issuer,
    /// Whether this process made the charge in place of a server that failed.
    is_fallback: bool,
}

const _: () = assert!(size_of::<Receipt>() == 20, "a decision has no room for more");

/// Which [`Proof`] a receipt holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Issuer {
    Nobody,
    /// A limiter, an algorithm or a store of the user's own.
    Custom,
    Bucket,
    Window,
    MemoryBucket,
    #[cfg_attr(not(feature = "queue"), allow(dead_code))]
    Queue,
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    Lease,
}

/// What one kind of issuer writes on its receipts.
pub(crate) trait Proof: Sized {
    const ISSUER: Issuer;

    fn into_value(self) -> u128;

    /// From a value that [`into_value`](Self::into_value) returned.
    fn from_value(value: u128) -> Self;
}

impl Receipt {
    /// Nothing was charged, or it cannot be undone.
    pub const NONE: Self = Self::issued(Issuer::Nobody, 0);

    /// A receipt that means `value` to the limiter, the algorithm or the store of your own that issues it.
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
        Self { value, changes: 0, issuer, is_fallback: false }
    }

    #[inline(always)]
    pub(crate) fn of<P: Proof>(proof: P) -> Self {
        Self::issued(P::ISSUER, proof.into_value())
    }

    /// What its issuer wrote; `None` if that is another one.
    pub(crate) fn read<P: Proof>(self) -> Option<P> {
        (self.issuer == P::ISSUER).then(|| P::from_value(self.value))
    }

    pub(crate) fn is_none(self) -> bool {
        self.issuer == Issuer::Nobody
    }

    pub(crate) const fn changes(self) -> u16 {
        self.changes
    }

    /// With the number of changes that were before the charge.
    pub(crate) fn after(self, changes: u16) -> Self {
        if self.is_none() { self } else { Self { changes, ..self } }
    }

    /// As that of a charge which this process made in place of a server: what the server never charged is not refunded there.
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) fn of_fallback(self) -> Self {
        if self.is_none() { self } else { Self { is_fallback: true, ..self } }
    }

    /// The receipt that [`of_fallback`](Self::of_fallback) was given, if it is one of these.
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) fn fallback(self) -> Option<Self> {
        self.is_fallback.then_some(Self { is_fallback: false, ..self })
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
            let marked = Receipt::of(Mine(value)).after(u16::MAX).of_fallback();
            assert_eq!((marked.changes(), marked.value()), (u16::MAX, None));
            let receipt = marked.fallback().unwrap();
            assert_eq!(receipt.read::<Mine>().unwrap().0, value);
            assert!(receipt.read::<Another>().is_none() && receipt.fallback().is_none());
            assert_eq!(receipt.after(0), Receipt::of(Mine(value)));
            let custom = Receipt::new(value);
            assert_eq!(custom.value(), Some(value));
            assert!(custom.read::<Mine>().is_none() && custom != Receipt::NONE);
        }
    }

    #[test]
    fn nothing_charged_is_never_marked() {
        assert_eq!(Receipt::NONE.after(7).of_fallback(), Receipt::default());
        assert_eq!(Receipt::NONE.value(), None);
    }
}
