//! Keys from request extensions: `ExtensionKey` and the ready-made `User`.

use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;

use super::{KeyError, KeyExtractor};
use crate::engine::key::text::{Content, KeyTextError};
use crate::http::head::RequestHead;
use crate::http::key::log;
use crate::values::PartitionKey;

/// Keys by a typed request extension that an outer layer has inserted: usually the authenticated user.
///
/// A request without the extension does not have a key, so it is rejected with 400, unless
/// [`Policy::on_missing_key`](crate::Policy::on_missing_key) is set. So put the layer that inserts it outside the rate
/// limit. Further inside, it inserts too late, and no request has a key. `T` is the very type that it inserts: an
/// `Account` is not found where an `Arc<Account>` was inserted.
///
/// If the first request to a policy lacks the extension, that is logged, with its type, and once more if all the first
/// 100 requests do: see [misconfigured](crate::guide::misconfigured#no-request-had-a-key). Each request without it is
/// logged at `debug`. No response has the type.
///
/// ```
/// use tower_sluice::key::ExtensionKey;
/// use tower_sluice::PartitionKey;
///
/// #[derive(Clone)]
/// struct Account {
///     id: u64,
/// }
///
/// let key = ExtensionKey::new(|account: &Account| account.id);
/// ```
///
/// Key on the account's permanent identity (its number), not on the text that the client typed, because spellings that
/// log in to the same account must share a budget.
///
/// `F` defaults to a function pointer, with which the type can be written down, for a field or a constant:
///
/// ```
/// # use tower_sluice::key::ExtensionKey;
/// # struct Account { id: u64 }
/// const BY_ACCOUNT: ExtensionKey<Account> = ExtensionKey::new(|account| account.id.into());
/// ```
#[doc(alias("user", "claims", "jwt"))]
pub struct ExtensionKey<T, F = fn(&T) -> PartitionKey> {
    read: F,
    /// A `T` is read, and not owned, so the key is `Send` and `Sync` for every `T`.
    extension: PhantomData<fn(&T)>,
}

impl<T, F, K> ExtensionKey<T, F>
where
    T: Send + Sync + 'static,
    F: Fn(&T) -> K + Send + Sync + 'static,
    K: Into<PartitionKey> + 'static,
{
    /// Keys by the value that `read` returns for the extension of type `T`.
    pub const fn new(read: F) -> Self {
        Self { read, extension: PhantomData }
    }
}

impl<T, F, K> KeyExtractor for ExtensionKey<T, F>
where
    T: Send + Sync + 'static,
    F: Fn(&T) -> K + Send + Sync + 'static,
    K: Into<PartitionKey> + 'static,
{
    fn extract(&self, head: &RequestHead<'_>) -> Result<PartitionKey, KeyError> {
        match head.extensions().get::<T>() {
            Some(extension) => Ok((self.read)(extension).into()),
            None => Err(missing(type_name::<T>())),
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

#[cold]
fn missing(extension: &'static str) -> KeyError {
    log::extension_missing(extension);
    KeyError::missing_extension(extension)
}

/// By hand, because a derived `Clone` would require `T: Clone`, though it does not contain a `T`.
impl<T, F: Clone> Clone for ExtensionKey<T, F> {
    fn clone(&self) -> Self {
        Self { read: self.read.clone(), extension: PhantomData }
    }
}

/// By hand, because closures do not have `Debug`, and a derived one would require `T: Debug`.
impl<T, F> fmt::Debug for ExtensionKey<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExtensionKey<{}>", type_name::<T>())
    }
}

/// The authenticated user, for services that do not have their own type for it. Insert it into the request's extensions
/// in the layer that authenticates, which goes outside the rate limit. A request without it does not have a key, as
/// with any [`ExtensionKey`].
///
/// ```
/// use tower_sluice::key::User;
///
/// let key = User::key();
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(User::new("alice"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User(String);

impl User {
    /// The user with this identity.
    pub fn new(id: impl Into<String>) -> Self {
        Self(id.into())
    }

    /// The identity.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.0
    }

    /// Keys by the user.
    #[must_use]
    pub fn key() -> impl KeyExtractor + Clone + fmt::Debug + use<> {
        ExtensionKey::new(|user: &Self| PartitionKey::from(user.id()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use http::Request;

    use super::*;

    /// Without `Debug`, so that this shows that a key does not need it.
    #[derive(Clone)]
    struct Account {
        id: u64,
    }

    #[test]
    fn a_clone_makes_the_same_keys() {
        // This works even if the extension is not `Clone`.
        let _ = ExtensionKey::new(|_: &Mutex<()>| 0_u64).clone();

        let mut request = Request::new(());
        request.extensions_mut().insert(Account { id: 7 });
        request.extensions_mut().insert(User::new("alice"));
        let head = RequestHead::from(&request);
        let by_account = ExtensionKey::new(|account: &Account| account.id);
        assert_eq!(by_account.clone().extract(&head), Ok(PartitionKey::from(7_u64)));
        assert_eq!(User::key().clone().extract(&head), Ok(PartitionKey::from("alice")));
    }

    #[test]
    fn missing_extensions_hide_their_type() {
        let missing = ExtensionKey::new(|account: &Account| account.id)
            .extract(&RequestHead::from(&Request::new(())))
            .unwrap_err();
        assert_eq!(missing.extension(), Some(std::any::type_name::<Account>()));
        assert_eq!(missing.to_string(), "the identity that requests are counted by is missing");
    }

    #[test]
    fn debug_names_the_extensions_type() {
        let key = ExtensionKey::new(|account: &Account| account.id);
        assert!(format!("{key:?}").ends_with("Account>"), "{key:?}");
    }
}
