//! Keys of budgets, made of values.

use tower_sluice::PartitionKey;

/// Joins values to a key. Of equally many values, two lists have the same key only if all values are equal.
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
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_are_readable() {
        assert_eq!(joined(&[]), PartitionKey::SHARED);
        assert_eq!(joined(&[r"a|b\c"]), PartitionKey::from(r"a|b\c"));
        assert_eq!(joined(&["alice", "/login"]), PartitionKey::from("alice|/login"));
        assert_eq!(joined(&["a|b", r"c\"]), PartitionKey::from(r"a\|b|c\\"));
    }

    /// Lists of equally many values, of the characters that are escaped and one that is not.
    fn lists() -> impl Strategy<Value = [Vec<String>; 2]> {
        (1..5_usize).prop_flat_map(|len| {
            let list = || prop::collection::vec(r"[a|\\]{0,3}", len);
            [list(), list()]
        })
    }

    proptest! {
        #[test]
        fn different_values_have_different_keys([left, right] in lists()) {
            let key = |list: &[String]| joined(&list.iter().map(String::as_str).collect::<Vec<_>>());
            prop_assert_eq!(key(&left) == key(&right), left == right);
        }
    }
}
