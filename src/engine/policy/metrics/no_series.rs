//! A stand-in for the series without the feature `metrics`: nothing is counted.

use std::time::Duration;

use super::PolicyMeter;
use super::labels::Fate;
use crate::engine::policy::shares::Share;
use crate::store::Stats;

#[derive(Clone, Debug, Default)]
pub(super) struct Series {}

impl PolicyMeter {
    pub(crate) fn count(&self, _fate: Fate) {}
    pub(crate) fn failed(&self) {}
    pub(crate) fn crossed(&self, _share: Share) {}
    pub(crate) fn enter_queue(&self) {}
    pub(crate) fn leave_queue(&self) {}
    pub(crate) fn waited(&self, _fate: Fate, _time: Duration) {}
    pub(crate) fn count_last(&self, _stats: impl FnOnce() -> Stats) {}
    pub(crate) fn retire(&self) {}
}
