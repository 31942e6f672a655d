//! `HeaderKey`: keys from the value of one header field.

use std::borrow::Cow;

use http::{HeaderName, HeaderValue};

use super::{KeyError, KeyExtractor, identity_of};
use crate::engine::key::text::{self, KeyTextError};
use crate::http::head::{RequestHead, trimmed};
use crate::values::PartitionKey;

/// Keys by the value of a header field, such as an API key or a tenant. White space around the value is no part of it
/// (RFC 9110, section 5.5); otherwise values are compared byte for byte.
///
/// A client that can choose the value can choose the budget. Use it for values that were checked
/// (authenticate first), or beside a policy by address.
///
/// Values have any length: above 256 bytes, a hash is the key (see [`PartitionKey`]).
///
/// A field that is absent or blank is missing; one in several lines is
/// [ambiguous](KeyError::Ambiguous), and the request is rejected.
///
/// ```
/// use http::HeaderName;
/// use tower_sluice::key::HeaderKey;
///
/// let key = HeaderKey::new(HeaderName::from_static("x-api-key"));
/// ```
#[derive(Clone, Debug)]
#[must_use]
#[doc(alias("api key", "token"))]
pub struct HeaderKey {
    name: HeaderName,
}

impl HeaderKey {
    /// Keys by the value of the field `name`.
    pub const fn new(name: HeaderName) -> Self {
        Self { name }
    }

    /// [`new`](Self::new) for a name in a string constant.
    ///
    /// # Panics
    ///
    /// If `name` is not a lower-case field name.
    #[track_caller]
    pub const fn from_static(name: &'static str) -> Self {
        let (bytes, mut i) = (name.as_bytes(), 0);
        while i < bytes.len() {
            assert!(!bytes[i].is_ascii_uppercase(), "write a header's name in lower case");
            i += 1;
        }
        Self::new(HeaderName::from_static(name))
    }

    /// The name of the source, as a [`KeyError`] shows it.
    fn what(&self) -> Cow<'static, str> {
        format!("header {}", self.name).into()
    }
}

impl KeyExtractor for HeaderKey {
    fn extract(&self, head: &RequestHead<'_>) -> Result<PartitionKey, KeyError> {
        let mut lines = head.headers().get_all(&self.name).iter();
        match (lines.next(), lines.next()) {
            (Some(_), Some(_)) => Err(KeyError::Ambiguous { what: self.what() }),
            (value, _) => match value.map(trimmed) {
                None | Some([]) => Err(KeyError::Missing { what: self.what() }),
                Some(value) => Ok(value.into()),
            },
        }
    }

    fn identity(&self) -> Option<String> {
        identity_of(self)
    }

    fn read_text(&self, text: &str) -> Result<PartitionKey, KeyTextError> {
        let expected = || KeyTextError::new(format!("the value of the {}", self.what()));
        let value = text::unquoted(text).ok_or_else(expected)?;
        let value = HeaderValue::from_bytes(&value).map_err(|_| expected())?;
        Some(trimmed(&value)).filter(|value| !value.is_empty()).map(PartitionKey::from).ok_or_else(expected)
    }
}
