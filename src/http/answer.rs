//! A layer's answers without its service, for gateways and servers that are not tower services.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Extensions, Method, Response};

use crate::engine::direct::Admission;
use crate::engine::domain::Http;
use crate::engine::evaluate::{Decide, admit_exempt};
use crate::engine::outcome::{Evaluation, Waiting};
use crate::engine::reload::{LayerState, LimitsHandle};
use crate::http::body::RejectionBody;
use crate::http::head::RequestHead;
use crate::http::outcome::Annotations;
use crate::http::response_body::ResponseBody;
use crate::http::service::still_open;
use crate::http::translation;

impl LimitsHandle {
    /// Decides on a request as the layer's service does, and answers it if it is rejected, with the layer's fields,
    /// format and jitter. Use it for a gateway that asks for a decision, or a server that is not a tower service. An
    /// app uses the [layer](crate::RateLimitLayer). The request's head is enough, and a
    /// [preflight](crate::layer::RateLimitLayerBuilder::exempt_preflights) is assumed to have no body. If a policy
    /// reads the peer's address, insert it as a `SocketAddr` into the request's extensions. Nothing is added to them,
    /// so take the [settlement](Admission::settlement) from the admission.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// use http::{Request, Response};
    /// use tower_sluice::{Policy, Quota, RateLimitLayer, RequestHead};
    ///
    /// let limits = RateLimitLayer::new(Policy::new("api", Quota::per_hour(1))).handle();
    /// let (request, _body) = Request::new(()).into_parts();
    /// match limits.answer(&RequestHead::from(&request)).await {
    ///     Ok(admission) => {
    ///         let response = admission.respond(Response::new("hello"));
    ///         assert!(response.headers().contains_key("ratelimit"));
    ///     }
    ///     Err(rejection) => assert_eq!(rejection.status(), 429),
    /// }
    /// # }
    /// ```
    ///
    /// This call makes the decision, unless the request has to wait. In that case the future waits, within a Tokio
    /// runtime. If you drop it meanwhile, the request leaves the queue, and charges stay, except for estimates that are
    /// [settled](crate::Policy::settle_by_handler).
    ///
    /// # Errors
    ///
    /// If the request is rejected: its response.
    pub fn answer<'a>(&self, head: &RequestHead<'a>) -> Answering<'a> {
        let layer = self.layer();
        let in_force = layer.load();
        let evaluation = if Http::exempts(layer, &in_force, head) {
            Evaluation::Admitted(admit_exempt(layer, &in_force))
        } else {
            translation::evaluate(layer, &in_force, head)
        };
        Answering(match evaluation {
            Evaluation::Clear => State::Answered(Some(Ok(Admission::new(Annotations::clear())))),
            Evaluation::Admitted(admitted) => State::Answered(Some(Ok(admission(admitted, head)))),
            Evaluation::Rejected(rejected) => State::Answered(Some(Err(Http::reply(layer, rejected, head)))),
            Evaluation::Replied(response) => State::Answered(Some(Err(response))),
            Evaluation::Pending(waiting) => State::Waiting { waiting, layer: Arc::clone(layer), head: *head },
        })
    }
}

type Answered = Result<Admission<Http>, Response<RejectionBody>>;

/// The future of [`LimitsHandle::answer`].
#[must_use = "a rejected request must not be processed"]
pub struct Answering<'a>(State<'a>);

enum State<'a> {
    /// Taken once it is polled.
    Answered(Option<Answered>),
    Waiting {
        waiting: Waiting<Http>,
        layer: Arc<LayerState<Http>>,
        head: RequestHead<'a>,
    },
}

fn admission(mut admitted: Annotations, head: &RequestHead<'_>) -> Admission<Http> {
    // No handler sees these extensions, because the caller has the admission.
    admitted.extend(*head.method() == Method::HEAD, &mut Extensions::new());
    Admission::new(admitted)
}

impl Future for Answering<'_> {
    type Output = Answered;

    /// # Panics
    ///
    /// If it is polled again after it was ready.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answered> {
        match &mut self.get_mut().0 {
            State::Answered(answered) => Poll::Ready(answered.take().expect("polled after it was ready")),
            State::Waiting { waiting, layer, head } => Poll::Ready(match ready!(waiting.as_mut().poll(context)) {
                Ok(admitted) => Ok(admission(admitted, head)),
                Err(rejected) => Err(Http::reply(layer, *rejected, head)),
            }),
        }
    }
}

impl fmt::Debug for Answering<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.0 {
            State::Answered(_) => "answered",
            State::Waiting { .. } => "waiting",
        };
        f.debug_tuple("Answering").field(&state).finish()
    }
}

impl Admission<Http> {
    /// Adds the quota fields to the response, and the [verdict](crate::layer::RateLimitLayerBuilder::verdict) to its
    /// extensions. The request is over when the body ends or is dropped: charges that depend on the response are made
    /// then, and the units that it holds are released. Until then, a clone of its [settlement](Self::settlement)
    /// reports costs.
    pub fn respond<B>(self, mut response: Response<B>) -> Response<ResponseBody<B>> {
        match self.into_admitted().write(&mut response) {
            Some(open) => still_open(response, open),
            None => response.map(ResponseBody::inner),
        }
    }
}
