//! Compares counts to the table.

use std::fmt;

use crate::table::Table;

/// By which part a count may differ from the table's with an equal toolchain, and with another one.
const TOLERATED: f64 = 0.03;
const TOLERATED_OF_OTHERS: f64 = 0.10;

/// Whether this counts as a change, with an equal toolchain.
pub fn differs(before: f64, now: f64) -> bool {
    (now / before - 1.0).abs() > TOLERATED
}

pub struct Comparison {
    rows: Vec<Compared>,
    tolerated: f64,
    /// The table's toolchain and the one here, if they differ.
    others: Option<(String, String)>,
}

struct Compared {
    name: String,
    before: Option<f64>,
    now: Option<f64>,
    outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    Same,
    More,
    Less,
    NotInTheTable,
    NotCounted,
}

impl Outcome {
    fn of(before: Option<f64>, now: Option<f64>, tolerated: f64) -> Self {
        match (before, now) {
            (None, _) => Self::NotInTheTable,
            (_, None) => Self::NotCounted,
            (Some(before), Some(now)) => match now / before - 1.0 {
                change if change > tolerated => Self::More,
                change if change < -tolerated => Self::Less,
                // This includes an empty row, whose change is not a number, and which no table should have.
                change if change.is_nan() => Self::More,
                _ => Self::Same,
            },
        }
    }

    const fn text(self) -> &'static str {
        match self {
            Self::Same => "",
            Self::More => "**more**",
            Self::Less => "less",
            Self::NotInTheTable => "**not in the table**",
            Self::NotCounted => "**not counted any more**",
        }
    }
}

impl Comparison {
    pub fn of(table: &Table, counts: &[(String, f64)], toolchain: &str) -> Self {
        let others = (table.toolchain != toolchain).then(|| (table.toolchain.clone(), toolchain.to_owned()));
        let tolerated = if others.is_some() { TOLERATED_OF_OTHERS } else { TOLERATED };
        let compared = |name: &str, before: Option<f64>, now: Option<f64>| Compared {
            name: name.to_owned(),
            before,
            now,
            outcome: Outcome::of(before, now, tolerated),
        };
        let before = |name: &str| table.rows.iter().find(|row| row.name == name).map(|row| row.instructions);
        let mut rows: Vec<_> = counts.iter().map(|(name, now)| compared(name, before(name), Some(*now))).collect();
        let gone = table.rows.iter().filter(|row| !counts.iter().any(|(name, _)| *name == row.name));
        rows.extend(gone.map(|row| compared(&row.name, Some(row.instructions), None)));
        Self { rows, tolerated, others }
    }

    /// Whether no row takes more than the table says, and both have equal rows.
    pub fn passes(&self) -> bool {
        self.rows.iter().all(|row| matches!(row.outcome, Outcome::Same | Outcome::Less))
    }

    /// Advice on the result; nothing if all is as the table says.
    pub fn advice(&self) -> String {
        let percent = self.tolerated * 100.0;
        if !self.passes() {
            format!(
                "\nFAILED: a row takes more than {percent:.0} % more instructions than benches/results/instructions.md says, \
                 or is in one of both only.\nFind out why. If it is worth it, write the reason into the table and the \
                 commit:\n\n    scripts/instructions --update 'the reason'\n"
            )
        } else if self.rows.iter().any(|row| row.outcome == Outcome::Less) {
            format!(
                "\nPassed, but a row takes more than {percent:.0} % fewer instructions. Keep the table true, so that this is \
                 not lost again:\n\n    scripts/instructions --update 'the reason'\n"
            )
        } else {
            String::new()
        }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((theirs, here)) = &self.others {
            writeln!(f, "ANOTHER TOOLCHAIN than the table's, so changes of up to 10 % in place of 3 % are tolerated:")?;
            writeln!(f, "    the table's: {theirs}\n    here:        {here}\n")?;
        }
        writeln!(f, "| row | table | here | change | |\n|---|--:|--:|--:|---|")?;
        for Compared { name, before, now, outcome } in &self.rows {
            let number = |count: Option<f64>| count.map_or_else(|| "–".to_owned(), |count| format!("{count:.1}"));
            let change = before
                .zip(*now)
                .map_or_else(|| "–".to_owned(), |(before, now)| format!("{:+.1} %", percent(before, now)));
            writeln!(f, "| {name} | {} | {} | {change} | {} |", number(*before), number(*now), outcome.text())?;
        }
        Ok(())
    }
}

/// Rounded, and never `-0.0`.
fn percent(before: f64, now: f64) -> f64 {
    ((now / before - 1.0) * 1000.0).round() / 10.0 + 0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows must be in both the table and the run.
    #[test]
    fn more_fails_and_less_passes() {
        for (before, now, expected) in [
            (Some(1000.0), Some(1029.5), Outcome::Same),
            (Some(1000.0), Some(1030.5), Outcome::More),
            (Some(1000.0), Some(970.5), Outcome::Same),
            (Some(1000.0), Some(969.5), Outcome::Less),
            (None, Some(1.0), Outcome::NotInTheTable),
            (Some(1.0), None, Outcome::NotCounted),
            (Some(0.0), Some(0.0), Outcome::More),
        ] {
            assert_eq!(Outcome::of(before, now, TOLERATED), expected, "{before:?} {now:?}");
            let row = Compared { name: String::new(), before, now, outcome: expected };
            let comparison = Comparison { rows: vec![row], tolerated: TOLERATED, others: None };
            assert_eq!(comparison.passes(), matches!(expected, Outcome::Same | Outcome::Less), "{expected:?}");
            let first_word = comparison.advice().trim().split([':', ',']).next().map(str::to_owned).unwrap_or_default();
            let advice = match expected {
                Outcome::Same => "",
                Outcome::Less => "Passed",
                _ => "FAILED",
            };
            assert_eq!(first_word, advice, "{expected:?}");
        }
    }

    #[test]
    fn another_toolchain_is_reported_and_tolerated() {
        let text =
            "Counted with: one\n| row | instructions | since | why |\n|---|--:|---|---|\n| a | 100.0 | x | y |\n";
        let table = Table::parse(text).unwrap();
        let passes = |now, toolchain| {
            let comparison = Comparison::of(&table, &[("a".to_owned(), now)], toolchain);
            assert_eq!(comparison.to_string().contains("ANOTHER TOOLCHAIN"), toolchain != "one");
            comparison.passes()
        };
        assert!(passes(102.0, "one") && !passes(105.0, "one"));
        assert!(passes(105.0, "two") && !passes(111.0, "two"));
    }
}
