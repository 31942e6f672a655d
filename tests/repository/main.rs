//! Checks the repository against its documents: imports, links, threats, the names of tests and functions, the guide's
//! quotes, measured figures, proofs, and the vocabulary.

mod defaults;
mod figures;
mod guide;
mod imports;
mod links;
mod misconfigured;
mod named;
mod proofs;
mod threats;
mod vocabulary;
