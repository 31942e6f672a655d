//! Makes the compiler name the feature `reqwest`, if it is off.

use std::convert::Infallible;

use super::layer::PacerLayer;

/// Implements no feature.
#[derive(Debug)]
pub struct Off;

/// Nothing implements it. Its bound below has a lifetime, since one without any parameter would be an error where it is
/// written.
#[diagnostic::on_unimplemented(
    message = "this needs the crate feature `reqwest` of `tower-sluice-client`",
    label = "needs a crate feature"
)]
pub trait Reqwest {}

impl PacerLayer<Infallible> {
    /// ```compile_fail,E0277
    /// let _ = tower_sluice_client::PacerLayer::reqwest();
    /// ```
    #[doc(hidden)]
    pub fn reqwest<'a>() -> Self
    where
        &'a Off: Reqwest,
    {
        unreachable!("no feature is off and on")
    }
}
