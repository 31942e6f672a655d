//! A stand-in for the series without the feature `metrics`: nothing is counted.

use std::time::Duration;

use super::{Fate, Labels};
use crate::store::Stats;

#[derive(Clone, Debug, Default)]
pub(super) struct Series {}

impl Series {
    pub(super) fn count(&self, _labels: &Labels, _fate: Fate) {}
    pub(super) fn failed(&self, _labels: &Labels) {}
    pub(super) fn enter_queue(&self, _labels: &Labels) {}
    pub(super) fn leave_queue(&self, _labels: &Labels) {}
    pub(super) fn waited(&self, _labels: &Labels, _fate: Fate, _time: Duration) {}
    pub(super) fn count_last(&self, _labels: &Labels, _stats: impl FnOnce() -> Stats) {}
    pub(super) fn retire(&self) {}
}
