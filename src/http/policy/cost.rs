//! The cost of a request: what it is charged when it comes, and what its response, or the handler, makes of that.

use crate::http::head::{RequestHead, ResponseHead};

/// The cost that is charged when a request comes.
pub(super) enum Cost {
    Fixed(u64),
    PerRequest(Box<dyn Fn(&RequestHead<'_>) -> u64 + Send + Sync>),
}

impl Cost {
    #[inline]
    pub(super) fn of(&self, head: &RequestHead<'_>) -> u64 {
        match self {
            Self::Fixed(cost) => *cost,
            Self::PerRequest(cost) => cost(head),
        }
    }

    /// The cost of every request, if it is known in advance.
    pub(super) const fn fixed(&self) -> Option<u64> {
        match self {
            Self::Fixed(cost) => Some(*cost),
            Self::PerRequest(_) => None,
        }
    }
}

/// What the final cost of a request depends on.
pub(super) enum Bill {
    /// The head of the response: what was charged, or nothing.
    When(Box<dyn Fn(&ResponseHead<'_>) -> bool + Send + Sync>),
    /// The head of the response.
    Cost(Box<dyn Fn(&ResponseHead<'_>) -> u64 + Send + Sync>),
    /// What the handler reports until the body of the response has ended.
    ByHandler,
    /// The bytes of the body of the response.
    ContentBytes,
}

impl Bill {
    /// The final cost of a request that was charged `charged`, if the head of its response decides.
    pub(super) fn by_head(&self, charged: u64, response: &ResponseHead<'_>) -> Option<u64> {
        match self {
            Self::When(condition) if condition(response) => Some(charged),
            Self::When(_) => Some(0),
            Self::Cost(cost) => Some(cost(response)),
            Self::ByHandler | Self::ContentBytes => None,
        }
    }
}
