//! The compiler names the feature `reqwest`, if it is off.

use std::convert::Infallible;

use super::layer::PacerLayer;
use crate::util::feature::{Off, Reqwest};

impl PacerLayer<Infallible> {
    /// ```compile_fail,E0277
    /// let _ = tower_sluice::PacerLayer::reqwest();
    /// ```
    #[doc(hidden)]
    pub fn reqwest<'a>() -> Self
    where
        &'a Off: Reqwest,
    {
        unreachable!("no feature is off and on")
    }
}
