use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tower_service::Service;

use crate::body::ResponseBody;
use crate::future::ResponseFuture;
use crate::head::RequestHead;
use crate::judge::{Judgement, judge};
use crate::live::View;
use crate::preflight::has_no_body;

/// A service whose requests are limited; made by [`RateLimitLayer`](crate::RateLimitLayer).
///
/// Clones share their budgets.
#[derive(Clone)]
pub struct RateLimit<S> {
    inner: S,
    view: Arc<View>,
}

impl<S> RateLimit<S> {
    pub(crate) const fn new(inner: S, view: Arc<View>) -> Self {
        Self { inner, view }
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
    // For a look at the bodies of axum and tonic, where preflights are exempt.
    ReqBody: 'static,
{
    type Response = Response<ResponseBody<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, ReqBody>;

    /// Asks the inner service only. Whose limit it is about is not known before the request is, and
    /// waiting here for one key would hold up all others.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<ReqBody>) -> Self::Future {
        self.view.limits.note_mounting(request.extensions_mut());
        let head = RequestHead::from(&request);
        let in_force = self.view.limits.load();
        let shared = self.view.rendered_in(&in_force);
        match judge(shared, &head, || has_no_body(&request)) {
            Judgement::Decided(Ok(told)) => ResponseFuture::passing(self.inner.call(request), told),
            Judgement::Decided(Err(rejection)) => ResponseFuture::rejected(shared.respond(rejection, &head)),
            Judgement::Pending(judged) => {
                // The service that was polled ready goes along, and its clone stays to be polled
                // anew: <https://docs.rs/tower/latest/tower/trait.Service.html#be-careful-when-cloning-inner-services>
                let clone = self.inner.clone();
                let ready = std::mem::replace(&mut self.inner, clone);
                ResponseFuture::waiting(judged, ready, request, Arc::clone(shared))
            }
        }
    }
}

impl<S: fmt::Debug> fmt::Debug for RateLimit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit")
            .field("inner", &self.inner)
            .field("policies", &self.view.limits.load().policies)
            .finish()
    }
}
