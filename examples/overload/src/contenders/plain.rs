//! No limiter, and tower's own.

use tower::limit::ConcurrencyLimit;
use tower::load_shed::LoadShed;

use super::{Contender, Entrance, entrance};
use crate::server::Server;

/// Lets every request through.
#[derive(Clone, Copy, Debug)]
pub struct Nothing;

impl Contender for Nothing {
    fn name(&self) -> &str {
        "nothing"
    }

    fn protect(&self, server: Server) -> Entrance {
        entrance(server)
    }
}

/// tower's `ConcurrencyLimit` with a limit that a user has set, behind its `LoadShed`.
#[derive(Clone, Copy, Debug)]
pub struct Fixed {
    name: &'static str,
    limit: usize,
}

impl Fixed {
    /// Limits concurrency to this many requests.
    #[must_use]
    pub const fn new(name: &'static str, limit: usize) -> Self {
        Self { name, limit }
    }
}

impl Contender for Fixed {
    fn name(&self) -> &str {
        self.name
    }

    fn protect(&self, server: Server) -> Entrance {
        entrance(LoadShed::new(ConcurrencyLimit::new(server, self.limit)))
    }
}
