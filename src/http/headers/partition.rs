//! `pk`: a keyed hash of the partition key, by which a client can distinguish its budgets. It does not reveal the key.

use std::sync::OnceLock;

use http::header::{CACHE_CONTROL, ETAG, EXPIRES, LAST_MODIFIED};
use http::{HeaderMap, HeaderValue};

use super::decimal::Scratch;
use crate::util::base64;
use crate::util::keyed_hash::Secret;
use crate::values::PartitionKey;

/// Returns the secret that all layers of this process share.
pub(super) fn secret_of_process() -> Secret {
    static SECRET: OnceLock<Secret> = OnceLock::new();
    *SECRET.get_or_init(Secret::random)
}

/// A keyed hash of a partition key, as `pk` advertises it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark([u8; 8]);

impl Mark {
    pub(super) fn new(secret: Secret, key: &PartitionKey) -> Self {
        Self(secret.mark(key.as_bytes()).to_be_bytes())
    }

    /// Appends a Byte Sequence (RFC 9651, section 3.3.5).
    pub(super) fn push(self, out: &mut Scratch) {
        out.push(b":");
        for index in 0..base64::length(self.0.len()) {
            out.push(&[base64::character(base64::STANDARD, &self.0, index)]);
        }
        // Eleven characters, and one for padding.
        out.push(b"=:");
    }
}

/// Whether these fields let a shared cache store the response (RFC 9111, section 3), and so send one client's mark to
/// another. Responses without such fields do not count, though a cache may store them for their status alone, because
/// otherwise nearly no response would have a mark.
pub(super) fn is_publicly_cacheable(headers: &HeaderMap) -> bool {
    let lines = || headers.get_all(CACHE_CONTROL).iter().map(HeaderValue::as_bytes);
    let directives = || lines().flat_map(|line| line.split(|byte| *byte == b',')).map(<[u8]>::trim_ascii);
    let has = |name: &str| directives().any(|directive| directive.eq_ignore_ascii_case(name.as_bytes()));
    let has_value = |name: &str| {
        directives().any(|directive| {
            let (start, rest) = directive.split_at(name.len().min(directive.len()));
            start.eq_ignore_ascii_case(name.as_bytes()) && rest.trim_ascii_start().first() == Some(&b'=')
        })
    };
    if has("public") || has_value("s-maxage") {
        return true;
    }
    // `private="field"` keeps only that field private.
    let is_kept_private = has("private") || has("no-store");
    let can_be_reused =
        [ETAG, LAST_MODIFIED, EXPIRES].iter().any(|name| headers.contains_key(name)) || has_value("max-age");
    can_be_reused && !is_kept_private
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;

    #[test]
    fn marks_depend_on_key_and_secret() {
        let mark = |secret: [u8; 16], key: &str| Mark::new(Secret::from_bytes(secret), &PartitionKey::from(key));
        assert_eq!(mark([7; 16], "alice"), mark([7; 16], "alice"));
        assert_ne!(mark([7; 16], "alice"), mark([7; 16], "bob"));
        assert_ne!(mark([7; 16], "alice"), mark([8; 16], "alice"));
        let bob = PartitionKey::from("bob");
        assert_eq!(Mark::new(secret_of_process(), &bob), Mark::new(secret_of_process(), &bob));
    }

    #[test]
    fn marks_are_written_in_base_64() {
        let text = |bytes: [u8; 8]| {
            let mut out = Scratch::new();
            Mark(bytes).push(&mut out);
            String::from_utf8(out.to_vec()).unwrap()
        };
        assert_eq!(text([0; 8]), ":AAAAAAAAAAA=:");
        assert_eq!(text([255; 8]), "://////////8=:");
        assert_eq!(text(*b"trial121"), ":dHJpYWwxMjE=:");
    }

    #[test]
    fn publicly_cacheable_responses_are_recognised() {
        let cacheable = |lines: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in lines {
                headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
            }
            is_publicly_cacheable(&headers)
        };
        for public in [
            &[("cache-control", "public")][..],
            &[("cache-control", "max-age=60, PUBLIC")],
            &[("cache-control", "s-maxage=60")],
            &[("cache-control", "private"), ("cache-control", "S-MaxAge=60")],
            &[("cache-control", "max-age=60")],
            &[("etag", "\"a\"")],
            &[("last-modified", "Mon, 05 Aug 2019 09:27:00 GMT"), ("cache-control", "no-cache")],
            &[("etag", "\"a\""), ("cache-control", "private=\"set-cookie\"")],
            &[("expires", "Mon, 05 Aug 2019 09:27:00 GMT")],
        ] {
            assert!(cacheable(public), "{public:?}");
        }
        for private in [
            &[][..],
            &[("cache-control", "no-store")],
            &[("cache-control", "private, max-age=60")],
            &[("etag", "\"a\""), ("cache-control", "no-transform"), ("cache-control", "Private")],
            &[("etag", "\"a\""), ("cache-control", "no-store")],
            &[("cache-control", "publicly, xs-maxage=1, s-maxage-x, notpublic")],
        ] {
            assert!(!cacheable(private), "{private:?}");
        }
    }
}
