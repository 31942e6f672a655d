//! Loom: every order of the steps of a few threads.
