//! Replaces `shared` without the feature `redis`: no pace is shared.

use std::time::Duration;

use tower_sluice::PartitionKey;

use super::pace::{CallReport, PacedDeparture, Rules, SharedTurn};

pub(super) enum SharedPace {}

pub(super) enum Sharing {}

impl SharedPace {
    pub(super) const fn new(sharing: &Sharing, _: &PartitionKey) -> Self {
        match *sharing {}
    }

    #[allow(clippy::unused_async, reason = "as in `shared`")]
    pub(super) async fn turn(&self, _: &Rules, _: Option<PacedDeparture>) -> Option<SharedTurn> {
        match *self {}
    }

    #[allow(clippy::unused_async, reason = "as in `shared`")]
    pub(super) async fn learn(&self, _: u64, _: Duration, _: Duration, _: &CallReport, _: &Rules) {
        match *self {}
    }
}
