//! Whether a machine was left alone: by how much equal code took longer in one repetition than in another.

/// A cell whose reference varies by more than this between repetitions is measured again.
pub const MOST: f64 = 0.2;

/// How many more repetitions a cell gets, one after the other, until its reference is steady.
pub const MORE_REPETITIONS: usize = 2;

/// By how much the greatest value is above the least, divided by the least.
pub fn variation(values: &[f64]) -> f64 {
    let (least, most) = values.iter().fold((f64::MAX, 0.0_f64), |(least, most), it| (it.min(least), it.max(most)));
    if values.is_empty() { 0.0 } else { most / least - 1.0 }
}

/// The `count` repetitions in which the reference took the least time. Other load makes code slower, never faster, and
/// this choice flatters the compared code least.
pub fn quietest(mut times: Vec<(usize, f64)>, count: usize) -> Vec<usize> {
    times.sort_by(|(_, one), (_, other)| one.total_cmp(other));
    times.into_iter().take(count).map(|(repetition, _)| repetition).collect()
}

/// A report's warning behind a ratio whose reference has stayed restless.
pub fn warning(variation: f64) -> String {
    if variation > MOST {
        format!(" (the reference varied by {:.0} %: this machine was busy)", 100.0 * variation)
    } else {
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variation_is_most_above_least() {
        assert_eq!(variation(&[]), 0.0);
        assert_eq!(variation(&[40.0]), 0.0);
        assert_eq!(variation(&[50.0, 40.0, 60.0]), 0.5);
    }

    #[test]
    fn the_quietest_repetitions_are_kept() {
        let times = vec![(0, 60.0), (1, 41.0), (2, 40.0), (3, 42.0)];
        assert_eq!(quietest(times.clone(), 3), [2, 1, 3]);
        assert_eq!(quietest(times, 9).len(), 4);
    }

    #[test]
    fn only_a_restless_reference_is_reported() {
        assert_eq!(warning(0.2), "");
        assert_eq!(warning(0.35), " (the reference varied by 35 %: this machine was busy)");
    }
}
