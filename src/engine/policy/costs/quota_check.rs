//! `QuotaCheck`: detects quotas that depend on the request, and not on its key.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::engine::key::Streak;
use crate::util::lock::Lock;
use crate::values::{PartitionKey, Quota};

/// Checks whether each key keeps its quota in a policy's first thousand requests. A single change is a change of the
/// customer's plan, but a change that is taken back at once shows that the quota depends on the request.
#[derive(Debug)]
pub(super) struct QuotaCheck {
    /// Keyed by a hash of the key.
    seen: Lock<HashMap<u64, Seen>>,
    streak: Streak<1_000>,
}

/// A key's quotas. `None` stands for the policy's own quota.
#[derive(Debug)]
struct Seen {
    last: Option<Quota>,
    /// The quota before the last change, if there was a change.
    before: Option<Option<Quota>>,
}

impl QuotaCheck {
    pub(super) fn new() -> Self {
        Self { seen: Lock::default(), streak: Streak::new() }
    }

    /// Whether the first thousand requests are over, or an alternating quota was found.
    #[inline]
    pub(super) fn is_decided(&self) -> bool {
        self.streak.is_decided()
    }

    /// Records a request's quota, unless the check [is decided](Self::is_decided). Returns `true` once, for the first
    /// request whose key is back at the quota before its last change.
    #[cold]
    pub(super) fn compare(&self, key: &PartitionKey, quota: Option<Quota>) -> bool {
        // A panic under the lock leaves no entry half written, so a poisoned lock is safe to use.
        let mut seen = self.seen.lock();
        if self.streak.is_decided() {
            // Another thread has decided meanwhile.
            return false;
        }
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let hash = hasher.finish();
        let alternates = match seen.get_mut(&hash) {
            None => {
                seen.insert(hash, Seen { last: quota, before: None });
                false
            }
            Some(of_key) if of_key.last == quota => false,
            Some(of_key) => {
                let before = of_key.before.replace(std::mem::replace(&mut of_key.last, quota));
                before == Some(quota)
            }
        };
        if alternates {
            self.streak.interrupt();
        }
        if alternates || self.streak.grows_long() {
            *seen = HashMap::new();
        }
        alternates
    }
}

#[cfg(all(test, feature = "tracing"))]
mod tests {
    use super::*;

    const LOGIN: Option<Quota> = Some(Quota::per_hour(5));
    const OTHER: Option<Quota> = Some(Quota::per_second(100));

    /// Returns the indices of the requests that find an alternating quota.
    fn reported(requests: impl IntoIterator<Item = (u32, Option<Quota>)>) -> Vec<usize> {
        let check = QuotaCheck::new();
        let record = |(number, (key, quota)): (usize, (u32, _))| {
            (!check.is_decided() && check.compare(&key.into(), quota)).then_some(number)
        };
        let found = requests.into_iter().enumerate().filter_map(record).collect();
        assert!(check.seen.lock().len() <= 1_000);
        found
    }

    #[test]
    fn alternating_quotas_are_reported_once() {
        assert_eq!(reported([(1, LOGIN), (1, OTHER), (1, LOGIN), (1, OTHER), (1, LOGIN)]), [2]);
        assert_eq!(reported([(1, None), (2, OTHER), (1, OTHER), (2, None), (1, OTHER), (1, None), (2, OTHER)]), [5]);
        // The last request that is checked.
        let before = (0..999).map(|number| if number < 998 { (1, LOGIN) } else { (1, OTHER) });
        assert_eq!(reported(before.chain([(1, LOGIN)])), [999]);
    }

    #[test]
    fn own_quotas_and_plan_changes_are_fine() {
        let none: [usize; 0] = [];
        assert_eq!(reported((0..3_000).map(|number| (number % 7, if number % 7 < 3 { LOGIN } else { OTHER }))), none);
        assert_eq!(reported((0..3_000).map(|number| (1, if number < 500 { LOGIN } else { OTHER }))), none);
        // Requests beyond the first thousand are not checked.
        assert_eq!(
            reported((0..3_000).map(|number| (1, if number % 2 == 0 || number < 999 { LOGIN } else { OTHER }))),
            none
        );
        assert_eq!(reported((0..3_000).map(|number| (number, LOGIN))), none);
    }
}
