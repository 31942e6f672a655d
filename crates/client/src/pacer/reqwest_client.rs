//! The pacer for reqwest: a middleware for `reqwest-middleware`, and a service around its client.

use std::future::{Future, poll_fn};
use std::mem::swap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use http::{Extensions, HeaderMap, Request, StatusCode};
use reqwest_middleware::{Error, Middleware, Next};
use tower_service::Service;

use super::call::{Client, ResponseHead};
use super::error::PacerError;
use super::layer::{PacerGate, PacerLayer, host_of};
use super::line::PartnerLine;
use super::partners::PartnerKey;
use super::service::Pacer;

impl PacerLayer<reqwest::Body> {
    /// Creates a layer for reqwest 0.13, which is a middleware for `reqwest-middleware` 0.5, and a Tower layer around
    /// [`reqwest::Client`]. It sends a rejected call again if its body can be cloned
    /// ([`try_clone`](reqwest::Request::try_clone)): all but streams.
    ///
    /// ```no_run
    /// use reqwest_middleware::ClientBuilder;
    /// use tower_sluice_client::PacerLayer;
    ///
    /// # async fn example() -> Result<(), reqwest_middleware::Error> {
    /// let client = ClientBuilder::new(reqwest::Client::new()).with(PacerLayer::reqwest()).build();
    /// let response = client.get("https://partner.example/orders").send().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Put it after (inside of) `reqwest-retry`, if you use both, so that each retry waits in line. Set reqwest's own
    /// timeouts ([`timeout`](reqwest::ClientBuilder::timeout)), because they count from when a call is sent, and not
    /// while it waits in line.
    ///
    /// As a middleware, a call joins the line when its future is first polled; as a Tower service, when it is made.
    ///
    /// The request that [`key`](Self::key) gets has the method, the URI and the fields, the extensions from
    /// `with_extension`, and an empty body.
    ///
    /// # Errors
    ///
    /// As a middleware, a call that was not sent fails with [`reqwest_middleware::Error::Middleware`].
    /// [`PacerError::find`] returns the `PacerError<reqwest::Error>` in it, even if `reqwest-retry` or another
    /// middleware has wrapped it.
    ///
    /// # Redirects
    ///
    /// reqwest follows redirects inside. An answer is booked on the host that gave it
    /// ([`Response::url`](reqwest::Response::url)), unless [`key`](Self::key) is set, so a host that redirects is not
    /// paused by another one's answer. If the other one rejects the call, the call waits for a turn there, and for one
    /// in its own line.
    pub fn reqwest() -> Self {
        // reqwest clones its calls itself.
        Self::with_clone(|_| None)
    }
}

#[async_trait]
impl Middleware for PacerLayer<reqwest::Body> {
    async fn handle(
        &self,
        mut request: reqwest::Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> reqwest_middleware::Result<reqwest::Response> {
        // All its requests name their host.
        let key = self.gate.partner_of(&mut request, extensions, u64::MAX);
        let call = self.gate.partners.join(&key).map_err(|refusal| not_sent(refusal.into()))?;
        let client = MiddlewareClient { next, extensions, gate: &self.gate };
        call.send(request, client).await.map_err(|error| match error.into_service() {
            Ok(error) => error,
            Err(error) => not_sent(error),
        })
    }
}

/// Makes an error whose cause is the `PacerError`, so that it stays findable when another middleware wraps the error.
/// `reqwest_middleware::Error` is transparent: its `source` is the cause of its content, and never the content itself.
fn not_sent(error: PacerError<reqwest::Error>) -> Error {
    let text = error.to_string();
    match Error::middleware(error) {
        Error::Middleware(error) => Error::Middleware(error.context(text)),
        error @ Error::Reqwest(_) => error,
    }
}

impl PacerGate<reqwest::Body> {
    /// Returns the line for a reqwest request, by the function for `http` requests.
    fn partner_of(&self, request: &mut reqwest::Request, extensions: &mut Extensions, service: u64) -> PartnerKey {
        let mut head = Request::new(reqwest::Body::default());
        *head.method_mut() = request.method().clone();
        // An invalid URI is not sent, because reqwest reports it.
        *head.uri_mut() = request.url().as_str().parse().unwrap_or_default();
        swap(head.headers_mut(), request.headers_mut());
        swap(head.extensions_mut(), extensions);
        let key = self.partner(&head, service);
        swap(head.headers_mut(), request.headers_mut());
        swap(head.extensions_mut(), extensions);
        key
    }

    /// Returns the line of the host that answered, to which another one may have redirected the call, because reqwest
    /// follows redirects inside. If the program sets a key, that names the partner already.
    fn answered_by(&self, response: &reqwest::Response) -> Option<Arc<PartnerLine>> {
        if self.partners.common.has_own_key {
            return None;
        }
        let host = host_of(&response.url().as_str().parse().ok()?)?;
        Some(self.partners.line(&PartnerKey::Named(host)))
    }
}

/// The rest of the middlewares.
struct MiddlewareClient<'a> {
    next: Next<'a>,
    extensions: &'a mut Extensions,
    gate: &'a PacerGate<reqwest::Body>,
}

impl Client<reqwest::Request> for MiddlewareClient<'_> {
    type Response = reqwest::Response;
    type Error = Error;

    fn copy(&self, request: &reqwest::Request) -> Option<reqwest::Request> {
        request.try_clone()
    }

    fn answered_by(&self, response: &reqwest::Response) -> Option<Arc<PartnerLine>> {
        self.gate.answered_by(response)
    }

    fn ready(&mut self) -> impl Future<Output = Result<(), Error>> + Send {
        std::future::ready(Ok(()))
    }

    fn send(&mut self, request: reqwest::Request) -> impl Future<Output = Result<reqwest::Response, Error>> + Send {
        self.next.clone().run(request, self.extensions)
    }
}

impl ResponseHead for reqwest::Response {
    fn head(&self) -> (StatusCode, &HeaderMap) {
        (self.status(), self.headers())
    }
}

/// reqwest's client, or a service around it.
struct ReqwestService<S> {
    service: S,
    gate: Arc<PacerGate<reqwest::Body>>,
}

impl<S> Client<reqwest::Request> for ReqwestService<S>
where
    S: Service<reqwest::Request, Response = reqwest::Response> + Send,
    S::Future: Send,
    S::Error: Send,
{
    type Response = reqwest::Response;
    type Error = S::Error;

    fn copy(&self, request: &reqwest::Request) -> Option<reqwest::Request> {
        request.try_clone()
    }

    fn answered_by(&self, response: &reqwest::Response) -> Option<Arc<PartnerLine>> {
        self.gate.answered_by(response)
    }

    fn ready(&mut self) -> impl Future<Output = Result<(), S::Error>> + Send {
        poll_fn(|cx| self.service.poll_ready(cx))
    }

    fn send(&mut self, request: reqwest::Request) -> impl Future<Output = Result<reqwest::Response, S::Error>> + Send {
        self.service.call(request)
    }
}

impl<S> Service<reqwest::Request> for Pacer<S, reqwest::Body>
where
    S: Service<reqwest::Request, Response = reqwest::Response> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
{
    type Response = reqwest::Response;
    type Error = PacerError<S::Error>;
    type Future = Pin<Box<dyn Future<Output = Result<reqwest::Response, PacerError<S::Error>>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(PacerError::Service)
    }

    fn call(&mut self, mut request: reqwest::Request) -> Self::Future {
        let service = self.take_ready();
        let key = self.gate.partner_of(&mut request, &mut Extensions::new(), self.number);
        match self.gate.partners.join(&key) {
            Err(refusal) => Box::pin(std::future::ready(Err(refusal.into()))),
            Ok(call) => Box::pin(call.send(request, ReqwestService { service, gate: Arc::clone(&self.gate) })),
        }
    }
}
