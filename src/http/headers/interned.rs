//! Interned values: header texts that are the same on all responses.

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
    static ALL: Lock<BTreeSet<&'static str>> = Lock::new(BTreeSet::new());
    let text = std::str::from_utf8(value).expect("printable ASCII");
    // If a thread panicked with the lock, the set is still valid: a text is leaked before it is inserted.
    let mut all = ALL.lock();
    match all.get(text).copied() {
        Some(kept) => HeaderValue::from_static(kept),
        None if all.len() >= MAX_LEAKED => value_of(value),
        None => {
            let new = String::from(text).leak();
            all.insert(new);
            HeaderValue::from_static(new)
        }
    }
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
