//! Open requests: passes information from their responses to the engine.

use http::{Extensions, HeaderMap};

use super::{Annotations, Ending, EndsWithBody, StaysOpen};
use crate::engine::domain::Http;
use crate::engine::evaluate::OpenRequest;
use crate::engine::settlement::Settlement;
use crate::engine::translate::Progress;
use crate::engine::verdict::Verdict;
use crate::http::extensions;
use crate::http::grpc;
use crate::http::head::{KeptHead, ResponseHead};
use crate::values::RequestEnd;

/// How far an open request's response has come.
#[derive(Default)]
pub(crate) struct ResponseProgress {
    ending: Ending,
    /// A gRPC response's head, if charges depend on its status, which comes in the trailers.
    awaiting_status: Option<Box<KeptHead>>,
}

impl Progress for ResponseProgress {
    fn end(&self) -> RequestEnd {
        self.ending.request_end()
    }
}

impl StaysOpen for OpenRequest<Http> {
    fn begin(&mut self, is_head: bool, extensions: &mut Extensions) {
        self.progress.ending.begin(is_head);
        if let Some(verdict) = self.verdict() {
            extensions::add_verdict(&verdict, extensions);
        }
        if let Some(reports) = self.reports() {
            extensions::add_settlement(reports, extensions);
        }
        if let Some(held) = self.held() {
            extensions::add_permits(held, extensions);
        }
    }

    /// Settles the charges that depend on the response's head. Releases the units that are held until then.
    fn settle_head(&mut self, response: &ResponseHead<'_>) -> Annotations {
        self.progress.ending.note_head(response);
        let end = self.progress.ending.at_head();
        self.begin_outcome(end);
        if self.awaits_outcome() && grpc::has_status_in_trailers(response.headers()) {
            self.progress.awaiting_status = Some(Box::new(response.into()));
        } else {
            self.settle_by(response);
        }
        self.report()
    }

    fn lasts(&self) -> bool {
        self.lasts()
    }

    fn look(&self) -> (Option<Verdict>, Option<Settlement>) {
        self.look()
    }

    fn settle_last(&mut self, response: &ResponseHead<'_>) {
        self.progress.ending.note_last(response);
        self.settle_by(response);
    }

    fn end_as(&mut self, end: RequestEnd) {
        self.progress.ending.end_as(end);
    }
}

impl EndsWithBody for OpenRequest<Http> {
    fn note_poll(&self) {
        if let Some(held) = self.held() {
            held.resume();
        }
    }

    fn note_bytes(&mut self, bytes: usize) {
        self.note_bytes(bytes);
    }

    fn note_trailers(&mut self, trailers: &HeaderMap) {
        self.progress.ending.note_trailers(trailers);
        if let Some(head) = self.progress.awaiting_status.take() {
            self.settle_by(&ResponseHead::from(&head.with(trailers)));
        }
    }

    fn fail(&mut self) {
        self.progress.ending.fail();
    }

    fn note_end(&self) {
        self.progress.ending.note_end();
    }
}
