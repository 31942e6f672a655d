//! `RateLimit`, the service: evaluates each request before it calls the inner service. Its future is a request that
//! passes, is rejected, or waits.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::header::ACCESS_CONTROL_ALLOW_ORIGIN;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::engine::domain::Http;
use crate::engine::evaluate;
use crate::engine::evaluate::Decide;
use crate::engine::outcome::{Evaluation, Waiting};
use crate::engine::reload::LayerState;
use crate::http::body::RejectionBody;
use crate::http::head::RequestHead;
use crate::http::log;
use crate::http::outcome::{Annotations, StillOpen};
use crate::http::preflight::has_no_body;
use crate::http::response_body::ResponseBody;
use crate::http::translation;

/// A rate-limited service, made by [`RateLimitLayer`](crate::RateLimitLayer).
///
/// Clones share their budgets.
#[derive(Clone)]
pub struct RateLimit<S> {
    inner: S,
    layer: Arc<LayerState<Http>>,
}

const _: () = assert!(size_of::<RateLimit<()>>() == size_of::<usize>(), "servers clone services for each connection");

impl<S> RateLimit<S> {
    pub(crate) const fn new(inner: S, layer: Arc<LayerState<Http>>) -> Self {
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
    // Needed to downcast axum and tonic bodies, where preflights are exempt.
    ReqBody: 'static,
{
    type Response = Response<ResponseBody<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, ReqBody>;

    /// Polls only the inner service. We do not know the key before the request, and waiting here for one key would
    /// delay all others.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<ReqBody>) -> Self::Future {
        let settings = &self.layer.settings.own;
        if settings.mounting.mark(request.extensions_mut()) {
            log::mounted_twice(self.layer.load().policies[0].name());
        }
        let in_force = self.layer.load();
        let head = RequestHead::from(&request);
        let exempts = settings.preflight_exemption.as_ref();
        let evaluation = match exempts {
            Some(exempts) if exempts(&in_force.policies, &head, &|| has_no_body(&request)) => {
                Evaluation::Admitted(evaluate::admit_exempt(&self.layer, &in_force))
            }
            _ => translation::evaluate(&self.layer, &in_force, &head),
        };
        match evaluation {
            Evaluation::Clear => {
                let response = self.inner.call(request);
                ResponseFuture { state: FutureState::Passing { response, annotations: None } }
            }
            Evaluation::Admitted(mut annotations) => {
                annotations.extend_request(&mut request);
                let response = self.inner.call(request);
                ResponseFuture { state: FutureState::Passing { response, annotations: Some(annotations) } }
            }
            Evaluation::Rejected(rejected) => {
                let response = Http::reply(&self.layer, rejected, &head);
                ResponseFuture { state: FutureState::Rejected { response: Some(response) } }
            }
            Evaluation::Replied(response) => {
                ResponseFuture { state: FutureState::Rejected { response: Some(response) } }
            }
            Evaluation::Pending(waiting) => {
                // We must call the service that was polled ready. Its clone stays here and is polled again:
                // <https://docs.rs/tower/latest/tower/trait.Service.html#be-careful-when-cloning-inner-services>
                let clone = self.inner.clone();
                let service = std::mem::replace(&mut self.inner, clone);
                let rest = RestOfRequest { service, request, layer: Arc::clone(&self.layer) };
                ResponseFuture { state: FutureState::Waiting { waiting, rest: Some(Box::new(rest)) } }
            }
        }
    }
}

impl<S: fmt::Debug> fmt::Debug for RateLimit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").field("inner", &self.inner).field("policies", &self.layer.load().policies).finish()
    }
}

pin_project! {
    /// The future of [`RateLimit`](crate::layer::RateLimit).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped while the request waits for its turn, the request leaves the queue. Charges stay,
    /// because otherwise, opening and cancelling requests would be free. Units that it [holds](crate::Concurrency) are
    /// released.
    pub struct ResponseFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        state: FutureState<S::Future, S, B>,
    }
}

pin_project! {
    #[project = StateProj]
    enum FutureState<F, S, B> {
        Passing { #[pin] response: F, annotations: Option<Annotations> },
        Rejected { response: Option<Response<RejectionBody>> },
        // Boxed, so that a future is not as large as a request if the service never waits.
        Waiting { waiting: Waiting<Http>, rest: Option<Box<RestOfRequest<S, B>>> },
    }
}

/// The parts of a request that are needed once its turn has come.
struct RestOfRequest<S, B> {
    service: S,
    request: Request<B>,
    layer: Arc<LayerState<Http>>,
}

impl<S, ReqBody, ResBody> Future for ResponseFuture<S, ReqBody>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
{
    type Output = Result<Response<ResponseBody<ResBody>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            match state.as_mut().project() {
                // -> done, with the inner service's response
                StateProj::Passing { response, annotations } => {
                    // Change the response in place, because it is large, and would be moved.
                    let mut polled = response.poll(cx);
                    if let Poll::Ready(Ok(response)) = &mut polled {
                        log::note_response(|| response.headers().contains_key(ACCESS_CONTROL_ALLOW_ORIGIN));
                        if let Some(open) = annotations.take().and_then(|annotations| annotations.write(response)) {
                            return polled.map_ok(|response| still_open(response, open));
                        }
                    } else if polled.is_ready() {
                        annotations.take().into_iter().for_each(Annotations::fail);
                    }
                    return polled.map_ok(|response| response.map(ResponseBody::inner));
                }
                // -> done, with the rejection
                StateProj::Rejected { response } => {
                    let response = response.take().expect("polled after it was ready");
                    return Poll::Ready(Ok(response.map(ResponseBody::rejection)));
                }
                // -> Passing or Rejected, once the policies have decided
                StateProj::Waiting { waiting, rest } => {
                    let evaluated = ready!(waiting.as_mut().poll(cx));
                    let rest = rest.take().expect("taken only once, when the policies have decided");
                    let RestOfRequest { mut service, mut request, layer } = *rest;
                    let next = match evaluated {
                        Ok(mut annotations) => {
                            annotations.extend_request(&mut request);
                            FutureState::Passing { response: service.call(request), annotations: Some(annotations) }
                        }
                        Err(rejected) => {
                            let response = Http::reply(&layer, *rejected, &RequestHead::from(&request));
                            FutureState::Rejected { response: Some(response) }
                        }
                    };
                    state.set(next);
                }
            }
        }
    }
}

/// The response to a request that was open until now, and may be over only when the body has ended.
#[cold]
#[inline(never)]
pub(super) fn still_open<B>(mut response: Response<B>, open: Annotations) -> Response<ResponseBody<B>> {
    match open.settle(&mut response) {
        Some(StillOpen::Held(request)) => response.map(|body| ResponseBody::held(body, request)),
        Some(StillOpen::Open(request)) => response.map(|body| ResponseBody::open(body, request)),
        None => response.map(ResponseBody::inner),
    }
}

impl<S: Service<Request<B>>, B> fmt::Debug for ResponseFuture<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            FutureState::Passing { .. } => "passing",
            FutureState::Rejected { .. } => "rejected",
            FutureState::Waiting { .. } => "waiting",
        };
        f.debug_tuple("ResponseFuture").field(&state).finish()
    }
}
