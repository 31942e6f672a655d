//! [`Decide`]: the choices that the evaluation leaves to a domain.

use super::open_request::OpenRequest;
use crate::engine::outcome::Rejected;
use crate::engine::reload::{InForce, LayerState};
use crate::engine::translate::Translate;

/// A domain whose subjects are evaluated. Only the evaluation can name the types used here; the rest is in
/// [`Translate`].
pub(crate) trait Decide: Translate {
    /// Whether a request that an overloaded server sheds gets a shared [reply](Self::reply) at once.
    const REPLIES: bool;

    /// Whether the layer exempts a subject from all policies.
    fn exempts(_layer: &LayerState<Self>, _in_force: &InForce<Self>, _subject: &Self::Subject<'_>) -> bool {
        false
    }

    /// Answers a rejected subject.
    fn reply(layer: &LayerState<Self>, rejected: Rejected<Self>, subject: &Self::Subject<'_>) -> Self::Reply;

    /// Keeps an admitted subject's open charges and units until it is over.
    fn open(open: OpenRequest<Self>) -> Self::Open;
}
