use std::cmp::{Ordering, Reverse};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue, StatusCode};
use smallvec::SmallVec;

use super::constant::{Member, constant};
use super::decimal::{Scratch, seconds_ceil, value_of};
use super::draft07::{self, Standing};
use super::draft11;
use super::fields::{Generation, Partition, RateLimitFields, ResetForm, Tell};
use super::legacy;
use super::measure::{Level, Measure};
use super::merge::append_draft11;
use super::partition::{Mark, is_publicly_cacheable, secret_of_process};
use crate::util::keyed_hash::Secret;
use crate::values::{Decision, PartitionKey, Terms};

/// Writes the fields that tell what is left. Made once per layer, with all that is the same on every
/// response.
///
/// On the common path, draft-11 with one policy, that costs one allocation: of the value of `RateLimit`, once the response
/// is there.
#[derive(Debug)]
pub(crate) struct Writer {
    generation: Generation,
    legacy: Option<ResetForm>,
    tell: Tell,
    secret: Option<Secret>,
    /// In the layer's order; `None` for those that are not advertised.
    policies: Box<[Option<Announced>]>,
    /// Whether all responses get nothing but draft-11's fields, all of whose texts are constant.
    is_constant: bool,
    /// Draft-11's `RateLimit-Policy`.
    policy: Option<HeaderValue>,
}

#[derive(Debug)]
struct Announced {
    measure: Measure,
    /// Of a member of draft-11's `RateLimit`.
    prefix: Box<[u8]>,
    /// What is the same on all responses, if it is kept.
    member: Option<&'static Member>,
    /// Draft-07's `RateLimit-Policy`.
    policy: HeaderValue,
}

/// What one policy decided on a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading<'a> {
    /// Its index in the layer.
    pub(crate) policy: usize,
    pub(crate) decision: &'a Decision,
    /// The time until one unit can be had, if the decision says it.
    pub(crate) next_after: Option<Duration>,
    /// By [`Writer::mark`].
    pub(crate) mark: Option<Mark>,
}

/// A value of `RateLimit`.
#[derive(Debug)]
pub(crate) struct State {
    pub(super) value: HeaderValue,
    /// Whether a policy has nothing left.
    pub(super) is_exhausted: bool,
}

/// What a response is to be given once it is there. Three words, since it lies in each response future.
#[derive(Debug)]
pub(crate) enum Fields {
    /// Draft-11's alone, of one policy: its [`Level`].
    One { member: &'static Member, left: u32, within: Option<NonZeroU64> },
    /// The same of several policies.
    Several(Box<[(&'static Member, Level)]>),
    /// Those that depend on the response, or on the time of the day.
    Later(Box<Later>),
}

const _: () = assert!(size_of::<Option<Fields>>() <= 3 * size_of::<u64>());

#[derive(Debug)]
pub(crate) struct Later {
    writer: Arc<Writer>,
    readings: Vec<Kept>,
}

/// A [`Reading`], kept.
#[derive(Debug)]
struct Kept {
    policy: usize,
    decision: Decision,
    next_after: Option<Duration>,
    mark: Option<Mark>,
}

impl Fields {
    /// Adds them to a response, as far as they belong there.
    #[inline]
    pub(crate) fn write(self, status: StatusCode, fields: &mut HeaderMap) {
        match self {
            Self::One { member, left, within } => {
                write_draft11(status, fields, &[(member, Level { left, within })]);
            }
            Self::Several(levels) => write_several(status, fields, &levels),
            Self::Later(later) => later.write(status, fields),
        }
    }
}

#[cold]
fn write_several(status: StatusCode, fields: &mut HeaderMap, levels: &[(&'static Member, Level)]) {
    write_draft11(status, fields, levels);
}

#[inline]
fn write_draft11(status: StatusCode, fields: &mut HeaderMap, levels: &[(&'static Member, Level)]) {
    let Some((Member { list, .. }, _)) = levels.first() else { return };
    let mut out = Scratch::new();
    for (member, level) in levels {
        draft11::push_state(&mut out, &member.prefix, *level, None);
    }
    let is_exhausted = levels.iter().any(|(_, level)| level.left == 0);
    add_draft11(status, fields, list.clone(), State { value: value_of(&out), is_exhausted });
}

impl Later {
    #[cold]
    fn write(&self, status: StatusCode, fields: &mut HeaderMap) {
        let readings = self.readings.iter().map(|kept| Reading {
            policy: kept.policy,
            decision: &kept.decision,
            next_after: kept.next_after,
            mark: kept.mark,
        });
        self.writer.write(status, fields, readings, SystemTime::now);
    }
}

#[inline]
fn add_draft11(status: StatusCode, fields: &mut HeaderMap, policy: HeaderValue, state: State) {
    if !status.is_informational() {
        // A client might wait before it follows to `Location`.
        let state = (!(status.is_redirection() && state.is_exhausted)).then_some(state.value);
        append_draft11(fields, policy, state);
    }
}

impl Writer {
    /// A writer for a layer's policies, in its order: their names, and the terms of those that are to be
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
            Some(Announced { measure, prefix: draft11::prefix(&quoted), member: None, policy })
        });
        let mut policies: Box<[Option<Announced>]> = policies.collect();
        let secret = match fields.partition {
            Partition::Untold => None,
            Partition::PerProcess => Some(secret_of_process()),
            Partition::Keyed(secret) => Some(secret),
        };
        // An empty list is told by leaving the field out.
        let policy = (!all.is_empty()).then(|| constant(&all));
        let mut is_constant = fields.generation == Generation::Draft11 && fields.legacy.is_none() && secret.is_none();
        if let Some(list) = policy.as_ref().filter(|_| is_constant) {
            for announced in policies.iter_mut().flatten() {
                announced.member = Member::constant(&announced.prefix, list);
                is_constant &= announced.member.is_some();
            }
        }
        Self {
            generation: fields.generation,
            legacy: fields.legacy,
            tell: fields.tell,
            secret: secret.filter(|_| fields.generation == Generation::Draft11),
            policies,
            is_constant,
            policy,
        }
    }

    /// Whether no response gets a field, so that nobody need collect readings.
    pub(crate) fn is_silent(&self) -> bool {
        let has_fields = self.generation != Generation::None || self.legacy.is_some();
        !has_fields || self.tell == Tell::Never || self.policy.is_none()
    }

    /// What stands for a partition key, if that is told.
    pub(crate) fn mark(&self, key: &PartitionKey) -> Option<Mark> {
        self.secret.map(|secret| Mark::new(secret, key))
    }

    /// What a response is to be given after the decision of one policy, as nearly all are, if anything.
    #[inline]
    pub(crate) fn fields_of_one(self: &Arc<Self>, reading: Reading<'_>) -> Option<Fields> {
        if self.tell != Tell::Always || !self.is_constant {
            return self.fields(std::iter::once(reading));
        }
        let announced = self.announced(reading.policy)?;
        let Level { left, within } = announced.measure.level(reading.decision, reading.next_after);
        Some(Fields::One { member: announced.member?, left, within })
    }

    /// What a response is to be given after these decisions, if anything.
    pub(crate) fn fields<'a>(self: &Arc<Self>, readings: impl Iterator<Item = Reading<'a>> + Clone) -> Option<Fields> {
        if self.tell != Tell::Always && !self.tells(readings.clone()) {
            return None;
        }
        if !self.is_constant {
            return Some(self.later(readings));
        }
        let levels = readings.filter_map(|reading| {
            let announced = self.announced(reading.policy)?;
            Some((announced.member?, announced.measure.level(reading.decision, reading.next_after)))
        });
        // Collected on the stack, so that the box is allocated once.
        let levels: SmallVec<[_; 4]> = levels.collect();
        match *levels {
            [] => None,
            [(member, Level { left, within })] => Some(Fields::One { member, left, within }),
            ref several => Some(Fields::Several(several.into())),
        }
    }

    #[cold]
    fn later<'a>(self: &Arc<Self>, readings: impl Iterator<Item = Reading<'a>>) -> Fields {
        let keep = |reading: Reading<'_>| Kept {
            policy: reading.policy,
            decision: *reading.decision,
            next_after: reading.next_after,
            mark: reading.mark,
        };
        Fields::Later(Box::new(Later { writer: Arc::clone(self), readings: readings.map(keep).collect() }))
    }

    /// Adds the fields to a response, as far as they belong there. `now` is asked only for a reset that
    /// is told as a time of the day.
    pub(super) fn write<'a>(
        &self,
        status: StatusCode,
        fields: &mut HeaderMap,
        readings: impl Iterator<Item = Reading<'a>> + Clone,
        now: impl FnOnce() -> SystemTime,
    ) {
        if status.is_informational() || !self.tells(readings.clone()) {
            return;
        }
        if self.generation == Generation::Draft11 {
            let hides = self.secret.is_some() && is_publicly_cacheable(fields);
            let readings = readings.clone().map(|reading| Reading { mark: reading.mark.filter(|_| !hides), ..reading });
            if let (Some(policy), Some(state)) = (&self.policy, self.state(readings)) {
                add_draft11(status, fields, policy.clone(), state);
            }
        }
        if self.legacy.is_none() && self.generation != Generation::Draft07 {
            return;
        }
        let Some((announced, decision, level)) = self.closest(readings) else { return };
        let reset = level.within.map_or_else(|| seconds_ceil(decision.reset_after()).max(1), NonZeroU64::get);
        let limit = announced.measure.advertised().quota;
        let standing = Standing { policy: &announced.policy, limit, remaining: level.left, reset };
        match self.generation {
            // A client might wait before it follows to `Location`.
            Generation::Draft07 if status.is_redirection() && level.left == 0 => {}
            Generation::Draft07 => draft07::write(fields, &standing),
            Generation::Draft11 | Generation::None => {}
        }
        if let Some(form) = self.legacy {
            legacy::write(fields, form, decision, level.left, now);
        }
    }

    /// Draft-11's `RateLimit`; `None` if no policy among these is advertised.
    pub(super) fn state<'a>(&self, readings: impl Iterator<Item = Reading<'a>>) -> Option<State> {
        let mut out = Scratch::new();
        let mut is_exhausted = false;
        for reading in readings {
            if let Some(announced) = self.announced(reading.policy) {
                let level = announced.measure.level(reading.decision, reading.next_after);
                is_exhausted |= level.left == 0;
                draft11::push_state(&mut out, &announced.prefix, level, reading.mark);
            }
        }
        (!out.is_empty()).then(|| State { value: value_of(&out), is_exhausted })
    }

    fn announced(&self, policy: usize) -> Option<&Announced> {
        self.policies.get(policy)?.as_ref()
    }

    fn tells<'a>(&self, mut readings: impl Iterator<Item = Reading<'a>>) -> bool {
        let percent = match self.tell {
            Tell::Always => return true,
            Tell::Never => return false,
            Tell::Refused => 0,
            Tell::Below { percent } => percent,
        };
        readings.any(|Reading { policy, decision, .. }| {
            let is_below = u64::from(decision.remaining()) * 100 < u64::from(decision.limit()) * u64::from(percent);
            self.announced(policy).is_some() && (is_below || !decision.is_allowed())
        })
    }

    /// The policy that is closest to exhaustion: of those that refused the one that does so for longest,
    /// else the one with the least share left. Of equals, the first.
    fn closest<'a>(&self, readings: impl Iterator<Item = Reading<'a>>) -> Option<(&Announced, &'a Decision, Level)> {
        let levels = readings.filter_map(|reading| {
            let announced = self.announced(reading.policy)?;
            Some((announced, reading.decision, announced.measure.level(reading.decision, reading.next_after)))
        });
        levels.min_by(|(a, decision_a, level_a), (b, decision_b, level_b)| {
            let refusal = |decision: &Decision| {
                let wait = decision.retry_after().unwrap_or(Duration::MAX);
                Reverse((!decision.is_allowed()).then_some(wait))
            };
            refusal(decision_a).cmp(&refusal(decision_b)).then_with(|| compare_shares(a, level_a, b, level_b))
        })
    }
}

/// By r / q, without dividing.
fn compare_shares(a: &Announced, level_a: &Level, b: &Announced, level_b: &Level) -> Ordering {
    let cross =
        |level: &Level, other: &Announced| u128::from(level.left) * u128::from(other.measure.advertised().quota);
    cross(level_a, b).cmp(&cross(level_b, a))
}
