//! What a response is told of the decisions about its request.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::Response;
use smallvec::SmallVec;

use crate::decision::Decision;
use crate::headers::{Mark, Reading, Writer};
use crate::verdict::Verdict;

/// Worked out when the request is judged, and put into the response once there is one.
#[derive(Default)]
pub(crate) struct Told {
    pub(crate) fields: Option<Fields>,
    pub(crate) verdict: Option<Box<Verdict>>,
}

/// For header fields.
pub(crate) struct Fields {
    pub(crate) writer: Arc<Writer>,
    pub(crate) readings: SmallVec<[Kept; 1]>,
}

/// One policy's decision, kept for a [`Reading`].
pub(crate) struct Kept {
    /// Its index in the layer.
    pub(crate) policy: usize,
    pub(crate) decision: Decision,
    pub(crate) next_after: Option<Duration>,
    pub(crate) mark: Option<Mark>,
}

impl Told {
    #[inline]
    pub(crate) fn tell<B>(self, response: &mut Response<B>) {
        if let Some(Fields { writer, readings }) = self.fields {
            let readings = readings.iter().map(|kept| Reading {
                policy: kept.policy,
                decision: &kept.decision,
                next_after: kept.next_after,
                mark: kept.mark,
            });
            writer.write(response.status(), response.headers_mut(), readings, SystemTime::now);
        }
        if let Some(verdict) = self.verdict {
            verdict.insert_into(response.extensions_mut());
        }
    }
}
