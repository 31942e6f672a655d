//! Names for rules: valid policy names, made from keys and values.

use std::collections::HashSet;

/// The longest policy name, in bytes.
const LONGEST: usize = 64;

/// The bytes that a hash takes with its separator.
const HASH: usize = 17;

/// A name before it is made unique and short, and a hash over all its parts.
#[derive(Clone, Debug)]
pub(super) struct NameText {
    /// Valid characters, cut soon after the longest name.
    text: String,
    hash: u64,
    /// Whether `text` does not show all parts as they are.
    is_altered: bool,
}

impl NameText {
    pub(super) const fn new() -> Self {
        Self { text: String::new(), hash: 0xcbf2_9ce4_8422_2325, is_altered: false }
    }

    /// Appends a part. If the parts are split elsewhere, the hash differs.
    pub(super) fn with(&self, part: &str) -> Self {
        let mut name = self.with_hidden(part);
        for char in part.chars() {
            name.push(char);
        }
        name
    }

    /// Appends a part that only the hash shows.
    pub(super) fn with_hidden(&self, part: &str) -> Self {
        let mut name = self.clone();
        // The FNV-1a hash, since names must be the same in every process and every build.
        let length = part.len().to_string();
        for byte in length.bytes().chain([b':']).chain(part.bytes()) {
            name.hash = (name.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        name
    }

    fn push(&mut self, char: char) {
        if self.text.len() > LONGEST {
            return;
        }
        if self.text.is_empty() && !char.is_ascii_alphabetic() && char != '*' {
            self.text.push('*');
            self.is_altered = true;
        }
        let is_valid = char.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~:/".contains(char);
        self.text.push(if is_valid { char } else { '_' });
        self.is_altered |= !is_valid;
    }

    fn with_hash(&self, hash: u64) -> String {
        let text = if self.text.is_empty() { "*" } else { &self.text };
        let end = text.len().min(LONGEST - HASH);
        format!("{}~{hash:016x}", &text[..end])
    }
}

/// The policy for limits that requests bring. No rule in a file has this name.
pub(crate) const BROUGHT: &str = "request.limit";

/// The names in a domain.
#[derive(Debug)]
pub(super) struct Names(HashSet<String>);

impl Default for Names {
    fn default() -> Self {
        Self(HashSet::from([BROUGHT.to_owned()]))
    }
}

impl Names {
    /// Returns a name that no other rule has. It ends with a hash if it is too long or was altered, or if an earlier
    /// rule has the same name.
    pub(super) fn unique(&mut self, text: &NameText) -> String {
        let is_as_written = !text.is_altered && !text.text.is_empty() && text.text.len() <= LONGEST;
        let mut name = if is_as_written { text.text.clone() } else { text.with_hash(text.hash) };
        let mut hash = text.hash;
        while !self.0.insert(name.clone()) {
            name = text.with_hash(hash);
            hash = hash.wrapping_add(1);
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tower_sluice::{Policy, Quota, RateLimitLayer};

    use super::*;
    use crate::cases::cases;

    fn name(parts: &[&str]) -> String {
        let text = parts.iter().fold(NameText::new(), |text, part| text.with(part));
        Names::default().unique(&text)
    }

    #[test]
    fn a_short_name_is_its_parts() {
        assert_eq!(name(&["route", ":", "/api/*", "/", "user"]), "route:/api/*/user");
    }

    #[test]
    fn altered_names_differ_by_their_hash() {
        assert!(name(&["a b"]).starts_with("a_b~"));
        assert_ne!(name(&["a b"]), name(&["a=b"]));
        assert!(name(&["7"]).starts_with("*7~"));
        assert!(name(&[]).starts_with("*~"));
        let long = "x".repeat(64);
        assert_eq!(name(&[&long]), long);
        assert_ne!(name(&[&long, "y"]), name(&[&long, "z"]));
    }

    #[test]
    fn no_rule_is_named_like_brought_limits() {
        assert!(name(&["request.limit"]).starts_with("request.limit~"));
    }

    /// The parts differ, although the joined texts are equal.
    #[test]
    fn equal_texts_get_different_names() {
        let mut names = Names::default();
        let first = names.unique(&NameText::new().with("a").with("/").with("b"));
        let second = names.unique(&NameText::new().with("a").with("/b"));
        assert_eq!(first, "a/b");
        assert!(second.starts_with("a/b~"), "{second}");
        assert_eq!(names.unique(&NameText::new().with("c")), "c");
    }

    proptest! {
        #![proptest_config(cases(256))]

        #[test]
        fn all_names_are_names_of_policies(parts in prop::collection::vec(".{0,40}", 0..4)) {
            let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
            let policy = Policy::new(name(&parts), Quota::per_second(1));
            prop_assert!(RateLimitLayer::try_new([policy]).is_ok(), "{}", name(&parts));
        }
    }
}
