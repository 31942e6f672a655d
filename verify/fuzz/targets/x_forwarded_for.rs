//! `X-Forwarded-For`: the client is the peer, unidentified, or an address that trusted proxies report.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tower_sluice_fuzz::forwarding::Case;

fuzz_target!(|data: &[u8]| {
    if let Some(case) = Case::new("x-forwarded-for", data) {
        case.check(|line| Some(line.split(|byte| *byte == b',').collect()));
    }
});
