//! `key_fn`: keys from a closure.

use std::any::type_name;
use std::fmt;

use super::{KeyError, KeyExtractor};
use crate::engine::key::text::{Content, KeyTextError};
use crate::http::head::RequestHead;
use crate::values::PartitionKey;

/// Keys by the value that a closure returns. `None` means that the key is missing.
///
/// Key on the client's permanent identity, such as the account number that its credentials resolve to. The text that
/// the client typed has many spellings (`Alice@example.com`, `alice@example.com `), and each would have its own budget.
///
/// ```
/// use http::header;
/// use tower_sluice::key::key_fn;
/// use tower_sluice::PartitionKey;
///
/// // One budget per host name. The closure returns a key, not a part of the request.
/// let key = key_fn(|head| {
///     let host = head.headers().get(header::HOST)?.to_str().ok()?;
///     Some(PartitionKey::from(host))
/// });
/// ```
pub const fn key_fn<F, K>(read: F) -> FnKey<F>
where
    F: Fn(&RequestHead<'_>) -> Option<K> + Send + Sync + 'static,
    K: Into<PartitionKey> + 'static,
{
    FnKey { read }
}

/// The extractor made by [`key_fn`].
#[derive(Clone)]
pub struct FnKey<F> {
    read: F,
}

impl<F, K> KeyExtractor for FnKey<F>
where
    F: Fn(&RequestHead<'_>) -> Option<K> + Send + Sync + 'static,
    K: Into<PartitionKey> + 'static,
{
    fn extract(&self, head: &RequestHead<'_>) -> Result<PartitionKey, KeyError> {
        match (self.read)(head) {
            Some(key) => Ok(key.into()),
            None => Err(KeyError::Missing { what: "what the key function looks for".into() }),
        }
    }

    /// Numbers and addresses are read and written as such. Everything else is taken for text, also a key with your own
    /// type.
    fn read_text(&self, text: &str) -> Result<PartitionKey, KeyTextError> {
        Content::of_type::<K>().read(text)
    }

    fn write_text(&self, key: &PartitionKey) -> Option<String> {
        Content::of_type::<K>().write(key)
    }
}

/// By hand, because closures do not have `Debug`.
impl<F> fmt::Debug for FnKey<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key_fn({})", type_name::<F>())
    }
}
