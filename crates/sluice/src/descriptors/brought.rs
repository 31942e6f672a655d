//! A limit that a request brings.

use tower_sluice::Quota;

use crate::rules::Unit;

/// The limit that a request brings for a descriptor, in place of the limit in the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Brought {
    pub(crate) requests: u32,
    /// The unit's number in Envoy's protocol.
    pub(crate) unit: i32,
    pub(crate) quota: Quota,
}

impl Brought {
    /// Returns `None` if the unit is unknown.
    pub(crate) fn new(requests: u32, unit: i32) -> Option<Self> {
        let period = Unit::from_number(unit)?.period();
        let quota = match requests {
            0 => Quota::suspended(),
            requests => Quota::try_per(requests.into(), period).ok()?,
        };
        Some(Self { requests, unit, quota })
    }
}
