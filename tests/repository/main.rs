//! Checks the repository against its documents: imports, threats, and the pictures, tables and quotes of the guide.

mod capacity;
#[path = "../../examples/capacity/model/mod.rs"]
#[allow(dead_code, clippy::float_arithmetic, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
mod capacity_model;
mod defaults;
mod guide;
mod imports;
mod misconfigured;
#[path = "../../examples/shapes/picture.rs"]
mod picture;
#[path = "../../examples/shapes/simulation.rs"]
mod simulation;
mod threats;
#[path = "../../examples/shapes/traffic.rs"]
mod traffic;
