//! Plots in text.

use super::timeline::Bin;

/// The columns of a plot.
const COLUMNS: usize = 60;
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Two lines of equal scale, for the admitted and the rejected requests.
pub(super) fn lines(bins: &[Bin]) -> [String; 2] {
    let columns = columns(bins);
    let most = columns.iter().map(|bin| bin.admitted.max(bin.rejected)).max().unwrap_or(0);
    let line = |count: fn(&Bin) -> u64| {
        let line: String = columns.iter().map(|bin| level(count(bin), most)).collect();
        line.trim_end().to_owned()
    };
    [line(|bin| bin.admitted), line(|bin| bin.rejected)]
}

/// Adds neighbours up, so that there are no more than [`COLUMNS`].
fn columns(bins: &[Bin]) -> Vec<Bin> {
    let width = bins.len().div_ceil(COLUMNS).max(1);
    let sum = |bins: &[Bin]| Bin {
        admitted: bins.iter().map(|bin| bin.admitted).sum(),
        rejected: bins.iter().map(|bin| bin.rejected).sum(),
    };
    bins.chunks(width).map(sum).collect()
}

/// A space only for none.
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
    fn a_plot_shows_each_count_that_is_not_zero() {
        let bins: Vec<_> =
            [(0, 0), (1, 0), (800, 1), (400, 400)].map(|(admitted, rejected)| Bin { admitted, rejected }).into();
        assert_eq!(lines(&bins), [" ▁█▄", "  ▁▄"]);
        assert_eq!(lines(&[Bin { admitted: 1, rejected: 0 }; 240])[0].chars().count(), COLUMNS);
        assert_eq!(lines(&[]), ["", ""]);
    }
}
