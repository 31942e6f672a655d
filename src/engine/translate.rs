//! [`Translate`]: a domain's part, so that the engine need not know how its decisions are used.

use std::time::Duration;

use super::domain::Domain;
use super::key::{KeyError, Marks};
use super::permits::Held;
use super::policy::Policy;
use super::reason::Refusal;
use super::settlement::Settlement;
use super::verdict::Verdict;
use crate::values::{Decision, LimiterError, PartitionKey, Quota, RequestEnd};

/// A policy's decision on a subject.
#[derive(Clone, Copy)]
pub(crate) struct Reading<'a> {
    /// The policy's index.
    pub(crate) policy: usize,
    pub(crate) key: &'a PartitionKey,
    /// The key's own quota, if it has one.
    pub(crate) quota: Option<Quota>,
    pub(crate) decision: &'a Decision,
}

/// How a domain translates the engine's decisions. It is compiled per domain, so that a translation does not cost a
/// call through a pointer, and nothing is moved for it.
pub(crate) trait Translate: Domain {
    /// A layer's settings that only the translation reads.
    type Settings: Default + Send + Sync;

    /// Data prepared once for all subjects, from the settings and the policies in force.
    type Prepared: Send + Sync;

    /// The report on the decisions, such as response fields.
    type Fields: Default + Send + Sync + Unpin;

    /// The answer to a rejected subject.
    type Reply: Send;

    /// A reply that is kept, for identical rejections.
    type Kept: Clone + Send + Sync;

    /// An admitted subject that holds units until it is over.
    type Held: Send + Sync + Unpin;

    /// An admitted subject whose charges depend on its outcome.
    type Open: Send + Sync + Unpin;

    /// How far an open subject has come.
    type Progress: Progress;

    /// Prepares the data for all subjects. `has_choices` says whether there are alternatives among the policies.
    fn prepare(settings: &Self::Settings, policies: &[Policy<Self>], has_choices: bool) -> Self::Prepared;

    /// Reports decisions.
    fn fields<'a>(prepared: &Self::Prepared, readings: impl Iterator<Item = Reading<'a>> + Clone) -> Self::Fields;

    /// Whether such a report is empty.
    fn is_empty(fields: &Self::Fields) -> bool;

    /// Rejects a subject because of policies' decisions. `policy` gives the reason.
    fn reject(policy: &Policy<Self>, refusal: Refusal, verdict: Verdict) -> Self::Rejection;

    /// Rejects a subject without the key that it must have.
    fn reject_without_key(error: &KeyError) -> Self::Rejection;

    /// Rejects a subject because a limiter cannot decide.
    fn reject_for_failure(policy: &Policy<Self>, error: &LimiterError, verdict: Verdict) -> Self::Rejection;

    /// The wait that a rejection advertises.
    fn advertised(rejection: &Self::Rejection) -> Option<Duration>;

    /// A subject's marks, by which its policies are found.
    fn marks<'s>(settings: &Self::Settings, subject: &'s Self::Subject<'_>) -> Option<&'s Marks>;

    /// The time that the client is willing to wait, if it sends one.
    fn patience(subject: &Self::Subject<'_>) -> Option<Duration>;

    /// Whether rejections by a policy that sheds differ only in their wait.
    fn replies_alike(settings: &Self::Settings, prepared: &Self::Prepared) -> bool;

    /// Whether the reply to a subject is independent of its contents.
    fn is_usual(subject: &Self::Subject<'_>) -> bool;

    /// Keeps a reply, if it can be copied.
    fn keep(reply: &Self::Reply) -> Option<Self::Kept>;

    /// Copies a reply.
    fn copy(kept: &Self::Kept) -> Self::Reply;

    /// Makes an admitted subject hold units.
    fn hold(held: Held) -> Self::Held;

    /// The verdict on an open subject so far, if one is kept, and the handle that reports its cost, if a policy awaits
    /// one.
    fn look(open: &Self::Open) -> (Option<Verdict>, Option<Settlement>);

    /// Ends a subject that holds units, with its outcome if that is known.
    fn end_held(held: Self::Held, outcome: Option<&Self::Outcome<'_>>, end: RequestEnd);

    /// Ends an open subject, with its outcome if that is known.
    fn end_open(open: Self::Open, outcome: Option<&Self::Outcome<'_>>, end: RequestEnd);

    /// Notes that a layer is dropped.
    fn note_end(settings: &Self::Settings, policies: &[Policy<Self>]);
}

/// How far a subject has come.
pub(crate) trait Progress: Default + Send + Sync {
    /// How the subject has ended, if it is dropped now.
    fn end(&self) -> RequestEnd;
}
