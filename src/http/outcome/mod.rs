//! The charges and units that end with an admitted request's response.
//!
//! A request that [stays open](StaysOpen), which most programs never make, is behind a trait object. So a program that
//! cannot make it is not linked with its code.

mod annotations;
mod ending;
mod held_request;
mod open_request;

use http::{Extensions, HeaderMap};

pub(crate) use self::annotations::StillOpen;
pub(crate) use self::ending::Ending;
pub(crate) use self::held_request::HeldRequest;
pub(crate) use self::open_request::ResponseProgress;
use crate::engine::domain::Http;
use crate::engine::outcome::Admitted;
use crate::engine::settlement::Settlement;
use crate::engine::verdict::Verdict;
use crate::http::head::ResponseHead;
use crate::values::RequestEnd;

/// The annotations for a request's response.
pub(crate) type Annotations = Admitted<Http>;

const _: () = assert!(size_of::<Annotations>() <= 32, "every response future holds them");

/// A request that is not over before its response's body ends. Dropping it ends it.
pub(crate) trait EndsWithBody {
    /// Notes that the server asks for the body's next frame.
    fn note_poll(&self);

    /// Counts the bytes in a body frame, which the server has now.
    fn note_bytes(&mut self, bytes: usize);

    /// Notes the trailers, in which gRPC has its status.
    fn note_trailers(&mut self, trailers: &HeaderMap);

    /// Notes an error from the body.
    fn fail(&mut self);

    /// Notes that the body has ended.
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

/// An admitted request that depends on its response, because charges await settlement, or retries may be free.
pub(crate) trait StaysOpen: EndsWithBody + Send + Sync {
    /// Notes whether the method is `HEAD`. Lets the handler settle costs, take the units that the request holds, and
    /// see the verdict so far.
    fn begin(&mut self, is_head: bool, extensions: &mut Extensions);

    /// Settles the charges that depend on the response's head, and returns the response's annotations.
    fn settle_head(&mut self, response: &ResponseHead<'_>) -> Annotations;

    /// Whether anything remains to end with the body.
    fn lasts(&self) -> bool;

    /// The verdict so far, if the layer adds one, and the handle that reports the cost, if a policy awaits one.
    fn look(&self) -> (Option<Verdict>, Option<Settlement>);

    /// Settles the charges that depend on a response's head, if nothing more will be known about the response.
    fn settle_last(&mut self, response: &ResponseHead<'_>);

    /// Notes how the request has ended, without a response.
    fn end_as(&mut self, end: RequestEnd);
}
