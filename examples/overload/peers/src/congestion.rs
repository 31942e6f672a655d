//! congestion-limiter, which has no tower service.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use congestion_limiter::aggregation::Percentile;
use congestion_limiter::limiter::{DefaultLimiter, Limiter, Outcome};
use congestion_limiter::limits::{Gradient, Vegas, Windowed};
use http::{Request, Response, StatusCode};
use tower::Service;
use tower_sluice_overload::{Server, ServerBody};

/// Holds a token until the response head is there, as the crate's example does.
#[derive(Clone)]
pub(crate) struct Congestion {
    server: Server,
    limiter: Arc<dyn Limiter + Send>,
}

const INITIAL: usize = 20;

impl Congestion {
    pub(crate) fn vegas(server: Server) -> Self {
        let algorithm = Windowed::new(Vegas::new_with_initial_limit(INITIAL), Percentile::new(0.9));
        Self { server, limiter: Arc::new(DefaultLimiter::new(algorithm)) }
    }

    pub(crate) fn gradient(server: Server) -> Self {
        let algorithm = Windowed::new(Gradient::new_with_initial_limit(INITIAL), Percentile::new(0.9));
        Self { server, limiter: Arc::new(DefaultLimiter::new(algorithm)) }
    }
}

impl Service<Request<()>> for Congestion {
    type Response = Response<ServerBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        let mut server = self.server.clone();
        let limiter = Arc::clone(&self.limiter);
        Box::pin(async move {
            let Some(token) = limiter.try_acquire().await else {
                return Ok(ServerBody::response(StatusCode::SERVICE_UNAVAILABLE));
            };
            let response = server.call(request).await?;
            let outcome = if response.status().is_server_error() { Outcome::Overload } else { Outcome::Success };
            limiter.release(token, Some(outcome)).await;
            Ok(response)
        })
    }
}
