//! Methods that a crate feature adds, for programs without that feature. They exist so that the compiler names the
//! feature, where it would otherwise report that there is no such method.
//!
//! Each exists if its feature is off, with a bound that no type meets. The bound has a lifetime, since a bound without
//! any parameter would be an error where it is written.

/// Implements no feature.
#[derive(Debug)]
pub struct Off;

/// Declares a trait that no type implements, with the error for its bounds.
macro_rules! feature {
    ($name:ident, $message:literal) => {
        #[diagnostic::on_unimplemented(message = $message, label = "needs a crate feature")]
        pub trait $name {}
    };
}

#[cfg(all(not(feature = "axum"), feature = "http"))]
feature!(Axum, "this needs the crate feature `axum` of `tower-sluice`");

#[cfg(all(not(feature = "metrics"), feature = "http"))]
feature!(Metrics, "this needs the crate feature `metrics` of `tower-sluice`");

#[cfg(not(feature = "precise-timer"))]
feature!(PreciseTimer, "this needs the crate feature `precise-timer` of `tower-sluice`");
