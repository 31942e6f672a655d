//! [`ShedResponses`]: the responses to requests that an overloaded server sheds, each put together once.

use std::mem;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::{HeaderMap, Method, Response, StatusCode};

use crate::http::body::RejectionBody;
use crate::http::grpc::Protocol;
use crate::http::head::RequestHead;
use crate::http::headers::{leaked, retry_after_seconds};
use crate::values::ShedsAnybody;

/// The responses of one policy to requests that were shed, in plain HTTP. They differ in their wait alone, so the first
/// one with each wait is kept, and the others are copies: a server that is overloaded has no time to put them together.
#[derive(Default)]
pub(crate) struct ShedResponses {
    /// By the seconds of `Retry-After`; without the field at zero. Made for the first one.
    by_seconds: OnceLock<Box<[OnceLock<Kept>]>>,
    /// Made for the first one without the field, if the limiter sheds requests whoever has sent them.
    for_anybody: OnceLock<ForAnybody>,
}

/// An overloaded server advertises 30 seconds at most.
const PLACES: usize = 31;

/// A response to copy.
#[derive(Clone)]
struct Kept {
    status: StatusCode,
    fields: HeaderMap,
    body: &'static [u8],
}

/// The response to requests that are shed whoever has sent them, and what says when.
pub(crate) struct ForAnybody {
    pub(crate) shedder: Arc<dyn ShedsAnybody>,
    kept: Kept,
}

impl ShedResponses {
    /// Returns the response that advertises this wait to a request with this head: a copy, or what `respond` returns,
    /// which must depend on the wait only if the request is in plain HTTP.
    pub(crate) fn get_or_make(
        &self,
        wait: Option<Duration>,
        head: &RequestHead<'_>,
        respond: impl FnOnce() -> Response<RejectionBody>,
        shedder: impl FnOnce() -> Option<Arc<dyn ShedsAnybody>>,
    ) -> Response<RejectionBody> {
        let seconds = wait.map_or(0, retry_after_seconds);
        let place = usize::try_from(seconds).ok().filter(|place| *place < PLACES);
        let Some(place) = place.filter(|_| is_usual(head)) else { return respond() };
        if let Some(kept) = self.by_seconds.get().and_then(|by_seconds| by_seconds[place].get()) {
            return kept.copy();
        }
        let response = respond();
        if let Some(kept) = Kept::new(&response) {
            if let Some(shedder) = if place == 0 { shedder() } else { None } {
                self.for_anybody.get_or_init(|| ForAnybody { shedder, kept: kept.clone() });
            }
            let by_seconds = self.by_seconds.get_or_init(|| (0..PLACES).map(|_| OnceLock::new()).collect());
            by_seconds[place].get_or_init(|| kept);
        }
        response
    }

    /// The response to requests that are shed whoever has sent them, if there was one.
    #[inline]
    pub(crate) fn for_anybody(&self) -> Option<&ForAnybody> {
        self.for_anybody.get()
    }
}

/// Whether the response to a request with this head is the usual one: to HEAD, it has no body, and in gRPC, it is
/// another.
#[inline]
pub(crate) fn is_usual(head: &RequestHead<'_>) -> bool {
    match *head.method() {
        Method::GET => true,
        Method::HEAD => false,
        _ => Protocol::detect(head) == Protocol::Http,
    }
}

impl ForAnybody {
    #[inline(always)]
    pub(crate) fn response(&self) -> Response<RejectionBody> {
        self.kept.copy()
    }
}

impl Kept {
    #[cold]
    fn new(response: &Response<RejectionBody>) -> Option<Self> {
        let body = response.body().whole().and_then(leaked)?;
        Some(Self { status: response.status(), fields: response.headers().clone(), body })
    }

    #[inline(always)]
    fn copy(&self) -> Response<RejectionBody> {
        let mut response = Response::new(self.body.into());
        *response.status_mut() = self.status;
        // The map of a new response is empty and owns nothing, but to drop it takes as long as to drop a full one.
        mem::forget(mem::replace(response.headers_mut(), self.fields.clone()));
        response
    }
}
