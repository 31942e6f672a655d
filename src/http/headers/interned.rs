//! Interned values: texts of fields and bodies that are the same on all responses.

use std::collections::{BTreeMap, BTreeSet};

use http::HeaderValue;

use super::decimal::value_of;

use crate::util::lock::Lock;

/// The most values of each kind that are leaked. A layer needs as few as it has policies; a program that keeps
/// changing its limits gets reference-counted values beyond this bound, and has lost about a megabyte by then, at some
/// hundred bytes per value.
const MAX_LEAKED: usize = 4_096;

/// Interns a value of printable ASCII that is the same on all responses. It is leaked: copies then cost nothing, where
/// reference counting would make all threads write to one cache line.
pub(super) fn intern(value: &[u8]) -> HeaderValue {
    match leaked(value) {
        Some(kept) => HeaderValue::from_static(std::str::from_utf8(kept).expect("printable ASCII")),
        None => value_of(value),
    }
}

/// Leaks a copy of these bytes, unless there is one already; `None` if too many are leaked.
pub(crate) fn leaked(bytes: &[u8]) -> Option<&'static [u8]> {
    static ALL: Lock<BTreeSet<&'static [u8]>> = Lock::new(BTreeSet::new());
    // If a thread panicked with the lock, the set is still valid: bytes are leaked before they are inserted.
    let mut all = ALL.lock();
    if let Some(kept) = all.get(bytes) {
        return Some(kept);
    }
    (all.len() < MAX_LEAKED).then(|| {
        let new: &'static [u8] = Box::leak(bytes.into());
        all.insert(new);
        new
    })
}

/// The constant part of draft-11's fields for one policy. Leaked, so that a response future refers to it by one word
/// and counts no references.
#[derive(Debug)]
pub(crate) struct Constants {
    /// `"name";r=`, the start of the policy's member of `RateLimit`.
    pub(super) prefix: Box<[u8]>,
    /// `RateLimit-Policy`, with all policies of the layer.
    pub(super) policies: HeaderValue,
}

impl Constants {
    /// Interns the constants of a policy; `None` if too many are leaked already.
    pub(super) fn intern(prefix: &[u8], policies: &HeaderValue) -> Option<&'static Self> {
        type Known = BTreeMap<[Box<[u8]>; 2], &'static Constants>;
        static ALL: Lock<Known> = Lock::new(Known::new());
        let key = [prefix, policies.as_bytes()].map(Box::from);
        // As above: the constants are leaked before they are inserted.
        let mut all = ALL.lock();
        if all.len() < MAX_LEAKED {
            let new = || &*Box::leak(Box::new(Self { prefix: prefix.into(), policies: policies.clone() }));
            return Some(all.entry(key).or_insert_with(new));
        }
        all.get(&key).copied()
    }
}
