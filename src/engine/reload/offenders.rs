//! A look at the keys that are rejected most, and the publication of this process's part.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::{KeyOf, LayerState, LimitsHandle};
use crate::engine::policy::{Offender, Offenders, Policy, Scheduled};
use crate::engine::translate::Translate;
use crate::values::{LimiterError, PartitionKey};

/// The time from a rejection to the publication of its count. So a process writes once a second at most.
const PAUSE: Duration = Duration::from_secs(1);

impl<D: Translate> LimitsHandle<D> {
    /// Returns the `most` keys that the policy with this name has rejected most often, since the start of the previous
    /// hour, and how long each is banned. The policy must [track](Policy::track_offenders) them, which documents the
    /// accuracy.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tower_sluice::key::PeerIp;
    /// use tower_sluice::policy::ShowKey;
    /// use tower_sluice::{Policy, Quota, RateLimitLayer};
    ///
    /// let api = Policy::new("api", Quota::per_second(10)).key(PeerIp::new()).track_offenders(ShowKey::whole());
    /// let limits = RateLimitLayer::new(api).handle();
    /// let offenders = limits.offenders("api", 20).await?;
    /// for offender in offenders.list() {
    ///     println!("{} {} ± {}", offender.key(), offender.count(), offender.error());
    /// }
    /// assert_eq!(offenders.total(), 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cost
    ///
    /// Takes some 0.1 ms to compute. If the limiter is on a server with records, it makes one call as well, and one for
    /// each process. These read up to 20 KB for each process that has rejected requests in this time, with counts up to
    /// a second old. If the call fails, the list has this process's counts, and [says so](Offenders::missing).
    ///
    /// # Errors
    ///
    /// If there is no policy with this name, or if it does not track its offenders.
    #[doc(alias("top", "heavy hitters"))]
    pub async fn offenders(&self, policy: &str, most: usize) -> Result<Offenders, LimiterError> {
        look(&*self.policy(policy)?, most, None).await
    }

    /// Returns one key's rejections: how many, since when, and the last one. `None` if the key is not among the keys
    /// that are rejected most, in which case it has had at most [`Offenders::max_error`] rejections. Otherwise like
    /// [`offenders`](Self::offenders).
    ///
    /// # Errors
    ///
    /// The errors from [`offenders`](Self::offenders), and an error if the policy [cannot have this
    /// key](LimiterError::is_no_key).
    pub fn rejections(
        &self,
        policy: &str,
        key: impl KeyOf<D>,
    ) -> impl Future<Output = Result<Option<Offender>, LimiterError>> + Send {
        let found = self.find(policy, key);
        async move {
            let (policy, target) = found?;
            let offenders = look(&policy, 1, Some(&target.key)).await?;
            Ok(offenders.list().first().cloned())
        }
    }
}

/// Looks at all keys, or at one.
async fn look<D: Translate>(
    policy: &Policy<D>,
    most: usize,
    key: Option<&PartitionKey>,
) -> Result<Offenders, LimiterError> {
    let untracked = || {
        let name = policy.name();
        LimiterError::new(format!("policy `{name}` does not track its offenders: set `Policy::track_offenders`"))
    };
    if policy.lineage.offenders.is_none() {
        return Err(untracked());
    }
    let answer = match policy.description.shares_reports() {
        Some(server) => server.collect().await,
        None => Ok(Vec::new()),
    };
    let (reports, missing) = match answer {
        Ok(reports) => (reports, None),
        Err(error) => (Vec::new(), Some(error)),
    };
    // Read after the call, so that this process's own part is up to date.
    let (own, now) = policy.own_offenders().ok_or_else(untracked)?;
    let (all, processes) = policy.all_offenders(own, &reports, now);
    let all = match key {
        Some(key) => policy.only_offender(all, key),
        None => all,
    };
    let is_whole = |shown: &str, of| policy.is_whole(shown, of);
    Ok(Offenders::new(all, most, now, processes, policy.shadow, missing, is_whole))
}

impl<D: Translate> LayerState<D> {
    /// Publishes a policy's offenders, once the pause is over. The policy with its name that is in force by then makes
    /// the report.
    #[cold]
    pub(crate) fn publish_offenders(self: &Arc<Self>, policy: &Policy<D>, scheduled: Scheduled) {
        let Some(server) = policy.description.shares_reports() else { return };
        // If the layer is gone, there is nothing to report.
        let layer = Arc::downgrade(self);
        let name = Arc::clone(&policy.name);
        let reports = move || {
            drop(scheduled);
            let Some(layer) = layer.upgrade() else { return Vec::new() };
            layer.load().policy(&name).map_or_else(Vec::new, Policy::offender_reports)
        };
        server.publish_after(PAUSE, Box::new(reports));
    }
}
