//! A response body, which ends when the server has done the rest of the work.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::{Body, Frame};
use tokio::sync::oneshot;

/// A body without content, because only its end matters.
#[derive(Debug)]
pub struct ServerBody(Option<oneshot::Receiver<()>>);

/// The server's end of a body, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct BodyEnd(Option<oneshot::Sender<()>>);

impl ServerBody {
    /// Returns a response that has no body.
    #[must_use]
    pub fn response(status: StatusCode) -> Response<Self> {
        let mut response = Response::new(Self(None));
        *response.status_mut() = status;
        response
    }

    /// Returns a body that ends later, or that has ended already.
    pub(crate) fn new(is_open: bool) -> (Self, BodyEnd) {
        let (end, body) = is_open.then(oneshot::channel).unzip();
        (Self(body), BodyEnd(end))
    }
}

impl BodyEnd {
    pub(crate) fn is_dropped(&self) -> bool {
        self.0.as_ref().is_some_and(oneshot::Sender::is_closed)
    }
}

impl Body for ServerBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(end) = &mut self.0 {
            let _ = ready!(Pin::new(end).poll(cx));
            self.0 = None;
        }
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }
}
