//! Response bodies: the inner service's body, or a rejection's body.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::http::body::RejectionBody;
use crate::http::outcome::{EndsWithBody, HeldRequest, StaysOpen};

pin_project! {
    /// A response's body: the inner service's body, or a rejection's body.
    ///
    /// It is a [`Body`] if the inner one is, and if the inner data type converts from [`Bytes`], as `Bytes` and
    /// `Vec<u8>` do. It is `Send` and `Sync` if the inner one is.
    ///
    /// A request is over, releases its units and is settled when its body has ended (trailers are the end), has
    /// failed, or is dropped.
    pub struct ResponseBody<B> {
        #[pin]
        kind: BodyKind<B>,
    }
}

pin_project! {
    #[project = KindProj]
    enum BodyKind<B> {
        Inner { #[pin] body: B },
        // Not boxed, so that a request that holds units does not allocate for its body. Takes two words more.
        Held { #[pin] body: B, request: Option<HeldRequest> },
        Open { body: Pin<Box<OpenBody<B>>> },
        Rejection { body: RejectionBody },
    }
}

pin_project! {
    /// The body for a request that is not over before the body ends. Boxed, so that it does not make other requests'
    /// bodies larger.
    struct OpenBody<B> {
        #[pin]
        body: B,
        // Taken once the body has ended.
        request: Option<Box<dyn StaysOpen>>,
    }
}

const _: () = assert!(size_of::<ResponseBody<[usize; 2]>>() <= 4 * size_of::<usize>());
const _: () = assert!(size_of::<ResponseBody<[usize; 8]>>() <= 10 * size_of::<usize>());

impl<B> ResponseBody<B> {
    pub(crate) const fn inner(body: B) -> Self {
        Self { kind: BodyKind::Inner { body } }
    }

    /// The body for a request that is over when the body has ended.
    #[cold]
    pub(crate) fn open(body: B, request: Box<dyn StaysOpen>) -> Self {
        Self { kind: BodyKind::Open { body: Box::pin(OpenBody { body, request: Some(request) }) } }
    }

    /// The body for a request that holds units until the body has ended.
    pub(crate) const fn held(body: B, request: HeldRequest) -> Self {
        Self { kind: BodyKind::Held { body, request: Some(request) } }
    }

    pub(crate) const fn rejection(body: RejectionBody) -> Self {
        Self { kind: BodyKind::Rejection { body } }
    }
}

/// The result of polling a body.
type Polled<B> = Poll<Option<Result<Frame<<B as Body>::Data>, <B as Body>::Error>>>;

/// Polls a body whose request ends with it.
fn poll_open<B: Body, R: EndsWithBody>(mut body: Pin<&mut B>, open: &mut Option<R>, cx: &mut Context<'_>) -> Polled<B> {
    if let Some(request) = open {
        request.note_poll();
    }
    let frame = ready!(body.as_mut().poll_frame(cx));
    let Some(request) = open.as_mut() else { return Poll::Ready(frame) };
    // Trailers, an error or the absence of a frame is the end. The last data frame is not, even if the body knows that
    // it is the last, because over HTTP/2, a server keeps a frame, and the body, until the client's window lets it
    // send. After that, it drops the body.
    let is_over = match &frame {
        Some(Ok(part)) => {
            if let Some(data) = part.data_ref() {
                request.note_bytes(data.remaining());
            }
            if let Some(trailers) = part.trailers_ref() {
                request.note_trailers(trailers);
            }
            !part.is_data()
        }
        Some(Err(_)) => {
            request.fail();
            true
        }
        None => true,
    };
    if is_over || has_ended(&*body) {
        request.note_end();
    }
    if is_over {
        *open = None;
    }
    Poll::Ready(frame)
}

/// Notes that a body has ended, if it has, because servers ask, and drop such a body without a last poll.
fn note_end(body: &impl Body, open: Option<&(impl EndsWithBody + ?Sized)>) {
    if let Some(request) = open.filter(|_| has_ended(body)) {
        request.note_end();
    }
}

/// Whether a body knows that it is at its end.
fn has_ended(body: &impl Body) -> bool {
    body.is_end_stream() || body.size_hint().exact() == Some(0)
}

impl<B: Body<Data: From<Bytes>>> Body for ResponseBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        match self.project().kind.project() {
            KindProj::Inner { body } => body.poll_frame(cx),
            KindProj::Held { body, request } => poll_open(body, request, cx),
            KindProj::Open { body } => {
                let open = body.as_mut().project();
                poll_open(open.body, open.request, cx)
            }
            KindProj::Rejection { body } => {
                body.poll_frame(cx).map(|frame| frame.map(|frame| Ok(frame.map_data(B::Data::from))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            BodyKind::Inner { body } => body.is_end_stream(),
            BodyKind::Held { body, request } => {
                note_end(body, request.as_ref());
                body.is_end_stream()
            }
            BodyKind::Open { body } => {
                note_end(&body.body, body.request.as_deref());
                body.body.is_end_stream()
            }
            BodyKind::Rejection { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            BodyKind::Inner { body } => body.size_hint(),
            BodyKind::Held { body, request } => {
                note_end(body, request.as_ref());
                body.size_hint()
            }
            BodyKind::Open { body } => {
                note_end(&body.body, body.request.as_deref());
                body.body.size_hint()
            }
            BodyKind::Rejection { body } => body.size_hint(),
        }
    }
}

/// The inner service's default body, usually an empty one. Some outer layers need it for their own responses.
impl<B: Default> Default for ResponseBody<B> {
    fn default() -> Self {
        Self::inner(B::default())
    }
}

impl<B> fmt::Debug for ResponseBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            BodyKind::Inner { .. } | BodyKind::Held { .. } | BodyKind::Open { .. } => "ResponseBody::Inner",
            BodyKind::Rejection { .. } => "ResponseBody::Rejection",
        })
    }
}
