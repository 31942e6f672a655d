//! Translates the engine's decisions on values into admissions and rejections.

use std::sync::Arc;
use std::time::Duration;

use super::rejected::{Problem, Rejected};
use crate::engine::domain::{Domain, On};
use crate::engine::evaluate::{Decide, OpenRequest};
use crate::engine::key::{KeyError, Marks};
use crate::engine::outcome;
use crate::engine::permits::Held;
use crate::engine::policy::Policy;
use crate::engine::reason::{Reason, Refusal, Wait};
use crate::engine::reload::LayerState;
use crate::engine::settlement::Settlement;
use crate::engine::translate::{Progress, Reading, Translate};
use crate::engine::verdict::Verdict;
use crate::values::{LimiterError, RequestEnd};

/// The settings that the engine does not read.
pub(crate) struct Settings<T> {
    marks: Option<Box<ReadMarks<T>>>,
}

/// Reads a value's marks.
type ReadMarks<T> = dyn Fn(&T) -> &Marks + Send + Sync;

impl<T> Settings<T> {
    pub(super) fn with_marks(marks: impl Fn(&T) -> &Marks + Send + Sync + 'static) -> Self {
        Self { marks: Some(Box::new(marks)) }
    }
}

/// By hand, because a derived `Default` would require `T: Default`.
impl<T> Default for Settings<T> {
    fn default() -> Self {
        Self { marks: None }
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

/// How a value has ended, once that is known.
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
    type Settings = Settings<T>;
    type Prepared = ();
    type Fields = ();
    type Reply = Rejected;
    type Kept = ();
    type Held = HeldValue;
    type Open = Box<OpenRequest<Self>>;
    type Progress = ValueEnd;

    fn prepare(_: &Settings<T>, _: &[Policy<Self>], _: bool) {}

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
        let Refusal { reason, is_due_to_others, .. } = refusal;
        Rejected { reason, is_due_to_others, retry_after, may_retry, verdict: verdict.rejected(), problem: None }
    }

    fn reject_without_key(error: &KeyError) -> Rejected {
        let reason = match error {
            KeyError::Missing { .. } => Reason::MissingKey,
            KeyError::Ambiguous { .. } => Reason::AmbiguousKey,
            KeyError::Misconfigured { .. } => Reason::Misconfigured,
        };
        Rejected {
            reason,
            is_due_to_others: false,
            retry_after: None,
            may_retry: false,
            verdict: Verdict::default().rejected(),
            problem: Some(Problem::NoKey(error.clone())),
        }
    }

    fn reject_for_failure(policy: &Policy<Self>, error: &LimiterError, verdict: Verdict) -> Rejected {
        let problem = Problem::Failure { policy: Arc::clone(&policy.name), error: error.clone() };
        let verdict = verdict.rejected();
        Rejected {
            reason: Reason::LimiterFailed,
            is_due_to_others: false,
            retry_after: None,
            // A closed queue stays closed.
            may_retry: !error.is_closed(),
            verdict,
            problem: Some(problem),
        }
    }

    fn advertised(rejection: &Rejected) -> Option<Duration> {
        rejection.retry_after
    }

    fn marks<'s>(settings: &Settings<T>, subject: &'s T) -> Option<&'s Marks> {
        settings.marks.as_ref().map(|marks| marks(subject))
    }

    fn patience(_: &T) -> Option<Duration> {
        None
    }

    fn replies_alike(_: &Settings<T>, (): &()) -> bool {
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

    fn note_end(_: &Settings<T>, _: &[Policy<Self>]) {}
}

impl<T: 'static, O: 'static> Decide for On<T, O> {
    const REPLIES: bool = false;

    fn reply(_: &LayerState<Self>, rejected: outcome::Rejected<Self>, _: &T) -> Rejected {
        rejected.rejection
    }

    fn open(open: OpenRequest<Self>) -> Self::Open {
        Box::new(open)
    }
}
