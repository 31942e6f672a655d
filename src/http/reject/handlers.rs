//! For axum handlers: a rejection as their response, and the verdict as their argument.

use axum::body::Body;
use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use axum::response::{IntoResponse, Response};
use http::Request;
use http::request::Parts;

use super::rejection::Rejection;
use crate::engine::verdict::Verdict;
use crate::http::head::RequestHead;
use crate::http::log;

/// Responds in plain HTTP, because axum does not say which request is answered. For gRPC, see [`Rejection::response`].
impl IntoResponse for Rejection {
    fn into_response(self) -> Response {
        self.response(&RequestHead::from(&Request::new(()))).map(Body::new)
    }
}

/// Responds like [`Rejection`].
impl IntoResponse for Box<Rejection> {
    fn into_response(self) -> Response {
        (*self).into_response()
    }
}

/// Answers 500 if no layer around the handler adds a [`verdict`](crate::layer::RateLimitLayerBuilder::verdict).
impl<S: Send + Sync> FromRequestParts<S> for Verdict {
    type Rejection = Box<Rejection>;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        parts.extensions.get().cloned().ok_or_else(|| {
            log::verdict_missing();
            Box::new(Rejection::misconfigured())
        })
    }
}

/// `None` if no layer around the handler adds a [`verdict`](crate::layer::RateLimitLayerBuilder::verdict).
impl<S: Send + Sync> OptionalFromRequestParts<S> for Verdict {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Self::Rejection> {
        Ok(parts.extensions.get().cloned())
    }
}
