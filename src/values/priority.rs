//! `Priority`: the classes of requests that wait.

/// How important a request is to an overloaded server: of those that wait, a limiter that
/// [sheds](crate::limiter::Description::shedding) serves the higher class first, and rejects the lower one first.
///
/// The order is strict: while requests of a class wait, none of a lower class is served. Choose the class by what the
/// server knows of the request (its route, the plan of its customer), and not by what a client claims.
///
/// Complete by definition: the classes are those of Google's servers (*Site Reliability Engineering*, chapter 21),
/// which has found that more cannot be told apart.
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
