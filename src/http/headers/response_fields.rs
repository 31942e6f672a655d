//! `ResponseFields`: one response's fields, computed at decision time and written when the response arrives.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::time::SystemTime;

use http::{HeaderMap, HeaderValue, StatusCode};

use super::decimal::{Scratch, value_of};
use super::draft11;
use super::interned::Constants;
use super::measure::Level;
use super::writer::{PolicyReading, Reading, Writer};
use crate::values::Decision;

/// The values of draft-11's fields for one policy.
pub(super) type PolicyLevel = (&'static Constants, Level);

/// Fields computed at decision time, to be written when the response arrives. They take three words, because each
/// response future holds them.
#[derive(Debug)]
pub(crate) enum ResponseFields {
    /// Only draft-11's, for one policy: its [`Level`], if its seconds fit into 32 bits.
    One { constants: &'static Constants, left: u64, within: Option<NonZeroU32> },
    /// Only draft-11's, for several policies, or for one with a time in centuries.
    Several(Box<[PolicyLevel]>),
    /// Fields that depend on the response, or on the time of day.
    Deferred(Box<DeferredFields>),
}

const _: () = assert!(size_of::<Option<ResponseFields>>() <= 3 * size_of::<u64>());

/// The inputs from which the fields are computed when the response arrives.
#[derive(Debug)]
pub(crate) struct DeferredFields {
    writer: Arc<Writer>,
    readings: Vec<Reading<Decision>>,
}

impl ResponseFields {
    /// Only draft-11's fields, for one policy.
    #[inline]
    pub(super) fn one(constants: &'static Constants, level: Level) -> Self {
        match level.within.map(NonZeroU32::try_from).transpose() {
            Ok(within) => Self::One { constants, left: level.left, within },
            Err(_) => Self::of_centuries(constants, level),
        }
    }

    #[cold]
    fn of_centuries(constants: &'static Constants, level: Level) -> Self {
        Self::Several(Box::new([(constants, level)]))
    }

    /// Adds the fields to a response with this status, unless the status excludes them.
    #[inline]
    pub(crate) fn write(self, status: StatusCode, headers: &mut HeaderMap) {
        match self {
            Self::Deferred(deferred) => deferred.write(status, headers),
            ref fields => drop(fields.with_levels(|levels| write_levels(status, headers, levels))),
        }
    }

    /// Passes on the levels if all fields follow draft-11 and there is at least one policy.
    #[inline(always)]
    pub(super) fn with_levels<R>(&self, pass_on: impl FnOnce(&[PolicyLevel]) -> R) -> Option<R> {
        match self {
            Self::One { constants, left, within } => {
                Some(pass_on(&[(constants, Level { left: *left, within: within.map(NonZeroU64::from) })]))
            }
            Self::Several(levels) => Some(pass_on_several(levels, pass_on)),
            Self::Deferred(_) => None,
        }
    }
}

/// A separate function, so that the code for one policy does not have a loop.
#[cold]
#[inline(never)]
fn pass_on_several<R>(levels: &[PolicyLevel], pass_on: impl FnOnce(&[PolicyLevel]) -> R) -> R {
    pass_on(levels)
}

#[inline(always)]
fn write_levels(status: StatusCode, headers: &mut HeaderMap, levels: &[PolicyLevel]) {
    let Some((Constants { policies, .. }, _)) = levels.first() else { return };
    let is_exhausted = || levels.iter().any(|(_, level)| level.left == 0);
    write_draft11(status, headers, policies.clone(), ratelimit(levels), is_exhausted);
}

/// Makes the value of draft-11's `RateLimit`.
#[inline(always)]
pub(super) fn ratelimit(levels: &[PolicyLevel]) -> HeaderValue {
    let mut out = Scratch::new();
    for (constants, level) in levels {
        draft11::push_state(&mut out, &constants.prefix, *level, None);
    }
    value_of(&out)
}

/// Adds draft-11's fields to a response with this status. `policies` is the value of `RateLimit-Policy`, and
/// `is_exhausted` returns whether a policy has nothing left.
#[inline]
pub(super) fn write_draft11(
    status: StatusCode,
    headers: &mut HeaderMap,
    policies: HeaderValue,
    ratelimit: HeaderValue,
    is_exhausted: impl FnOnce() -> bool,
) {
    if !status.is_informational() {
        // A client might wait before it follows `Location` (draft-ietf-httpapi-ratelimit-headers-11, section 6).
        let is_left_out = status.is_redirection() && is_exhausted();
        draft11::write(headers, policies, (!is_left_out).then_some(ratelimit));
    }
}

impl DeferredFields {
    pub(super) fn new<'a>(writer: Arc<Writer>, readings: impl Iterator<Item = PolicyReading<'a>>) -> Self {
        Self { writer, readings: readings.map(|reading| reading.with_decision(*reading.decision)).collect() }
    }

    #[cold]
    fn write(&self, status: StatusCode, headers: &mut HeaderMap) {
        let readings = self.readings.iter().map(|reading| reading.with_decision(&reading.decision));
        self.writer.write(status, headers, readings, SystemTime::now);
    }
}
