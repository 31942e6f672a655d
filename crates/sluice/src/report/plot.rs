//! Plots in text.

use crate::counts::Bin;

/// The columns of a plot.
const COLUMNS: usize = 60;
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Two lines of equal scale.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plot {
    pub(super) admitted: String,
    pub(super) rejected: String,
    /// The greatest count, which the highest block stands for.
    pub(super) most: u64,
    /// The number of bins per column.
    pub(super) bins_per_column: u64,
}

/// Plots the admitted and the rejected requests.
pub(super) fn plot(bins: &[Bin]) -> Plot {
    let width = bins.len().div_ceil(COLUMNS).max(1);
    let columns = columns(bins, width);
    let most = columns.iter().map(|bin| bin.admitted.max(bin.rejected)).max().unwrap_or(0);
    let line = |count: fn(&Bin) -> u64| {
        let line: String = columns.iter().map(|bin| level(count(bin), most)).collect();
        line.trim_end().to_owned()
    };
    Plot { admitted: line(|bin| bin.admitted), rejected: line(|bin| bin.rejected), most, bins_per_column: width as u64 }
}

/// Adds up `width` neighbours each.
fn columns(bins: &[Bin], width: usize) -> Vec<Bin> {
    let sum = |bins: &[Bin]| Bin {
        admitted: bins.iter().map(|bin| bin.admitted).sum(),
        rejected: bins.iter().map(|bin| bin.rejected).sum(),
    };
    bins.chunks(width).map(sum).collect()
}

/// Returns a space only for a count of zero.
fn level(count: u64, most: u64) -> char {
    if count == 0 {
        return ' ';
    }
    let level = (u128::from(count) * LEVELS.len() as u128).div_ceil(u128::from(most.max(1)));
    LEVELS[usize::try_from(level).unwrap_or(LEVELS.len()).clamp(1, LEVELS.len()) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_shows_each_positive_count() {
        let bins: Vec<_> =
            [(0, 0), (1, 0), (800, 1), (400, 400)].map(|(admitted, rejected)| Bin { admitted, rejected }).into();
        let Plot { admitted, rejected, most, bins_per_column } = plot(&bins);
        assert_eq!([&*admitted, &*rejected], [" ▁█▄", "  ▁▄"]);
        assert_eq!([most, bins_per_column], [800, 1]);
        let long = plot(&[Bin { admitted: 1, rejected: 0 }; 240]);
        assert_eq!((long.admitted.chars().count(), long.most, long.bins_per_column), (COLUMNS, 4, 4));
        let none = plot(&[]);
        assert_eq!([&*none.admitted, &*none.rejected], ["", ""]);
    }
}
