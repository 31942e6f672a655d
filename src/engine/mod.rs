//! Decides on subjects of any kind, such as HTTP requests, messages or jobs. It does not know HTTP types, because a
//! [`domain`] defines the subjects that policies read, and translates their decisions.

// The bounds are private: they are the engine's needs from this crate's two domains.
#![allow(private_bounds)]

pub(crate) mod direct;
pub(crate) mod domain;
pub(crate) mod evaluate;
pub(crate) mod first_requests;
pub(crate) mod key;
mod log;
pub(crate) mod outcome;
pub(crate) mod permits;
pub(crate) mod policy;
pub(crate) mod reason;
pub(crate) mod reload;
pub(crate) mod settled_names;
pub(crate) mod settlement;
pub(crate) mod shed_replies;
pub(crate) mod snapshot;
pub(crate) mod translate;
pub(crate) mod verdict;
