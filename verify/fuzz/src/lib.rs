//! Helpers that several targets use.

pub mod forwarding;
pub mod layer;
