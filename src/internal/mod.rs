//! What the other packages of this workspace share with this one. They ask for exactly its version (`=`), so it may
//! change in any.

pub mod remote;
pub mod span;

#[cfg(feature = "http")]
pub use crate::http::{
    head::only_line,
    headers::{
        decimal::parse as parse_digits,
        wait::{date, seconds_in},
    },
    key::named_value::WholeQuery,
};
pub use crate::util::lock::Lock;
pub use crate::util::log::KeyHash;
pub use crate::util::random::random;
pub use crate::util::wake::let_others_take;
