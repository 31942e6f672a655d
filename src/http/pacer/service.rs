//! `Pacer`: sends a call when its turn has come, and again if the partner rejected it.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::SystemTime;

use http::{Request, Response};
use tokio::runtime::Handle;
use tower_service::Service;

use super::error::{LineRejection, PacerError};
use super::fields::{self, ResponseReading};
use super::layer::PacerGate;
use super::line::{JoinedLine, LineTicket, PartnerLine};

/// A client whose calls are paced, made by [`PacerLayer`](crate::PacerLayer). Clones share their lines.
pub struct Pacer<S, B> {
    inner: S,
    gate: Arc<PacerGate<B>>,
}

impl<S, B> Pacer<S, B> {
    pub(super) const fn new(inner: S, gate: Arc<PacerGate<B>>) -> Self {
        Self { inner, gate }
    }

    /// Returns how many calls wait in this process, over all partners.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.gate.partners.common.waiting()
    }
}

impl<S: Clone, B> Clone for Pacer<S, B> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), gate: Arc::clone(&self.gate) }
    }
}

impl<S, B, R> Service<Request<B>> for Pacer<S, B>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: Send + 'static,
    R: Send + 'static,
{
    type Response = Response<R>;
    type Error = PacerError<S::Error>;
    type Future = PacerFuture<R, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(PacerError::Service)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The service that was polled ready will be called; its clone stays here.
        let clone = self.inner.clone();
        let service = std::mem::replace(&mut self.inner, clone);
        let line = self.gate.partners.line(&(self.gate.key)(&request));
        // Here, and not when the future is polled: calls are in line in the order in which they were made.
        let future: BoxFuture<R, S::Error> = match Handle::try_current() {
            Err(_) => Box::pin(std::future::ready(Err(PacerError::NoRuntime))),
            Ok(runtime) => match line.join(&runtime) {
                Err(rejection) => Box::pin(std::future::ready(Err(rejection.into()))),
                Ok((joined, ticket)) => {
                    let call = PacedCall { service, gate: Arc::clone(&self.gate), line, ticket, runtime };
                    Box::pin(call.send(request, joined))
                }
            },
        };
        PacerFuture(future)
    }
}

impl<S: fmt::Debug, B> fmt::Debug for Pacer<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pacer").field("inner", &self.inner).field("waiting", &self.waiting()).finish_non_exhaustive()
    }
}

/// One call, over all its attempts.
struct PacedCall<S, B> {
    service: S,
    gate: Arc<PacerGate<B>>,
    line: Arc<PartnerLine>,
    ticket: LineTicket,
    runtime: Handle,
}

impl<S, B, R> PacedCall<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    async fn send(
        mut self,
        mut request: Request<B>,
        mut joined: JoinedLine,
    ) -> Result<Response<R>, PacerError<S::Error>> {
        let mut attempts_left = self.gate.partners.common.attempts;
        loop {
            let mut departed = match joined {
                JoinedLine::Departed(departed) => departed,
                JoinedLine::Waiting(place) => place.turn().await?,
            };
            attempts_left -= 1;
            let copy = if attempts_left > 0 { (self.gate.clone)(&request) } else { None };
            departed.sent_now();
            let response = self.service.call(request).await.map_err(PacerError::Service)?;
            let ResponseReading { is_rejection, report } =
                fields::read(response.status(), response.headers(), SystemTime::now());
            departed.answered(report);
            let Some(copy) = copy.filter(|_| is_rejection) else { return Ok(response) };
            // The first service was ready already; for a further call, it has to become ready again. Until then nobody
            // polls the place in line, so others are called if its turn comes.
            match self.line.rejoin(self.ticket, &self.runtime) {
                Ok(place) => joined = JoinedLine::Waiting(place),
                // The pause is too long: the caller gets the partner's response.
                Err(LineRejection::WaitTooLong { .. } | LineRejection::LineFull { .. }) => return Ok(response),
            }
            drop(response);
            poll_fn(|cx| self.service.poll_ready(cx)).await.map_err(PacerError::Service)?;
            request = copy;
        }
    }
}

type BoxFuture<R, E> = Pin<Box<dyn Future<Output = Result<Response<R>, PacerError<E>>> + Send>>;

/// The future of [`Pacer`]. If it is dropped while it waits, the call leaves the line.
pub struct PacerFuture<R, E>(BoxFuture<R, E>);

impl<R, E> Future for PacerFuture<R, E> {
    type Output = Result<Response<R>, PacerError<E>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl<R, E> fmt::Debug for PacerFuture<R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacerFuture").finish_non_exhaustive()
    }
}
