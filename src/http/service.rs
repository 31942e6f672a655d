//! `RateLimit`, the service: evaluates each request before it calls the inner service.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tower_service::Service;

use crate::http::evaluate::{Evaluation, evaluate};
use crate::http::future::ResponseFuture;
use crate::http::head::RequestHead;
use crate::http::preflight::has_no_body;
use crate::http::reload::LayerState;
use crate::http::response_body::ResponseBody;

/// A rate-limited service, made by [`RateLimitLayer`](crate::RateLimitLayer).
///
/// Clones share their budgets.
#[derive(Clone)]
pub struct RateLimit<S> {
    inner: S,
    layer: Arc<LayerState>,
}

const _: () = assert!(size_of::<RateLimit<()>>() == size_of::<usize>(), "servers clone services for each connection");

impl<S> RateLimit<S> {
    pub(crate) const fn new(inner: S, layer: Arc<LayerState>) -> Self {
        Self { inner, layer }
    }

    /// The inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The inner service.
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for RateLimit<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone,
    // To downcast the bodies of axum and tonic, where preflights are exempt.
    ReqBody: 'static,
{
    type Response = Response<ResponseBody<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, ReqBody>;

    /// Polls the inner service only. The key is not known before the request is, and
    /// waiting here for one key would delay all others.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<ReqBody>) -> Self::Future {
        self.layer.note_mounting(request.extensions_mut());
        let in_force = self.layer.load();
        match evaluate(&self.layer, &in_force, &RequestHead::from(&request), || has_no_body(&request)) {
            Evaluation::Admitted(annotations) => {
                annotations.extend_request(request.extensions_mut());
                ResponseFuture::passing(self.inner.call(request), annotations)
            }
            Evaluation::Rejected(response) => ResponseFuture::rejected(response),
            Evaluation::Pending(evaluated) => {
                // The service that was polled ready is the one that will be called; its clone stays here and is polled
                // again: <https://docs.rs/tower/latest/tower/trait.Service.html#be-careful-when-cloning-inner-services>
                let clone = self.inner.clone();
                let ready = std::mem::replace(&mut self.inner, clone);
                ResponseFuture::waiting(evaluated, ready, request, Arc::clone(&self.layer))
            }
        }
    }
}

impl<S: fmt::Debug> fmt::Debug for RateLimit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").field("inner", &self.inner).field("policies", &self.layer.load().policies).finish()
    }
}
