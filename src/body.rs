use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

pin_project! {
    /// The body of a response: that of the inner service, or the short one of a rejection.
    pub struct ResponseBody<B> {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project! {
    #[project = KindProj]
    enum Kind<B> {
        Inner { #[pin] body: B },
        Rejection { body: Option<Bytes> },
    }
}

impl<B> ResponseBody<B> {
    pub(crate) const fn inner(body: B) -> Self {
        Self { kind: Kind::Inner { body } }
    }

    pub(crate) fn rejection(body: Bytes) -> Self {
        Self { kind: Kind::Rejection { body: Some(body).filter(|body| body.has_remaining()) } }
    }
}

impl<B: Body<Data = Bytes>> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        match self.project().kind.project() {
            KindProj::Inner { body } => body.poll_frame(cx),
            KindProj::Rejection { body } => Poll::Ready(body.take().map(|data| Ok(Frame::data(data)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Inner { body } => body.is_end_stream(),
            Kind::Rejection { body } => body.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Inner { body } => body.size_hint(),
            Kind::Rejection { body: Some(body) } => SizeHint::with_exact(body.len() as u64),
            // That it has ended says it all. An exact zero would have some servers add a `content-length`,
            // which a gRPC answer should not have.
            Kind::Rejection { body: None } => SizeHint::default(),
        }
    }
}

/// Empty, as some layers further out need it.
impl<B: Default> Default for ResponseBody<B> {
    fn default() -> Self {
        Self::inner(B::default())
    }
}

impl<B> fmt::Debug for ResponseBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            Kind::Inner { .. } => "ResponseBody::Inner",
            Kind::Rejection { .. } => "ResponseBody::Rejection",
        })
    }
}
