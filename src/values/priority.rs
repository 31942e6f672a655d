//! `Priority`: the classes for requests that wait.

/// How important a request is to an overloaded server. Among the requests that wait, a limiter that
/// [sheds](crate::limiter::Description::shedding) serves the higher class first, and rejects the lower one first.
///
/// The order is strict: while requests in a class wait, no request in a lower class is served. Choose the class from
/// facts that the server knows (the route, the customer's plan), and not from a client's claim.
///
/// Complete by definition: Google's servers have the same classes (*Site Reliability Engineering*, chapter 21), because
/// more could not be told apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(clippy::exhaustive_enums)]
pub enum Priority {
    /// Work that can be done at any time: a batch, a crawler.
    Low,
    /// The others.
    #[default]
    Normal,
    /// People wait for it.
    High,
    /// Without it, the service is down: a payment, a login.
    Critical,
}

impl Priority {
    /// All classes, the lowest first.
    pub const ALL: [Self; 4] = [Self::Low, Self::Normal, Self::High, Self::Critical];

    /// The name in metrics and configurations: `low`, `normal`, `high` or `critical`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Normal => "normal",
            Self::High => "high",
            Self::Critical => "critical",
        }
    }
}
