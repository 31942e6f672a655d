//! Budgets that many processes share, on Redis.

#![allow(dead_code, reason = "its parts are being put together")]

mod call;
mod key;
mod link;
mod script;
