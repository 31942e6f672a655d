//! Key extractors, which read the key of a request. Requests with the same key share a budget.
//!
//! | extractor | one budget per | missing when |
//! |---|---|---|
//! | [`Global`] | policy: all clients share it | never |
//! | [`PeerIp`] | address of the connected peer | never; a server that does not provide it is [misconfigured](KeyError::Misconfigured) |
//! | [`ClientIp`] | address of the client behind trusted proxies | as configured |
//! | [`HeaderKey`] | value of a header, such as an API key | the header is absent or blank |
//! | [`CookieKey`] | value of a cookie, such as a session | the cookie is absent or empty |
//! | [`QueryKey`] | value of a parameter in the query | the parameter is absent or empty |
//! | [`ExtensionKey`] | typed request extension, such as the authenticated user | the extension is absent |
//! | [`PathKey`] | route or path | never |
//! | [`MethodKey`] | method | never |
//! | a tuple of these, or a vector of boxed ones | combination of their keys | any of them is missing |
//! | [`key_fn`] | value that a closure returns | it returns `None` |
//!
//! # Spellings
//!
//! Keys are compared byte for byte: nothing is lower-cased or normalised implicitly. Only the white space around the
//! value of a header is dropped, since it is no part of the value (RFC 9110, section 5.5), and values of cookies and
//! queries are decoded, as apps do. A [`key_fn`] that reads a
//! header has to trim the value itself, since over HTTP/2 the white space is still there. If clients type a login name,
//! look up the number of the account, and use it as the key. If only the name is known, `nfkc_casefold_trim` (crate
//! feature `unicode`) unifies its spellings.

mod client_ip;
mod combined;
mod extension;
mod forwarded;
mod function;
mod header;
mod hint;
mod ip;
mod list;
mod log;
mod method;
pub(crate) mod named_value;
mod network;
#[cfg(feature = "unicode")]
mod normalize;
mod path;
mod ranges;
mod source;
mod trusted;

pub use self::client_ip::{ClientIp, Unidentified};

pub use self::extension::{ExtensionKey, User};
pub use self::function::{FnKey, key_fn};
pub use self::header::HeaderKey;
pub use self::ip::{PeerIp, peer_addr};
pub use self::method::MethodKey;
pub use self::named_value::{CookieKey, QueryKey};
pub use self::network::IpNetwork;
#[cfg(feature = "unicode")]
pub use self::normalize::nfkc_casefold_trim;
pub use self::path::PathKey;
pub(crate) use self::ranges::Ranges;
pub use self::source::IpSource;
pub use self::trusted::{TrustedProxies, TrustedProxiesError};

pub use crate::engine::key::{Global, KeyCharge, KeyError, KeyExtractor, KeyTextError, Mark, Marks, key_of_text};
use crate::engine::key::{identity_of, text};
