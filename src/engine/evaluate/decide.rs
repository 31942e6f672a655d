//! [`Decide`]: what the evaluation leaves to a domain.

use std::sync::Arc;

use super::open_request::OpenRequest;
use crate::engine::outcome::{Evaluation, Rejected};
use crate::engine::reload::{InForce, LayerState};
use crate::engine::translate::{Reading, Translate};

/// A domain whose subjects are evaluated. What only the evaluation can name is here, and the rest in [`Translate`].
pub(crate) trait Decide: Translate {
    /// Whether rejected subjects are answered with [replies](Self::reply), which the shorter paths make at once.
    const REPLIES: bool;

    /// Rejects a subject by the only policy, a plain one. Calls [`reject_plain`](super::reject_plain), which
    /// is compiled for the domain in this crate so, and not in each crate that has a service. May reply, since a
    /// rejection is too large to be moved.
    fn reject_plain(
        layer: &Arc<LayerState<Self>>,
        in_force: &Arc<InForce<Self>>,
        decided: Reading<'_>,
        subject: &Self::Subject<'_>,
    ) -> Evaluation<Self>;

    /// Whether the layer exempts a subject from all policies.
    fn exempts(_layer: &LayerState<Self>, _in_force: &InForce<Self>, _subject: &Self::Subject<'_>) -> bool {
        false
    }

    /// Answers a rejected subject.
    fn reply(layer: &LayerState<Self>, rejected: Rejected<Self>, subject: &Self::Subject<'_>) -> Self::Reply;

    /// Keeps what an admitted subject has open until it is over.
    fn open(open: OpenRequest<Self>) -> Self::Open;
}
