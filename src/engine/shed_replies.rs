//! [`ShedReplies`]: replies to subjects that an overloaded server sheds, each built once.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::engine::translate::Translate;
use crate::values::ShedsAnybody;
use crate::values::time::seconds_ceil;

/// One policy's replies to subjects that were shed. They differ only in their wait, so we keep the first one with each
/// wait and copy it for the others, because an overloaded server has no time to build them.
pub(crate) struct ShedReplies<D: Translate> {
    /// By the advertised seconds. A reply without a wait is at zero. Made for the first one.
    by_seconds: OnceLock<Box<[OnceLock<D::Kept>]>>,
    /// Made for the first reply without a wait, if the limiter sheds subjects from any sender.
    for_anybody: OnceLock<ForAnybody<D>>,
}

/// An overloaded server advertises 30 seconds at most.
const PLACES: usize = 31;

/// The reply to subjects that are shed from any sender, and the shedder that decides when.
pub(crate) struct ForAnybody<D: Translate> {
    pub(crate) shedder: Arc<dyn ShedsAnybody>,
    kept: D::Kept,
}

impl<D: Translate> ShedReplies<D> {
    pub(crate) const fn new() -> Self {
        Self { by_seconds: OnceLock::new(), for_anybody: OnceLock::new() }
    }

    /// Returns the reply that advertises this wait, as a copy, or from `make`. If the subject is a
    /// [usual](Translate::is_usual) one, the reply from `make` must depend only on the wait.
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

    /// The reply to subjects that are shed from any sender, once there was one.
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
