//! A stand-in for the series without the feature `metrics`, which counts nothing.

use std::sync::Arc;
use std::time::Duration;

use super::CallResult;

#[derive(Debug, Default)]
pub(super) struct Series {}

impl Series {
    pub(super) fn count(&self, _: Option<&Arc<str>>, _: CallResult) {}

    pub(super) fn waits(&self, _: Option<&Arc<str>>, _: bool) {}

    pub(super) fn waited(&self, _: Option<&Arc<str>>, _: Duration) {}

    pub(super) fn throttles(&self, _: Option<&Arc<str>>, _: bool) {}
}
