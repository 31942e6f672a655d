//! The log lines about responses and handlers, one function each.

#![cfg_attr(not(feature = "tracing"), allow(unused_imports, unused_variables))]

use std::fmt::Display;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::util::log::{event, page};

/// Warns if the inner service's response has CORS fields. Checks only the process's first 1,000 responses.
pub(crate) fn note_response(has_cors_fields: impl FnOnce() -> bool) {
    static LEFT: AtomicU32 = AtomicU32::new(1_000);
    if cfg!(not(feature = "tracing")) || LEFT.load(Ordering::Relaxed) == 0 {
        return;
    }
    if has_cors_fields() {
        // The swap lets only one thread find a count above zero, so that there is one line.
        if LEFT.swap(0, Ordering::Relaxed) > 0 {
            event!(
                warn: see = page!("the-cors-layer-is-inside-of-the-rate-limit"),
                "the CORS layer is inside of the rate limit, so that rejections lack CORS fields and browsers report \
                 them as network errors: put it outside"
            );
        }
    } else {
        let _ = LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
    }
}

/// Logged once per process, because a client that gets itself rejected could cause it at will.
pub(crate) fn rejection_body_failed(error: &dyn Display) {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        event!(warn: see = page!("the-body-of-a-custom-rejection-failed"), %error, "the body of a custom rejection failed and was cut off");
    });
}

/// Logged once per process, because each request to the handler finds the mistake again.
pub(crate) fn verdict_missing() {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        event!(error: see = page!("a-handler-takes-a-verdict-that-no-layer-adds"), "a handler takes a Verdict that no layer adds, and its requests are answered 500: build the layer with RateLimitLayerBuilder::verdict, and put it around the handler");
    });
}

/// The caller logs it once per policy name.
pub(crate) fn layers_are_short_lived(policy: &str, layers: u32) {
    event!(warn: see = page!("a-layer-is-built-for-each-request"), policy, layers, "layers of a policy are dropped after a few requests each, and each has counted from zero: build the layer once, outside of the handler or the closure, and clone it");
}

pub(crate) fn mounted_twice(policy: &str) {
    event!(warn: see = page!("a-layer-is-mounted-around-itself"), policy, "a rate limit layer is mounted around itself and charges each request twice: mount it once, around the router or around its routes");
}
