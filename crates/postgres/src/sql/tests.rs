//! The texts are complete for any table and algorithms.

use std::collections::BTreeSet;

use super::*;

const TABLES: [&str; 2] = ["sluice_state", "limits.user"];

/// Each part and each parameter was replaced.
#[test]
fn texts_have_no_placeholder_left() {
    for table in TABLES {
        let statements = Statements::new(table);
        let texts = statements.all().into_iter().map(|statement| statement.text.to_string());
        #[cfg(feature = "file")]
        let texts = texts.chain([look(table)]);
        let texts = texts.chain(migrations(table)).chain([migrate_in_turn(table)]);
        for text in texts {
            assert!(!text.contains(['{', '}', '@']), "{text}");
            assert!(!text.lines().any(|line| line.trim_start().starts_with('>')), "a step is left: {text}");
        }
    }
}

/// Drivers number the parameters, so a gap would bind a value to another one's place.
#[test]
fn each_parameter_has_a_placeholder() {
    for statement in Statements::new(TABLES[0]).all() {
        let numbers = statement.text.split('$').skip(1).map(|rest| {
            let end = rest.find(|next: char| !next.is_ascii_digit()).unwrap_or(rest.len());
            rest[..end].parse().unwrap()
        });
        let numbers: BTreeSet<usize> = numbers.collect();
        assert!(numbers.into_iter().eq(1..=statement.parameters.len()), "{statement:?}");
    }
}

/// A prepared statement is known by its number. Some algorithms share a text, and then its number, too.
#[test]
fn different_statements_have_different_numbers() {
    let all: Vec<_> = TABLES.map(Statements::new).into();
    let all: Vec<_> = all.iter().flat_map(Statements::all).collect();
    let texts: BTreeSet<_> = all.iter().map(|statement| &statement.text).collect();
    let ids: BTreeSet<_> = all.iter().map(|statement| &statement.id).collect();
    assert_eq!(ids.len(), texts.len());
}

#[test]
#[should_panic(expected = "there is no part `covred`: SELECT {covred}")]
fn an_unknown_part_is_an_error() {
    fill("SELECT {covred}", TABLES[0], &[]);
}

#[test]
#[should_panic(expected = "a brace is not closed: SELECT {now")]
fn an_open_brace_is_an_error() {
    fill("SELECT {now", TABLES[0], &[]);
}
