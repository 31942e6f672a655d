//! Checks the repository against its documents: imports, threats, and the guide's quotes.

mod guide;
mod imports;
mod threats;
