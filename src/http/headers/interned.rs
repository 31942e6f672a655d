//! Interned values: texts in fields and bodies that are the same on all responses.

use http::HeaderValue;

use super::decimal::value_of;

use crate::util::lock::Lock;

/// The most values of each kind that are leaked. A layer needs one per policy. A program that keeps changing its limits
/// gets reference-counted values beyond this bound, and has lost about a megabyte by then, at some hundred bytes per
/// value.
const MAX_LEAKED: usize = 4_096;

/// Interns a printable ASCII value that is the same on all responses. We leak it, so that copies cost nothing, because
/// reference counting would make all threads write to one cache line.
pub(super) fn intern(value: &[u8]) -> HeaderValue {
    match leaked(value) {
        Some(kept) => HeaderValue::from_static(std::str::from_utf8(kept).expect("printable ASCII")),
        None => value_of(value),
    }
}

/// Leaks a copy of these bytes, unless there is one already. `None` if too many are leaked.
pub(crate) fn leaked(bytes: &[u8]) -> Option<&'static [u8]> {
    // A sorted list is enough, because there are few values, which are interned when policies are put in force.
    static ALL: Lock<Vec<&'static [u8]>> = Lock::new(Vec::new());
    // If a thread panicked with the lock, the list is still valid, because bytes are leaked before they are inserted.
    let mut all = ALL.lock();
    match all.binary_search(&bytes) {
        Ok(index) => Some(all[index]),
        Err(_) if all.len() >= MAX_LEAKED => None,
        Err(index) => {
            let new: &'static [u8] = Box::leak(bytes.into());
            all.insert(index, new);
            Some(new)
        }
    }
}

/// The constant part of draft-11's fields for one policy. Leaked, so that a response future refers to it by one word
/// and does not count references.
#[derive(Debug)]
pub(crate) struct Constants {
    /// `"name";r=`, the start of the policy's `RateLimit` member.
    pub(super) prefix: Box<[u8]>,
    /// `RateLimit-Policy`, with all the layer's policies.
    pub(super) policies: HeaderValue,
}

impl Constants {
    /// Interns a policy's constants. `None` if too many are leaked already.
    pub(super) fn intern(prefix: &[u8], policies: &HeaderValue) -> Option<&'static Self> {
        static ALL: Lock<Vec<&'static Constants>> = Lock::new(Vec::new());
        // Sorted. Valid even if a thread panicked, because constants are leaked before they are inserted.
        let mut all = ALL.lock();
        let key = (prefix, policies.as_bytes());
        match all.binary_search_by(|known| (&*known.prefix, known.policies.as_bytes()).cmp(&key)) {
            Ok(index) => Some(all[index]),
            Err(_) if all.len() >= MAX_LEAKED => None,
            Err(index) => {
                let new = &*Box::leak(Box::new(Self { prefix: prefix.into(), policies: policies.clone() }));
                all.insert(index, new);
                Some(new)
            }
        }
    }
}
