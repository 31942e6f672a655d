//! List headers, read from the right, as a pure function on bytes.

/// The most elements that a search reads. A real proxy chain is a few elements long.
const MAX_ELEMENTS: usize = 64;

/// The most bytes that a search reads. By default, nginx, Apache and Tomcat reject a longer field line.
pub(super) const MAX_BYTES: usize = 8 * 1024;

/// A list header's elements from the last to the first, across its field lines (RFC 9110 §5.3: several lines are one
/// list).
///
/// This is lazy. Elements to the left of the last one taken are not read, so text that a client wrote there has no
/// effect.
pub(super) struct Elements<'a, L> {
    /// The field lines that are not read yet.
    lines: L,
    /// The part of the last line that is not read yet.
    rest: Option<&'a [u8]>,
    /// Whether commas in quoted strings do not separate elements.
    quoting: bool,
    count_left: usize,
    bytes_left: usize,
}

/// The list goes on, but cannot be split into elements, or is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unreadable;

impl<'a, L: DoubleEndedIterator<Item = &'a [u8]>> Elements<'a, L> {
    /// Splits at every comma.
    pub(super) fn of_x_forwarded_for(lines: L) -> Self {
        Self { lines, rest: None, quoting: false, count_left: MAX_ELEMENTS, bytes_left: MAX_BYTES }
    }

    /// Splits at commas outside quoted strings.
    pub(super) fn of_forwarded(lines: L) -> Self {
        Self { quoting: true, ..Self::of_x_forwarded_for(lines) }
    }

    /// Raises the bound on elements to `elements` if that is more.
    pub(super) fn reaching(self, elements: usize) -> Self {
        Self { count_left: self.count_left.max(elements), ..self }
    }

    /// Splits off the last element of `line`, without the white space around it, and keeps the rest for the next call.
    fn split(&mut self, line: &'a [u8]) -> Result<&'a [u8], Unreadable> {
        self.count_left = self.count_left.checked_sub(1).ok_or(Unreadable)?;
        let (hidden, visible) = line.split_at(line.len().saturating_sub(self.bytes_left));
        let comma = if self.quoting { last_unquoted_comma(visible)? } else { last_comma(visible) };
        let element = match comma {
            Some(comma) => {
                self.rest = Some(&line[..hidden.len() + comma]);
                &visible[comma + 1..]
            }
            None if hidden.is_empty() => visible,
            None => return Err(Unreadable),
        };
        self.bytes_left = self.bytes_left.saturating_sub(element.len() + 1);
        Ok(element.trim_ascii())
    }
}

impl<'a, L: DoubleEndedIterator<Item = &'a [u8]>> Iterator for Elements<'a, L> {
    type Item = Result<&'a [u8], Unreadable>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let line = self.rest.take().or_else(|| self.lines.next_back())?;
            match self.split(line) {
                // Empty elements are ignored (RFC 9110 §5.6.1.2), but count towards the bound on elements. Otherwise, a
                // list of commas could be searched without end.
                Ok([]) => {}
                Ok(element) => return Some(Ok(element)),
                Err(unreadable) => {
                    // No element is returned after this, not even from another line.
                    self.count_left = 0;
                    return Some(Err(unreadable));
                }
            }
        }
    }
}

fn last_comma(list: &[u8]) -> Option<usize> {
    list.iter().rposition(|&byte| byte == b',')
}

/// Finds the last comma outside quoted strings. Seen from the right, the first quotation mark closes a quoted string,
/// so this finds the commas in any well-formed list, and in a well-formed tail behind any text that a client sent.
fn last_unquoted_comma(list: &[u8]) -> Result<Option<usize>, Unreadable> {
    let mut unseen = list;
    while let Some(at) = unseen.iter().rposition(|byte| matches!(byte, b',' | b'"')) {
        if unseen[at] == b',' {
            return Ok(Some(at));
        }
        let opening = opening_quote(&unseen[..at]).ok_or(Unreadable)?;
        unseen = &unseen[..opening];
    }
    Ok(None)
}

/// Finds the last quotation mark that is not escaped. A mark after an odd number of backslashes is escaped.
fn opening_quote(mut unseen: &[u8]) -> Option<usize> {
    loop {
        let at = unseen.iter().rposition(|&byte| byte == b'"')?;
        unseen = &unseen[..at];
        if unseen.iter().rev().take_while(|&&byte| byte == b'\\').count() % 2 == 0 {
            return Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elements(quoting: bool, lines: &[&'static str]) -> Vec<Result<&'static str, Unreadable>> {
        let lines = lines.iter().map(|line| line.as_bytes());
        let elements = Elements { quoting, ..Elements::of_x_forwarded_for(lines) };
        elements.map(|element| element.map(|bytes| std::str::from_utf8(bytes).unwrap())).collect()
    }

    #[test]
    fn elements_come_from_the_right() {
        assert_eq!(elements(false, &["a, b", "", " ,\tc ,,"]), [Ok("c"), Ok("b"), Ok("a")]);
        assert_eq!(elements(false, &["a, \"b, c\""]), [Ok("c\""), Ok("\"b"), Ok("a")]);
        assert_eq!(elements(true, &["a, \"b, c\"", "d=\"\",e"]), [Ok("e"), Ok("d=\"\""), Ok("\"b, c\""), Ok("a")]);
        assert_eq!(elements(true, &[r#"a="\\",b="\",\\\"," , c"#]), [Ok("c"), Ok(r#"b="\",\\\",""#), Ok(r#"a="\\""#)]);
        assert_eq!(elements(true, &["a", "b\", c", "d"]), [Ok("d"), Ok("c"), Err(Unreadable), Err(Unreadable)]);
        assert_eq!(elements(true, &[r#"x="\", for="[::1]""#])[0], Ok(r#"for="[::1]""#));
    }

    #[test]
    fn searches_stop_at_64_elements() {
        let of = |lines: &[String], reach| {
            let elements = Elements::of_x_forwarded_for(lines.iter().map(String::as_bytes)).reaching(reach);
            let elements: Vec<_> = elements.collect();
            (elements.len(), elements.last().is_none_or(Result::is_ok))
        };
        let xs = |n| "x".repeat(n);
        assert_eq!(of(&[["a"; 64].join(",")], 0), (64, true));
        assert_eq!(of(&[["a"; 65].join(",")], 0), (65, false));
        assert_eq!(of(&[["a"; 200].join(",")], 200), (200, true));
        assert_eq!(of(&[",".repeat(63)], 0), (0, true));
        assert_eq!(of(&[",".repeat(64)], 0), (1, false));
        assert_eq!(of(&vec![String::new(); 65], 0), (1, false));
        assert_eq!(of(&[xs(MAX_BYTES)], 0), (1, true));
        assert_eq!(of(&[xs(MAX_BYTES + 1)], 0), (1, false));
        for (len, whole) in [(MAX_BYTES - 2, true), (MAX_BYTES - 1, false)] {
            assert_eq!(of(&[xs(len), "b".into()], 0), (2, whole));
            assert_eq!(of(&[xs(len) + ",b"], 0), (2, whole));
        }
    }
}
