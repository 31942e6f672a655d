//! Layers around a service that answers at once.

use std::convert::Infallible;
use std::fmt::Display;
use std::future::{Ready, ready};
use std::sync::{Arc, Mutex, PoisonError};

use http::{Request, Response};
use tower::util::ServiceFn;
use tower::{Layer, Service, service_fn};
use tower_sluice::key::ExtensionKey;
use tower_sluice::limiter::IntoLimiter;
use tower_sluice::{PartitionKey, Policy};

use super::{Outcome, text};

/// The service inside the layers, which is always ready.
pub type Hello = ServiceFn<fn(Request<()>) -> Ready<Result<Response<()>, Infallible>>>;

/// The caller that an outer layer has found out.
#[derive(Clone)]
pub struct Caller(pub Arc<String>);

/// A service that all callers call in turn, as requests on one connection call theirs.
pub struct Layered<S>(Mutex<S>);

impl<S> Layered<S> {
    pub fn new(layer: &impl Layer<Hello, Service = S>) -> Self {
        Self(Mutex::new(layer.layer(service_fn(|_| ready(Ok(Response::new(())))))))
    }

    /// Whether a request for this key is admitted.
    pub async fn ask<B>(&self, key: &Arc<String>) -> Outcome<bool>
    where
        S: Service<Request<()>, Response = Response<B>, Error: Display>,
    {
        let mut request = Request::new(());
        request.extensions_mut().insert(Caller(Arc::clone(key)));
        let answer = self.0.lock().unwrap_or_else(PoisonError::into_inner).call(request);
        match answer.await.map_err(text)?.status().as_u16() {
            200 => Ok(true),
            429 => Ok(false),
            other => Err(format!("status {other}")),
        }
    }
}

/// This many of our policies, each by the [`Caller`]; the limiters are made from their names.
pub fn policies<L: IntoLimiter>(count: usize, limiter: impl Fn(&str) -> L) -> Vec<Policy> {
    let policy = |number: usize| {
        let name = format!("policy-{number}");
        let limiter = limiter(&name);
        Policy::new(name, limiter).key(ExtensionKey::new(|caller: &Caller| PartitionKey::from(&*caller.0)))
    };
    (0..count).map(policy).collect()
}
