//! [`WhenFull`]: how a full table treats a new key.

/// How a [`MemoryStore`](super::MemoryStore) treats a new key for which it has no room.
///
/// `tests/store/flood.rs` measures it. Keys with a quota of one unit per second are abused at twenty requests per
/// second, while an attacker sprays fresh keys that spend some units and never return. In twenty seconds an abusive key
/// is entitled to its burst and 20.
///
/// | live keys per slot | burst | a sprayed key spends | arrivals that evict | an abusive key passes | entitled to |
/// |---|---|---|---|---|---|
/// | 0.5 | any | any | none | no more | |
/// | 1 | 20 | 1 | 51 % | 39 | 40 |
/// | 5 | 20 | 1 | 99 % | 39 | 40 |
/// | 5 | 20 | 20 | 80 % | 39 | 40 |
/// | 2 | 5 | 5 | 88 % | 24 | 25 |
/// | 5 | 5 | 5 | 98 % | **215** | 25 |
/// | 5 | 2 | 1 | 99 % | 21 | 22 |
/// | 2 | 2 | 2 | 96 % | **41** | 22 |
/// | 5 | 2 | 2 | 100 % | **226** | 22 |
/// | 2 | 1 | 1 | 98 % | **38** | 21 |
/// | 5 | 1 | 1 | 99 % | **89** | 21 |
///
/// With [`Reject`](Self::Reject) or [`Overflow`](Self::Overflow) the last line reads 19 of 21, but four of five new
/// keys are rejected at their first request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
#[doc(alias = "eviction")]
pub enum WhenFull {
    /// Forgets the key that owes least, among up to sixteen keys in the new key's candidate sets, and forgives its
    /// small debt. The default: keys that have used most stay limited however many keys are sprayed, and no new key is
    /// locked out.
    ///
    /// It protects a key only from keys that owe less. **With a burst of 1 all keys owe the same**, and under a flood
    /// with *m* live keys per slot a limited key passes about *m* times as often; where a flood's keys spend the same
    /// whole burst of 2 or more, up to ten times as often was measured. Where that matters (logins, password resets),
    /// choose another variant, or add a policy with a wider key.
    #[default]
    EvictLeast,
    /// Rejects the new key until a slot is free. Exact for the keys that are held, but a flood locks out new keys.
    /// (Only a [live change](crate::LimitsHandle#accuracy) between two floods forgets keys.)
    Reject,
    /// Lets new keys share 512 further budgets, chosen by their hashes, until there is room. Exact for the keys that
    /// are held, while new keys share the units that the flood leaves. Once there is room, a new key begins with its
    /// shared budget's debt, so that no key has its burst twice. A live change to a store with the same choice keeps
    /// the shared budgets, and all keys that share a budget begin with its debt, including keys that had a slot.
    /// [Resetting](crate::limiter::Mode::Reset) a key resets the budget that it shares, or would share, for all keys
    /// that share it.
    ///
    /// Keys with [their own quotas](crate::Policy::quota_fn) share a budget only with keys under the same quota: each
    /// of the 512 is one budget for each of up to eight quotas. Keys under a ninth quota are rejected, as with
    /// `Reject`, until one of the eight budgets is paid. If a key's quota changes while it has no room, it shares
    /// another budget from then on.
    Overflow,
}
