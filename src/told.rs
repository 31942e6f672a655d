//! What a response is told of the decisions about its request.

use std::time::Duration;

use http::Response;

use crate::head::ResponseHead;
use crate::headers::{self, Fields};
use crate::verdict::Verdict;

/// Worked out when the request is judged, and put into the response once there is one.
#[derive(Default)]
pub(crate) struct Told {
    pub(crate) fields: Option<Fields>,
    /// How long the request waited for its turn, if that is told.
    pub(crate) waited: Option<Duration>,
    pub(crate) verdict: Option<Box<Verdict>>,
    /// If it is not known yet what the request costs: what tells the rest.
    pub(crate) open: Option<Box<dyn OpenBill>>,
}

/// Charges on which the response has a say.
pub(crate) trait OpenBill: Send {
    fn settle(self: Box<Self>, response: &ResponseHead<'_>) -> Told;
}

impl Told {
    #[inline]
    pub(crate) fn tell<B>(self, response: &mut Response<B>) {
        let told = match self.open {
            Some(bill) => bill.settle(&ResponseHead::from(&*response)),
            None => self,
        };
        told.write(response);
    }

    #[inline]
    fn write<B>(self, response: &mut Response<B>) {
        if let Some(fields) = self.fields {
            fields.write(response.status(), response.headers_mut());
        }
        if let Some(waited) = self.waited {
            headers::append_server_timing(response.headers_mut(), waited);
        }
        if let Some(verdict) = self.verdict {
            verdict.insert_into(response.extensions_mut());
        }
    }
}
