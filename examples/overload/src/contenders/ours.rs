//! Our limiter.

use std::num::NonZeroU32;
use std::time::Duration;

use http::Request;
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::key::HeaderKey;
use tower_sluice::limiter::Priority;
use tower_sluice::{Overload, Policy, RateLimitLayer};

use super::{Contender, Entrance, entrance};
use crate::job::Job;
use crate::server::Server;

/// Our limiter's name.
pub const OURS: &str = "ours";

/// This project's limiter, with its defaults.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ours {
    /// The longest wait, unless it is the default.
    pub(crate) max_wait: Option<Duration>,
    /// Whether the tenants have weights.
    pub(crate) is_weighted: bool,
    /// Whether requests that compute and those that wait for another server have separate limiters.
    pub(crate) is_apart: bool,
}

impl Contender for Ours {
    fn name(&self) -> &str {
        OURS
    }

    fn protect(&self, server: Server) -> Entrance {
        if !self.is_apart {
            return self.protect_alone(server);
        }
        let [computing, asleep] = [(); 2].map(|()| self.protect_alone(server.clone()));
        entrance(service_fn(move |request: Request<()>| {
            let is_io = request.extensions().get::<Job>().is_some_and(|job| job.is_io);
            if is_io { asleep.clone() } else { computing.clone() }.oneshot(request)
        }))
    }
}

impl Ours {
    fn protect_alone(self, server: Server) -> Entrance {
        let limiter = match self.max_wait {
            Some(max_wait) => Overload::new().max_wait(max_wait),
            None => Overload::new(),
        };
        let overload =
            Policy::new("overload", limiter).key(HeaderKey::from_static("x-api-key")).priority_fn(|request| {
                match request.extensions().get::<Job>() {
                    Some(job) if job.is_top() => Priority::High,
                    _ => Priority::Normal,
                }
            });
        let weight_of = |job: &Job| NonZeroU32::MIN.saturating_add(job.tenant.into());
        let overload = if self.is_weighted {
            overload.weight_fn(move |request| request.extensions().get().map_or(NonZeroU32::MIN, weight_of))
        } else {
            overload
        };
        entrance(RateLimitLayer::new(overload).layer(server))
    }
}
