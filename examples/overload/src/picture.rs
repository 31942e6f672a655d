//! Draws curves.

use crate::contenders::Contender;

/// Returns the pictures, each with its name.
pub(crate) fn draw(_: &[Box<dyn Contender>]) -> Vec<(&'static str, String)> {
    Vec::new()
}
