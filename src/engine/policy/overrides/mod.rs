//! A policy's overrides that this process keeps: bans and allowances by hand.

mod saved;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

pub(in crate::engine::policy) use self::saved::SavedOverrides;
use crate::engine::policy::expiring::CAPACITY;
use crate::store::ByHand;
use crate::values::time::{Clock, Timestamp};
use crate::values::{Exception, LimiterError, Override, OverrideReason, PartitionKey};

/// The overrides by key. Unlike the tables for bans and debts, it has the keys themselves and keeps every override
/// until its end, because an operator makes few overrides, and wants to see them.
pub(crate) struct Overrides {
    /// A lock for many readers: operators write it, and requests read it while an override is in force.
    by_key: RwLock<HashMap<PartitionKey, KeyOverride>>,
    clock: Arc<dyn Clock>,
    /// No override ends after this instant.
    latest: AtomicU64,
}

#[derive(Clone, Copy)]
struct KeyOverride {
    is_ban: bool,
    since: Timestamp,
    until: Timestamp,
    reason: OverrideReason,
}

/// If two reports from a server are about one override, their ends differ by less than this, because reports take time
/// to arrive.
const SAME_END: Duration = Duration::from_secs(2);

impl KeyOverride {
    fn beginning(now: Timestamp, exception: &Exception) -> Self {
        let Exception { is_ban, left, reason } = *exception;
        Self { is_ban, since: now, until: now.saturating_add(left), reason }
    }

    fn at(&self, now: Timestamp) -> Option<Exception> {
        let left = self.until.saturating_since(now);
        (!left.is_zero()).then_some(Exception { is_ban: self.is_ban, left, reason: self.reason })
    }

    /// Whether this is the override known before, which a server reports again.
    fn is_again(&self, before: &Self) -> bool {
        let between = self.until.saturating_since(before.until).max(before.until.saturating_since(self.until));
        (self.is_ban, self.reason) == (before.is_ban, before.reason) && between < SAME_END
    }
}

impl Overrides {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { by_key: RwLock::default(), clock, latest: AtomicU64::new(0) }
    }

    /// Whether no override is in force. The load can be relaxed, because a thread that misses an override decides as if
    /// its request had come just before.
    #[inline]
    pub(crate) fn are_over(&self) -> bool {
        let latest = self.latest.load(Ordering::Relaxed);
        latest == 0 || latest <= self.clock.now().as_nanos()
    }

    /// A key's override.
    #[inline]
    pub(crate) fn find(&self, key: &PartitionKey) -> Option<Exception> {
        if self.are_over() {
            return None;
        }
        let by_key = self.by_key.read().unwrap_or_else(PoisonError::into_inner);
        by_key.get(key)?.at(self.clock.now())
    }

    /// Whether this ban or allowance, which a server reports, is known already.
    pub(crate) fn knows(&self, key: &PartitionKey, reported: &Exception) -> bool {
        let by_key = self.by_key.read().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        let reported = KeyOverride::beginning(now, reported);
        by_key.get(key).is_some_and(|known| reported.is_again(known))
    }

    /// The time since a key's override was made here, or first seen.
    pub(crate) fn age(&self, key: &PartitionKey) -> Option<Duration> {
        let by_key = self.by_key.read().unwrap_or_else(PoisonError::into_inner);
        let (now, by_hand) = (self.clock.now(), by_key.get(key)?);
        by_hand.at(now).map(|_| now.saturating_since(by_hand.since))
    }

    /// Makes or lifts an override.
    ///
    /// # Errors
    ///
    /// If there are too many.
    pub(crate) fn set(&self, key: &PartitionKey, by_hand: Override) -> Result<(), LimiterError> {
        let mut by_key = self.by_key.write().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        let Some(exception) = by_hand.exception() else {
            by_key.remove(key);
            return Ok(());
        };
        if by_key.len() >= CAPACITY && !by_key.contains_key(key) {
            by_key.retain(|_, by_hand| by_hand.at(now).is_some());
            if by_key.len() >= CAPACITY {
                return Err(LimiterError::new("65,536 keys are banned or allowed by hand; lift some of them first"));
            }
        }
        let mut new = KeyOverride::beginning(now, &exception);
        if let Some(before) = by_key.get(key).filter(|before| new.is_again(before)) {
            new.since = before.since;
        }
        by_key.insert(key.clone(), new);
        // Done under the lock, so before any lookup that could find it.
        self.latest.fetch_max(new.until.as_nanos(), Ordering::Relaxed);
        Ok(())
    }

    /// The number of overrides in force.
    pub(crate) fn counts(&self) -> ByHand {
        let by_key = self.by_key.read().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        let mut counts = ByHand::default();
        for exception in by_key.values().filter_map(|by_hand| by_hand.at(now)) {
            *if exception.is_ban { &mut counts.banned } else { &mut counts.allowed } += 1;
        }
        counts
    }

    /// The overrides in force, ordered by their ends.
    pub(crate) fn all(&self) -> Vec<(PartitionKey, Exception)> {
        let by_key = self.by_key.read().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        let mut all: Vec<_> =
            by_key.iter().filter_map(|(key, by_hand)| Some((key.clone(), by_hand.at(now)?))).collect();
        all.sort_by(|(a, one), (b, other)| (one.left, a).cmp(&(other.left, b)));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::time::ManualClock;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn ban(span: Duration) -> Override {
        Override::Ban { span, reason: OverrideReason::NONE }
    }

    #[test]
    fn overrides_end_or_are_lifted() {
        let clock = ManualClock::new();
        let overrides = Overrides::new(Arc::new(clock.clone()));
        let [a, b] = ["a", "b"].map(PartitionKey::from);
        assert!(overrides.are_over() && overrides.find(&a).is_none());
        overrides.set(&a, ban(HOUR)).unwrap();
        overrides.set(&b, Override::Allow { span: 2 * HOUR, reason: OverrideReason::NONE }).unwrap();
        clock.advance(HOUR / 2);
        let left = |key| overrides.find(key).map(|exception| (exception.is_ban, exception.left));
        assert_eq!((left(&a), left(&b)), (Some((true, HOUR / 2)), Some((false, HOUR * 3 / 2))));
        assert_eq!(overrides.all().iter().map(|(key, _)| key).collect::<Vec<_>>(), [&a, &b]);
        overrides.set(&a, ban(HOUR / 4)).unwrap();
        assert_eq!(left(&a), Some((true, HOUR / 4)), "replaced by a shorter one");
        overrides.set(&b, Override::Lift).unwrap();
        assert_eq!(left(&b), None);
        clock.advance(HOUR / 4);
        assert_eq!((left(&a), overrides.all().len()), (None, 0));
        clock.advance(HOUR * 3);
        assert!(overrides.are_over());
    }

    #[test]
    fn a_repeated_report_keeps_the_age() {
        let clock = ManualClock::new();
        let overrides = Overrides::new(Arc::new(clock.clone()));
        let key = PartitionKey::from("a");
        assert_eq!(overrides.age(&key), None);
        overrides.set(&key, ban(HOUR)).unwrap();
        clock.advance(HOUR / 2);
        overrides.set(&key, ban(HOUR / 2 + Duration::from_millis(20))).unwrap();
        assert_eq!(overrides.age(&key), Some(HOUR / 2));
        overrides.set(&key, ban(HOUR)).unwrap();
        assert_eq!(overrides.age(&key), Some(Duration::ZERO), "another one");
        clock.advance(HOUR);
        assert_eq!(overrides.age(&key), None);
    }

    #[test]
    fn overrides_do_not_evict_each_other() {
        let clock = ManualClock::new();
        let overrides = Overrides::new(Arc::new(clock.clone()));
        let key = |number: usize| PartitionKey::from(number as u64);
        (0..CAPACITY).for_each(|number| overrides.set(&key(number), ban(HOUR)).unwrap());
        let error = overrides.set(&key(CAPACITY), ban(HOUR)).unwrap_err().to_string();
        assert!(error.contains("lift some"), "{error}");
        overrides.set(&key(0), ban(2 * HOUR)).unwrap();
        clock.advance(HOUR);
        overrides.set(&key(CAPACITY), ban(HOUR)).unwrap();
        assert_eq!(overrides.all().len(), 2, "those that have ended made room");
    }
}
