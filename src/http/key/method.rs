//! `MethodKey`: keys from the method.

use http::Method;

use super::{KeyError, KeyExtractor, KeyTextError, identity_of};
use crate::http::head::RequestHead;
use crate::values::PartitionKey;

/// Keys by the method: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS, TRACE and CONNECT have a budget each, and all
/// others share one, since a client may write any text for a method.
///
/// Clients share these budgets. Combine it with the key of a client to limit each by itself:
///
/// ```
/// use tower_sluice::key::{MethodKey, PeerIp};
/// use tower_sluice::{Policy, Quota};
///
/// let policy = Policy::new("client", Quota::per_second(10)).key((PeerIp::new(), MethodKey::new()));
/// ```
///
/// Most apps answer HEAD by the handler of GET, so a client has both budgets for one handler.
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct MethodKey {
    _private: (),
}

impl MethodKey {
    /// Keys by the method.
    pub const fn new() -> Self {
        Self { _private: () }
    }
}

const KNOWN: [Method; 9] = [
    Method::GET,
    Method::HEAD,
    Method::POST,
    Method::PUT,
    Method::PATCH,
    Method::DELETE,
    Method::OPTIONS,
    Method::TRACE,
    Method::CONNECT,
];

/// The key of all other methods. Methods are in upper case.
const OTHER: &str = "other";

impl KeyExtractor for MethodKey {
    fn extract(&self, head: &RequestHead<'_>) -> Result<PartitionKey, KeyError> {
        let method = head.method();
        Ok(if KNOWN.contains(method) { method.as_str() } else { OTHER }.into())
    }

    /// By a method, and not by a client.
    fn is_shared(&self) -> bool {
        true
    }

    fn identity(&self) -> Option<String> {
        identity_of(self)
    }

    fn read_text(&self, text: &str) -> Result<PartitionKey, KeyTextError> {
        let text = text.trim();
        let known = KNOWN.iter().map(Method::as_str).chain([OTHER]).find(|name| name.eq_ignore_ascii_case(text));
        known.map(PartitionKey::from).ok_or_else(|| KeyTextError::new("a method, such as GET, or other"))
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::engine::key::text_of;
    use crate::http::key::key_of_text;

    #[test]
    fn unknown_methods_share_a_key() {
        let key = |method: &str| {
            let request = Request::builder().method(method).body(()).unwrap();
            MethodKey::new().extract(&RequestHead::from(&request)).unwrap()
        };
        assert_ne!(key("GET"), key("HEAD"));
        assert_eq!([key("BREW"), key("get")], [const { "other" }; 2].map(PartitionKey::from));
        for method in ["GET", "PATCH", "BREW"] {
            let text = text_of(&MethodKey::new(), &key(method));
            assert_eq!(key_of_text(&MethodKey::new(), &text), Ok(key(method)));
        }
        assert!(MethodKey::new().read_text("brew").is_err());
    }
}
