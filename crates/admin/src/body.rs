//! [`AdminBody`], and how to read a call's body.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http::StatusCode;
use http_body::{Body, Frame, SizeHint};

use super::problem::Problem;

/// A response body from [`Admin`](super::Admin): a page, a script, or JSON.
#[derive(Debug)]
pub struct AdminBody(Bytes);

impl AdminBody {
    pub(crate) fn new(text: impl Into<Bytes>) -> Self {
        Self(text.into())
    }
}

impl Body for AdminBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let whole = std::mem::take(&mut self.get_mut().0);
        Poll::Ready((!whole.is_empty()).then(|| Ok(Frame::data(whole))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.len() as u64)
    }
}

/// The longest body that a call may have, in bytes. Names, keys and reasons are far shorter.
const MOST: usize = 16 * 1_024;

/// Reads a call's body.
pub(crate) async fn read<B: Body>(body: B) -> Result<Vec<u8>, Problem> {
    let mut body = pin!(body);
    let mut text = Vec::new();
    while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
        let cut_off = |_| Problem::new(StatusCode::BAD_REQUEST, "the body was cut off; send the call again");
        let Ok(mut data) = frame.map_err(cut_off)?.into_data() else { continue };
        if data.remaining() > MOST - text.len() {
            return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "the body is longer than 16 KiB"));
        }
        while data.has_remaining() {
            let piece = data.chunk();
            text.extend_from_slice(piece);
            let read = piece.len();
            data.advance(read);
        }
    }
    Ok(text)
}
