//! Checks the repository against its documents: imports, links, threats, the guide's quotes, proofs, and the
//! vocabulary.

mod defaults;
mod guide;
mod imports;
mod links;
mod misconfigured;
mod proofs;
mod threats;
mod vocabulary;
