//! Budgets that many processes share, on Redis.

#![allow(dead_code, reason = "its parts are being put together")]

mod call;
mod flights;
mod key;
mod link;
mod mirror;
mod script;
