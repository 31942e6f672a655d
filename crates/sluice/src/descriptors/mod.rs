//! Descriptors: what a caller of the rate limit service of Envoy's protocol says of a request, and the keys that
//! policies make of them.

mod asked;
mod brought;
mod key;
mod rule_key;

pub(crate) use self::asked::{Asked, Kind, Match, Selection};
pub(crate) use self::brought::Brought;
pub(crate) use self::key::{DESCRIPTOR, Patterns, read_key};
pub(crate) use self::rule_key::RuleKey;
