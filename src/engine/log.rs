//! The log line for reports that no policy awaits.

#![cfg_attr(not(feature = "tracing"), allow(unused_imports, unused_variables))]

use crate::util::log::{event, page};

/// `policy` is the name that the handler wrote, if it wrote one. `known` are the names that would do.
pub(crate) fn reported_in_vain(policy: Option<&str>, known: &str, reports: u32) {
    event!(warn: see = page!("a-handler-reports-a-cost-that-no-policy-awaits"), policy, known, reports, "a handler reports a cost that no policy awaits, so that the estimates stay charged: write the name of a policy with settle_by_handler, or call settle_all, which needs no name");
}
