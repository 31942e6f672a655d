//! [`DecidingBucket`]: a bucket in memory, for programs that let it decide and do nothing else with it.

use std::io;
use std::sync::{Arc, OnceLock};

use super::{Limiter, RateLimiter};
use crate::algorithm::TokenBucket;
use crate::store::Stats;
use crate::values::snapshot::{Commit, SavedTable, TableSink, Unfit, WallClock};
#[cfg(feature = "test-util")]
use crate::values::time::Timestamp;
use crate::values::{Answer, Ask, Description, Heritage, Inheritance, KeepsStates, Mode, Quota, Receipt};

/// A bucket in memory that charges keys. All else that a [`RateLimiter`] can do (refunds, peeks, resets, keys' quotas,
/// live changes, snapshots, figures), it can do once it is [completed](Self::complete).
///
/// The holder of an `Arc<dyn Limiter>` can call all its methods, so a program is linked with them all, and most of
/// their code is for live changes. Here they are behind a pointer that only `complete` sets. A layer completes its
/// limiter before it hands out anything that can reach the rest, such as a handle.
pub(crate) struct DecidingBucket {
    bucket: RateLimiter<TokenBucket>,
    whole: Whole,
}

/// A limiter with the same table, once it is needed.
#[derive(Clone, Default)]
struct Whole(Arc<OnceLock<Arc<dyn Limiter>>>);

impl DecidingBucket {
    pub(crate) fn new(quota: Quota) -> Self {
        Self { bucket: RateLimiter::open_to_decide(TokenBucket::new(quota)), whole: Whole::default() }
    }

    /// Lets a limiter do all that it can do, if it is a bucket of this type. Others can already.
    pub(crate) fn complete(limiter: &dyn Limiter) {
        if let Some(own) = limiter.downcast_ref::<Self>() {
            own.whole.0.get_or_init(|| Arc::new(own.bucket.clone()));
        }
    }
}

impl Whole {
    /// # Panics
    ///
    /// If the limiter is not completed.
    fn get(&self) -> &dyn Limiter {
        &**self.0.get().expect("a layer completes its limiters before they are asked for more than charges")
    }

    fn states(&self) -> Arc<dyn KeepsStates> {
        Arc::clone(self.get().describe().keeps_states().expect("its states are in a table"))
    }
}

impl Limiter for DecidingBucket {
    #[inline]
    fn decide(&self, ask: &Ask<'_>) -> Answer {
        match ask.mode() {
            Mode::Charge => self.bucket.charge_or_else(ask, || self.whole.get().decide(ask)),
            _ => self.whole.get().decide(ask),
        }
    }

    fn refund(&self, charged: &Ask<'_>, receipt: Receipt, units: u64) {
        self.whole.get().refund(charged, receipt, units);
    }

    fn describe(&self) -> Description {
        self.bucket.described_in_memory().keeping_states(self.whole.clone())
    }

    fn inherit(&self, predecessor: &dyn Limiter) -> Option<Inheritance<Arc<dyn Limiter>>> {
        self.whole.get().inherit(predecessor)
    }

    fn stats(&self) -> Stats {
        self.whole.get().stats()
    }
}

impl KeepsStates for Whole {
    fn heritage(&self) -> Heritage {
        self.states().heritage()
    }

    fn take_quotas(&self) {
        self.states().take_quotas();
    }

    fn save(&self, sink: &mut dyn TableSink) -> io::Result<Result<(), Unfit>> {
        self.states().save(sink)
    }

    fn prepare(&self, saved: SavedTable, wall: WallClock) -> Result<Commit, Unfit> {
        self.states().prepare(saved, wall)
    }

    #[cfg(feature = "test-util")]
    fn check_invariants(&self, now: Timestamp) {
        self.states().check_invariants(now);
    }
}
