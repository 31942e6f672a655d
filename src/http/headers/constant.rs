//! Texts that are the same on all responses.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use http::HeaderValue;

use super::decimal::value_of;

/// So many of each kind are kept for ever. There are as few as there are policies; those of a program that goes on
/// changing its limits are counted after all.
const MOST: usize = 4_096;

/// A value that is the same on all responses. It is never dropped: a copy then costs nothing, where a copy that is
/// counted has all threads write to the same place.
pub(super) fn constant(value: &[u8]) -> HeaderValue {
    static ALL: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let text = std::str::from_utf8(value).expect("printable ASCII");
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    match all.get(text).copied() {
        Some(kept) => HeaderValue::from_static(kept),
        None if all.len() >= MOST => value_of(value),
        None => {
            let new = String::from(text).leak();
            all.insert(new);
            HeaderValue::from_static(new)
        }
    }
}

/// What is the same on all responses that advertise one policy, by draft-11. Never dropped, so that a response that is
/// awaited refers to it by one word, and counts no references.
#[derive(Debug)]
pub(crate) struct Member {
    /// `"name";r=`.
    pub(super) prefix: Box<[u8]>,
    /// `RateLimit-Policy`, of all policies of the layer.
    pub(super) list: HeaderValue,
}

impl Member {
    /// `None` if too many are known already.
    pub(super) fn constant(prefix: &[u8], list: &HeaderValue) -> Option<&'static Self> {
        type Known = BTreeMap<[Box<[u8]>; 2], &'static Member>;
        static ALL: Mutex<Known> = Mutex::new(Known::new());
        let key = [prefix, list.as_bytes()].map(Box::from);
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(&key) {
            return Some(known);
        }
        if all.len() >= MOST {
            return None;
        }
        let new: &Self = Box::leak(Box::new(Self { prefix: prefix.into(), list: list.clone() }));
        all.insert(key, new);
        Some(new)
    }
}
