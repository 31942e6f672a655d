//! [`ShedReplies`]: the replies to subjects that an overloaded server sheds, each put together once.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::engine::translate::Translate;
use crate::values::ShedsAnybody;
use crate::values::time::seconds_ceil;

/// The replies of one policy to subjects that were shed. They differ in their wait alone, so the first one with each
/// wait is kept, and the others are copies: a server that is overloaded has no time to put them together.
pub(crate) struct ShedReplies<D: Translate> {
    /// By the seconds that are advertised; without a wait at zero. Made for the first one.
    by_seconds: OnceLock<Box<[OnceLock<D::Kept>]>>,
    /// Made for the first one without a wait, if the limiter sheds subjects whoever has sent them.
    for_anybody: OnceLock<ForAnybody<D>>,
}

/// An overloaded server advertises 30 seconds at most.
const PLACES: usize = 31;

/// The reply to subjects that are shed whoever has sent them, and what says when.
pub(crate) struct ForAnybody<D: Translate> {
    pub(crate) shedder: Arc<dyn ShedsAnybody>,
    kept: D::Kept,
}

impl<D: Translate> ShedReplies<D> {
    pub(crate) const fn new() -> Self {
        Self { by_seconds: OnceLock::new(), for_anybody: OnceLock::new() }
    }

    /// Returns the reply that advertises this wait: a copy, or what `make` returns, which must depend on the wait only
    /// if the subject is a [usual](Translate::is_usual) one.
    pub(crate) fn get_or_make(
        &self,
        wait: Option<Duration>,
        subject: &D::Subject<'_>,
        make: impl FnOnce() -> D::Reply,
        shedder: impl FnOnce() -> Option<Arc<dyn ShedsAnybody>>,
    ) -> D::Reply {
        let seconds = wait.map_or(0, |wait| seconds_ceil(wait).max(1));
        let place = usize::try_from(seconds).ok().filter(|place| *place < PLACES);
        let Some(place) = place.filter(|_| D::is_usual(subject)) else { return make() };
        if let Some(kept) = self.by_seconds.get().and_then(|by_seconds| by_seconds[place].get()) {
            return D::copy(kept);
        }
        let reply = make();
        if let Some(kept) = D::keep(&reply) {
            if let Some(shedder) = if place == 0 { shedder() } else { None } {
                self.for_anybody.get_or_init(|| ForAnybody { shedder, kept: kept.clone() });
            }
            let by_seconds = self.by_seconds.get_or_init(|| (0..PLACES).map(|_| OnceLock::new()).collect());
            by_seconds[place].get_or_init(|| kept);
        }
        reply
    }

    /// The reply to subjects that are shed whoever has sent them, once there was one.
    #[inline]
    pub(crate) fn for_anybody(&self) -> Option<&ForAnybody<D>> {
        self.for_anybody.get()
    }
}

impl<D: Translate> ForAnybody<D> {
    #[inline(always)]
    pub(crate) fn reply(&self) -> D::Reply {
        D::copy(&self.kept)
    }
}
