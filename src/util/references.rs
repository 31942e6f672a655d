//! [`References`]: the references that were entered for credits and charges by hand, for some days.

use std::collections::HashMap;

use crate::util::lock::Lock;
use crate::values::time::Timestamp;
use crate::values::{LimiterError, PartitionKey};

/// The references that were used, each with the time when it ends. No reference is forgotten before, because a payment
/// that is sent again must not count twice. If there are too many, new references are refused.
#[derive(Default)]
pub(crate) struct References(Lock<HashMap<(PartitionKey, Box<str>), Timestamp>>);

/// The most that are known at a time, which take some 200 bytes each, and up to 400 if they are long.
const MOST: usize = 1 << 20;

impl References {
    /// Does a step, unless this reference is known for the key. If it succeeds, the reference is known `until` then.
    /// Returns `None` if nothing was done. A step without a reference is done in any case.
    ///
    /// # Errors
    ///
    /// If the step fails, or if there are too many references.
    pub(crate) fn once<T>(
        &self,
        key: &PartitionKey,
        reference: Option<&str>,
        now: Timestamp,
        until: Timestamp,
        step: impl FnOnce() -> Result<T, LimiterError>,
    ) -> Result<Option<T>, LimiterError> {
        let Some(reference) = reference else { return step().map(Some) };
        // Locked until the step is done, so that if two threads have one reference, the second finds it entered.
        let mut known = self.0.lock();
        let reference = (key.clone(), reference.into());
        if known.get(&reference).is_some_and(|until| *until > now) {
            return Ok(None);
        }
        if known.len() >= MOST {
            known.retain(|_, until| *until > now);
            if known.len() >= MOST {
                let problem = "1,048,576 references are known, and none of them has ended; wait, or send no reference";
                return Err(LimiterError::new(problem));
            }
        }
        let done = step()?;
        known.insert(reference, until);
        Ok(Some(done))
    }

    /// Forgets a reference whose step was not done after all.
    pub(crate) fn forget(&self, key: &PartitionKey, reference: &str) {
        self.0.lock().remove(&(key.clone(), reference.into()));
    }
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use std::time::Duration;

    use super::*;

    /// It counts only for its key, and only if the step succeeds.
    #[test]
    fn a_reference_counts_until_its_end() {
        let references = References::default();
        let [a, b] = ["a", "b"].map(PartitionKey::from);
        let at = |seconds| Timestamp::ZERO.saturating_add(Duration::from_secs(seconds));
        let once = |key, reference, now| references.once(key, reference, at(now), at(now + 10), || Ok(())).unwrap();
        let failed = references.once(&a, Some("x"), at(0), at(10), || Err::<(), _>(LimiterError::new("no")));
        assert!(failed.is_err());
        assert_eq!(once(&a, Some("x"), 1), Some(()), "it has failed before");
        assert_eq!(
            (once(&a, Some("x"), 10), once(&b, Some("x"), 10), once(&a, Some("y"), 10)),
            (None, Some(()), Some(()))
        );
        assert_eq!(once(&a, Some("x"), 11), Some(()), "its time is over");
        assert_eq!((once(&a, None, 11), once(&a, None, 11)), (Some(()), Some(())));
        references.forget(&b, "x");
        assert_eq!(once(&b, Some("x"), 12), Some(()));
    }
}
