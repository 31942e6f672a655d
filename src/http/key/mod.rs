//! Whose budget a request draws on.
//!
//! | extractor | one budget per | missing when |
//! |---|---|---|
//! | [`Global`] | layer | never |
//! | [`PeerIp`] | address of the connected socket | never; a server that does not say is a [misconfiguration](KeyError::Misconfigured) |
//! | [`ClientIp`] | address of the client behind trusted proxies | as configured |
//! | [`HeaderKey`] | value of a header, such as an API key | the header is absent or blank |
//! | [`ExtensionKey`] | typed request extension, such as the authenticated user | the extension is absent |
//! | [`PathKey`] | route or path | never |
//! | a tuple of these | combination | any part is |
//! | [`key_fn`] | whatever a closure returns | it returns `None` |
//!
//! # Spellings
//!
//! Keys are compared byte for byte: nothing is put into lower case or normalised behind your back. Only the white space
//! around the value of a header is left out, which is no part of the value (RFC 9110, section 5.5); a [`key_fn`] that reads
//! a header has to do that itself, since over HTTP/2 it is still there. Key on what an identity resolves to (the number of the account) rather than on what was typed; where there is only the
//! latter, `nfkc_casefold_trim` (crate feature `unicode`) makes its spellings one.

mod client_ip;
mod extension;
mod forwarded;
mod function;
mod header;
mod hint;
mod ip;
mod list;
#[cfg(feature = "unicode")]
mod normalize;
mod path;
mod sameness;
mod source;
mod trusted;
mod tuple;

use std::borrow::Cow;
use std::error::Error;
use std::fmt;

pub use self::client_ip::{ClientIp, Unidentified};
pub use self::extension::{ExtensionKey, User};
pub use self::function::{FnKey, key_fn};
pub use self::header::HeaderKey;
pub use self::ip::{IpNetwork, PeerIp, peer_addr};
#[cfg(feature = "unicode")]
pub use self::normalize::nfkc_casefold_trim;
pub use self::path::PathKey;
pub(crate) use self::sameness::Sameness;
pub use self::source::IpSource;
pub use self::trusted::{TrustedProxies, TrustedProxiesError};

use crate::http::head::RequestHead;
use crate::values::PartitionKey;

/// Reads the key of a request from its head.
///
/// Object safe, and never handed a body: a request is judged before its body is read.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not tell clients apart",
    note = "a closure that reads the key from the request's head goes into `key_fn(...)`"
)]
pub trait KeyExtractor: Send + Sync + 'static {
    /// The key.
    ///
    /// # Errors
    ///
    /// If the request does not tell; what that means is the policy's choice
    /// ([`Policy::on_missing_key`](crate::Policy::on_missing_key)), save for mistakes in the set-up.
    fn extract(&self, head: &RequestHead<'_>) -> Result<PartitionKey, KeyError>;

    /// Whether every request has the same key, so that a refusal is nobody's own doing (and is
    /// answered 503, not 429).
    fn is_shared(&self) -> bool {
        false
    }
}

impl<K: KeyExtractor + ?Sized> KeyExtractor for Box<K> {
    fn extract(&self, head: &RequestHead<'_>) -> Result<PartitionKey, KeyError> {
        (**self).extract(head)
    }

    fn is_shared(&self) -> bool {
        (**self).is_shared()
    }
}

/// Everybody shares one budget.
#[derive(Clone, Copy, Debug, Default)]
pub struct Global;

impl KeyExtractor for Global {
    fn extract(&self, _: &RequestHead<'_>) -> Result<PartitionKey, KeyError> {
        Ok(PartitionKey::SHARED)
    }

    fn is_shared(&self) -> bool {
        true
    }
}

/// Why a request has no key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// The client did not send what identifies it.
    Missing {
        /// What was looked for, as in "header x-api-key".
        what: Cow<'static, str>,
    },
    /// The client sent it more than once. Always refused: whichever of the two were believed, a
    /// client could name somebody else's budget, or a new one each time.
    Ambiguous {
        /// What was looked for, as in "header x-api-key".
        what: Cow<'static, str>,
    },
    /// The server is not set up to tell. Always refused, as the server's error.
    Misconfigured {
        /// The name of the mistake, and its cure.
        problem: Cow<'static, str>,
    },
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
