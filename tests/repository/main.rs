//! Checks the repository against its documents: imports, threats, the guide's quotes, and proofs.

mod defaults;
mod guide;
mod imports;
mod misconfigured;
mod proofs;
mod threats;
