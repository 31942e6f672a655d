//! Files for Kuadrant's Limitador.

mod expression;
mod program;
mod read;
mod select;
#[cfg(test)]
mod tests;

pub(crate) use self::read::{parse, read};
