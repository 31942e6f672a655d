//! What becomes of a key's state and of its receipts when the quota of the key changes: in memory and on Redis alike.

use crate::algorithm::{Algorithm, Kind};
use crate::values::time::Timestamp;
use crate::values::{Quota, Shape};

/// Returns a state from under the quota `from` as it counts at `now` under the quota of `algorithm`: what was used stays
/// used. `None` if the algorithm can inherit nothing.
pub(super) fn converted<A: Algorithm>(
    algorithm: &A,
    state: A::State,
    from: &Quota,
    now: Timestamp,
) -> Option<A::State> {
    algorithm.can_inherit(from).then(|| algorithm.inherit(state, from, now))
}

/// Whether receipts of charges under the quota of `algorithm` are in the units of a state under the other. If not, how much
/// of such a charge is still owed is not known, and it is not refunded.
pub(super) fn has_units_of<A: Algorithm>(algorithm: &A, other: &Quota) -> bool {
    let own = algorithm.quota();
    match algorithm.kind() {
        Kind::Bucket { .. } => own.has_rate_of(other),
        Kind::FixedWindow { .. } | Kind::SlidingWindow { .. } => own.period_nanos() == other.period_nanos(),
        Kind::Other => own == *other || algorithm.terms().shape() == Some(Shape::CalendarWindow),
    }
}
