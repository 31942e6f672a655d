//! A layer's series, in the `metrics` facade.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use metrics::{
    Counter, Gauge, Histogram, Label, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};

use super::CallResult;

const CALLS: &str = "tower_sluice.rate_limiting.outgoing_calls";
const WAITING: &str = "tower_sluice.rate_limiting.waiting_calls";
const TIME_IN_LINE: &str = "tower_sluice.rate_limiting.outgoing_call.time_in_line";
const THROTTLED: &str = "tower_sluice.rate_limiting.throttled_partners";

/// Handles are created at the first call, since a program may install its recorder after it has built the layer.
#[derive(Debug, Default)]
pub(super) struct Series(OnceLock<Handles>);

#[derive(Debug)]
struct Handles {
    calls: [Counter; CallResult::ALL.len()],
    waiting: Gauge,
    time_in_line: Histogram,
    throttled: Gauge,
}

impl Series {
    fn handles(&self, name: Option<&Arc<str>>) -> Option<&Handles> {
        let name = name?;
        Some(self.0.get_or_init(|| Handles::new(name)))
    }

    pub(super) fn count(&self, name: Option<&Arc<str>>, result: CallResult) {
        if let Some(handles) = self.handles(name) {
            handles.calls[result as usize].increment(1);
        }
    }

    pub(super) fn waits(&self, name: Option<&Arc<str>>, is_waiting: bool) {
        if let Some(handles) = self.handles(name) {
            step(&handles.waiting, is_waiting);
        }
    }

    pub(super) fn waited(&self, name: Option<&Arc<str>>, time: Duration) {
        if let Some(handles) = self.handles(name) {
            handles.time_in_line.record(time);
        }
    }

    pub(super) fn throttles(&self, name: Option<&Arc<str>>, is_throttled: bool) {
        if let Some(handles) = self.handles(name) {
            step(&handles.throttled, is_throttled);
        }
    }
}

fn step(gauge: &Gauge, is_up: bool) {
    if is_up { gauge.increment(1) } else { gauge.decrement(1) }
}

impl Handles {
    #[cold]
    fn new(name: &Arc<str>) -> Self {
        describe_counter!(CALLS, "Outgoing calls, by their result; a call that is sent again counts once per attempt.");
        describe_gauge!(WAITING, "Outgoing calls that wait in line for their partner.");
        describe_histogram!(
            TIME_IN_LINE,
            Unit::Seconds,
            "Time that outgoing calls waited in line before they were sent."
        );
        describe_gauge!(THROTTLED, "Partners that keep failing, so that a part of the calls to them is rejected here.");
        let label = || Label::new("pacer", Arc::clone(name));
        let of_result = |result: CallResult| counter!(CALLS, vec![label(), Label::new("result", result.as_str())]);
        Self {
            calls: CallResult::ALL.map(of_result),
            waiting: gauge!(WAITING, vec![label()]),
            time_in_line: histogram!(TIME_IN_LINE, vec![label()]),
            throttled: gauge!(THROTTLED, vec![label()]),
        }
    }
}
