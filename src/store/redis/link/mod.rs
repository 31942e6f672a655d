//! The way to the servers, and what to do when it is barred.
