//! Descriptors of Envoy's protocol.

mod key;

pub(crate) use self::key::joined;

/// A descriptor of Envoy's protocol, version 3.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Descriptor {
    /// Keys and values, in order. A key may occur twice.
    pub(crate) entries: Vec<(String, String)>,
    /// Whether the request brings a limit for this descriptor, which replaces the limit of the file.
    pub(crate) has_own_limit: bool,
}
