//! Plain conditions and variables: an entry, and its comparison with a text. They are the fast path for a file's
//! expressions, since they don't need an interpreter.

use super::super::Descriptor;

/// A reference to a request's entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Reference {
    /// The descriptor's index. Without one, as in Limitador 1, all descriptors are searched.
    pub(super) descriptor: Option<usize>,
    pub(super) key: String,
}

/// Compares an entry with a text. It is false if there is no such entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Comparison {
    pub(super) reference: Reference,
    pub(super) is_equal: bool,
    pub(super) value: String,
}

impl Reference {
    /// Reads `descriptors[0].user`, `descriptors[0]['user.id']` or `user`. Returns `None` for anything else.
    pub(super) fn parse(text: &str) -> Option<Self> {
        match Self::parse_start(text.trim())? {
            (reference, "") => Some(reference),
            _ => None,
        }
    }

    /// Reads the reference at the start of a text. Returns the rest.
    fn parse_start(text: &str) -> Option<(Self, &str)> {
        let Some(text) = text.strip_prefix("descriptors[") else { return Self::parse_name(text) };
        let (index, text) = text.split_once(']')?;
        let is_number = !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit());
        let descriptor = if is_number { index.parse().ok() } else { None };
        let (key, rest) = match text.strip_prefix('.') {
            Some(text) => word(text, is_word)?,
            None => {
                let (key, text) = quoted(text.strip_prefix('[')?)?;
                (key, text.strip_prefix(']')?)
            }
        };
        Some((Self { descriptor: Some(descriptor?), key: key.to_owned() }, rest))
    }

    /// Reads a key without a descriptor, which may have dots.
    fn parse_name(text: &str) -> Option<(Self, &str)> {
        let (key, rest) = word(text, |char| is_word(char) || char == '.')?;
        let is_reserved = matches!(key, "true" | "false" | "null" | "in" | "descriptors" | "limit");
        // `limit.name` and `limit.id` belong to the limit.
        let is_other = is_reserved || key.starts_with("limit.") || key.starts_with("descriptors.");
        if is_other || key.split('.').any(str::is_empty) {
            return None;
        }
        Some((Self { descriptor: None, key: key.to_owned() }, rest))
    }

    /// Finds the entry in a request's descriptors. Returns its descriptor's index and its value. If entries have the
    /// same key, the last counts.
    pub(super) fn find<'a>(&self, descriptors: &'a [Descriptor]) -> Option<(usize, &'a str)> {
        let range = match self.descriptor {
            Some(index) => index..index.checked_add(1)?,
            None => 0..descriptors.len(),
        };
        let searched = descriptors.get(range.clone())?;
        range.zip(searched).rev().find_map(|(index, descriptor)| {
            let entry = descriptor.entries.iter().rev().find(|(key, _)| *key == self.key)?;
            Some((index, entry.1.as_str()))
        })
    }
}

impl Comparison {
    /// Reads `REFERENCE == 'TEXT'` or `REFERENCE != "TEXT"`. Returns `None` for anything else, which may be CEL.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (reference, rest) = Reference::parse_start(text.trim())?;
        let rest = rest.trim_start();
        let (is_equal, rest) = match rest.strip_prefix("==") {
            Some(rest) => (true, rest),
            None => (false, rest.strip_prefix("!=")?),
        };
        match quoted(rest.trim_start())? {
            (value, "") => Some(Self { reference, is_equal, value: value.to_owned() }),
            _ => None,
        }
    }

    /// Returns the index of the descriptor for which the comparison holds, if it does.
    pub(super) fn holds(&self, descriptors: &[Descriptor]) -> Option<usize> {
        let (index, value) = self.reference.find(descriptors)?;
        if (value == self.value) == self.is_equal { Some(index) } else { None }
    }
}

/// Splits off a word that does not begin with a digit.
fn word(text: &str, is_part: impl Fn(char) -> bool) -> Option<(&str, &str)> {
    let end = text.find(|char| !is_part(char)).unwrap_or(text.len());
    if end == 0 || text.starts_with(|char: char| char.is_ascii_digit()) { None } else { Some(text.split_at(end)) }
}

const fn is_word(char: char) -> bool {
    char.is_ascii_alphanumeric() || char == '_'
}

/// Splits off a text in quotation marks. Texts with a backslash, which begins an escape in CEL, are not read.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let mark = text.chars().next().filter(|char| matches!(char, '\'' | '"'))?;
    let (value, rest) = text[1..].split_once(mark)?;
    if value.contains('\\') { None } else { Some((value, rest)) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cases::cases;

    fn reference(descriptor: Option<usize>, key: &str) -> Reference {
        Reference { descriptor, key: key.to_owned() }
    }

    #[test]
    fn references_are_read() {
        assert_eq!(Reference::parse(" descriptors[0].user_id "), Some(reference(Some(0), "user_id")));
        assert_eq!(Reference::parse("descriptors[12]['req.method']"), Some(reference(Some(12), "req.method")));
        assert_eq!(Reference::parse(r#"descriptors[1]["a b"]"#), Some(reference(Some(1), "a b")));
        assert_eq!(Reference::parse("user"), Some(reference(None, "user")));
        assert_eq!(Reference::parse("req.method"), Some(reference(None, "req.method")));
        let others = [
            "",
            "1",
            "'user'",
            "descriptors",
            "descriptors[0]",
            "descriptors[x].user",
            "descriptors[+1].user",
            "descriptors[0].a.b",
            "descriptors[0].9a",
            "descriptors[0][user]",
            "descriptors[0]['user'",
            r"descriptors[0]['us\'er']",
            "descriptors[99999999999999999999].a",
            "limit.name",
            "a..b",
            "size(user)",
            "user + 'a'",
            "true",
        ];
        for text in others {
            assert_eq!(Reference::parse(text), None, "{text}");
        }
    }

    #[test]
    fn comparisons_are_read() {
        let condition = |descriptor, key, is_equal, value: &str| {
            Some(Comparison { reference: reference(descriptor, key), is_equal, value: value.to_owned() })
        };
        assert_eq!(Comparison::parse("descriptors[0].method == 'GET'"), condition(Some(0), "method", true, "GET"));
        assert_eq!(Comparison::parse(r#"method!="a 'b'" "#.trim()), condition(None, "method", false, "a 'b'"));
        assert_eq!(Comparison::parse(" method=='' "), condition(None, "method", true, ""));
        let others = [
            "method == GET",
            "method",
            "method == 1",
            "'GET' == method",
            "method = 'GET'",
            "has(descriptors[0].method)",
            "descriptors[0].method in ['GET']",
            "descriptors[0].method.startsWith('G')",
            "!(method == 'GET')",
            "method == 'GET' && user == 'a'",
            r"method == 'G\x45T'",
            "method == r'GET'",
            "method == '''GET'''",
            "true",
        ];
        for text in others {
            assert_eq!(Comparison::parse(text), None, "{text}");
        }
    }

    proptest! {
        #![proptest_config(cases(256))]

        #[test]
        fn no_text_panics(text in r"(descriptors)?[\[\]'a.0= !é]{0,20}") {
            let _ = Comparison::parse(&text);
            let _ = Reference::parse(&text);
        }
    }
}
