//! Checks the repository against its documents: imports, threats, and the pictures and quotes of the guide.

mod guide;
mod imports;
#[path = "../../examples/shapes/picture.rs"]
mod picture;
#[path = "../../examples/shapes/simulation.rs"]
mod simulation;
mod threats;
#[path = "../../examples/shapes/traffic.rs"]
mod traffic;
