//! `Writer`: which fields a response gets, from the decisions on its request.

use std::cmp::{Ordering, Reverse};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue, StatusCode};
use smallvec::SmallVec;

use super::append::append_draft11;
use super::constant::{Member, constant};
use super::decimal::{Scratch, seconds_ceil, value_of};
use super::draft07::{self, Standing};
use super::draft11;
use super::fields::{Advertise, Generation, Partition, RateLimitFields, ResetForm};
use super::legacy;
use super::measure::{Level, Measure};
use super::partition::{Mark, is_publicly_cacheable, secret_of_process};
use crate::util::keyed_hash::Secret;
use crate::values::{Decision, PartitionKey, Terms};

/// Writes the fields that advertise the remaining quota. Built once per layer, with all that is the same on every
/// response.
///
/// On the common path, draft-11 with one policy, it costs one allocation: the value of `RateLimit`, when the response
/// arrives.
#[derive(Debug)]
pub(crate) struct Writer {
    generation: Generation,
    legacy: Option<ResetForm>,
    advertise: Advertise,
    secret: Option<Secret>,
    /// In the layer's order; `None` for policies that are not advertised.
    policies: Box<[Option<PolicyFields>]>,
    /// Whether responses get draft-11's fields only, and all constant texts of these are interned.
    is_constant: bool,
    /// Draft-11's `RateLimit-Policy`.
    policy: Option<HeaderValue>,
}

/// One advertised policy: how to compute its numbers, and its constant texts.
#[derive(Debug)]
struct PolicyFields {
    measure: Measure,
    /// The start of a member of draft-11's `RateLimit`.
    prefix: Box<[u8]>,
    /// The constant part of draft-11's fields, if it is interned.
    member: Option<&'static Member>,
    /// Draft-07's `RateLimit-Policy`.
    policy: HeaderValue,
}

/// One policy's decision on a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading<'a> {
    /// The policy's index in the layer.
    pub(crate) policy: usize,
    pub(crate) decision: &'a Decision,
    /// The time until one unit is available, if the decision has it.
    pub(crate) next_after: Option<Duration>,
    /// Made by [`Writer::mark`].
    pub(crate) mark: Option<Mark>,
}

/// A value of `RateLimit`.
#[derive(Debug)]
pub(crate) struct State {
    pub(super) value: HeaderValue,
    /// Whether a policy has nothing left.
    pub(super) is_exhausted: bool,
}

/// Fields computed at decision time, to be written when the response arrives. Three words, since each response future
/// holds them.
#[derive(Debug)]
pub(crate) enum ResponseFields {
    /// Draft-11's alone, of one policy: its [`Level`].
    One { member: &'static Member, left: u32, within: Option<NonZeroU64> },
    /// Draft-11's alone, of several policies.
    Several(Box<[(&'static Member, Level)]>),
    /// Fields that depend on the response, or on the time of the day.
    Deferred(Box<Deferred>),
}

const _: () = assert!(size_of::<Option<ResponseFields>>() <= 3 * size_of::<u64>());

/// What it takes to compute the fields when the response arrives.
#[derive(Debug)]
pub(crate) struct Deferred {
    writer: Arc<Writer>,
    readings: Vec<OwnedReading>,
}

/// A [`Reading`] that owns its decision.
#[derive(Debug)]
struct OwnedReading {
    policy: usize,
    decision: Decision,
    next_after: Option<Duration>,
    mark: Option<Mark>,
}

impl ResponseFields {
    /// Adds the fields to a response of this status, if its kind carries them.
    #[inline]
    pub(crate) fn write(self, status: StatusCode, headers: &mut HeaderMap) {
        match self {
            Self::One { member, left, within } => {
                write_draft11(status, headers, &[(member, Level { left, within })]);
            }
            Self::Several(levels) => write_several(status, headers, &levels),
            Self::Deferred(deferred) => deferred.write(status, headers),
        }
    }
}

#[cold]
fn write_several(status: StatusCode, headers: &mut HeaderMap, levels: &[(&'static Member, Level)]) {
    write_draft11(status, headers, levels);
}

#[inline]
fn write_draft11(status: StatusCode, headers: &mut HeaderMap, levels: &[(&'static Member, Level)]) {
    let Some((Member { list, .. }, _)) = levels.first() else { return };
    let mut out = Scratch::new();
    for (member, level) in levels {
        draft11::push_state(&mut out, &member.prefix, *level, None);
    }
    let is_exhausted = levels.iter().any(|(_, level)| level.left == 0);
    add_draft11(status, headers, list.clone(), State { value: value_of(&out), is_exhausted });
}

impl Deferred {
    #[cold]
    fn write(&self, status: StatusCode, headers: &mut HeaderMap) {
        let readings = self.readings.iter().map(|reading| Reading {
            policy: reading.policy,
            decision: &reading.decision,
            next_after: reading.next_after,
            mark: reading.mark,
        });
        self.writer.write(status, headers, readings, SystemTime::now);
    }
}

#[inline]
fn add_draft11(status: StatusCode, headers: &mut HeaderMap, policy: HeaderValue, state: State) {
    if !status.is_informational() {
        // A client might wait before it follows `Location` (draft-ietf-httpapi-ratelimit-headers-11, section 6).
        let state = (!(status.is_redirection() && state.is_exhausted)).then_some(state.value);
        append_draft11(headers, policy, state);
    }
}

impl Writer {
    /// Makes a writer for a layer's policies, in its order: their names, and the terms of those that are
    /// advertised.
    ///
    /// # Panics
    ///
    /// If a name is not printable ASCII.
    pub(crate) fn new<'a>(
        fields: &RateLimitFields,
        policies: impl IntoIterator<Item = (&'a str, Option<Terms>)>,
    ) -> Self {
        let mut all = Scratch::new();
        let policies = policies.into_iter().map(|(name, terms)| {
            let measure = Measure::new(&terms?);
            let quoted = draft11::quoted(name);
            draft11::push_policy(&mut all, &quoted, measure.advertised());
            let policy = constant(draft07::policy(measure.advertised()).as_bytes());
            Some(PolicyFields { measure, prefix: draft11::prefix(&quoted), member: None, policy })
        });
        let mut policies: Box<[Option<PolicyFields>]> = policies.collect();
        let secret = match fields.partition {
            Partition::Hidden => None,
            Partition::PerProcess => Some(secret_of_process()),
            Partition::Keyed(secret) => Some(secret),
        };
        // An empty list is sent as no field (RFC 9651, section 3.1).
        let policy = (!all.is_empty()).then(|| constant(&all));
        let mut is_constant = fields.generation == Generation::Draft11 && fields.legacy.is_none() && secret.is_none();
        if let Some(list) = policy.as_ref().filter(|_| is_constant) {
            for policy_fields in policies.iter_mut().flatten() {
                policy_fields.member = Member::constant(&policy_fields.prefix, list);
                is_constant &= policy_fields.member.is_some();
            }
        }
        Self {
            generation: fields.generation,
            legacy: fields.legacy,
            advertise: fields.advertise,
            secret: secret.filter(|_| fields.generation == Generation::Draft11),
            policies,
            is_constant,
            policy,
        }
    }

    /// Whether no response gets a field, so that readings need not be collected.
    pub(crate) fn is_silent(&self) -> bool {
        let has_fields = self.generation != Generation::None || self.legacy.is_some();
        !has_fields || self.advertise == Advertise::Never || self.policy.is_none()
    }

    /// Returns the hash that stands for a partition key, if it is advertised.
    pub(crate) fn mark(&self, key: &PartitionKey) -> Option<Mark> {
        self.secret.map(|secret| Mark::new(secret, key))
    }

    /// Returns the fields of a response after one policy's decision, if any. The common case.
    #[inline]
    pub(crate) fn fields_of_one(self: &Arc<Self>, reading: Reading<'_>) -> Option<ResponseFields> {
        if self.advertise != Advertise::Always || !self.is_constant {
            return self.fields(std::iter::once(reading));
        }
        let policy_fields = self.policy_fields(reading.policy)?;
        let Level { left, within } = policy_fields.measure.level(reading.decision, reading.next_after);
        Some(ResponseFields::One { member: policy_fields.member?, left, within })
    }

    /// Returns the fields of a response after these decisions, if any.
    pub(crate) fn fields<'a>(
        self: &Arc<Self>,
        readings: impl Iterator<Item = Reading<'a>> + Clone,
    ) -> Option<ResponseFields> {
        if self.advertise != Advertise::Always && !self.advertises(readings.clone()) {
            return None;
        }
        if !self.is_constant {
            return Some(self.deferred(readings));
        }
        let levels = readings.filter_map(|reading| {
            let policy_fields = self.policy_fields(reading.policy)?;
            Some((policy_fields.member?, policy_fields.measure.level(reading.decision, reading.next_after)))
        });
        // Collected on the stack, so that the box is allocated once.
        let levels: SmallVec<[_; 4]> = levels.collect();
        match *levels {
            [] => None,
            [(member, Level { left, within })] => Some(ResponseFields::One { member, left, within }),
            ref several => Some(ResponseFields::Several(several.into())),
        }
    }

    #[cold]
    fn deferred<'a>(self: &Arc<Self>, readings: impl Iterator<Item = Reading<'a>>) -> ResponseFields {
        let owned = |reading: Reading<'_>| OwnedReading {
            policy: reading.policy,
            decision: *reading.decision,
            next_after: reading.next_after,
            mark: reading.mark,
        };
        ResponseFields::Deferred(Box::new(Deferred {
            writer: Arc::clone(self),
            readings: readings.map(owned).collect(),
        }))
    }

    /// Adds the fields to a response of this status, if its kind carries them. Calls `now` only for a reset in
    /// seconds since 1970.
    pub(super) fn write<'a>(
        &self,
        status: StatusCode,
        headers: &mut HeaderMap,
        readings: impl Iterator<Item = Reading<'a>> + Clone,
        now: impl FnOnce() -> SystemTime,
    ) {
        if status.is_informational() || !self.advertises(readings.clone()) {
            return;
        }
        if self.generation == Generation::Draft11 {
            let hides = self.secret.is_some() && is_publicly_cacheable(headers);
            let readings = readings.clone().map(|reading| Reading { mark: reading.mark.filter(|_| !hides), ..reading });
            if let (Some(policy), Some(state)) = (&self.policy, self.state(readings)) {
                add_draft11(status, headers, policy.clone(), state);
            }
        }
        if self.legacy.is_none() && self.generation != Generation::Draft07 {
            return;
        }
        let Some((policy_fields, decision, level)) = self.closest(readings) else { return };
        let reset = level.within.map_or_else(|| seconds_ceil(decision.reset_after()).max(1), NonZeroU64::get);
        let limit = policy_fields.measure.advertised().quota;
        let standing = Standing { policy: &policy_fields.policy, limit, remaining: level.left, reset };
        match self.generation {
            // A client might wait before it follows `Location`.
            Generation::Draft07 if status.is_redirection() && level.left == 0 => {}
            Generation::Draft07 => draft07::write(headers, &standing),
            Generation::Draft11 | Generation::None => {}
        }
        if let Some(form) = self.legacy {
            legacy::write(headers, form, decision, level.left, now);
        }
    }

    /// Draft-11's `RateLimit`; `None` if no policy among these is advertised.
    pub(super) fn state<'a>(&self, readings: impl Iterator<Item = Reading<'a>>) -> Option<State> {
        let mut out = Scratch::new();
        let mut is_exhausted = false;
        for reading in readings {
            if let Some(policy_fields) = self.policy_fields(reading.policy) {
                let level = policy_fields.measure.level(reading.decision, reading.next_after);
                is_exhausted |= level.left == 0;
                draft11::push_state(&mut out, &policy_fields.prefix, level, reading.mark);
            }
        }
        (!out.is_empty()).then(|| State { value: value_of(&out), is_exhausted })
    }

    fn policy_fields(&self, policy: usize) -> Option<&PolicyFields> {
        self.policies.get(policy)?.as_ref()
    }

    fn advertises<'a>(&self, mut readings: impl Iterator<Item = Reading<'a>>) -> bool {
        let percent = match self.advertise {
            Advertise::Always => return true,
            Advertise::Never => return false,
            Advertise::Rejected => 0,
            Advertise::Below { percent } => percent,
        };
        readings.any(|Reading { policy, decision, .. }| {
            let is_below = u64::from(decision.remaining()) * 100 < u64::from(decision.limit()) * u64::from(percent);
            self.policy_fields(policy).is_some() && (is_below || !decision.is_allowed())
        })
    }

    /// Returns the policy that is closest to exhaustion: of those that reject, the one with the longest wait;
    /// else the one with the least share left. Of equals, the first.
    fn closest<'a>(&self, readings: impl Iterator<Item = Reading<'a>>) -> Option<(&PolicyFields, &'a Decision, Level)> {
        let levels = readings.filter_map(|reading| {
            let policy_fields = self.policy_fields(reading.policy)?;
            Some((policy_fields, reading.decision, policy_fields.measure.level(reading.decision, reading.next_after)))
        });
        levels.min_by(|(a, decision_a, level_a), (b, decision_b, level_b)| {
            let rejection = |decision: &Decision| {
                let wait = decision.retry_after().unwrap_or(Duration::MAX);
                Reverse((!decision.is_allowed()).then_some(wait))
            };
            rejection(decision_a).cmp(&rejection(decision_b)).then_with(|| compare_shares(a, level_a, b, level_b))
        })
    }
}

/// Compares r / q without dividing.
fn compare_shares(a: &PolicyFields, level_a: &Level, b: &PolicyFields, level_b: &Level) -> Ordering {
    let cross =
        |level: &Level, other: &PolicyFields| u128::from(level.left) * u128::from(other.measure.advertised().quota);
    cross(level_a, b).cmp(&cross(level_b, a))
}
