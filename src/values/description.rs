//! What a limiter says of itself.

use std::fmt;
use std::sync::Arc;

use crate::values::{Batching, Mode, Terms};

/// What a limiter is, as far as layers and clients need to know it ahead. Asked once, when a policy is made.
///
/// That of a limiter of your own, which rejects and never delays, is `Description::new()`; with [`advertising`](Self::advertising)
/// clients are told of it, and with [`answering`](Self::answering) it can be asked without being charged.
#[derive(Clone, Default)]
#[must_use]
pub struct Description {
    terms: Option<Terms>,
    max_cost: Option<u32>,
    delays: bool,
    modes: u8,
    batching: Option<Arc<dyn Batching>>,
}

impl Description {
    /// A limiter that is not advertised, admits any cost, never delays, and answers [`Mode::Charge`] alone.
    pub const fn new() -> Self {
        Self { terms: None, max_cost: None, delays: false, modes: 0, batching: None }
    }

    /// Has clients be told of these terms in advance. A limiter without terms is not mentioned in the fields about what is left.
    pub const fn advertising(mut self, terms: Terms) -> Self {
        self.terms = Some(terms);
        self
    }

    /// The greatest cost that is ever admitted.
    pub const fn admitting_at_most(mut self, cost: u32) -> Self {
        self.max_cost = Some(cost);
        self
    }

    /// It may hold a request back until its turn. Such limiters are asked last, so that nobody waits only to be rejected by
    /// another policy.
    pub const fn delaying(mut self) -> Self {
        self.delays = true;
        self
    }

    /// It answers this mode, too. Of those that it does not, a layer
    ///
    /// - does without [`Mode::Peek`]: nothing is known ahead of the charge, so that more has to be rolled back;
    /// - asks [`Mode::Charge`] in place of [`Mode::Shadow`], and of [`Mode::UpTo`], where it asks once more for what is left;
    /// - answers 503 in place of [`Mode::Fallback`];
    /// - reports an error in place of [`Mode::Reset`].
    pub const fn answering(mut self, mode: Mode) -> Self {
        self.modes |= bit(mode);
        self
    }

    /// It answers all modes.
    pub(crate) const fn answering_all(mut self) -> Self {
        self.modes = u8::MAX;
        self
    }

    pub(crate) fn batching(mut self, batching: impl Batching) -> Self {
        self.batching = Some(Arc::new(batching));
        self
    }

    /// What clients are told of it.
    #[must_use]
    pub const fn terms(&self) -> Option<Terms> {
        self.terms
    }

    /// The greatest cost that is ever admitted, if there is one.
    #[must_use]
    pub const fn max_cost(&self) -> Option<u32> {
        self.max_cost
    }

    /// Whether it may hold a request back until its turn.
    #[must_use]
    pub const fn delays(&self) -> bool {
        self.delays
    }

    /// Whether it may be asked in this mode.
    #[must_use]
    pub const fn answers(&self, mode: Mode) -> bool {
        self.modes & bit(mode) != 0 || matches!(mode, Mode::Charge)
    }

    /// Whether it is known ahead what it decides, and at once.
    #[cfg_attr(not(feature = "http"), allow(dead_code))]
    pub(crate) const fn answers_at_once(&self) -> bool {
        !self.delays && self.batching.is_none() && self.answers(Mode::Peek)
    }

    pub(crate) fn batches(&self) -> Option<&dyn Batching> {
        self.batching.as_deref()
    }
}

const fn bit(mode: Mode) -> u8 {
    1 << mode as u8
}

impl fmt::Debug for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Description")
            .field("terms", &self.terms)
            .field("max_cost", &self.max_cost)
            .field("delays", &self.delays)
            .finish_non_exhaustive()
    }
}
