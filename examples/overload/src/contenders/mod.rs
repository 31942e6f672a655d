//! The contenders: each stands in front of the server.

mod failsafe;
mod gradient2;
mod ours;
mod permits;
mod plain;

use std::convert::Infallible;
use std::pin::Pin;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower::util::BoxCloneService;
use tower::{BoxError, Service, ServiceExt};

pub use self::failsafe::Failsafe;
pub use self::gradient2::Gradient2;
pub use self::ours::{OURS, Ours};
pub use self::permits::{Permits, Queue, Rule, Sample};
pub use self::plain::{Fixed, Nothing};
use crate::server::Server;

/// Protects a server from overload, or tries to.
pub trait Contender: Send + Sync {
    /// Its column's heading.
    fn name(&self) -> &str;

    /// Puts a fresh limiter in front of a server. Called in a runtime whose clock is paused.
    fn protect(&self, server: Server) -> Entrance;
}

/// Where requests enter. An answer other than 200, and an error, are rejections.
pub type Entrance = BoxCloneService<Request<()>, Response<AnyBody>, BoxError>;

/// A body with any type.
pub type AnyBody = Pin<Box<dyn Body<Data = Bytes, Error = Infallible> + Send>>;

/// Turns a service into an entrance.
pub fn entrance<S, B>(service: S) -> Entrance
where
    S: Service<Request<()>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    let service = service.map_response(|response: Response<B>| response.map(|body| Box::pin(body) as AnyBody));
    BoxCloneService::new(service.map_err(Into::into))
}

/// The contenders that need no other crate than tower.
#[must_use]
pub fn contenders() -> Vec<Box<dyn Contender>> {
    vec![
        Box::new(Nothing),
        Box::new(Fixed::new("tower, limit 5", 5)),
        Box::new(Fixed::new("tower, limit 20", 20)),
        Box::new(Fixed::new("tower, limit 80", 80)),
        Box::new(Gradient2),
        Box::new(Failsafe::rejecting()),
        Box::new(Failsafe::queueing()),
        Box::new(Ours::default()),
    ]
}
