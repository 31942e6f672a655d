//! Paths in one spelling. Behind the proxy, an app may read `/%65xport`, `//export` and `/a/../export` as `/export`,
//! and a client that writes them must not escape that route's limits.
//!
//! A target is bytes, because clients and logs have any. If no route limits a target, it is never refused for its
//! spelling.

use std::borrow::Cow;

use http::Uri;
use memchr::{memchr, memmem};

/// The longest path and the longest query in a request's address. The rest is cut off, and keys read it
/// [apart](Target::long_query).
const LONGEST: usize = 1 << 14;

/// A request's path and query, as a client or a log wrote them.
#[derive(Clone, Debug)]
pub(crate) struct Target<'a> {
    written: &'a [u8],
    /// In its one spelling: see [`normalized`].
    pub(crate) path: Cow<'a, str>,
    query: Option<&'a [u8]>,
    /// Whether all apps read the path as it is written: see [`normal_length`].
    is_normal: bool,
}

/// Differences between paths that an app behind a proxy ignores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PathIgnores {
    /// `/Export` is `/export`, for ASCII letters.
    pub(crate) case: bool,
    /// `/export/` is `/export`.
    pub(crate) trailing_slash: bool,
    /// `/export;x=1` is `/export`.
    pub(crate) parameters: bool,
}

impl PathIgnores {
    /// Reads the words of `path-ignores`.
    pub(crate) fn of_words(words: &[String]) -> Self {
        let has = |word: &str| words.iter().any(|other| other == word);
        Self { case: has("case"), trailing_slash: has("trailing-slash"), parameters: has("parameters") }
    }
}

impl<'a> Target<'a> {
    /// Reads a target, such as `/search?q=tea`, or with a scheme and a host in front. Drops a fragment: clients have no
    /// reason to send one, nginx hands it on, and apps drop it. Returns `None` if there is no path, as in `OPTIONS *`.
    pub(crate) fn read(target: &'a [u8]) -> Option<Self> {
        // Nearly all targets are a path in its one spelling, and perhaps a query.
        let normal = normal_length(target);
        if normal > 0 && target.get(normal).is_none_or(|behind| *behind == b'?') {
            let (written, rest) = target.split_at(normal);
            let query = rest.get(1..).map(without_fragment);
            // Cannot fail, because all bytes in such a path are ASCII.
            let path = Cow::Borrowed(std::str::from_utf8(written).ok()?);
            return Some(Self { written, path, query, is_normal: true });
        }
        let target = without_fragment(target);
        let (written, query) = match memchr(b'?', target) {
            Some(at) => (&target[..at], Some(&target[at + 1..])),
            None => (target, None),
        };
        let written = match written.first() {
            Some(b'/') => written,
            // `http://shop.example?q` behind nginx.
            None if query.is_some() => b"/",
            _ => behind_host(written)?,
        };
        let path = normalized(written, false);
        // A target that isn't normal becomes an owned path.
        let is_normal = matches!(path, Cow::Borrowed(_));
        Some(Self { written, path, query, is_normal })
    }

    /// Other paths as which some apps read this one. Nearly all targets have none.
    ///
    /// - With all characters decoded, and `\\` for `/`, as WSGI and Node's `URL` read it.
    /// - Without the segment behind two slashes at the beginning, which `URL` takes for a host.
    /// - With its dot segments, as in apps that do not resolve them.
    pub(crate) fn other_readings(&self, ignored: PathIgnores) -> Vec<String> {
        if self.is_normal {
            return Vec::new();
        }
        let has_dots = memmem::find(self.written, b"/.").is_some();
        let is_plain = memchr::memchr2(b'%', b'\\', self.written).is_none() && !self.written.starts_with(b"//");
        if is_plain && !has_dots {
            return Vec::new();
        }
        let slashed = |bytes: &[u8]| bytes.iter().map(|byte| if *byte == b'\\' { b'/' } else { *byte }).collect();
        let decoded: Vec<u8> = slashed(&percent_decoded(self.written));
        let mut readings = vec![normalized(&decoded, ignored.parameters).into_owned()];
        for text in [&slashed(self.written), &decoded] {
            if let Some(path) = text.strip_prefix(b"//").and_then(|rest| Some(&rest[memchr(b'/', rest)?..])) {
                readings.push(normalized(path, ignored.parameters).into_owned());
            }
        }
        if has_dots || decoded.windows(2).any(|pair| pair == b"/.") {
            readings.push(merged(&decoded));
        }
        if ignored.case || ignored.trailing_slash {
            readings.iter_mut().for_each(|path| *path = folded(path, ignored));
        }
        readings
    }

    /// Returns the path as an app sees it that ignores these differences.
    pub(crate) fn path_without(&self, ignored: PathIgnores) -> Cow<'_, str> {
        let path = match ignored.parameters && memchr(b';', self.written).is_some() {
            true => normalized(self.written, true),
            false => Cow::Borrowed(&*self.path),
        };
        match ignored.case || (ignored.trailing_slash && path.ends_with('/')) {
            true => Cow::Owned(folded(&path, ignored)),
            false => path,
        }
    }

    /// The query, if [`uri`](Self::uri) cuts it.
    pub(crate) fn long_query(&self) -> Option<&'a [u8]> {
        self.query.filter(|query| query.len() > LONGEST)
    }

    /// Returns the target as policies see it.
    pub(crate) fn uri(&self) -> Uri {
        let mut text = self.path[..self.path.len().min(LONGEST)].to_owned();
        if let Some(query) = self.query {
            text.push('?');
            push_encoded(&mut text, &query[..query.len().min(LONGEST)]);
        }
        // Cannot fail, because bytes that a target cannot have are encoded.
        Uri::try_from(text).unwrap_or_default()
    }
}

/// Returns the path in `http://shop.example/search`.
fn behind_host(target: &[u8]) -> Option<&[u8]> {
    let host = memmem::find(target, b"://")? + 3;
    Some(memchr(b'/', &target[host..]).map_or(b"/", |at| &target[host + at..]))
}

/// Returns the path in lower case, or without its last slash. It is also used for the literal segments in a route's
/// path.
pub(crate) fn folded(path: &str, ignored: PathIgnores) -> String {
    let path = if ignored.trailing_slash && path.len() > 1 { path.strip_suffix('/').unwrap_or(path) } else { path };
    if ignored.case { path.to_ascii_lowercase() } else { path.to_owned() }
}

/// Returns the path with its unreserved characters decoded (RFC 3986, section 6.2.2.2), hexadecimal digits in upper
/// case (6.2.2.1), without dot segments (5.2.4) and without empty segments, which proxies merge. Reserved characters
/// such as `%2F` stay as they are, and so does a slash at the end. Bytes that no path can have are encoded.
///
/// Without `parameters`, each segment is first cut at its first `;`, as servlet containers do: they read `/a/..;/b` as
/// `/b`.
pub(crate) fn normalized(path: &[u8], without_parameters: bool) -> Cow<'_, str> {
    if !without_parameters && !path.is_empty() && normal_length(path) == path.len() {
        if let Ok(path) = std::str::from_utf8(path) {
            return Cow::Borrowed(path);
        }
    }
    let decoded = decoded(path);
    let mut segments: Vec<&str> = Vec::new();
    // A path that ends in a dot segment ends in a slash.
    let mut is_folder = false;
    for segment in decoded.split('/') {
        let segment = match segment.split_once(';') {
            Some((segment, _)) if without_parameters => segment,
            _ => segment,
        };
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

/// The path without empty segments, with its dot segments.
fn merged(path: &[u8]) -> String {
    let mut merged = String::new();
    push_encoded(&mut merged, path);
    let segments = merged.split('/').filter(|segment| !segment.is_empty());
    let mut path = segments.fold(String::new(), |path, segment| path + "/" + segment);
    if merged.ends_with('/') || path.is_empty() {
        path.push('/');
    }
    path
}

/// Decodes each `%XX` once. A `%` without two digits stays.
pub(crate) fn percent_decoded(text: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, behind)) = rest.split_first() {
        rest = behind;
        match code(behind).filter(|_| *byte == b'%') {
            Some(code) => {
                rest = &behind[2..];
                decoded.push(code);
            }
            None => decoded.push(*byte),
        }
    }
    decoded
}

fn without_fragment(target: &[u8]) -> &[u8] {
    memchr(b'#', target).map_or(target, |at| &target[..at])
}

/// Returns how long the target's path is in its one spelling, up to the first place where it may differ. Zero if there
/// is no path.
fn normal_length(target: &[u8]) -> usize {
    if target.first() != Some(&b'/') {
        return 0;
    }
    let mut before = b' ';
    let end = target.iter().position(|byte| {
        let is_normal = match byte {
            b'%' | b'?' => false,
            // An empty segment, or perhaps one of dots.
            b'/' | b'.' if before == b'/' => false,
            byte => IS_IN_PATH[usize::from(*byte)],
        };
        before = *byte;
        !is_normal
    });
    end.unwrap_or(target.len())
}

/// Decodes escapes for unreserved characters, and encodes bytes that no path can have.
fn decoded(path: &[u8]) -> String {
    let mut decoded = String::with_capacity(path.len());
    let mut rest = path;
    while let Some((byte, behind)) = rest.split_first() {
        rest = behind;
        match (byte, code(behind)) {
            (b'%', Some(code)) => {
                rest = &behind[2..];
                match code {
                    b'-' | b'.' | b'_' | b'~' => decoded.push(char::from(code)),
                    code if code.is_ascii_alphanumeric() => decoded.push(char::from(code)),
                    code => push_code(&mut decoded, code),
                }
            }
            (byte, _) => push_encoded(&mut decoded, &[*byte]),
        }
    }
    decoded
}

/// Reads the two digits behind a `%`.
fn code(behind: &[u8]) -> Option<u8> {
    let digits = std::str::from_utf8(behind.get(..2)?).ok()?;
    // `from_str_radix` would take a sign.
    let is_code = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    u8::from_str_radix(digits, 16).ok().filter(|_| is_code)
}

fn push_encoded(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        if is_in_path(*byte) { text.push(char::from(*byte)) } else { push_code(text, *byte) }
    }
}

fn push_code(text: &mut String, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    text.extend(['%', char::from(DIGITS[usize::from(byte >> 4)]), char::from(DIGITS[usize::from(byte & 15)])]);
}

/// A table of [`is_in_path`], since paths are long.
const IS_IN_PATH: [bool; 256] = {
    let mut all = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        #[allow(clippy::cast_possible_truncation, reason = "below 256")]
        {
            all[byte] = is_in_path(byte as u8);
        }
        byte += 1;
    }
    all
};

/// Whether a path or a query can contain the byte: `pchar` in RFC 3986, a slash, or `?`. A `%` without digits stays.
const fn is_in_path(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'-' | b'.'
                | b'_'
                | b'~'
                | b'!'
                | b'$'
                | b'&'
                | b'\''
                | b'('
                | b')'
                | b'*'
                | b'+'
                | b','
                | b';'
                | b'='
                | b':'
                | b'@'
                | b'/'
                | b'?'
                | b'%'
        )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cases::cases;

    fn path(target: &str) -> String {
        Target::read(target.as_bytes()).unwrap().path.into_owned()
    }

    #[test]
    fn spellings_of_a_path_are_one() {
        for target in [
            "/export",
            "/%65xport",
            "/%65%78port",
            "//export",
            "/a/../export",
            "/./export",
            "/%2e%2E/export",
            "/export#/../x",
            "/export?q=#",
            "http://shop.example/export",
            "https://shop.example:8080//export?q",
        ] {
            assert_eq!(path(target), "/export", "{target}");
        }
        for (target, expected) in [
            ("/", "/"),
            ("//", "/"),
            ("/..", "/"),
            ("/?q=/..", "/"),
            ("http://shop.example", "/"),
            ("/a/", "/a/"),
            ("/a/.", "/a/"),
            ("/a/b/..", "/a/"),
            ("/a/...", "/a/..."),
            ("/.well-known/x", "/.well-known/x"),
            ("/a%2Fb", "/a%2Fb"),
            ("/a%2fb", "/a%2Fb"),
            ("/a%", "/a%"),
            ("/%zz%4", "/%zz%4"),
            ("/%+1", "/%+1"),
            ("/%25%36%35", "/%2565"),
            ("/%c3%A4", "/%C3%A4"),
            ("/ä%61", "/%C3%A4a"),
            ("/a<b>\"`|\\", "/a%3Cb%3E%22%60%7C%5C"),
            ("/a;x/b", "/a;x/b"),
        ] {
            assert_eq!(path(target), expected, "{target}");
        }
        for target in ["", "*", "export", "shop.example:443"] {
            assert!(Target::read(target.as_bytes()).is_none(), "{target}");
        }
    }

    #[test]
    fn apps_may_ignore_parts() {
        let all = PathIgnores { case: true, trailing_slash: true, parameters: true };
        for target in ["/export", "/EXPORT", "/export/", "/Export;x=1/", "/a/..;/export", "/%45xport;x?y"] {
            assert_eq!(Target::read(target.as_bytes()).unwrap().path_without(all), "/export", "{target}");
        }
        let target = Target::read(b"/Export;x/").unwrap();
        for (ignored, expected) in [
            (PathIgnores::default(), "/Export;x/"),
            (PathIgnores { case: true, ..PathIgnores::default() }, "/export;x/"),
            (PathIgnores { trailing_slash: true, ..PathIgnores::default() }, "/Export;x"),
            (PathIgnores { parameters: true, ..PathIgnores::default() }, "/Export/"),
        ] {
            assert_eq!(target.path_without(ignored), expected);
        }
        assert_eq!(Target::read(b"/").unwrap().path_without(all), "/");
    }

    #[test]
    fn other_readings_are_those_of_apps() {
        for (target, reading) in [
            ("/api%2Fexport", "/api/export"),
            ("/v1/job%3Arun", "/v1/job:run"),
            ("//h/Ex/port", "/Ex/port"),
            ("/Ex\\port", "/Ex/port"),
            ("/\\h/Ex/port", "/Ex/port"),
            ("/x\\..\\Ex/port", "/Ex/port"),
            ("/files/../x", "/files/../x"),
            ("/files/%2e%2e/x", "/files/../x"),
            ("/user/.", "/user/."),
        ] {
            let readings = Target::read(target.as_bytes()).unwrap().other_readings(PathIgnores::default());
            assert!(readings.iter().any(|found| found == reading), "{target}: {readings:?}");
        }
        for target in ["/export", "/a/b;c", "/a.b/c?x=%2F/.."] {
            assert!(
                Target::read(target.as_bytes()).unwrap().other_readings(PathIgnores::default()).is_empty(),
                "{target}"
            );
        }
        let all = PathIgnores { case: true, trailing_slash: true, parameters: true };
        assert!(Target::read(b"/A%2FB;x/").unwrap().other_readings(all).contains(&"/a/b".to_owned()));
    }

    #[test]
    fn long_queries_are_cut() {
        let target = format!("/a?{}", "é\"".repeat(LONGEST));
        let uri = Target::read(target.as_bytes()).unwrap().uri();
        assert_eq!(uri.path(), "/a");
        assert!(uri.query().unwrap().starts_with("%C3%A9%22%C3"));
    }

    proptest! {
        #![proptest_config(cases(256))]

        #[test]
        fn a_normalized_path_has_no_other_spelling(path in "/[a%./2eE5;]{0,12}") {
            for without_parameters in [false, true] {
                let once = normalized(path.as_bytes(), without_parameters).into_owned();
                prop_assert!(once.starts_with('/') && !once.contains("//"), "{once}");
                prop_assert!(!once.split('/').any(|segment| segment == "." || segment == ".."), "{once}");
                // A second pass would decode text that a client has encoded twice, while apps decode it once.
                if !path.contains("%25") {
                    prop_assert_eq!(normalized(once.as_bytes(), without_parameters), once.as_str());
                }
            }
        }

        /// For any bytes, the policies see a path that is valid in a URI.
        #[test]
        fn all_targets_are_uris(mut target in prop::collection::vec(any::<u8>(), 0..99)) {
            target.insert(0, b'/');
            let target = Target::read(&target).unwrap();
            let uri = target.uri();
            prop_assert_eq!(uri.path(), &*target.path);
        }
    }
}
