//! Keys from request extensions: `ExtensionKey` and the ready-made `User`.

use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;

use super::{KeyError, KeyExtractor};
use crate::http::head::RequestHead;
use crate::values::PartitionKey;

/// Keys by a typed request extension that an outer layer has inserted: usually the authenticated user.
///
/// ```
/// use tower_sluice::PartitionKey;
/// use tower_sluice::key::ExtensionKey;
///
/// #[derive(Clone)]
/// struct Account {
///     id: u64,
/// }
///
/// let key = ExtensionKey::new(|account: &Account| account.id);
/// ```
///
/// Key on what identifies the account for good (its number), not on what the client typed:
/// spellings that log in to the same account must share a budget.
pub struct ExtensionKey<T, F = fn(&T) -> PartitionKey> {
    read: F,
    extension: PhantomData<fn(&T)>,
}

impl<T, F, K> ExtensionKey<T, F>
where
    T: Send + Sync + 'static,
    F: Fn(&T) -> K + Send + Sync + 'static,
    K: Into<PartitionKey>,
{
    /// Keys by what `read` returns for the extension of type `T`.
    pub const fn new(read: F) -> Self {
        Self { read, extension: PhantomData }
    }
}

impl<T, F, K> KeyExtractor for ExtensionKey<T, F>
where
    T: Send + Sync + 'static,
    F: Fn(&T) -> K + Send + Sync + 'static,
    K: Into<PartitionKey>,
{
    fn extract(&self, head: &RequestHead<'_>) -> Result<PartitionKey, KeyError> {
        match head.extensions().get::<T>() {
            Some(extension) => Ok((self.read)(extension).into()),
            None => Err(KeyError::Missing { what: format!("request extension {}", type_name::<T>()).into() }),
        }
    }
}

impl<T, F> fmt::Debug for ExtensionKey<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExtensionKey<{}>", type_name::<T>())
    }
}

/// The authenticated user, for services without a type of their own for it. Insert it into the
/// request's extensions in the layer that authenticates.
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
    pub fn key() -> impl KeyExtractor + use<> {
        ExtensionKey::new(|user: &Self| PartitionKey::from(user.id()))
    }
}
