//! The report on a replay.

mod compare;
mod disorder;
mod hints;
mod json;
mod plot;
mod svg;
mod text;
mod units;

pub(crate) use self::json::to_json;
pub(crate) use self::svg::to_svg;
pub(crate) use self::text::{Options, print};

use crate::counts::Axis;
use crate::replay::Replay;

/// The time that all plots show, so that they can be compared.
fn axis(replays: &[Replay]) -> Axis {
    let routes = replays.iter().flat_map(|replay| &replay.limited);
    Axis::of(routes.flat_map(|route| &route.policies).map(|policy| &policy.timeline))
}
