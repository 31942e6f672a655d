//! [`LimitsBuilder`]: settings for policies without a layer.

use std::fmt;
use std::sync::Arc;

use crate::engine::direct::Limits;
use crate::engine::direct::translation::Settings;
use crate::engine::domain::On;
use crate::engine::key::Marks;
use crate::engine::policy::{Event, Hook, IntoPolicies, Policies, PolicyError};
use crate::engine::reload::{Enforceable, LayerSettings, LayerState, LimitsHandle, LongerPath};

/// Builds [`Limits`]. Once they are built, only their policies can be changed.
///
/// ```
/// use tower_sluice::direct::Limits;
/// use tower_sluice::{Policy, Quota};
///
/// let policy = Policy::on("messages", Quota::per_second(20)).key_by(|user: &u64| *user);
/// let limits = Limits::builder(policy).route("chat").on_transition(|event| eprintln!("{event:?}")).build();
/// # drop(limits);
/// ```
#[must_use]
pub struct LimitsBuilder<T: 'static, O: 'static = ()> {
    policies: Policies<On<T, O>>,
    settings: LayerSettings<On<T, O>>,
}

impl<T: 'static, O: 'static> LimitsBuilder<T, O> {
    pub(super) fn new(policies: impl IntoPolicies<On<T, O>>) -> Self {
        let settings = LayerSettings { adds_verdict: true, ..LayerSettings::default() };
        Self { policies: policies.into_policies(), settings }
    }

    /// Puts the policies in force.
    ///
    /// # Panics
    ///
    /// If [`try_build`](Self::try_build) rejects the policies.
    #[track_caller]
    pub fn build(self) -> Limits<T, O> {
        self.try_build().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Puts the policies in force, or returns an error. Use this for policies that are read at run time.
    ///
    /// # Errors
    ///
    /// If there is no policy, if two have the same name, or if a policy's options are invalid.
    pub fn try_build(self) -> Result<Limits<T, O>, PolicyError> {
        let Self { policies, settings } = self;
        let layer = LayerState::new(Enforceable::new(policies)?, settings);
        layer.install(LongerPath::WHOLE);
        Ok(LimitsHandle::of(layer))
    }

    /// Sets the label `route` on all metrics and the same field in log events, as a name for these limits, such as
    /// `chat`. The [guide](crate::guide::monitoring#metrics) lists the metrics. Sets with the same name are counted
    /// together. Do not use values that clients choose, because each value makes new series.
    pub fn route(mut self, route: impl Into<Arc<str>>) -> Self {
        self.settings.route = Some(route.into());
        self
    }

    /// Calls `hook` with each [event](Event) from these policies, as
    /// [`RateLimitLayerBuilder::on_transition`](crate::layer::RateLimitLayerBuilder::on_transition) describes.
    pub fn on_transition(mut self, hook: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        self.settings.hook = Some(Hook::new(hook));
        self
    }

    /// Reads a value's [marks](crate::key::Mark). A policy is then skipped for values without its [extractor's
    /// marks](crate::key::KeyExtractor::marks), at no cost: if two policies in a thousand concern a value, the value
    /// costs the same as with two. Unless set, all policies are asked.
    ///
    /// The extractor must [have several keys](crate::key::KeyExtractor::has_several), which may be an empty list. Other
    /// extractors are asked about each value. A value with too few marks passes the policies that it does not name, so
    /// keep a policy without marks for all values.
    ///
    /// ```
    /// use tower_sluice::direct::{Limits, On};
    /// use tower_sluice::key::{KeyCharge, KeyError, KeyExtractor, Mark, Marks};
    /// use tower_sluice::store::MemoryStore;
    /// use tower_sluice::{PartitionKey, Policy, Quota, RateLimiter, TokenBucket};
    ///
    /// struct Job {
    ///     tenant: u64,
    ///     marks: Marks,
    /// }
    ///
    /// /// The jobs of one tenant.
    /// struct Of(u64);
    ///
    /// impl KeyExtractor<On<Job>> for Of {
    ///     fn extract(&self, job: &Job) -> Result<PartitionKey, KeyError> {
    ///         Ok(job.tenant.to_string().into())
    ///     }
    ///
    ///     fn has_several(&self) -> bool {
    ///         true
    ///     }
    ///
    ///     fn extract_all(&self, job: &Job) -> Result<Vec<KeyCharge>, KeyError> {
    ///         let is_mine = job.tenant == self.0;
    ///         Ok(is_mine.then(|| KeyCharge::new(job.tenant.to_string().into())).into_iter().collect())
    ///     }
    ///
    ///     fn marks(&self) -> Vec<Mark> {
    ///         vec![Mark::of(&self.0)]
    ///     }
    /// }
    ///
    /// let policy = |tenant: u64| {
    ///     // A table for one key: by default, there is room for 65,536.
    ///     let limiter = RateLimiter::new(TokenBucket::new(Quota::per_hour(tenant)), MemoryStore::with_capacity(1));
    ///     Policy::on(format!("tenant-{tenant}"), limiter).key(Of(tenant))
    /// };
    /// let policies: Vec<_> = (1..=100).map(policy).collect();
    /// let limits = Limits::builder(policies).marks(|job: &Job| &job.marks).build();
    ///
    /// let job = Job { tenant: 1, marks: [Mark::of(&1_u64)].into_iter().collect() };
    /// assert!(limits.decide(&job).at_once().unwrap().is_ok());
    /// assert!(limits.decide(&job).at_once().unwrap().is_err());
    /// ```
    pub fn marks(mut self, marks: impl Fn(&T) -> &Marks + Send + Sync + 'static) -> Self {
        self.settings.own = Settings::with_marks(marks);
        self
    }
}

impl<T: 'static, O: 'static> fmt::Debug for LimitsBuilder<T, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitsBuilder").field("policies", &self.policies).finish_non_exhaustive()
    }
}
