//! The response that a log line stands for.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use tower_sluice::Verdict;
use tower_sluice::direct::{Admission, Http};

/// A response's status and length.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) length: u64,
}

impl Answer {
    /// Ends a request with this response, on which some charges depend. Returns the verdict, which includes them.
    pub(super) fn end(self, admission: Admission<Http>) -> Option<Verdict> {
        if !admission.awaits_end() {
            return admission.into_verdict();
        }
        let mut response = Response::new(Zeros { left: self.length.min(LONGEST) });
        *response.status_mut() = StatusCode::from_u16(self.status).unwrap_or(StatusCode::OK);
        let mut response = admission.respond(response);
        // Some limits count the body's bytes, or hold until its end.
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(Ok(_))) = Pin::new(response.body_mut()).poll_frame(&mut context) {}
        response.extensions_mut().remove()
    }
}

/// A longer body is a mistake in the log.
const LONGEST: u64 = 1 << 40;

/// A body of this many zeros.
#[derive(Debug)]
struct Zeros {
    left: u64,
}

/// A chunk of the body. It is never read, so it takes no memory.
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
