//! Two layers to compare with.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::ConnectInfo;
use futures_util::future::{Either, Ready, ready};
use http::{Request, Response, StatusCode};
use tower::Service;
use tower_sluice::{Limiter, PartitionKey};

use crate::ours;

/// The floor under a layer's cost: looks up the peer, makes one decision, and calls the service.
#[derive(Clone)]
pub struct Minimal<A, S> {
    pub admits: A,
    pub inner: S,
}

/// Decides by a limiter as policies hold it.
pub fn asks(limiter: Arc<dyn Limiter>) -> impl Fn(&PartitionKey) -> bool + Clone {
    move |key| ours::admits(&*limiter, key)
}

impl<B, A, S> Service<Request<B>> for Minimal<A, S>
where
    A: Fn(&PartitionKey) -> bool,
    S: Service<Request<B>, Response = Response<Body>, Error = Infallible>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Either<S::Future, Ready<Result<Response<Body>, Infallible>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().expect("the peer is known").0;
        if (self.admits)(&PartitionKey::from(peer.ip())) {
            return Either::Left(self.inner.call(request));
        }
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        Either::Right(ready(Ok(response)))
    }
}

/// A layer that does nothing. Its time is the least that any layer adds to an axum app.
#[derive(Clone)]
pub struct Pass<S>(pub S);

impl<R, S: Service<R>> Service<R> for Pass<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: R) -> S::Future {
        self.0.call(request)
    }
}
