//! Budget keys, which are made from values.

use tower_sluice::PartitionKey;

/// Joins values to a key. Two lists with the same length have the same key only if all values are equal.
///
/// One value is the key itself, so that operators find `203.0.113.7` as they type it. Several values are separated by
/// `|`; a `|` or `\` in them gets a `\` in front. [`PartitionKey::from_parts`] would write their lengths in binary.
pub(crate) fn joined(values: &[&str]) -> PartitionKey {
    match values {
        [] => PartitionKey::SHARED,
        [value] => PartitionKey::from(*value),
        values => {
            let mut key = String::new();
            for (index, value) in values.iter().enumerate() {
                if index > 0 {
                    key.push('|');
                }
                push_escaped(&mut key, value);
            }
            PartitionKey::from(key)
        }
    }
}

fn push_escaped(key: &mut String, value: &str) {
    for char in value.chars() {
        if matches!(char, '|' | '\\') {
            key.push('\\');
        }
        key.push(char);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_are_readable() {
        assert_eq!(joined(&[]), PartitionKey::SHARED);
        assert_eq!(joined(&[r"a|b\c"]), PartitionKey::from(r"a|b\c"));
        assert_eq!(joined(&["alice", "/login"]), PartitionKey::from("alice|/login"));
        assert_eq!(joined(&["a|b", r"c\"]), PartitionKey::from(r"a\|b|c\\"));
    }

    /// All values with at most two escaped characters and one plain character.
    fn short_values() -> Vec<String> {
        let mut values = vec![String::new()];
        for first in ["a", "|", r"\"] {
            values.push(first.to_owned());
            values.extend(["a", "|", r"\"].map(|second| format!("{first}{second}")));
        }
        values
    }

    #[test]
    fn different_values_have_different_keys() {
        let values = short_values();
        let mut keys = HashSet::new();
        for first in &values {
            for second in &values {
                assert!(keys.insert(joined(&[first, second])), "{first} {second}");
            }
        }
        assert_eq!(keys.len(), 13 * 13);
    }
}
