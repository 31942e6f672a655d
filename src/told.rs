//! What an admitted response is told of the decisions about its request.

use http::Response;

use crate::verdict::Verdict;

/// Worked out when the request is admitted, and put into the response once there is one.
#[derive(Default)]
pub(crate) struct Told {
    pub(crate) verdict: Option<Box<Verdict>>,
}

impl Told {
    pub(crate) fn tell<B>(self, response: &mut Response<B>) {
        if let Some(verdict) = self.verdict {
            verdict.insert_into(response.extensions_mut());
        }
    }
}
