//! The service behind the limits: it admits every request that reaches it.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use axum::body::Body;
use http::{Request, Response};
use tower::Service;

/// Answers 200, without a body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pass;

impl<B> Service<Request<B>> for Pass {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        ready(Ok(Response::new(Body::empty())))
    }
}
