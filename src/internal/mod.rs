//! What the other packages of this workspace share with this one. They ask for exactly its version (`=`), so it may
//! change in any.

pub mod span;
