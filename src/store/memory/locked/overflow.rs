//! The locked table's overflow sets: states that new keys share when the table is full and must not forget keys
//! ([`WhenFull::Overflow`](super::WhenFull::Overflow)).

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::MutexGuard;
use std::time::Duration;

use super::set::{StateSet, Tag64};
use super::{LockedTable, charge, tag_of};
use crate::algorithm::Algorithm;
use crate::store::memory::table::Tag;
use crate::util::lock::Lock;
use crate::values::time::{self, Timestamp};
use crate::values::{Decision, Quota};

impl<S: Copy + Send + 'static> LockedTable<S> {
    /// Locks a key's overflow set, if the table has such sets. Lock it after the key's candidate sets.
    pub(super) fn overflow_set(&self, tag: Tag) -> Option<MutexGuard<'_, StateSet<S>>> {
        let group = usize::try_from(tag.group()).expect("some hundreds");
        self.overflow.get(group).map(Lock::lock)
    }

    /// Lets the keys in a group that are judged under a quota begin with this state in their overflow set, if the table
    /// has such sets. If several states are passed, the greatest by `size` counts. The table must be unused.
    pub(in crate::store::memory) fn inherit_overflow(
        &self,
        (tag, quota): (Tag, &Quota),
        state: S,
        size: impl Fn(&S) -> u64,
    ) {
        let Some(mut set) = self.overflow_set(tag) else { return };
        match set.find(shared_tag(quota)) {
            Some(shared) => *shared = if size(shared) < size(&state) { state } else { *shared },
            // There is a free slot, because the predecessor's sets have at most eight slots too.
            None => drop(set.insert(shared_tag(quota), state, |_, _| false)),
        }
    }
}

/// Returns the tag for all keys in an overflow set that are judged under a quota. If keys under two quotas shared a
/// state, it would take on the last request's quota: a debt under a strict quota would be paid at a generous one's
/// rate. (Two quotas with the same tag would share a slot. There are 2^64 tags.)
pub(super) fn shared_tag(quota: &Quota) -> Tag64 {
    tag_of(BuildHasherDefault::<DefaultHasher>::default().hash_one(quota))
}

/// Charges the state that new keys under a quota share, since the table is full and must not forget a key. If keys
/// under other quotas use all slots in the set, returns the time until the first slot is free.
pub(super) fn charge_overflow<A: Algorithm>(
    algorithm: &A,
    set: &mut StateSet<A::State>,
    now: Timestamp,
    cost: u64,
) -> Result<Decision, Duration> {
    let tag = shared_tag(&algorithm.quota());
    if let Some(state) = set.find(tag) {
        return Ok(charge(algorithm, state, now, cost));
    }
    let left = |state: &A::State| algorithm.expires_at(state).saturating_since(now);
    let (decision, next) = algorithm.decide(None, now, cost);
    let has_room = next.is_none_or(|next| set.insert(tag, next, |_, state| left(state).is_zero()));
    if has_room { Ok(decision) } else { Err(Duration::from_nanos(set.least(|_, state| time::nanos_of(left(state))))) }
}

/// Returns the state of a key that has used both states' units together, or at most its whole budget. The second
/// state's units are counted as charged now, because states of an arbitrary algorithm cannot be added otherwise.
pub(super) fn sum<A: Algorithm>(algorithm: &A, one: A::State, other: A::State, now: Timestamp) -> A::State {
    let (other, _) = algorithm.decide(Some(other), now, 0);
    let used = other.limit().saturating_sub(other.remaining());
    let (free, _) = algorithm.decide(Some(one), now, 0);
    algorithm.decide(Some(one), now, used.min(free.remaining())).1.unwrap_or(one)
}
