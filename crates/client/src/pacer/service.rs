//! `Pacer`: a service whose calls are paced.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{HeaderMap, Request, Response, StatusCode};
use tower_service::Service;

use super::call::{Client, ResponseHead};
use super::error::PacerError;
use super::layer::PacerGate;

/// A client whose calls are paced, made by [`PacerLayer`](crate::PacerLayer). Clones share their lines.
pub struct Pacer<S, B> {
    pub(super) inner: S,
    pub(super) gate: Arc<PacerGate<B>>,
    /// The number of its service among those that the layer has made. Clones have the same number.
    pub(super) number: u64,
}

impl<S, B> Pacer<S, B> {
    pub(super) const fn new(inner: S, gate: Arc<PacerGate<B>>, number: u64) -> Self {
        Self { inner, gate, number }
    }

    /// Returns how many calls wait in this process, over all partners.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.gate.partners.common.waiting()
    }
}

impl<S: Clone, B> Pacer<S, B> {
    /// Returns the service that was polled ready. Its clone stays here.
    pub(super) fn take_ready(&mut self) -> S {
        let clone = self.inner.clone();
        std::mem::replace(&mut self.inner, clone)
    }
}

impl<S: Clone, B> Clone for Pacer<S, B> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), gate: Arc::clone(&self.gate), number: self.number }
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
        let service = self.take_ready();
        let key = self.gate.partner(&request, self.number);
        // We join here, and not when the future is polled, so that calls are in line in the order in which they were
        // made.
        PacerFuture(match self.gate.partners.join(&key) {
            Err(refusal) => Box::pin(std::future::ready(Err(refusal.into()))),
            Ok(call) => Box::pin(call.send(request, HttpClient { service, gate: Arc::clone(&self.gate) })),
        })
    }
}

impl<S: fmt::Debug, B> fmt::Debug for Pacer<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pacer").field("inner", &self.inner).field("waiting", &self.waiting()).finish_non_exhaustive()
    }
}

/// A service for `http` requests.
struct HttpClient<S, B> {
    service: S,
    gate: Arc<PacerGate<B>>,
}

impl<S, B, R> Client<Request<B>> for HttpClient<S, B>
where
    S: Service<Request<B>, Response = Response<R>> + Send,
    S::Future: Send,
    S::Error: Send,
{
    type Response = Response<R>;
    type Error = S::Error;

    fn copy(&self, request: &Request<B>) -> Option<Request<B>> {
        (self.gate.clone)(request)
    }

    fn ready(&mut self) -> impl Future<Output = Result<(), S::Error>> + Send {
        poll_fn(|cx| self.service.poll_ready(cx))
    }

    fn send(&mut self, request: Request<B>) -> impl Future<Output = Result<Response<R>, S::Error>> + Send {
        self.service.call(request)
    }
}

impl<R> ResponseHead for Response<R> {
    fn head(&self) -> (StatusCode, &HeaderMap) {
        (self.status(), self.headers())
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
