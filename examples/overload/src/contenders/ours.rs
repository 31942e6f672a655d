//! Our limiter.

use tower::Layer;
use tower_sluice::{Concurrency, Policy, RateLimitLayer};

use super::{Contender, Entrance, entrance};
use crate::server::Server;

/// The limiter of this project.
#[derive(Clone, Copy, Debug)]
pub struct Ours;

impl Contender for Ours {
    fn name(&self) -> &str {
        "ours"
    }

    fn protect(&self, server: Server) -> Entrance {
        let overload = Policy::new("overload", Concurrency::new(20).max_queue(20));
        entrance(RateLimitLayer::new(overload).layer(server))
    }
}
