//! Descriptors: how a caller of Envoy's rate limit service describes a request, and the keys that policies extract from
//! them.

mod asked;
mod brought;
mod key;
mod rule_key;

pub(crate) use self::asked::{Asked, Kind, Match, Selection};
pub(crate) use self::brought::Brought;
pub(crate) use self::key::{DESCRIPTOR, Patterns, read_key};
pub(crate) use self::rule_key::RuleKey;
