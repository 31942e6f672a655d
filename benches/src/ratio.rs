//! A compared figure, with how far it varied.

use crate::scale::median;
use crate::steady;

/// The median over all repetitions, and the extremes.
#[derive(Clone, Copy)]
pub struct Ratio {
    pub median: f64,
    pub least: f64,
    pub most: f64,
    /// By how much the reference varied between repetitions.
    pub variation: f64,
}

impl Ratio {
    pub fn of(ratios: Vec<f64>) -> Option<Self> {
        let (least, most) =
            ratios.iter().fold((f64::MAX, f64::MIN), |(least, most), ratio| (ratio.min(least), ratio.max(most)));
        (!ratios.is_empty()).then(|| Self { median: median(ratios), least, most, variation: 0.0 })
    }

    pub fn with_variation(self, variation: f64) -> Self {
        Self { variation, ..self }
    }
}

pub fn times(ratio: Option<Ratio>) -> String {
    ratio.map_or("–".into(), |Ratio { median, least, most, variation }| {
        format!("**{median:.2}×** ({least:.2}–{most:.2}){}", steady::warning(variation))
    })
}
