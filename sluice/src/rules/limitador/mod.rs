//! Files of Kuadrant's Limitador, whose conditions are plain comparisons.

mod expression;
mod read;
mod select;
#[cfg(test)]
mod tests;

pub(crate) use self::read::parse;
