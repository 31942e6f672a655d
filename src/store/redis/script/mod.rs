//! The algorithms, as the server runs them.
