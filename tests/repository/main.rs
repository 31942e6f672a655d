//! Checks the repository against its documents: imports, links, threats, test and function names, the guide's quotes,
//! measured figures, watched metrics, documented panics, comments, mutants, proofs, the randomness in tests, and the
//! vocabulary.

mod comments;
mod defaults;
mod figures;
mod files;
mod guide;
mod imports;
mod lanes;
mod links;
mod llms;
mod metrics;
mod misconfigured;
mod mutants;
mod named;
mod panics;
mod proofs;
mod randomness;
mod threats;
#[path = "../support/trace.rs"]
mod trace;
mod vocabulary;
