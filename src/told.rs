//! What a response is told of the decisions about its request.

use http::Response;

use crate::headers::Fields;
use crate::verdict::Verdict;

/// Worked out when the request is judged, and put into the response once there is one.
#[derive(Default)]
pub(crate) struct Told {
    pub(crate) fields: Option<Fields>,
    pub(crate) verdict: Option<Box<Verdict>>,
}

impl Told {
    #[inline]
    pub(crate) fn tell<B>(self, response: &mut Response<B>) {
        if let Some(fields) = self.fields {
            fields.write(response.status(), response.headers_mut());
        }
        if let Some(verdict) = self.verdict {
            verdict.insert_into(response.extensions_mut());
        }
    }
}
