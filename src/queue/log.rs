//! The log line of a queue.

#![cfg_attr(not(feature = "tracing"), allow(unused_imports, unused_variables))]

use crate::util::log::{event, page};

pub(crate) fn queue_full() {
    event!(warn: see = page!("a-queue-is-full-of-keys"), "a queue is full of keys, and treats new ones as its when_full says: raise its max_keys, or put a policy with a coarser key before it");
}
