//! Keys: an extractor's results, and keys as text.

mod charge;
mod global;
mod marks;
mod same_key;
mod streak;
pub(crate) mod text;

use std::borrow::Cow;
use std::cell::Cell;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

pub use self::charge::KeyCharge;
pub use self::global::Global;
pub(crate) use self::marks::MarkIndex;
pub use self::marks::{Mark, Marks};
pub(crate) use self::same_key::SameKeyCheck;
pub(crate) use self::streak::{Length, Streak};
pub use self::text::{KeyTextError, key_of_text};
pub(crate) use self::text::{SHARED, bytes_of, read_shared, text_of, write_shared};
use crate::engine::domain::{Domain, Http};
use crate::values::PartitionKey;

/// Reads the key of a subject: of a request, from its head. `impl KeyExtractor for …` stands for HTTP, and there the
/// subject is a [`RequestHead`](crate::RequestHead).
///
/// Object safe. It never gets the body, since the layer decides on a request before its body is read.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no key extractor",
    note = "a closure that reads the key goes into `key_fn(...)` for requests, and into `key_by(...)` for other values"
)]
pub trait KeyExtractor<D: Domain = Http>: Send + Sync + 'static {
    /// Returns the key.
    ///
    /// # Errors
    ///
    /// If the request has no key. If the key is [missing](KeyError::Missing),
    /// [`Policy::on_missing_key`](crate::Policy::on_missing_key) sets how the request is treated. After any other
    /// error, the policy rejects the request.
    fn extract(&self, subject: &D::Subject<'_>) -> Result<PartitionKey, KeyError>;

    /// Whether a request may have several keys. The layer then calls [`extract_all`](Self::extract_all) in place of
    /// [`extract`](Self::extract).
    fn has_several(&self) -> bool {
        false
    }

    /// Returns all keys of a request: the recipients of a message, say. The request is charged either to all of them or
    /// to none, as it is with several policies: if one of the keys has no room, it is rejected. If there is no key, the
    /// policy does not apply.
    ///
    /// The keys should differ: a key that is there twice is charged twice.
    ///
    /// # Errors
    ///
    /// As [`extract`](Self::extract). A key that is missing is shared or skipped as the request's only key.
    ///
    /// # Cost
    ///
    /// In memory, each key is looked up twice, since all but the first are peeked at before one is charged. On a
    /// server, all keys are charged in one call, and each key that is only looked at takes another.
    fn extract_all(&self, subject: &D::Subject<'_>) -> Result<Vec<KeyCharge>, KeyError> {
        Ok(vec![KeyCharge::new(self.extract(subject)?)])
    }

    /// Whether the keys do not depend on the client, so that clients share them. A rejection may then be due to other
    /// clients, and is answered 503, not 429.
    fn is_shared(&self) -> bool {
        false
    }

    /// A text that extractors share only if they return the same result for every subject: a layer whose policies all
    /// have the same identity reads the key of a request once. It begins with the name of the type, and has all that
    /// the extractor was made with. By default `None`: the extractor is asked for each policy.
    ///
    /// Read once for each policy, when a layer is made or changed.
    fn identity(&self) -> Option<String> {
        None
    }

    /// The marks that every request with a key has, for layers of thousands of policies, such as one for each tenant:
    /// the layer finds the policies of a request by its [`Marks`], and does not ask all the others. By default, none,
    /// so that every request is asked for a key.
    ///
    /// Read once for each policy, when a layer is made or changed, and only if the extractor
    /// [has several](Self::has_several) keys: a request without a key does not concern such a policy.
    fn marks(&self) -> Vec<Mark> {
        Vec::new()
    }

    /// Returns the key that an operator writes as `text`, for [`LimitsHandle`](crate::LimitsHandle): an address, the
    /// value of a header, the name of a user, or a combination such as `alice + 203.0.113.7`.
    ///
    /// White space around a text or a part is dropped. A name that has some there, or a ` + `, or that begins with a
    /// parenthesis, is written in quotation marks, with `\"` and `\\` for those in the name, and `\xff` for a byte that
    /// cannot be typed. By default, any text that is not empty is a key, and `(shared)` the
    /// [key that all requests share](PartitionKey::SHARED).
    ///
    /// If the key is no text, such as `PartitionKey::from(17_u64)`, implement this and
    /// [`write_text`](Self::write_text). By default, a ban of `17` would ban the text `17`, which no request has as its
    /// key.
    ///
    /// # Errors
    ///
    /// If no request has such a key. The error describes the keys.
    fn read_text(&self, text: &str) -> Result<PartitionKey, KeyTextError> {
        if text.trim() == text::SHARED { Ok(PartitionKey::SHARED) } else { text::Content::Text.read(text) }
    }

    /// Writes a key as [`read_text`](Self::read_text) reads it. `None` if it cannot: only a hash of the key [is
    /// kept](PartitionKey#cost), say, or it is no key of this extractor. By default, the key is text.
    ///
    /// A [`LimitsHandle`](crate::LimitsHandle) reads the text again before it shows it. If that is not this key, or
    /// `None` is returned, it shows the bytes, `(0x00ff)`, or the hash that is kept, `(sha256:…)`, and reads them, too.
    fn write_text(&self, key: &PartitionKey) -> Option<String> {
        text::write_shared(key).or_else(|| text::write_name(key))
    }
}

/// The [identity](KeyExtractor::identity) of an extractor whose `Debug` shows all that it was made with.
pub(crate) fn identity_of<K: fmt::Debug>(extractor: &K) -> Option<String> {
    Some(format!("{} {extractor:?}", std::any::type_name::<K>()))
}

/// Implements [`KeyExtractor`] for pointers to extractors.
macro_rules! impl_for_pointers {
    ($($pointer:ident),+) => {$(
        impl<D: Domain, K: KeyExtractor<D> + ?Sized> KeyExtractor<D> for $pointer<K> {
            fn extract(&self, subject: &D::Subject<'_>) -> Result<PartitionKey, KeyError> {
                (**self).extract(subject)
            }

            fn has_several(&self) -> bool {
                (**self).has_several()
            }

            fn extract_all(&self, subject: &D::Subject<'_>) -> Result<Vec<KeyCharge>, KeyError> {
                (**self).extract_all(subject)
            }

            fn is_shared(&self) -> bool {
                (**self).is_shared()
            }

            fn identity(&self) -> Option<String> {
                (**self).identity()
            }

            fn marks(&self) -> Vec<Mark> {
                (**self).marks()
            }

            fn read_text(&self, text: &str) -> Result<PartitionKey, KeyTextError> {
                (**self).read_text(text)
            }

            fn write_text(&self, key: &PartitionKey) -> Option<String> {
                (**self).write_text(key)
            }
        }
    )+};
}

impl_for_pointers!(Box, Arc);

/// Why a request has no key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// The client did not send its identity.
    Missing {
        /// The name of the source, as in "header x-api-key". Rejections show it to clients.
        what: Cow<'static, str>,
    },
    /// The client sent it more than once. Always rejected: if either value counted, a client could draw on the budget
    /// of another client, or on a new one each time.
    Ambiguous {
        /// The name of the source, as in "header x-api-key". Rejections show it to clients.
        what: Cow<'static, str>,
    },
    /// The server is not set up to provide the key. Always rejected, as the server's error.
    Misconfigured {
        /// The mistake and its cure: for the log, not for clients.
        problem: Cow<'static, str>,
    },
}

/// What is missing if an extension is, as a [`KeyError`] shows it. Clients see it, so it does not name the type.
const EXTENSION: &str = "the identity that requests are counted by";

thread_local! {
    /// The type that this thread has missed last. A [`KeyError`] has no room for it, as clients see all that it has.
    static LAST_MISSED: Cell<&'static str> = const { Cell::new("") };
}

impl KeyError {
    #[cold]
    pub(crate) fn missing_extension(extension: &'static str) -> Self {
        LAST_MISSED.set(extension);
        Self::Missing { what: EXTENSION.into() }
    }

    /// The type of the extension that was missing, if this is the last such error on this thread. For the log only.
    pub(crate) fn extension(&self) -> Option<&'static str> {
        match self {
            Self::Missing { what } if what == EXTENSION => Some(LAST_MISSED.get()),
            _ => None,
        }
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { what } => write!(f, "{what} is missing"),
            Self::Ambiguous { what } => write!(f, "{what} was sent more than once"),
            Self::Misconfigured { problem } => f.write_str(problem),
        }
    }
}

impl Error for KeyError {}
