//! Decisions without a layer: for messages, jobs, and whatever else is no HTTP request.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::domain::{Domain, On};
use super::evaluate::{self, Decide, OpenRequest, evaluate};
use super::key::text::Content;
use super::key::{KeyError, KeyExtractor, KeyTextError, Marks};
use super::outcome::{self, Admitted, Evaluation, Waiting};
use super::permits::Held;
use super::policy::{IntoPolicies, Policy, PolicyError};
use super::reason::{Reason, Refusal, Wait};
use super::reload::{Enforceable, InForce, LayerSettings, LayerState, LimitsHandle, LongerPath};
use super::settlement::{SettleError, Settlement};
use super::translate::{Progress, Reading, Translate};
use super::verdict::Verdict;
use crate::limiter::IntoLimiter;
use crate::values::{LimiterError, PartitionKey, RequestEnd};

/// Policies that decide on values of type `T`: messages of a WebSocket, jobs of a queue, commands of a protocol. `O` is
/// what is known of them once they were processed.
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
/// As in a [layer](crate::RateLimitLayer), a value is charged to all policies or to none, and there are alternatives,
/// [bans](crate::Policy::penalty), debts, shadows, offenders, metrics, and all calls of a [`LimitsHandle`], such as
/// [`replace`](LimitsHandle::replace). Without a layer there are no snapshots, no hook for transitions, and no free
/// retries. All policies of a set are for the same `T` and `O`.
pub type Limits<T, O = ()> = LimitsHandle<On<T, O>>;

impl<T: 'static> Policy<On<T>> {
    /// Makes a policy that decides on values of type `T`: see [`Limits`]. Otherwise as
    /// [`Policy::new`].
    pub fn on(name: impl Into<Arc<str>>, limiter: impl IntoLimiter) -> Self {
        Self::make(name, limiter)
    }
}

impl<T: 'static, O: 'static> Policy<On<T, O>> {
    /// Makes a policy that decides on values of type `T`, and learns what became of them, for
    /// [`charge_when`](Self::charge_when) and [`cost_after`](Self::cost_after).
    pub fn with_outcome(name: impl Into<Arc<str>>, limiter: impl IntoLimiter) -> Self {
        Self::make(name, limiter)
    }

    /// Sets the key: values with the same key share a budget. Return the number, the address or the text itself, and
    /// not a `PartitionKey` of it: then operators write the key so. An empty text is the key that all share, which is
    /// never [banned](Self::penalty).
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
        let settings = LayerSettings { adds_verdict: true, ..LayerSettings::default() };
        let layer = LayerState::new(Enforceable::new(policies)?, settings);
        layer.install(LongerPath::WHOLE);
        Ok(Self::of(layer))
    }
}

impl<D: Decide> LimitsHandle<D> {
    /// Decides on a subject, and charges it. The decision is made by this call, unless the subject has to wait for a
    /// server or its turn in a queue; then the future waits, within a Tokio runtime. Dropped meanwhile, it leaves the
    /// queue, and charges stay, except for estimates that are [settled](crate::Policy::settle_by_handler).
    ///
    /// For a policy of HTTP requests, the subject is the head of a request that no layer sees, such as the one that
    /// opened a WebSocket, or one of a proxy that asks. The policies decide, and not what is set for the service of the
    /// layer: the [exemption of preflights](crate::layer::RateLimitLayerBuilder::exempt_preflights), jitter, fields.
    ///
    /// # Errors
    ///
    /// If a policy rejects the subject, if it lacks a key, or if a limiter fails and its policy fails closed. Then
    /// nothing is charged.
    pub fn decide(&self, subject: &D::Subject<'_>) -> Deciding<D> {
        let layer = self.layer();
        let in_force = layer.load();
        // A transaction makes no replies.
        let evaluation = match D::REPLIES {
            false => evaluate(layer, &in_force, subject),
            true => (layer.longer_path().transaction)(layer, &in_force, subject),
        };
        Deciding(match evaluation {
            Evaluation::Admitted(admitted) => State::Decided(Some(Ok(Admission::new(admitted)))),
            Evaluation::Rejected(rejected) => State::Decided(Some(Err(Box::new(rejected.rejection)))),
            Evaluation::Replied(_) => unreachable!("a transaction makes rejections"),
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
    /// Returns the decision if nothing has to be waited for. Otherwise `None`, and the subject leaves the queue; what
    /// it was charged by other policies before stays charged.
    #[must_use = "a rejected subject must not be processed"]
    pub fn at_once(self) -> Option<Decided<D>> {
        match self.0 {
            State::Decided(decided) => decided,
            State::Waiting(_) => None,
        }
    }

    /// Whether the decision has to be waited for. If not, [`at_once`](Self::at_once) returns it.
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

/// An admitted subject. It holds the units of [limits in flight](crate::Concurrency) until it is over.
///
/// Call [`finish`](Self::finish), [`finish_with`](Self::finish_with) or [`fail`](Self::fail) when it was processed.
/// Dropped, it was abandoned: units are released, and charges stay, as those of a request whose client has
/// disconnected.
#[must_use = "dropped, it releases the units that it holds"]
pub struct Admission<D: Translate> {
    admitted: Admitted<D>,
    verdict: Option<Verdict>,
    settlement: Option<Settlement>,
}

impl<D: Translate> Admission<D> {
    fn new(mut admitted: Admitted<D>) -> Self {
        let (verdict, settlement) = match &mut admitted {
            Admitted::Known { rare, .. } => (rare.take().and_then(|rare| rare.verdict), None),
            Admitted::Held { known, .. } => match known.take().map(|known| *known) {
                Some(Admitted::Known { rare: Some(rare), .. }) => (rare.verdict, None),
                _ => (None, None),
            },
            Admitted::Open(open) => D::look(open),
        };
        Self { admitted, verdict, settlement }
    }

    /// The decisions of the policies. Of the policies of a layer, only if it [adds the
    /// verdict](crate::layer::RateLimitLayerBuilder::verdict).
    #[must_use]
    pub const fn verdict(&self) -> Option<&Verdict> {
        self.verdict.as_ref()
    }

    /// Reports the real cost to policies that are [settled](crate::Policy::settle_by_handler), until the subject is
    /// over. `None` if no such policy has charged it. Clones report to the same subject.
    #[must_use]
    pub const fn settlement(&self) -> Option<&Settlement> {
        self.settlement.as_ref()
    }

    /// Reports the total cost to each policy that is settled: see [`Settlement::settle_all`]. Returns how many got it.
    pub fn settle_all(&self, cost: u64) -> usize {
        self.settlement.as_ref().map_or(0, |settlement| settlement.settle_all(cost))
    }

    /// Reports the total cost to a policy: see [`Settlement::settle`].
    ///
    /// # Errors
    ///
    /// If no policy of this name awaits a report.
    pub fn settle(&self, policy: &str, cost: u64) -> Result<(), SettleError> {
        match &self.settlement {
            Some(settlement) => settlement.settle(policy, cost),
            None => Err(SettleError::UnknownPolicy { policy: policy.to_owned(), known: Vec::new() }),
        }
    }

    /// Ends it: it was processed. Charges that depend on its outcome stay.
    pub fn finish(self) {
        self.end(None, RequestEnd::Served);
    }

    /// Ends it: it was processed, with this outcome, which [decides](crate::Policy::charge_when) what is charged.
    pub fn finish_with(self, outcome: &D::Outcome<'_>) {
        self.end(Some(outcome), RequestEnd::Served);
    }

    /// Ends it: it could not be processed. Charges stay, and an [`Overload`](crate::Overload) learns of it.
    pub fn fail(self) {
        self.end(None, RequestEnd::Failed);
    }

    fn end(self, outcome: Option<&D::Outcome<'_>>, end: RequestEnd) {
        match self.admitted {
            Admitted::Known { .. } => {}
            Admitted::Held { request, .. } => D::end_held(request, outcome, end),
            Admitted::Open(open) => D::end_open(open, outcome, end),
        }
    }
}

impl<D: Translate> fmt::Debug for Admission<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission").field("verdict", &self.verdict).finish_non_exhaustive()
    }
}

/// Why a value is rejected.
#[derive(Clone, Debug)]
pub struct Rejected {
    reason: Reason,
    retry_after: Option<Duration>,
    may_retry: bool,
    verdict: Verdict,
    /// What went wrong, if no policy has rejected it.
    problem: Option<Problem>,
}

/// Why a value is rejected that no policy rejects.
#[derive(Clone, Debug)]
enum Problem {
    NoKey(String),
    Failure { policy: Arc<str>, error: LimiterError },
}

impl Rejected {
    /// The reason.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// The time after which it is admitted, unless others of its key are charged meanwhile. `None` if it never will be,
    /// or if that is not known: see [`may_retry`](Self::may_retry).
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Whether the value may be admitted later: after [`retry_after`](Self::retry_after), or at a time that is not
    /// known, such as when another one is over. If not, it costs more than is ever admitted at once, its quota is
    /// suspended, or it has no key.
    #[must_use]
    pub const fn may_retry(&self) -> bool {
        self.may_retry
    }

    /// The decisions of the policies.
    #[must_use]
    pub const fn verdict(&self) -> &Verdict {
        &self.verdict
    }
}

/// The alternate form (`{rejected:#}`) adds the [sources](Error::source).
impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.problem {
            None => {}
            Some(Problem::NoKey(problem)) => return write!(f, "it has no key: {problem}"),
            Some(Problem::Failure { policy, error }) => {
                let problem = if error.is_closed() { "has been closed" } else { "cannot be checked" };
                write!(f, "the limit `{policy}` {problem}")?;
                return if f.alternate() { write!(f, ": {error:#}") } else { Ok(()) };
            }
        }
        f.write_str("rejected by")?;
        for (index, policy) in self.verdict.violated().enumerate() {
            write!(f, "{} `{}`", if index == 0 { "" } else { "," }, policy.name())?;
        }
        match self.retry_after {
            Some(wait) => write!(f, "; retry in {wait:?}"),
            None if self.may_retry => Ok(()),
            None => f.write_str(", and no wait helps"),
        }
    }
}

/// The source is the [`LimiterError`] of a limiter that failed, or was [closed](crate::Limiter::close).
impl Error for Rejected {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.problem {
            Some(Problem::Failure { error, .. }) => Some(error),
            Some(Problem::NoKey(_)) | None => None,
        }
    }
}

/// A value that holds units.
pub(crate) struct HeldValue {
    held: Arc<Held>,
    end: RequestEnd,
}

impl Drop for HeldValue {
    fn drop(&mut self) {
        self.held.release(self.end);
    }
}

/// How a value is over, once that is known.
pub(crate) struct ValueEnd(RequestEnd);

impl Default for ValueEnd {
    fn default() -> Self {
        Self(RequestEnd::Abandoned)
    }
}

impl Progress for ValueEnd {
    fn end(&self) -> RequestEnd {
        self.0
    }
}

impl<T: 'static, O: 'static> Domain for On<T, O> {
    type Subject<'a> = T;
    type Outcome<'a> = O;
    type Rejection = Rejected;

    const FAILED_CLOSED: &'static str = "end with an error";
}

impl<T: 'static, O: 'static> Translate for On<T, O> {
    type Settings = ();
    type Prepared = ();
    type Fields = ();
    type Reply = Rejected;
    type Kept = ();
    type Held = HeldValue;
    type Open = Box<OpenRequest<Self>>;
    type Progress = ValueEnd;

    fn prepare((): &(), _: &[Policy<Self>], _: bool) {}

    #[inline]
    fn fields<'a>((): &(), _: impl Iterator<Item = Reading<'a>> + Clone) {}

    #[inline(always)]
    fn is_empty((): &()) -> bool {
        true
    }

    fn reject(_: &Policy<Self>, refusal: Refusal, verdict: Verdict) -> Rejected {
        let retry_after = match refusal.wait {
            Wait::Estimate(wait) | Wait::After(wait) => Some(wait),
            Wait::UnknownEstimate | Wait::UntilReleased | Wait::Never => None,
        };
        let may_retry = refusal.reason != Reason::Suspended && refusal.wait != Wait::Never;
        let retry_after = retry_after.filter(|_| may_retry);
        Rejected { reason: refusal.reason, retry_after, may_retry, verdict: verdict.rejected(), problem: None }
    }

    fn reject_without_key(error: &KeyError) -> Rejected {
        let reason = match error {
            KeyError::Missing { .. } => Reason::MissingKey,
            KeyError::Ambiguous { .. } => Reason::AmbiguousKey,
            KeyError::Misconfigured { .. } => Reason::Misconfigured,
        };
        Rejected {
            reason,
            retry_after: None,
            may_retry: false,
            verdict: Verdict::default().rejected(),
            problem: Some(Problem::NoKey(error.to_string())),
        }
    }

    fn reject_for_failure(policy: &Policy<Self>, error: &LimiterError, verdict: Verdict) -> Rejected {
        let problem = Problem::Failure { policy: Arc::clone(&policy.name), error: error.clone() };
        let verdict = verdict.rejected();
        Rejected { reason: Reason::LimiterFailed, retry_after: None, may_retry: true, verdict, problem: Some(problem) }
    }

    fn advertised(rejection: &Rejected) -> Option<Duration> {
        rejection.retry_after
    }

    fn marks(_: &T) -> Option<&Marks> {
        None
    }

    fn patience(_: &T) -> Option<Duration> {
        None
    }

    fn replies_alike((): &(), (): &()) -> bool {
        false
    }

    fn is_usual(_: &T) -> bool {
        false
    }

    fn keep(_: &Rejected) -> Option<()> {
        None
    }

    fn copy((): &()) -> Rejected {
        unreachable!("no reply is kept")
    }

    fn hold(held: Held) -> HeldValue {
        HeldValue { held: Arc::new(held), end: RequestEnd::Abandoned }
    }

    fn look(open: &Self::Open) -> (Option<Verdict>, Option<Settlement>) {
        open.look()
    }

    fn end_held(mut held: HeldValue, _: Option<&O>, end: RequestEnd) {
        held.end = end;
    }

    fn end_open(mut open: Self::Open, outcome: Option<&O>, end: RequestEnd) {
        open.progress = ValueEnd(end);
        open.begin_outcome(end);
        if let Some(outcome) = outcome {
            open.settle_by(outcome);
        }
    }

    fn note_end((): &(), _: &[Policy<Self>]) {}
}

impl<T: 'static, O: 'static> Decide for On<T, O> {
    const REPLIES: bool = false;

    fn reject_plain(
        layer: &Arc<LayerState<Self>>,
        in_force: &Arc<InForce<Self>>,
        decided: Reading<'_>,
        subject: &T,
    ) -> Evaluation<Self> {
        evaluate::reject_plain(layer, in_force, decided, subject, Evaluation::Rejected)
    }

    fn reply(_: &LayerState<Self>, rejected: outcome::Rejected<Self>, _: &T) -> Rejected {
        rejected.rejection
    }

    fn open(open: OpenRequest<Self>) -> Self::Open {
        Box::new(open)
    }
}
