//! Annotates responses with fields and extensions that report the decisions on their requests.

use http::{Extensions, Method, Request, Response};

use super::held_request::HeldRequest;
use super::{Annotations, EndsWithBody, StaysOpen};
use crate::engine::outcome::Rare;
use crate::http::{extensions, headers};

impl Annotations {
    /// Adds to the request's extensions, before the inner service is called.
    #[inline(always)]
    pub(crate) fn extend_request<B>(&mut self, request: &mut Request<B>) {
        if !matches!(self, Self::Known { rare: None, .. }) {
            let is_head = *request.method() == Method::HEAD;
            self.extend(is_head, request.extensions_mut());
        }
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn extend(&mut self, is_head: bool, extensions: &mut Extensions) {
        match self {
            Self::Known { rare, .. } => {
                if let Some(rare) = rare {
                    rare.extend_request(extensions);
                }
            }
            Self::Held { request, known } => {
                if let Some(known) = known {
                    known.extend(is_head, extensions);
                }
                request.begin(is_head, extensions);
            }
            Self::Open(open) => open.begin(is_head, extensions),
        }
    }

    /// Ends a request for which the inner service has returned an error.
    #[cold]
    pub(crate) fn fail(self) {
        match self {
            Self::Open(mut open) => open.fail(),
            Self::Held { mut request, .. } => request.fail(),
            Self::Known { .. } => {}
        }
    }

    /// Annotates the response. If the request is [still open](Self::settle), returns its annotations.
    #[inline(always)]
    pub(crate) fn write<B>(self, response: &mut Response<B>) -> Option<Self> {
        match self {
            Self::Known { fields, rare } => {
                if let Some(fields) = fields {
                    fields.write(response.status(), response.headers_mut());
                }
                if let Some(rare) = rare {
                    rare.write(response);
                }
                None
            }
            open => Some(open),
        }
    }

    /// Annotates the response to a request that was open until now. Returns the request, if it ends with the body.
    #[inline(always)]
    pub(crate) fn settle<B>(self, response: &mut Response<B>) -> Option<StillOpen> {
        match self {
            Self::Known { .. } => {
                self.write(response);
                None
            }
            Self::Held { mut request, known } => {
                request.note_head(&(&*response).into());
                if let Some(known) = known {
                    known.write(response);
                }
                Some(StillOpen::Held(request))
            }
            Self::Open(mut open) => {
                open.settle_head(&(&*response).into()).write(response);
                open.lasts().then_some(StillOpen::Open(open))
            }
        }
    }
}

/// A request that ends with its response's body.
pub(crate) enum StillOpen {
    Held(HeldRequest),
    Open(Box<dyn StaysOpen>),
}

impl Rare {
    #[cold]
    fn extend_request(&self, extensions: &mut Extensions) {
        if let Some(verdict) = &self.verdict {
            extensions::add_verdict(verdict, extensions);
        }
    }

    #[cold]
    #[allow(clippy::boxed_local, reason = "the hot path passes a pointer on")]
    fn write<B>(self: Box<Self>, response: &mut Response<B>) {
        if let Some(waited) = self.waited {
            headers::append_server_timing(response.headers_mut(), waited);
        }
        if let Some(verdict) = self.verdict {
            extensions::put_verdict(verdict, response.extensions_mut());
        }
    }
}
