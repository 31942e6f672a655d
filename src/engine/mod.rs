//! Decides on subjects of any kind: HTTP requests, messages, jobs. It knows no HTTP type: a [`domain`] says what
//! its policies read, and translates what they decide.

// The bound says what the engine needs of the two domains of this crate.
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
