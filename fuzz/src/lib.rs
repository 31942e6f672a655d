//! What several targets need.

pub mod forwarding;
pub mod layer;
