//! Decisions without a layer, for messages, jobs, and anything else that is not an HTTP request.

mod admission;
mod builder;
mod rejected;
mod translation;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

pub use self::admission::Admission;
pub use self::builder::LimitsBuilder;
pub(crate) use self::rejected::Problem;
pub use self::rejected::Rejected;
use super::domain::{Domain, On};
use super::evaluate::{Decide, admit_exempt, evaluate, reject_plain};
use super::key::text::Content;
use super::key::{KeyError, KeyExtractor, KeyTextError};
use super::outcome::{Admitted, Evaluation, Waiting};
use super::policy::{IntoPolicies, Policy, PolicyError};
use super::reload::LimitsHandle;
use super::translate::{Reading, Translate};
use crate::limiter::IntoLimiter;
use crate::values::PartitionKey;

/// Policies that decide on values of type `T`, such as WebSocket messages, queued jobs, or protocol commands. `O` is
/// the outcome, which is known once a value was processed.
///
/// ```
/// use tower_sluice::direct::Limits;
/// use tower_sluice::{Concurrency, Policy, Quota};
///
/// struct Job {
///     customer: u64,
///     rows: u64,
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let rows = Policy::on("rows", Quota::per_minute(10_000)).key_by(|job: &Job| job.customer).cost_fn(|job| job.rows);
/// let in_flight = Policy::on("in-flight", Concurrency::new(2)).key_by(|job: &Job| job.customer);
/// let limits = Limits::new([rows, in_flight]);
///
/// let job = Job { customer: 7, rows: 500 };
/// match limits.decide(&job).await {
///     Ok(admission) => {
///         // … process it …
///         admission.finish();
///     }
///     Err(rejected) => println!("{rejected}: again in {:?}", rejected.retry_after()),
/// }
/// # }
/// ```
///
/// As in a [layer](crate::RateLimitLayer), a value is charged to all policies or to no policy, and there are
/// alternatives, [bans](crate::Policy::penalty), debts, shadows, offenders, metrics, and all [`LimitsHandle`] calls,
/// such as [`replace`](LimitsHandle::replace). [`builder`](LimitsHandle::builder) has the settings. Without a layer
/// there are no snapshots and no free retries. All policies in a set are for the same `T` and `O`.
pub type Limits<T, O = ()> = LimitsHandle<On<T, O>>;

impl<T: 'static> Policy<On<T>> {
    /// Makes a policy that decides on values of type `T`, for [`Limits`]. It works like [`Policy::new`].
    pub fn on(name: impl Into<Arc<str>>, limiter: impl IntoLimiter) -> Self {
        Self::make(name, limiter)
    }
}

impl<T: 'static, O: 'static> Policy<On<T, O>> {
    /// Makes a policy that decides on values of type `T`, and learns their outcomes, for
    /// [`charge_when`](Self::charge_when) and [`cost_after`](Self::cost_after).
    pub fn with_outcome(name: impl Into<Arc<str>>, limiter: impl IntoLimiter) -> Self {
        Self::make(name, limiter)
    }

    /// Sets the key, so that values with the same key share a budget. If the closure returns a number, an address or a
    /// text, operators write the key so. For a `PartitionKey`, they see the bytes. An empty text is the key that all
    /// share, which is never [banned](Self::penalty). If some values do not have a key, add [`when`](Self::when).
    pub fn key_by<K: Into<PartitionKey> + 'static>(self, key: impl Fn(&T) -> K + Send + Sync + 'static) -> Self {
        self.key(KeyBy(key))
    }
}

/// A key that a closure reads.
struct KeyBy<F>(F);

impl<T: 'static, O: 'static, K, F> KeyExtractor<On<T, O>> for KeyBy<F>
where
    K: Into<PartitionKey> + 'static,
    F: Fn(&T) -> K + Send + Sync + 'static,
{
    fn extract(&self, subject: &T) -> Result<PartitionKey, KeyError> {
        Ok((self.0)(subject).into())
    }

    /// Numbers and addresses are read and written as such, and everything else as text.
    fn read_text(&self, text: &str) -> Result<PartitionKey, KeyTextError> {
        Content::of_type::<K>().read(text)
    }

    fn write_text(&self, key: &PartitionKey) -> Option<String> {
        Content::of_type::<K>().write(key)
    }
}

impl<T: 'static, O: 'static> LimitsHandle<On<T, O>> {
    /// Puts policies in force.
    ///
    /// # Panics
    ///
    /// If [`try_new`](Self::try_new) rejects the policies.
    #[track_caller]
    pub fn new(policies: impl IntoPolicies<On<T, O>>) -> Self {
        Self::try_new(policies).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Puts policies in force that were read at run time.
    ///
    /// # Errors
    ///
    /// If there is no policy, if two have the same name, or if the options of a policy are invalid.
    pub fn try_new(policies: impl IntoPolicies<On<T, O>>) -> Result<Self, PolicyError> {
        Self::builder(policies).try_build()
    }

    /// Puts policies in force with settings, such as a name in metrics, or a hook for events.
    pub fn builder(policies: impl IntoPolicies<On<T, O>>) -> LimitsBuilder<T, O> {
        LimitsBuilder::new(policies)
    }
}

impl<D: Decide> LimitsHandle<D> {
    /// Decides on a subject, and charges it. This call makes the decision, unless the subject has to wait for a server
    /// or its turn in a queue. In that case the future waits, within a Tokio runtime. If you drop it meanwhile, the
    /// subject leaves the queue, and charges stay, except for estimates that are
    /// [settled](crate::Policy::settle_by_handler).
    ///
    /// For HTTP policies, the subject is the head of a request that no layer sees, such as one that opened a WebSocket,
    /// or one that a proxy asks about. The layer's settings for responses do not apply, but
    /// [`answer`](LimitsHandle::answer) has these, too. A
    /// [preflight](crate::layer::RateLimitLayerBuilder::exempt_preflights) is assumed to have no body.
    ///
    /// # Errors
    ///
    /// If a policy rejects the subject, if it lacks a key, or if a limiter fails and its policy fails closed. Nothing
    /// is charged in these cases.
    pub fn decide(&self, subject: &D::Subject<'_>) -> Deciding<D> {
        let layer = self.layer();
        let in_force = layer.load();
        let reject = |decided: Reading<'_>| reject_plain(layer, &in_force, decided, subject, Evaluation::Rejected);
        let evaluation = match D::REPLIES {
            _ if D::exempts(layer, &in_force, subject) => Evaluation::Admitted(admit_exempt(layer, &in_force)),
            // The fast path for a single policy whose requests hold units may reply. A transaction does not.
            true if !in_force.is_plain() => (layer.longer_path().transaction)(layer, &in_force, subject),
            _ => evaluate(layer, &in_force, subject, reject),
        };
        Deciding(match evaluation {
            Evaluation::Clear => State::Decided(Some(Ok(Admission::new(Admitted::clear())))),
            Evaluation::Admitted(admitted) => State::Decided(Some(Ok(Admission::new(admitted)))),
            Evaluation::Rejected(rejected) => State::Decided(Some(Err(Box::new(rejected.rejection)))),
            Evaluation::Replied(_) => unreachable!("only a policy that holds units replies"),
            Evaluation::Pending(waiting) => State::Waiting(waiting),
        })
    }
}

/// The result of a decision: the admission, or why there is none.
type Decided<D> = Result<Admission<D>, Box<<D as Domain>::Rejection>>;

/// The future of [`LimitsHandle::decide`].
#[must_use = "a rejected subject must not be processed"]
pub struct Deciding<D: Decide>(State<D>);

enum State<D: Translate> {
    /// Taken once it is polled.
    Decided(Option<Decided<D>>),
    Waiting(Waiting<D>),
}

impl<D: Decide> Deciding<D> {
    /// Returns the decision if it does not have to wait. Otherwise returns `None`, and the subject leaves the queue.
    /// Other policies' charges stay, except for estimates that are [settled](crate::Policy::settle_by_handler).
    #[must_use = "a rejected subject must not be processed"]
    pub fn at_once(self) -> Option<Decided<D>> {
        match self.0 {
            State::Decided(decided) => decided,
            State::Waiting(_) => None,
        }
    }

    /// Whether the decision has to wait. If not, [`at_once`](Self::at_once) returns it.
    #[must_use]
    pub const fn is_waiting(&self) -> bool {
        matches!(self.0, State::Waiting(_))
    }
}

impl<D: Decide> Future for Deciding<D> {
    type Output = Decided<D>;

    /// # Panics
    ///
    /// If it is polled again after it was ready.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Decided<D>> {
        match &mut self.get_mut().0 {
            State::Decided(decided) => Poll::Ready(decided.take().expect("polled after it was ready")),
            State::Waiting(waiting) => Poll::Ready(match ready!(waiting.as_mut().poll(context)) {
                Ok(admitted) => Ok(Admission::new(admitted)),
                Err(rejected) => Err(Box::new(rejected.rejection)),
            }),
        }
    }
}

impl<D: Decide> fmt::Debug for Deciding<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.0 {
            State::Decided(_) => "decided",
            State::Waiting(_) => "waiting",
        };
        f.debug_tuple("Deciding").field(&state).finish()
    }
}
