//! The body in a rejection's response.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::http::log;
use crate::util::lock::Lock;

/// A rejection's body: anything that converts to bytes, or any [`Body`].
pub struct RejectionBody(BodyContent);

/// It has three words, because it shares its memory with the inner service's body, which often has two.
enum BodyContent {
    Whole(Box<[u8]>),
    Static(&'static [u8]),
    Shared(Box<Bytes>),
    /// Some bodies, such as axum's, are not `Sync`, so a mutex makes them so. It is never contended, and polling does
    /// not lock it.
    Streamed(Box<Lock<Pin<Box<dyn Streamed>>>>),
}

const _: () = assert!(size_of::<RejectionBody>() <= 3 * size_of::<usize>());

/// A body whose errors are logged, so that it never fails.
trait Streamed: Send {
    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Frame<Bytes>>>;
    fn is_end_stream(&self) -> bool;
    fn size_hint(&self) -> SizeHint;
}

impl RejectionBody {
    /// Sends `body`. If polling it fails, the response ends there. The process's first such error is logged.
    pub fn new<B>(body: B) -> Self
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: fmt::Display,
    {
        Self(BodyContent::Streamed(Box::new(Lock::new(Box::pin(body)))))
    }

    /// The bytes, if all are in memory.
    pub(crate) fn whole(&self) -> Option<&[u8]> {
        match &self.0 {
            BodyContent::Streamed(_) => None,
            content => Some(content.bytes()),
        }
    }

    /// The length in bytes, if it is known and not zero.
    pub(crate) fn content_length(&self) -> Option<u64> {
        self.size_hint().exact().filter(|length| *length > 0)
    }

    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Frame<Bytes>>> {
        let whole = match &mut self.0 {
            BodyContent::Whole(body) => std::mem::take(body).into(),
            BodyContent::Static(body) => Bytes::from_static(std::mem::take(body)),
            BodyContent::Shared(body) => std::mem::take(&mut **body),
            BodyContent::Streamed(body) => {
                return body.lock().as_mut().poll_frame(cx);
            }
        };
        Poll::Ready((!whole.is_empty()).then(|| Frame::data(whole)))
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        match &self.0 {
            BodyContent::Streamed(body) => body.lock().is_end_stream(),
            content => content.bytes().is_empty(),
        }
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        match &self.0 {
            BodyContent::Streamed(body) => body.lock().size_hint(),
            // `is_end_stream` suffices. With an exact size of zero, some servers add a `content-length`, which a gRPC
            // response should not have.
            content if content.bytes().is_empty() => SizeHint::default(),
            content => SizeHint::with_exact(content.bytes().len() as u64),
        }
    }
}

impl BodyContent {
    /// The bytes, unless the body is streamed.
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Whole(body) => body,
            Self::Static(body) => body,
            Self::Shared(body) => body,
            Self::Streamed(_) => &[],
        }
    }
}

impl<B> Streamed for B
where
    B: Body<Data = Bytes> + Send,
    B::Error: fmt::Display,
{
    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Frame<Bytes>>> {
        Body::poll_frame(self, cx).map(|frame| match frame? {
            Ok(frame) => Some(frame),
            Err(error) => {
                log::rejection_body_failed(&error);
                None
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        Body::is_end_stream(self)
    }

    fn size_hint(&self) -> SizeHint {
        Body::size_hint(self)
    }
}

/// For a [response](crate::Rejection::response) that a handler returns.
impl Body for RejectionBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.get_mut().poll_frame(cx).map(|frame| frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.size_hint()
    }
}

macro_rules! from_bytes {
    ($($bytes:ty => $content:expr),+ $(,)?) => {$(
        impl From<$bytes> for RejectionBody {
            fn from(body: $bytes) -> Self {
                let content: fn($bytes) -> BodyContent = $content;
                Self(content(body))
            }
        }
    )+};
}

from_bytes! {
    Bytes => |body| BodyContent::Shared(body.into()),
    String => |body| BodyContent::Whole(body.into_bytes().into()),
    Vec<u8> => |body| BodyContent::Whole(body.into()),
    Box<[u8]> => BodyContent::Whole,
    &'static str => |body| BodyContent::Static(body.as_bytes()),
    &'static [u8] => BodyContent::Static,
    // An empty body.
    () => |()| BodyContent::Static(&[]),
}

#[cfg(feature = "axum")]
impl From<axum::body::Body> for RejectionBody {
    fn from(body: axum::body::Body) -> Self {
        Self::new(body)
    }
}

impl fmt::Debug for RejectionBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RejectionBody")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A body that knows that its length is zero, but not that it has ended.
    struct Nothing;

    impl Body for Nothing {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(None)
        }

        fn size_hint(&self) -> SizeHint {
            SizeHint::with_exact(0)
        }
    }

    #[test]
    fn only_bytes_have_a_content_length() {
        for body in [RejectionBody::from(()), "".into(), Bytes::new().into(), RejectionBody::new(Nothing)] {
            assert_eq!(body.content_length(), None);
        }
        for body in [RejectionBody::from("ab"), Bytes::from("ab").into(), String::from("ab").into()] {
            assert_eq!(body.content_length(), Some(2));
        }
    }
}
