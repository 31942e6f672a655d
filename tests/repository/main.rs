//! Checks the repository against its documents: imports, links, threats, the names of tests and functions, the guide's
//! quotes, measured figures, comments, mutants, proofs, the randomness of tests, and the vocabulary.

mod comments;
mod defaults;
mod figures;
mod files;
mod guide;
mod imports;
mod links;
mod misconfigured;
mod mutants;
mod named;
mod proofs;
mod randomness;
mod threats;
#[path = "../support/trace.rs"]
mod trace;
mod vocabulary;
