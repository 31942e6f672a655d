//! Checks the repository against its documents: imports, links, threats, the guide's quotes, measured figures, comments,
//! proofs, and the vocabulary.

mod comments;
mod defaults;
mod figures;
mod guide;
mod imports;
mod links;
mod misconfigured;
mod proofs;
mod threats;
mod vocabulary;
