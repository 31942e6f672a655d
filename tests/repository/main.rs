//! Checks the repository against its documents: imports, links, threats, and the guide's quotes.

mod defaults;
mod guide;
mod imports;
mod links;
mod misconfigured;
mod threats;
