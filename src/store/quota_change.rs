//! Changes to a key's quota: the conversion of its state, and the use of its receipts, in memory and on servers alike.

use crate::algorithm::{Algorithm, Kind};
use crate::values::time::Timestamp;
use crate::values::{Quota, Shape};

/// Converts a state from the quota `from` to `algorithm`'s quota, as it counts at `now`: used units stay used. Returns
/// `None` if the algorithm cannot inherit from that quota.
pub(super) fn converted<A: Algorithm>(
    algorithm: &A,
    state: A::State,
    from: &Quota,
    now: Timestamp,
) -> Option<A::State> {
    algorithm.can_inherit(from).then(|| algorithm.inherit(state, from, now))
}

/// Whether receipts for charges under `algorithm`'s quota have the same units as a state under the other quota. If not,
/// the unpaid part of such a charge is not known, and the charge is not refunded.
pub fn has_units_of<A: Algorithm>(algorithm: &A, other: &Quota) -> bool {
    let own = algorithm.quota();
    match algorithm.kind() {
        Kind::Bucket { .. } => own.has_rate_of(other),
        Kind::FixedWindow { .. } | Kind::SlidingWindow { .. } => own.period_nanos() == other.period_nanos(),
        Kind::Other => own == *other || algorithm.terms().shape() == Some(Shape::CalendarWindow),
    }
}
