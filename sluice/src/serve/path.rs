//! Paths in one spelling. Behind the proxy, an app may read `/%65xport`, `//export` and `/a/../export` as `/export`; a
//! client that writes them must not escape the limits of that route.

use std::borrow::Cow;

/// Returns the path with its unreserved characters decoded (RFC 3986, section 6.2.2.2), without dot segments (section
/// 5.2.4) and without empty segments, which proxies merge. Reserved characters such as `%2F` stay as they are, and so
/// does a slash at the end.
pub(crate) fn normalized(path: &str) -> Cow<'_, str> {
    if !path.contains('%') && !path.contains("//") && !path.contains("/.") {
        return Cow::Borrowed(path);
    }
    let decoded = decoded(path);
    let mut segments: Vec<&str> = Vec::new();
    // A path that ends in a dot segment ends in a slash.
    let mut is_folder = false;
    for segment in decoded.split('/') {
        is_folder = matches!(segment, "" | "." | "..");
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    let mut normalized = segments.iter().fold(String::new(), |path, segment| path + "/" + segment);
    if is_folder || normalized.is_empty() {
        normalized.push('/');
    }
    Cow::Owned(normalized)
}

/// Decodes what stands for an unreserved character.
fn decoded(path: &str) -> String {
    let mut decoded = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(percent) = rest.find('%') {
        decoded.push_str(&rest[..percent]);
        rest = &rest[percent..];
        let code = rest.get(1..3).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let byte = code.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match byte.filter(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(byte)) {
            Some(byte) => {
                decoded.push(char::from(byte));
                rest = &rest[3..];
            }
            None => {
                decoded.push('%');
                rest = &rest[1..];
            }
        }
    }
    decoded + rest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cases::cases;

    #[test]
    fn spellings_of_a_path_are_one() {
        for path in ["/export", "/%65xport", "/%65%78port", "//export", "/a/../export", "/./export", "/%2e%2E/export"] {
            assert_eq!(normalized(path), "/export", "{path}");
        }
        for (path, expected) in [
            ("/", "/"),
            ("//", "/"),
            ("/..", "/"),
            ("/a/", "/a/"),
            ("/a/.", "/a/"),
            ("/a/b/..", "/a/"),
            ("/a/...", "/a/..."),
            ("/.well-known/x", "/.well-known/x"),
            ("/a%2Fb", "/a%2Fb"),
            ("/a%", "/a%"),
            ("/%zz%4", "/%zz%4"),
            ("/%25%36%35", "/%2565"),
            ("/%C3%A4", "/%C3%A4"),
            ("/ä%61", "/äa"),
        ] {
            assert_eq!(normalized(path), expected, "{path}");
        }
    }

    proptest! {
        #![proptest_config(cases(256))]

        #[test]
        fn a_normalized_path_has_no_other_spelling(path in "/[a%./2eE5]{0,12}") {
            let once = normalized(&path).into_owned();
            prop_assert!(once.starts_with('/') && !once.contains("//"), "{once}");
            prop_assert!(!once.split('/').any(|segment| segment == "." || segment == ".."), "{once}");
            // Twice would decode what a client has encoded twice, which apps read once.
            if !path.contains("%25") {
                prop_assert_eq!(normalized(&once), once.as_str());
            }
        }
    }
}
