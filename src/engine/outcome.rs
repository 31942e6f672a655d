//! A subject's fate: it passes, is rejected, or waits.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use super::translate::Translate;
use super::verdict::Verdict;

/// An evaluation's result.
pub(crate) enum Evaluation<D: Translate> {
    /// It passes, and nothing is reported.
    Clear,
    /// It passes.
    Admitted(Admitted<D>),
    Rejected(Rejected<D>),
    /// It gets a reply that is shared with other subjects.
    Replied(D::Reply),
    /// It waits for its turn in a queue, or for a server.
    Pending(Waiting<D>),
}

/// The policies' common decision.
pub(crate) type Evaluated<D> = Result<Admitted<D>, Box<Rejected<D>>>;

/// A subject that waits. If it is dropped meanwhile, even before the first poll, the client has disconnected.
pub(crate) type Waiting<D> = Pin<Box<dyn Future<Output = Evaluated<D>> + Send>>;

/// The reason why a subject is rejected, and the report on the decisions.
pub(crate) struct Rejected<D: Translate> {
    pub(crate) rejection: D::Rejection,
    pub(crate) fields: D::Fields,
    /// The time that the subject waited for its turn.
    pub(crate) waited: Option<Duration>,
}

impl<D: Translate> Rejected<D> {
    /// A rejection before any policy has decided.
    pub(super) fn undecided(rejection: D::Rejection) -> Self {
        Self { rejection, fields: D::Fields::default(), waited: None }
    }
}

/// An admitted subject: the report on the decisions, computed when they were made, and the charges and units that end
/// with the subject. Every response future holds one, so the rare parts are boxed.
pub(crate) enum Admitted<D: Translate> {
    Known {
        fields: D::Fields,
        rare: Option<Box<Rare>>,
    },
    /// The subject holds units until it is over.
    Held {
        request: D::Held,
        known: Option<Box<Self>>,
    },
    /// The subject ends later, or its accounts depend on its outcome.
    Open(D::Open),
}

/// The parts that few layers report.
pub(crate) struct Rare {
    /// The time that the subject waited for its turn.
    pub(crate) waited: Option<Duration>,
    pub(crate) verdict: Option<Verdict>,
}

impl<D: Translate> Admitted<D> {
    /// For a subject about which nothing is reported.
    #[inline(always)]
    pub(crate) fn clear() -> Self {
        Self::Known { fields: D::Fields::default(), rare: None }
    }

    /// Whether nothing is reported, and nothing ends with the subject.
    #[inline(always)]
    pub(super) fn is_clear(&self) -> bool {
        matches!(self, Self::Known { fields, rare: None } if D::is_empty(fields))
    }

    /// Makes the subject hold units, too.
    #[inline(always)]
    pub(super) fn holding(self, request: D::Held) -> Self {
        Self::Held { request, known: (!self.is_clear()).then(|| Box::new(self)) }
    }

    /// The rare reports, if there are any. For an open subject, they are made when it is over.
    pub(super) fn rare(&mut self) -> Option<&mut Rare> {
        match self {
            Self::Known { rare, .. } => rare.as_deref_mut(),
            Self::Held { known, .. } => known.as_mut()?.rare(),
            Self::Open(_) => None,
        }
    }
}

impl Rare {
    /// Boxes a subject's rare reports, if there are any.
    pub(super) fn new(waited: Option<Duration>, verdict: Option<Verdict>) -> Option<Box<Self>> {
        (waited.is_some() || verdict.is_some()).then(|| Box::new(Self { waited, verdict }))
    }
}
