//! Requests that hold units, and do not await anything else from their responses.
//!
//! An [open request](super::StaysOpen) keeps its transaction's entries. A held one keeps only its units, in one
//! allocation, which it shares with the [`Permits`](crate::Permits) in the request's extensions, and one for these.

use std::sync::Arc;

use http::{Extensions, HeaderMap};

use super::EndsWithBody;
use super::ending::Ending;
use crate::engine::permits::Held;
use crate::http::extensions as attached;
use crate::http::head::ResponseHead;
use crate::values::RequestEnd;

/// An admitted request's units, until its body has ended, has failed, or was dropped. Without a response, they stay
/// until the client has disconnected or the service has failed.
pub(crate) struct HeldRequest {
    held: Arc<Held>,
    ending: Ending,
}

impl HeldRequest {
    #[inline(always)]
    pub(crate) fn new(held: Held) -> Self {
        Self { held: Arc::new(held), ending: Ending::default() }
    }

    /// Notes whether the method is `HEAD`. Lets the handler take the units.
    pub(crate) fn begin(&mut self, is_head: bool, extensions: &mut Extensions) {
        self.ending.begin(is_head);
        attached::add_permits(&self.held, extensions);
    }

    /// Notes a response's head, if nothing more will be known about the response.
    pub(crate) fn note_last(&mut self, response: &ResponseHead<'_>) {
        self.ending.note_last(response);
    }

    /// Notes how the request has ended, without a response.
    pub(crate) fn end_as(&mut self, end: RequestEnd) {
        self.ending.end_as(end);
    }

    /// Notes the response's head.
    pub(crate) fn note_head(&mut self, response: &ResponseHead<'_>) {
        self.ending.note_head(response);
        self.held.begin_body();
    }
}

impl EndsWithBody for HeldRequest {
    fn note_poll(&self) {
        self.held.resume();
    }

    fn note_bytes(&mut self, _: usize) {
        self.held.hand_over();
    }

    fn note_trailers(&mut self, trailers: &HeaderMap) {
        self.ending.note_trailers(trailers);
    }

    fn fail(&mut self) {
        self.ending.fail();
    }

    fn note_end(&self) {
        self.ending.note_end();
    }
}

impl Drop for HeldRequest {
    // Not inlined, so that requests that do not hold units do not pay for the registers.
    #[inline(never)]
    fn drop(&mut self) {
        self.held.release(self.ending.request_end());
    }
}
