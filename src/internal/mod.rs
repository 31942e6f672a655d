//! Items that this workspace's other packages share with this one. They require exactly its version (`=`), so these
//! items may change in any version.

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
