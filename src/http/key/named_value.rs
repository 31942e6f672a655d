//! `CookieKey` and `QueryKey`: keys from one value in a list of names and values.

use std::borrow::Cow;

use http::header::COOKIE;

use super::{KeyError, KeyExtractor};
use crate::http::head::RequestHead;
use crate::values::PartitionKey;

/// Keys by a cookie's value, such as a session.
///
/// A client that can choose the value can choose the budget, and a cookie is easily dropped, so use it for sessions
/// that were checked, or beside a policy by address.
///
/// All spellings of a value are one key, because apps read them alike: `%61` is `a`, and `"a"` and `"\141"` are `a`. If
/// some app takes characters around a name or a value for white space (Unicode included), they are not part of it. A
/// cookie that is absent or empty is missing. A cookie that comes with two values is [ambiguous](KeyError::Ambiguous),
/// and the request is rejected, because apps differ in which value they take.
///
/// ```
/// use tower_sluice::key::CookieKey;
///
/// let key = CookieKey::new("session");
/// ```
#[derive(Clone, Debug)]
#[must_use]
#[doc(alias("session"))]
pub struct CookieKey {
    name: Cow<'static, str>,
}

impl CookieKey {
    /// Keys by the cookie `name`. Names are compared byte for byte.
    pub fn new(name: impl Into<Cow<'static, str>>) -> Self {
        Self { name: name.into() }
    }
}

impl KeyExtractor for CookieKey {
    fn extract(&self, head: &RequestHead<'_>) -> Result<PartitionKey, KeyError> {
        // Over HTTP/2, each cookie may be a separate field.
        let fields = head.headers().get_all(COOKIE).iter();
        let cookies = fields.flat_map(|field| field.as_bytes().split(|byte| *byte == b';'));
        let pairs = cookies.filter_map(split);
        let values = pairs.filter(|(name, _)| trimmed(name) == self.name.as_bytes()).map(|(_, value)| {
            let value = trimmed(value);
            match value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")) {
                Some(quoted) if quoted.contains(&b'\\') => Cow::Owned(decoded(&unescaped(quoted), false).into_owned()),
                Some(quoted) => decoded(quoted, false),
                None => decoded(value, false),
            }
        });
        only(values, || format!("cookie {}", self.name))
    }
}

/// Keys by a query parameter's value, such as `?api_key=…`.
///
/// A client that can choose the value can choose the budget: see [`HeaderKey`](super::HeaderKey). Keys in a query also
/// end up in logs, so a header is the better place for them.
///
/// Names and values are decoded as forms are: `%61` is `a`, and `+` a space. A parameter that is absent or empty is
/// missing. A parameter that comes with two values is [ambiguous](KeyError::Ambiguous), and the request is rejected,
/// because apps differ in which value they take.
///
/// ```
/// use tower_sluice::key::QueryKey;
///
/// let key = QueryKey::new("api_key");
/// ```
#[derive(Clone, Debug)]
#[must_use]
#[doc(alias("api key", "parameter"))]
pub struct QueryKey {
    name: Cow<'static, str>,
}

impl QueryKey {
    /// Keys by the parameter `name`, after decoding.
    pub fn new(name: impl Into<Cow<'static, str>>) -> Self {
        Self { name: name.into() }
    }
}

impl KeyExtractor for QueryKey {
    fn extract(&self, head: &RequestHead<'_>) -> Result<PartitionKey, KeyError> {
        let whole = head.extensions().get::<WholeQuery>().map(|query| &*query.0);
        let query = whole.unwrap_or_else(|| head.uri().query().unwrap_or_default().as_bytes());
        let pairs = query.split(|byte| *byte == b'&').filter_map(split);
        let values = pairs.filter(|(name, _)| *decoded(name, true) == *self.name.as_bytes());
        only(values.map(|(_, value)| decoded(value, true)), || format!("query parameter {}", self.name))
    }
}

/// An extension with a request's query, for programs that describe requests with longer queries than a `Uri` can have.
#[derive(Clone, Debug)]
pub struct WholeQuery(pub bytes::Bytes);

/// The only value as a key. Equal values count as one.
fn only<'a>(
    mut values: impl Iterator<Item = Cow<'a, [u8]>>,
    what: impl Fn() -> String,
) -> Result<PartitionKey, KeyError> {
    let value = values.next().unwrap_or_default();
    if values.any(|other| other != value) {
        return Err(KeyError::Ambiguous { what: what().into() });
    }
    if value.is_empty() { Err(KeyError::Missing { what: what().into() }) } else { Ok((&*value).into()) }
}

/// Removes white space at both ends, like apps that read the bytes as Latin-1 (Python's `str.strip`).
fn trimmed(text: &[u8]) -> &[u8] {
    let is_space = |byte: &u8| matches!(*byte, b'\t'..=b'\r' | 0x1c..=b' ' | 0x85 | 0xa0);
    let begin = text.iter().position(|byte| !is_space(byte)).unwrap_or(text.len());
    let end = text.iter().rposition(|byte| !is_space(byte)).map_or(begin, |last| last + 1);
    &text[begin..end]
}

/// Undoes the escapes in a quoted string: `\"` (RFC 9110, section 5.6.4), and `\141` in octal, which Python's cookies
/// have.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut unescaped = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, behind)) = rest.split_first() {
        rest = behind;
        if *byte != b'\\' {
            unescaped.push(*byte);
            continue;
        }
        match behind {
            [high @ b'0'..=b'3', middle @ b'0'..=b'7', low @ b'0'..=b'7', behind @ ..] => {
                unescaped.push((high - b'0') << 6 | (middle - b'0') << 3 | (low - b'0'));
                rest = behind;
            }
            [escaped, behind @ ..] => {
                unescaped.push(*escaped);
                rest = behind;
            }
            [] => unescaped.push(b'\\'),
        }
    }
    unescaped
}

/// Splits a pair at its first `=`. `None` without one.
fn split(pair: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = pair.iter().position(|byte| *byte == b'=')?;
    Some((&pair[..at], &pair[at + 1..]))
}

/// Decodes each `%XX` once, and in forms also `+`. A `%` without two digits stays.
fn decoded(text: &[u8], is_form: bool) -> Cow<'_, [u8]> {
    if !text.iter().any(|byte| *byte == b'%' || is_form && *byte == b'+') {
        return Cow::Borrowed(text);
    }
    let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, behind)) = rest.split_first() {
        rest = behind;
        let code = behind.first().and_then(digit).zip(behind.get(1).and_then(digit)).filter(|_| *byte == b'%');
        decoded.push(match code {
            Some((high, low)) => {
                rest = &behind[2..];
                high << 4 | low
            }
            None if is_form && *byte == b'+' => b' ',
            None => *byte,
        });
    }
    Cow::Owned(decoded)
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn cookie(fields: &[&str]) -> Result<PartitionKey, KeyError> {
        let request = fields.iter().fold(Request::builder(), |request, field| request.header("cookie", *field));
        CookieKey::new("sid").extract(&RequestHead::from(&request.body(()).unwrap()))
    }

    fn query(target: &str) -> Result<PartitionKey, KeyError> {
        QueryKey::new("api key").extract(&RequestHead::from(&Request::get(target).body(()).unwrap()))
    }

    #[test]
    fn a_cookies_spellings_are_one() {
        for fields in [
            &["sid=a=b"][..],
            &["x=1; sid=a=b"],
            &["x=1;sid=a=b ;y"],
            &["x=1", "sid = a=b"],
            &["sid=\"a=b\""],
            &["sid=%61%3D%62"],
            &["sid=a=b; sid=\"a=b\""],
            &["sid=\"\\141=b\""],
            &["sid=\"\\a\\=b\""],
        ] {
            assert_eq!(cookie(fields), Ok("a=b".into()), "{fields:?}");
        }
        assert_eq!(cookie(&["sid=%zz%4"]), Ok("%zz%4".into()));
        assert_eq!(cookie(&["sid=\"\\\\\\\"\\400\""]), Ok("\\\"400".into()));
    }

    /// Some apps read the bytes as Latin-1, and take 0x85 and 0xa0 for white space.
    #[test]
    fn cookies_exclude_surrounding_white_space() {
        let of = |fields: &[&[u8]]| {
            let request = fields.iter().fold(Request::builder(), |request, field| request.header("cookie", *field));
            CookieKey::new("sid").extract(&RequestHead::from(&request.body(()).unwrap()))
        };
        for field in [&b"sid=K\xa0"[..], b"sid=K\x85", b"\xa0sid\xa0=\x85K", b"x; \xa0sid=K"] {
            assert_eq!(of(&[field]), Ok("K".into()), "{field:?}");
        }
        let ambiguous = Err(KeyError::Ambiguous { what: "cookie sid".into() });
        assert_eq!(of(&[b"sid=rnd; \xa0sid=K"]), ambiguous);
    }

    #[test]
    fn cookies_may_be_missing_or_ambiguous() {
        for fields in [&[][..], &["sid"], &["sid="], &["sid=\"\""], &["SID=a"], &["xsid=a"]] {
            assert_eq!(cookie(fields), Err(KeyError::Missing { what: "cookie sid".into() }), "{fields:?}");
        }
        for fields in [&["sid=a; sid=b"][..], &["sid=a", "sid=b"], &["sid=; sid=b"]] {
            assert_eq!(cookie(fields), Err(KeyError::Ambiguous { what: "cookie sid".into() }), "{fields:?}");
        }
    }

    /// A client cannot spell any value so that it is another key.
    #[test]
    fn encoding_changes_no_key() {
        let parts = ["a", "=", "&", ";", " ", "+", "%", "%4", "%41", "\"", "\u{e9}", ","];
        let encoded = |text: &str| text.bytes().map(|byte| format!("%{byte:02x}")).collect::<String>();
        for value in parts.iter().flat_map(|one| parts.map(|other| format!("x{one}{other}x"))) {
            assert_eq!(query(&format!("/?api+key={}", encoded(&value))), Ok(value.as_str().into()), "{value}");
            assert_eq!(cookie(&[&format!("sid={}", encoded(&value))]), Ok(value.as_str().into()), "{value}");
        }
    }

    #[test]
    fn a_parameters_spellings_are_one() {
        for target in ["/?api+key=a+b", "/?x&api%20key=a%20b&y=1", "/?%61pi+key=%61+b", "/?api+key=a+b&api%20key=a+b"] {
            assert_eq!(query(target), Ok("a b".into()), "{target}");
        }
        assert_eq!(query("/?api+key=a=%26"), Ok("a=&".into()));
        let what = "query parameter api key";
        for target in ["/", "/?api+key", "/?api+key=", "/?API+key=a", "/?apikey=a"] {
            assert_eq!(query(target), Err(KeyError::Missing { what: what.into() }), "{target}");
        }
        for target in ["/?api+key=a&api+key=b", "/?api+key=a&%61pi+key="] {
            assert_eq!(query(target), Err(KeyError::Ambiguous { what: what.into() }), "{target}");
        }
    }
}
