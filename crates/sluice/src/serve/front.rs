//! Finds who answers a call. The calls that proxies make for each request go past axum's router, which takes a tenth of
//! an answer's instructions: it matches the path, copies its parameters, and boxes three futures.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use http::{Method, Response, StatusCode};
use tower::ServiceExt;

use super::limits::Limits;
use super::{auth, rls};

#[derive(Clone)]
pub(crate) struct Front {
    limits: Arc<Limits>,
    /// Answers all other calls.
    router: Router,
}

impl Front {
    pub(crate) fn new(limits: Arc<Limits>, router: Router) -> Self {
        Self { limits, router }
    }

    pub(crate) async fn answer(self, call: Request) -> Result<Response<Body>, Infallible> {
        let path = call.uri().path();
        let status = match path {
            auth::PATH_WITH_401 => Some(StatusCode::UNAUTHORIZED),
            auth::PATH_WITH_403 => Some(StatusCode::FORBIDDEN),
            _ if auth::is_path(path) => None,
            rls::PATH if call.method() == Method::POST => return Ok(rls::answer(&self.limits, call).await),
            _ => return self.router.oneshot(call).await,
        };
        Ok(auth::decide(&self.limits, call, status).await)
    }
}
