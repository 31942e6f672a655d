//! What ends with the response to an admitted request.
//!
//! What most programs never make, a request that [stays open](StaysOpen), is behind a pointer to a trait. So a program
//! that cannot make it is not linked with its code.

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

/// The annotations of a request's response.
pub(crate) type Annotations = Admitted<Http>;

const _: () = assert!(size_of::<Annotations>() <= 32, "every response future holds them");

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

    /// The verdict so far, if the layer adds one, and what reports the cost, if a policy awaits that.
    fn look(&self) -> (Option<Verdict>, Option<Settlement>);

    /// Settles what depends on the head of a response of which no more is known.
    fn settle_last(&mut self, response: &ResponseHead<'_>);

    /// Notes how the request is over, without a response.
    fn end_as(&mut self, end: RequestEnd);
}
