//! Checks the repository against its documents: imports, threats, and the guide's quotes.

mod defaults;
mod guide;
mod imports;
mod misconfigured;
mod threats;
