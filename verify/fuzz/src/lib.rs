//! Helpers of several targets.

pub mod forwarding;
pub mod layer;
