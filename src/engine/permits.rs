//! [`Permits`]: the units that a request holds while it is in flight, for handlers that outlive their responses.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::limiter::WatchedUnits;
use crate::limiter::hold::Hold;
use crate::util::lock::Lock;
use crate::values::{PartitionKey, RequestEnd, WatchedBody, WatchesBodies};

/// The units under [`Concurrency`](crate::Concurrency) limits that a request holds, in its extensions.
///
/// A layer releases the units when the response's body has ended. In a protocol upgrade (a WebSocket), the body ends at
/// once, so the handler takes the units along:
///
/// ```
/// use tower_sluice::Permits;
///
/// async fn upgrade(mut request: http::Request<()>) {
///     let held = request.extensions_mut().remove::<Permits>().map(|permits| permits.take());
///     // With tokio: spawn this.
///     let _connection = async move {
///         // … talk …
///         drop(held);
///     };
/// }
/// ```
///
/// Or with axum (crate feature `axum`): `async fn upgrade(permits: Permits, …)`. If a request does not hold units, it
/// does not have `Permits` in its extensions, and axum's handlers get empty ones.
#[derive(Clone, Debug)]
pub struct Permits {
    held: Arc<Held>,
    /// The outer layer's permits.
    outer: Option<Arc<Self>>,
}

/// The units that a request holds under one layer's limits, until they are released or taken.
#[derive(Debug, Default)]
pub(crate) struct Held {
    holds: Lock<HeldUnits>,
    /// The units that their limiter takes back while the client does not read the response, if it does so, and their
    /// index. If there are several such limiters, the first one's.
    watched: Option<(usize, WatchedUnits)>,
}

#[derive(Debug, Default)]
struct HeldUnits {
    holds: Holds,
    /// The response body's place in its watcher, once there is a response.
    place: Option<usize>,
}

pub(crate) type Holds = SmallVec<[Hold; 1]>;

/// The units that a handler has taken from [`Permits`]. Dropping this releases them, as for a request that was
/// [served](crate::limiter::RequestEnd::Served).
#[must_use = "what was taken is released when this is dropped"]
pub struct TakenPermits(Vec<Holds>);

impl Permits {
    /// The units for one layer, and for the layers around it.
    pub(crate) fn new(held: Arc<Held>, outer: Option<Self>) -> Self {
        Self { held, outer: outer.map(Arc::new) }
    }

    /// Takes all units that the request still holds, for all layers around the handler, except for units that are
    /// released [at the head](crate::Policy::release_at_head) in any case. They are released when the result is
    /// dropped, and not when the response ends.
    pub fn take(&self) -> TakenPermits {
        let chain = std::iter::successors(Some(self), |permits| permits.outer.as_deref());
        TakenPermits(chain.map(|permits| permits.held.take()).collect())
    }
}

impl Held {
    /// `watcher` returns the watcher of a hold's limiter, if it has one.
    pub(crate) fn new(holds: Holds, watcher: impl Fn(&Hold) -> Option<Arc<dyn WatchesBodies>>) -> Self {
        let watched = holds.iter().enumerate().find_map(|(index, hold)| {
            Some((index, WatchedUnits::new(watcher(hold)?, hold.key().clone(), hold.units())))
        });
        Self { holds: Lock::new(HeldUnits { holds, place: None }), watched }
    }

    /// The units from one limiter.
    #[inline(always)]
    pub(crate) fn of_one(hold: Hold, watcher: Option<Arc<dyn WatchesBodies>>) -> Self {
        let watched = watcher.map(|watcher| (0, WatchedUnits::new(watcher, hold.key().clone(), hold.units())));
        Self { holds: Lock::new(HeldUnits { holds: Holds::from_buf([hold]), place: None }), watched }
    }

    /// Notes that the response's head was handed over to the server, which now asks for the body. From now on, a
    /// limiter may take the units back while the reader is silent.
    pub(crate) fn begin_body(self: &Arc<Self>) {
        let Some((_, watched)) = &self.watched else { return };
        let mut held = self.holds.lock();
        // If it is empty, the handler has taken the units, and works on.
        if !held.holds.is_empty() {
            watched.hand_over();
            held.place = Some(watched.watcher().watch(Arc::clone(self) as Arc<dyn WatchedBody>));
        }
    }

    /// Notes that the server asks for the body's next frame.
    #[inline]
    pub(crate) fn resume(&self) {
        if let Some((_, watched)) = &self.watched {
            watched.resume();
        }
    }

    /// Notes that a body frame was handed over to the server.
    #[inline]
    pub(crate) fn hand_over(&self) {
        if let Some((_, watched)) = &self.watched {
            watched.hand_over();
        }
    }

    /// Takes the units that are held, so that the caller can release them, by dropping them, outside the lock.
    fn take(&self) -> Holds {
        let mut held = self.holds.lock();
        if let Some((index, watched)) = &self.watched {
            if let Some(hold) = held.holds.get_mut(*index) {
                if watched.end() {
                    hold.note_taken_back();
                }
            }
            if let Some(place) = held.place.take() {
                watched.watcher().forget(place, self);
            }
        }
        std::mem::take(&mut held.holds)
    }

    /// Releases the units that the handler has not taken.
    pub(crate) fn release(&self, end: RequestEnd) {
        release(&mut self.take(), end);
    }
}

impl WatchedBody for Held {
    fn silent_since(&self) -> Option<u64> {
        self.watched.as_ref()?.1.silent_since()
    }

    fn take_back(&self, since: u64) -> Option<(&PartitionKey, u64)> {
        self.watched.as_ref()?.1.take_back(since)
    }
}

/// Releases the units for a request that has ended in this way.
pub(crate) fn release(holds: &mut Holds, end: RequestEnd) {
    holds.iter_mut().for_each(|hold| hold.end_as(Some(end)));
    holds.clear();
}

#[cfg(test)]
impl TakenPermits {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(SmallVec::is_empty)
    }
}

impl fmt::Debug for TakenPermits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TakenPermits").field("limits", &self.0.iter().map(|holds| holds.len()).sum::<usize>()).finish()
    }
}
