//! What the repository says of itself: its imports, its threats, the pictures of its guide.

mod guide;
mod imports;
#[path = "../../examples/shapes/picture.rs"]
mod picture;
#[path = "../../examples/shapes/simulation.rs"]
mod simulation;
mod threats;
#[path = "../../examples/shapes/traffic.rs"]
mod traffic;
