//! The cost of a request: what it is charged when it comes, and what its response makes of that.

use crate::http::head::{RequestHead, ResponseHead};

/// The cost that is charged when a request comes.
pub(super) enum Cost {
    Fixed(u32),
    PerRequest(Box<dyn Fn(&RequestHead<'_>) -> u32 + Send + Sync>),
}

impl Cost {
    #[inline]
    pub(super) fn of(&self, head: &RequestHead<'_>) -> u32 {
        match self {
            Self::Fixed(cost) => *cost,
            Self::PerRequest(cost) => cost(head),
        }
    }

    /// The cost of every request, if it is known in advance.
    pub(super) const fn fixed(&self) -> Option<u32> {
        match self {
            Self::Fixed(cost) => Some(*cost),
            Self::PerRequest(_) => None,
        }
    }
}

/// The final cost of a request, by its response.
pub(super) enum Bill {
    /// What was charged, or nothing.
    When(Box<dyn Fn(&ResponseHead<'_>) -> bool + Send + Sync>),
    Cost(Box<dyn Fn(&ResponseHead<'_>) -> u32 + Send + Sync>),
}

impl Bill {
    /// The final cost of a request that was charged `charged`.
    pub(super) fn final_cost(&self, charged: u32, response: &ResponseHead<'_>) -> u32 {
        match self {
            Self::When(condition) if condition(response) => charged,
            Self::When(_) => 0,
            Self::Cost(cost) => cost(response),
        }
    }
}
