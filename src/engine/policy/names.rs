//! Policy names, which appear in header fields and bodies.

/// A policy name's greatest length, in bytes. `RateLimit-Policy` and `RateLimit` repeat all policy names in each
/// response. With 16 policies, the names take 2 KiB at most, half the response head that nginx accepts from a server
/// (one page of memory, unless `proxy_buffer_size` is set).
pub(super) const MAX_NAME: usize = 64;

/// The punctuation that a name, which is a token, may contain.
pub(super) const PUNCTUATION: &str = "!#$%&'*+-.^_`|~:/";

/// Whether a text can be a policy's name.
pub(super) fn is_name(text: &str) -> bool {
    is_token(text) && text.len() <= MAX_NAME
}

/// Whether a name is a token by RFC 9651, section 3.3.4: a letter or `*`, then letters, digits and some punctuation. A
/// token does not need escaping in any field or log line.
fn is_token(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'*')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || PUNCTUATION.as_bytes().contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_tokens() {
        let letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        let firsts = format!("{letters}*");
        // `tchar` by RFC 9110, section 5.6.2, and the two that RFC 9651 adds.
        let others = format!("{letters}0123456789!#$%&'*+-.^_`|~:/");
        for character in (0..128).map(char::from) {
            assert_eq!(is_token(&format!("{character}")), firsts.contains(character), "{character:?} first");
            assert_eq!(is_token(&format!("n{character}")), others.contains(character), "{character:?} second");
        }
        assert!(!is_token("") && !is_token("é") && !is_token("né"));
    }
}
