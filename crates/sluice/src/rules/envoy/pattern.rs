//! Patterns for values.

/// A value with `*`. Each `*` stands for any characters, including the empty text.
#[derive(Debug)]
pub(super) struct Pattern {
    start: String,
    /// The texts between two `*`.
    middle: Vec<String>,
    end: String,
}

impl Pattern {
    /// Reads a pattern. Returns `None` if there is no `*`.
    pub(super) fn new(value: &str) -> Option<Self> {
        let (start, rest) = value.split_once('*')?;
        let mut middle: Vec<String> = rest.split('*').map(str::to_owned).collect();
        let end = middle.pop().unwrap_or_default();
        Some(Self { start: start.to_owned(), middle, end })
    }

    /// The text before the first `*`.
    pub(super) fn start(&self) -> &str {
        &self.start
    }

    /// Whether a value contains the pattern's texts in order, without overlap.
    pub(super) fn matches(&self, value: &str) -> bool {
        let inner = value.strip_prefix(&*self.start).and_then(|rest| rest.strip_suffix(&*self.end));
        let Some(mut rest) = inner else { return false };
        // The first place for each text leaves the most room for the texts behind it.
        for text in &self.middle {
            match rest.split_once(&**text) {
                Some((_, behind)) => rest = behind,
                None => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cases::cases;

    /// Matches by trying all lengths for each `*`.
    fn naive(pattern: &[char], value: &[char]) -> bool {
        match (pattern, value) {
            ([], rest) => rest.is_empty(),
            (['*', pattern @ ..], value) => (0..=value.len()).any(|skipped| naive(pattern, &value[skipped..])),
            ([first, pattern @ ..], [char, value @ ..]) => first == char && naive(pattern, value),
            (_, []) => false,
        }
    }

    #[test]
    fn the_texts_do_not_overlap() {
        assert!(Pattern::new("plain").is_none());
        let pattern = Pattern::new("ab*ba").unwrap();
        assert!(pattern.matches("abba") && pattern.matches("ab-ba") && !pattern.matches("aba"));
    }

    proptest! {
        #![proptest_config(cases(256))]

        #[test]
        fn patterns_match_as_by_trying(pattern in r"[ab*]{0,6}\*[ab*é]{0,6}", value in "[abé]{0,9}") {
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            let expected = naive(&chars(&pattern), &chars(&value));
            prop_assert_eq!(Pattern::new(&pattern).unwrap().matches(&value), expected);
        }
    }
}
