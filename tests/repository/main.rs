//! Checks the repository against its documents: imports, links, threats, the names of tests and functions, the guide's
//! quotes, measured figures, watched metrics, documented panics, comments, mutants, proofs, and the vocabulary.

mod comments;
mod defaults;
mod figures;
mod files;
mod guide;
mod imports;
mod links;
mod metrics;
mod misconfigured;
mod mutants;
mod named;
mod panics;
mod proofs;
mod threats;
mod vocabulary;
