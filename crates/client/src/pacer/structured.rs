//! A parser for structured fields (RFC 9651), as far as `RateLimit` and `RateLimit-Policy` need them: Lists and
//! Dictionaries whose members are Items. It is total: any bytes give members, or `None`.

/// A field with more members than this is not taken for a list of quotas.
const MAX_MEMBERS: usize = 32;

/// The value of an Item or of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Bare {
    Integer(i64),
    /// Without quotation marks and escapes.
    String(Vec<u8>),
    /// A Decimal, Token, Byte Sequence, Boolean, Date or Display String, which does not occur in quotas.
    Other,
}

/// A member in a List or Dictionary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListMember<'a> {
    /// The key in a Dictionary; empty in a List.
    pub(super) key: &'a [u8],
    pub(super) value: Bare,
    pub(super) parameters: Vec<(&'a [u8], Bare)>,
}

impl ListMember<'_> {
    /// Returns a parameter. If several have this key, the last one counts (RFC 9651, section 4.2.3.2).
    pub(super) fn parameter(&self, key: &str) -> Option<&Bare> {
        self.parameters.iter().rev().find(|(name, _)| *name == key.as_bytes()).map(|(_, value)| value)
    }

    /// Returns a parameter that is a whole number, not below zero. `Ok(None)` means that no parameter has this key.
    /// Anything else is an error.
    pub(super) fn count(&self, key: &str) -> Result<Option<u64>, NotACount> {
        self.parameter(key).map(Bare::count).transpose()
    }
}

/// A value that must be a whole number, and is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotACount;

impl Bare {
    pub(super) fn count(&self) -> Result<u64, NotACount> {
        match self {
            Self::Integer(number) => u64::try_from(*number).map_err(|_| NotACount),
            _ => Err(NotACount),
        }
    }
}

/// Parses a List of Items. Fails if it is malformed, has an inner list or too many members.
pub(super) fn list(text: &[u8]) -> Option<Vec<ListMember<'_>>> {
    members(text, |_| Some(&[]))
}

/// Parses a Dictionary of Items. A key that comes twice is two members.
pub(super) fn dictionary(text: &[u8]) -> Option<Vec<ListMember<'_>>> {
    members(text, |parser| {
        let key = parser.key()?;
        // A key alone stands for "true", and a quota is never "true".
        parser.expect(b'=')?;
        Some(key)
    })
}

fn members<'a>(text: &'a [u8], key: impl Fn(&mut Parser<'a>) -> Option<&'a [u8]>) -> Option<Vec<ListMember<'a>>> {
    let mut parser = Parser { rest: text.trim_ascii() };
    let mut members = Vec::new();
    while !parser.rest.is_empty() {
        if members.len() == MAX_MEMBERS {
            return None;
        }
        let key = key(&mut parser)?;
        members.push(ListMember { key, value: parser.bare()?, parameters: parser.parameters()? });
        parser.skip_blanks();
        if parser.rest.is_empty() {
            break;
        }
        parser.expect(b',')?;
        parser.skip_blanks();
        if parser.rest.is_empty() {
            // A comma at the end.
            return None;
        }
    }
    Some(members)
}

struct Parser<'a> {
    rest: &'a [u8],
}

impl<'a> Parser<'a> {
    /// Skips this byte, if it is next.
    fn skip(&mut self, byte: u8) -> bool {
        self.expect(byte).is_some()
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        self.rest = self.rest.strip_prefix(&[byte])?;
        Some(())
    }

    fn skip_blanks(&mut self) {
        self.take(|byte| matches!(byte, b' ' | b'\t'));
    }

    /// Takes the longest prefix whose bytes all match. It may be empty.
    fn take(&mut self, is_such: impl Fn(u8) -> bool) -> &'a [u8] {
        let length = self.rest.iter().position(|byte| !is_such(*byte)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(length);
        self.rest = rest;
        taken
    }

    fn key(&mut self) -> Option<&'a [u8]> {
        matches!(self.rest.first()?, b'a'..=b'z' | b'*').then_some(())?;
        Some(self.take(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b'*')))
    }

    fn parameters(&mut self) -> Option<Vec<(&'a [u8], Bare)>> {
        let mut parameters = Vec::new();
        while self.skip(b';') {
            self.take(|byte| byte == b' ');
            let key = self.key()?;
            parameters.push((key, if self.skip(b'=') { self.bare()? } else { Bare::Other }));
        }
        Some(parameters)
    }

    fn bare(&mut self) -> Option<Bare> {
        match self.rest.first()? {
            b'-' | b'0'..=b'9' => self.number(),
            b'"' => self.string().map(Bare::String),
            b':' => self.bytes(),
            b'?' => {
                self.expect(b'?')?;
                self.rest = self.rest.strip_prefix(b"0").or_else(|| self.rest.strip_prefix(b"1"))?;
                Some(Bare::Other)
            }
            b'@' => {
                self.expect(b'@')?;
                matches!(self.number()?, Bare::Integer(_)).then_some(Bare::Other)
            }
            b'%' => {
                self.expect(b'%')?;
                self.string().map(|_| Bare::Other)
            }
            b'A'..=b'Z' | b'a'..=b'z' | b'*' => {
                self.take(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte));
                Some(Bare::Other)
            }
            _ => None,
        }
    }

    /// An Integer with up to 15 digits, or a Decimal with up to 12 and 3.
    fn number(&mut self) -> Option<Bare> {
        let is_negative = self.skip(b'-');
        let digits = self.take(|byte| byte.is_ascii_digit());
        if self.skip(b'.') {
            let decimals = self.take(|byte| byte.is_ascii_digit());
            let fits = (1..=12).contains(&digits.len()) && (1..=3).contains(&decimals.len());
            return fits.then_some(Bare::Other);
        }
        (1..=15).contains(&digits.len()).then_some(())?;
        let number = digits.iter().fold(0_i64, |number, digit| number * 10 + i64::from(digit - b'0'));
        Some(Bare::Integer(if is_negative { -number } else { number }))
    }

    fn string(&mut self) -> Option<Vec<u8>> {
        self.expect(b'"')?;
        let mut text = Vec::new();
        loop {
            let (first, rest) = self.rest.split_first()?;
            self.rest = rest;
            match first {
                b'"' => return Some(text),
                b'\\' => {
                    let (escaped, rest) = self.rest.split_first().filter(|(byte, _)| matches!(byte, b'"' | b'\\'))?;
                    self.rest = rest;
                    text.push(*escaped);
                }
                b' '..=b'~' => text.push(*first),
                _ => return None,
            }
        }
    }

    /// A Byte Sequence, whose content nobody here needs.
    fn bytes(&mut self) -> Option<Bare> {
        self.expect(b':')?;
        self.take(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'='));
        self.expect(b':')?;
        Some(Bare::Other)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cases::cases;

    #[test]
    fn members_have_their_parameters() {
        let text = b" \"a\\\"b\";q=100;w=60;qu=\"content-bytes\";pk=:sdfjLJUOUH==:;x;y=1.5;z=tok/en;d=@-5,\t7 ";
        let members = list(text).unwrap();
        assert_eq!(members[0].value, Bare::String(b"a\"b".to_vec()));
        assert_eq!((members[0].count("q"), members[0].count("r")), (Ok(Some(100)), Ok(None)));
        assert_eq!((members[0].count("y"), members[0].count("pk")), (Err(NotACount), Err(NotACount)));
        assert_eq!((members.len(), &members[1].value), (2, &Bare::Integer(7)));
        let members = dictionary(b"limit=100, remaining=50,reset=-5;x=1").unwrap();
        let pairs: Vec<_> = members.iter().map(|member| (member.key, member.value.count())).collect();
        let expected: [(&[u8], _); 3] = [(b"limit", Ok(100)), (b"remaining", Ok(50)), (b"reset", Err(NotACount))];
        assert_eq!(pairs, expected);
    }

    #[test]
    fn malformed_fields_have_no_members() {
        for text in
            ["\"a", "\"a\" \"b\"", "\"a\";", "\"a\";=1", "1,", "--1", "1.", "1.5555", "(1 2)", "\"\\a\"", "1;A=2"]
        {
            assert_eq!(list(text.as_bytes()), None, "{text}");
        }
        assert_eq!(list("1,".repeat(MAX_MEMBERS).as_bytes()), None);
        assert!(list(format!("{}1", "1,".repeat(MAX_MEMBERS - 1)).as_bytes()).is_some());
    }

    proptest! {
        #![proptest_config(cases(256))]

        /// The two differ only in inner lists, keys that come twice and malformed Byte Sequences.
        #[test]
        fn lists_are_those_of_another_parser(text in "[\"a1 ;,=.?()\\-\\\\]{0,24}") {
            let theirs = sfv::Parser::new(text.as_bytes()).parse::<sfv::List>().ok();
            let ours = list(text.as_bytes());
            match theirs {
                None => prop_assert_eq!(ours, None, "{}", text),
                Some(theirs) if theirs.iter().all(|entry| matches!(entry, sfv::ListEntry::Item(_))) => {
                    prop_assert_eq!(ours.map(|members| members.len()), Some(theirs.len()), "{}", text);
                }
                Some(_) => prop_assert_eq!(ours, None, "{}", text),
            }
        }

        #[test]
        fn any_bytes_are_parsed_or_ignored(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (list(&bytes), dictionary(&bytes));
        }
    }
}
