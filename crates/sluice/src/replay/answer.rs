//! The service behind the limits: it answers as the log says.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Extensions, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use tower::Service;

/// Answers a request.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) length: u64,
    /// The extensions of the request, once it was answered.
    pub(crate) request: Extensions,
    /// Becomes the extensions of the response, which use its memory.
    pub(crate) response: Extensions,
}

/// The clone that answers a request after its wait.
impl Clone for Answer {
    fn clone(&self) -> Self {
        Self { status: self.status, length: self.length, ..Self::default() }
    }
}

impl Service<Request<()>> for Answer {
    type Response = Response<Zeros>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Zeros>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<()>) -> Self::Future {
        self.request = std::mem::take(request.extensions_mut());
        let mut response = Response::new(Zeros { left: self.length.min(LONGEST) });
        *response.status_mut() = StatusCode::from_u16(self.status).unwrap_or(StatusCode::OK);
        *response.extensions_mut() = std::mem::take(&mut self.response);
        ready(Ok(response))
    }
}

/// A longer body is a mistake of the log.
const LONGEST: u64 = 1 << 40;

/// A body of this many zeros.
#[derive(Debug)]
pub(crate) struct Zeros {
    left: u64,
}

/// A chunk of them. They are never read, so that they take no memory.
static ZEROS: [u8; 1 << 20] = [0; 1 << 20];

impl Body for Zeros {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let length = usize::try_from(self.left).unwrap_or(usize::MAX).min(ZEROS.len());
        if length == 0 {
            return Poll::Ready(None);
        }
        self.left -= length as u64;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&ZEROS[..length])))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
