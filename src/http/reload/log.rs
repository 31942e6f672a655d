//! The log lines about layers in the wrong place, one function each. The callers log each mistake once.

#![cfg_attr(not(feature = "tracing"), allow(unused_imports, unused_variables))]

use crate::util::log::{event, page};

/// The caller logs it once per name of a policy.
pub(crate) fn layers_are_short_lived(policy: &str, layers: u32) {
    event!(warn: see = page!("a-layer-is-built-for-each-request"), policy, layers, "layers of a policy are dropped after a few requests each, and each has counted from zero: build the layer once, outside of the handler or the closure, and clone it");
}

pub(crate) fn mounted_twice(policy: &str) {
    event!(warn: see = page!("a-layer-is-mounted-around-itself"), policy, "a rate limit layer is mounted around itself and charges each request twice: mount it once, around the router or around its routes");
}
