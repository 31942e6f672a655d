//! What becomes of a request: it passes, is rejected, or waits.
//!
//! The values here are made by [`evaluate`](super::evaluate), and used by the service. What most programs never make, a
//! request that waits and one that [stays open](StaysOpen), is behind a pointer to a trait. So a program that cannot
//! make it is not linked with its code.

mod annotations;
mod ending;
mod held_request;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use http::{Extensions, HeaderMap, Response};

pub(crate) use self::annotations::{Annotations, Rare, StillOpen};
pub(crate) use self::ending::Ending;
pub(crate) use self::held_request::HeldRequest;
use crate::http::body::RejectionBody;
use crate::http::head::ResponseHead;
use crate::http::headers::ResponseFields;
use crate::http::reject::Rejection;

/// The result of an evaluation.
pub(crate) enum Evaluation {
    /// The inner service is called; the annotations go onto its response.
    Admitted(Annotations),
    /// The request is answered with this response.
    Rejected(Response<RejectionBody>),
    /// The request waits for its turn in a queue, or for a server.
    Pending(Waiting),
}

/// The decision of all policies together: the annotations of an admitted request, or the rejection.
pub(crate) type Evaluated = Result<Annotations, Box<Rejected>>;

/// A request that waits. If it is dropped meanwhile, even before the first poll, the client has disconnected.
pub(crate) type Waiting = Pin<Box<dyn Future<Output = Evaluated> + Send>>;

/// The reason why a request is rejected, and the fields of its response.
pub(crate) struct Rejected {
    pub(crate) rejection: Rejection,
    pub(crate) fields: Option<ResponseFields>,
    /// The time that the request waited for its turn.
    pub(crate) waited: Option<Duration>,
}

/// A rejection before any policy has decided.
impl From<Rejection> for Rejected {
    fn from(rejection: Rejection) -> Self {
        Self { rejection, fields: None, waited: None }
    }
}

/// A request that is not over before the body of its response ends. Dropped, it ends.
pub(crate) trait EndsWithBody {
    /// Notes that the server asks for the next frame of the body.
    fn note_poll(&self);

    /// Counts the bytes of a frame of the body, which the server has now.
    fn note_bytes(&mut self, bytes: usize);

    /// Notes the trailers, in which gRPC has its status.
    fn note_trailers(&mut self, trailers: &HeaderMap);

    /// Notes an error of the body.
    fn fail(&mut self);

    /// Notes that the body has no more frames.
    fn note_end(&self);
}

impl<R: EndsWithBody + ?Sized> EndsWithBody for Box<R> {
    fn note_poll(&self) {
        (**self).note_poll();
    }

    fn note_bytes(&mut self, bytes: usize) {
        (**self).note_bytes(bytes);
    }

    fn note_trailers(&mut self, trailers: &HeaderMap) {
        (**self).note_trailers(trailers);
    }

    fn fail(&mut self) {
        (**self).fail();
    }

    fn note_end(&self) {
        (**self).note_end();
    }
}

/// An admitted request whose accounts depend on its response: charges await settlement, or retries may be free.
pub(crate) trait StaysOpen: EndsWithBody + Send + Sync {
    /// Notes whether the method is `HEAD`. Lets the handler settle costs, take the units that the request holds, and
    /// see the verdict so far.
    fn begin(&mut self, is_head: bool, extensions: &mut Extensions);

    /// Settles what depends on the head of the response, and returns the annotations of the response.
    fn settle_head(&mut self, response: &ResponseHead<'_>) -> Annotations;

    /// Whether anything remains to end with the body.
    fn lasts(&self) -> bool;
}
