//! [`Ending`]: how far a response has come, and so how its request ends.

use std::sync::atomic::{AtomicBool, Ordering};

use http::{HeaderMap, StatusCode};

use crate::http::grpc;
use crate::http::head::ResponseHead;
use crate::values::RequestEnd;

/// How far a request's response has come.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    has_head: bool,
    /// Whether the response has no content, like any response to `HEAD`, so that its head is its end.
    has_no_content: bool,
    /// Whether the response is a failure so far.
    has_failed: bool,
    /// Whether the body has said that it is at its end. Set through a shared reference, because a server that finds out
    /// drops the body, without a last poll.
    has_ended: AtomicBool,
}

impl Ending {
    /// Notes whether the method is `HEAD`.
    pub(crate) const fn begin(&mut self, is_head: bool) {
        self.has_no_content = is_head;
    }

    /// Notes the response's head.
    pub(crate) fn note_head(&mut self, response: &ResponseHead<'_>) {
        self.has_head = true;
        self.has_failed = response.status().is_server_error() || grpc::is_server_error(response.headers());
        self.has_no_content |= matches!(response.status(), StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    }

    /// Notes a response's head, if nothing more will be known about the response.
    pub(crate) fn note_last(&mut self, response: &ResponseHead<'_>) {
        self.note_head(response);
        self.note_end();
    }

    /// How the request has ended, if the head is its end.
    pub(crate) const fn at_head(&self) -> RequestEnd {
        if self.has_failed { RequestEnd::Failed } else { RequestEnd::Served }
    }

    /// Notes an error from the inner service, or from the body.
    pub(crate) const fn fail(&mut self) {
        self.has_failed = true;
    }

    /// Notes the trailers, in which gRPC has its status.
    pub(crate) fn note_trailers(&mut self, trailers: &HeaderMap) {
        self.has_failed |= grpc::is_server_error(trailers);
    }

    /// Notes that the body has ended.
    pub(crate) fn note_end(&self) {
        // A body is polled and dropped by one task at a time.
        self.has_ended.store(true, Ordering::Relaxed);
    }

    /// Notes how the request has ended, without a response.
    pub(crate) const fn end_as(&mut self, end: RequestEnd) {
        self.has_head = true;
        self.has_failed = matches!(end, RequestEnd::Failed);
        self.has_no_content = matches!(end, RequestEnd::Served);
    }

    /// How the request has ended, if it is dropped now.
    pub(crate) fn request_end(&self) -> RequestEnd {
        if self.has_failed {
            RequestEnd::Failed
        } else if self.has_ended.load(Ordering::Relaxed) || (self.has_no_content && self.has_head) {
            RequestEnd::Served
        } else if self.has_head {
            RequestEnd::CutOff
        } else {
            RequestEnd::Abandoned
        }
    }
}
