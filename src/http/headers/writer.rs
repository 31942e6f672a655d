//! `Writer`: chooses a response's fields, and the policies that they describe, from the decisions on its request.

use std::cmp::{Ordering, Reverse};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue, StatusCode};
use smallvec::SmallVec;

use super::decimal::{Scratch, value_of};
use super::draft07::{self, PolicyStanding};
use super::draft11::{self, QuotaUnit};
use super::fields::{Advertise, Generation, Partition, RateLimitFields, ResetForm};
use super::interned::{Constants, intern};
use super::measure::{Level, Measure};
use super::partition::{Mark, is_publicly_cacheable, secret_of_process};
use super::plans::Plans;
use super::response_fields::{DeferredFields, ResponseFields, write_draft11};
use super::x_ratelimit;
use crate::util::keyed_hash::Secret;
use crate::values::time::seconds_ceil;
use crate::values::{Decision, PartitionKey, Quota, Terms};

/// Writes the fields that advertise the remaining quota. Built once per layer, with all values that are the same on
/// every response.
///
/// On the fast path, draft-11 with one policy, it costs one allocation, for the value of `RateLimit`, when the response
/// arrives.
#[derive(Debug)]
pub(crate) struct Writer {
    generation: Generation,
    x_ratelimit: Option<ResetForm>,
    advertise: Advertise,
    secret: Option<Secret>,
    /// In the layer's order. `None` for policies that are not advertised.
    policies: Box<[Option<PolicyFields>]>,
    plan: Plan,
    /// Draft-11's `RateLimit-Policy`, with all advertised policies.
    draft11_policies: HeaderValue,
}

/// The most bytes in draft-11's two fields together. With a rejection's other fields, they stay below the 8 KiB that
/// gRPC clients accept, and leave the app a quarter of the 4 KiB that nginx reads from a head by default.
const MOST_BYTES: usize = 3 * 1_024;

/// The most bytes behind the name in a member of draft-11's `RateLimit`, with the commas in both fields.
const LONGEST_STATE: usize = b", , ;r=;t=;pk=:".len() + b":".len() + 15 + 15 + 12;

/// How much we know about the fields when a request is decided on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    /// All but the levels, because every response gets draft-11's fields, for one policy, and its key's quota sets all
    /// texts.
    One,
    /// All but the levels, because every response gets draft-11's fields, with the same list of several policies.
    Several,
    /// All but the levels, on responses that get draft-11's fields and list all policies.
    Sometimes,
    /// They are made when the response arrives, because they depend on it, or on the time of day.
    Deferred,
}

/// A layer's policy, as its fields describe it.
pub(crate) struct Described<'a> {
    pub(crate) name: &'a str,
    /// `None` if it is not advertised.
    pub(crate) terms: Option<Terms>,
    pub(crate) unit: QuotaUnit,
    /// Whether it applies only to some requests, so that other responses do not list it.
    pub(crate) is_conditional: bool,
}

/// One advertised policy: how to compute its numbers, and its constant texts.
#[derive(Debug)]
struct PolicyFields {
    terms: Terms,
    unit: QuotaUnit,
    is_conditional: bool,
    measure: Measure,
    /// The constants for keys with their own quotas.
    plans: Plans,
    /// The start of its member in draft-11's `RateLimit`.
    prefix: Box<[u8]>,
    /// The constant part of draft-11's fields, if it is interned.
    constants: Option<&'static Constants>,
    /// Draft-07's `RateLimit-Policy`, if it can be expressed.
    draft07_policy: Option<HeaderValue>,
}

/// One policy's decision on a request.
pub(crate) type PolicyReading<'a> = Reading<&'a Decision>;

/// A [`PolicyReading`], or a reading that owns its decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading<D> {
    /// The policy's index in the layer.
    pub(crate) policy: usize,
    pub(crate) decision: D,
    /// The key's own quota, if it has one.
    pub(crate) quota: Option<Quota>,
    /// Made by [`Writer::mark`].
    pub(crate) mark: Option<Mark>,
}

impl<D> Reading<D> {
    pub(super) fn with_decision<E>(&self, decision: E) -> Reading<E> {
        Reading { policy: self.policy, decision, quota: self.quota, mark: self.mark }
    }
}

/// An advertised policy's reading, with the numbers to advertise.
struct Measured<'a> {
    policy_fields: &'a PolicyFields,
    measure: Measure,
    decision: &'a Decision,
    quota: Option<Quota>,
    level: Level,
    mark: Option<Mark>,
}

impl Writer {
    /// Makes a writer for a layer's policies, in its order. `None` if no response gets a field.
    ///
    /// # Panics
    ///
    /// If a name is not printable ASCII.
    pub(crate) fn new<'a>(fields: &RateLimitFields, policies: impl IntoIterator<Item = Described<'a>>) -> Option<Self> {
        let RateLimitFields { generation, x_ratelimit, advertise, partition } = *fields;
        let mut all = Scratch::new();
        let mut room = Some(MOST_BYTES);
        let policies = policies.into_iter().map(|Described { name, terms, unit, is_conditional }| {
            let terms = terms?;
            let measure = Measure::new(&terms);
            let quoted = draft11::quoted(name);
            let unit = if let Measure::InFlight { .. } = measure { QuotaUnit::ConcurrentRequests } else { unit };
            let mut member = Scratch::new();
            draft11::push_policy(&mut member, &quoted, measure.advertised(), unit);
            if generation == Generation::Draft11 {
                // Once one is left out, so are all behind it, even short ones.
                room = room.and_then(|room| room.checked_sub(member.len() + quoted.len() + LONGEST_STATE));
                room?;
            }
            draft11::push_policy(&mut all, &quoted, measure.advertised(), unit);
            let draft07_policy = draft07::policy(measure.advertised()).map(|policy| intern(policy.as_bytes()));
            let prefix = draft11::prefix(&quoted);
            let plans = Plans::default();
            let constants = None;
            Some(PolicyFields { terms, unit, is_conditional, measure, plans, prefix, constants, draft07_policy })
        });
        let mut policies: Box<[Option<PolicyFields>]> = policies.collect();
        let secret = match partition {
            Partition::Hidden => None,
            Partition::PerProcess => Some(secret_of_process()),
            Partition::Keyed(secret) => Some(secret),
        };
        let has_fields = generation != Generation::None || x_ratelimit.is_some();
        // For an empty list, the field is not sent (RFC 9651, section 3.1).
        if !has_fields || advertise == Advertise::Never || all.is_empty() {
            return None;
        }
        let draft11_policies = intern(&all);
        let mut is_constant = generation == Generation::Draft11 && x_ratelimit.is_none() && secret.is_none();
        if is_constant {
            for policy_fields in policies.iter_mut().flatten() {
                policy_fields.constants = Constants::intern(&policy_fields.prefix, &draft11_policies);
                is_constant &= policy_fields.constants.is_some();
            }
        }
        let mut advertised = policies.iter().flatten();
        let plan = match (advertised.clone().count(), advertise) {
            _ if !is_constant => Plan::Deferred,
            (1, Advertise::Always) => Plan::One,
            (_, Advertise::Always) if !advertised.any(|policy_fields| policy_fields.is_conditional) => Plan::Several,
            _ => Plan::Sometimes,
        };
        let secret = secret.filter(|_| generation == Generation::Draft11);
        Some(Self { generation, x_ratelimit, advertise, secret, policies, plan, draft11_policies })
    }

    /// Returns the hash that stands for a partition key, if it is advertised.
    pub(crate) fn mark(&self, key: &PartitionKey) -> Option<Mark> {
        self.secret.map(|secret| Mark::new(secret, key))
    }

    /// Returns a response's fields after one policy's decision, if any. This is the fast path.
    #[inline]
    pub(crate) fn fields_of_one(self: &Arc<Self>, reading: PolicyReading<'_>) -> Option<ResponseFields> {
        if !matches!(self.plan, Plan::One | Plan::Several) {
            return self.fields(std::iter::once(reading));
        }
        let policy_fields = self.policy_fields(reading.policy)?;
        if let Some(quota) = reading.quota {
            return self.fields_of_plan(policy_fields, quota, reading);
        }
        let level = policy_fields.measure.level(reading.decision);
        Some(ResponseFields::one(policy_fields.constants?, level))
    }

    /// Returns a response's fields for a key with its own quota.
    fn fields_of_plan(
        self: &Arc<Self>,
        policy_fields: &PolicyFields,
        quota: Quota,
        reading: PolicyReading<'_>,
    ) -> Option<ResponseFields> {
        let plan = if self.plan == Plan::One { policy_fields.plan(quota) } else { None };
        let Some((measure, constants)) = plan else { return Some(self.deferred(std::iter::once(reading))) };
        Some(ResponseFields::one(constants, measure.level(reading.decision)))
    }

    /// Returns a response's fields after these decisions, if any.
    pub(crate) fn fields<'a>(
        self: &'a Arc<Self>,
        readings: impl Iterator<Item = PolicyReading<'a>> + Clone,
    ) -> Option<ResponseFields> {
        let is_constant = match self.plan {
            Plan::One | Plan::Several => true,
            Plan::Sometimes | Plan::Deferred if !self.advertises(readings.clone()) => return None,
            Plan::Sometimes => self.lists_all(&readings),
            Plan::Deferred => false,
        };
        if !is_constant || readings.clone().any(|reading| reading.quota.is_some()) {
            return Some(self.deferred(readings));
        }
        let levels = self
            .measured(readings)
            .filter_map(|Measured { policy_fields, level, .. }| Some((policy_fields.constants?, level)));
        // Collect on the stack, so that the box is allocated once.
        let levels: SmallVec<[_; 4]> = levels.collect();
        match *levels {
            [] => None,
            [(constants, level)] => Some(ResponseFields::one(constants, level)),
            ref several => Some(ResponseFields::Several(several.into())),
        }
    }

    #[cold]
    fn deferred<'a>(self: &Arc<Self>, readings: impl Iterator<Item = PolicyReading<'a>>) -> ResponseFields {
        ResponseFields::Deferred(Box::new(DeferredFields::new(Arc::clone(self), readings)))
    }

    /// Adds the fields to a response with this status, unless the status excludes them. Calls `now` only for a reset in
    /// seconds since 1970.
    pub(super) fn write<'a>(
        &'a self,
        status: StatusCode,
        headers: &mut HeaderMap,
        readings: impl Iterator<Item = PolicyReading<'a>> + Clone,
        now: impl FnOnce() -> SystemTime,
    ) {
        if status.is_informational() || !self.advertises(readings.clone()) {
            return;
        }
        if self.generation == Generation::Draft11 {
            let hides = self.secret.is_some() && is_publicly_cacheable(headers);
            let readings =
                readings.clone().map(|reading| PolicyReading { mark: reading.mark.filter(|_| !hides), ..reading });
            if let (Some(policies), Some(ratelimit)) = (self.policies_of(&readings), self.ratelimit(readings.clone())) {
                let is_exhausted = || self.measured(readings).any(|measured| measured.level.left == 0);
                write_draft11(status, headers, policies, ratelimit, is_exhausted);
            }
        }
        if self.x_ratelimit.is_none() && self.generation != Generation::Draft07 {
            return;
        }
        let Some(closest) = self.closest(readings) else { return };
        // A client might wait before it follows `Location`.
        let is_left_out = status.is_redirection() && closest.level.left == 0;
        if self.generation == Generation::Draft07 && !is_left_out {
            let policy = closest.draft07_policy();
            draft07::write(headers, &closest.standing(policy.as_ref()));
        }
        if let Some(form) = self.x_ratelimit {
            x_ratelimit::write(headers, form, closest.decision, closest.level.left, now);
        }
    }

    /// Returns the value of draft-11's `RateLimit-Policy`, with these keys' quotas. `None` if no policy is advertised.
    /// A policy that applies only to some requests is listed if it has decided on this one.
    fn policies_of<'a>(&self, readings: &(impl Iterator<Item = PolicyReading<'a>> + Clone)) -> Option<HeaderValue> {
        if readings.clone().all(|reading| reading.quota.is_none()) && self.lists_all(readings) {
            return Some(self.draft11_policies.clone());
        }
        let mut out = Scratch::new();
        for (index, policy_fields) in self.policies.iter().enumerate() {
            let Some(policy_fields) = policy_fields else { continue };
            let reading = readings.clone().find(|reading| reading.policy == index);
            if reading.is_some() || !policy_fields.is_conditional {
                let quota = reading.and_then(|reading| reading.quota);
                policy_fields.push_policy(&mut out, &policy_fields.measure_under(quota));
            }
        }
        (!out.is_empty()).then(|| value_of(&out))
    }

    /// Whether a response after these decisions lists all advertised policies.
    fn lists_all<'a>(&self, readings: &(impl Iterator<Item = PolicyReading<'a>> + Clone)) -> bool {
        let has_decided = |policy| readings.clone().any(|reading| reading.policy == policy);
        let conditional =
            |policy_fields: &Option<PolicyFields>| policy_fields.as_ref().is_some_and(|it| it.is_conditional);
        (0..).zip(&self.policies).all(|(index, policy_fields)| !conditional(policy_fields) || has_decided(index))
    }

    /// Makes the value of draft-11's `RateLimit`. `None` if no policy among these is advertised.
    pub(super) fn ratelimit<'a>(&'a self, readings: impl Iterator<Item = PolicyReading<'a>>) -> Option<HeaderValue> {
        let mut out = Scratch::new();
        for Measured { policy_fields, level, mark, .. } in self.measured(readings) {
            draft11::push_state(&mut out, &policy_fields.prefix, level, mark);
        }
        (!out.is_empty()).then(|| value_of(&out))
    }

    fn policy_fields(&self, policy: usize) -> Option<&PolicyFields> {
        self.policies.get(policy)?.as_ref()
    }

    fn measured<'a>(&'a self, readings: impl Iterator<Item = PolicyReading<'a>>) -> impl Iterator<Item = Measured<'a>> {
        readings.filter_map(|PolicyReading { policy, decision, quota, mark }| {
            let policy_fields = self.policy_fields(policy)?;
            let measure = policy_fields.measure_under(quota);
            Some(Measured { policy_fields, measure, decision, quota, level: measure.level(decision), mark })
        })
    }

    fn advertises<'a>(&self, mut readings: impl Iterator<Item = PolicyReading<'a>>) -> bool {
        let percent = match self.advertise {
            Advertise::Always => return true,
            Advertise::Never => return false,
            Advertise::Rejected => 0,
            Advertise::Below { percent } => percent,
        };
        readings.any(|PolicyReading { policy, decision, .. }| {
            let is_below = decision.remaining() * 100 < decision.limit() * u64::from(percent);
            self.policy_fields(policy).is_some() && (is_below || !decision.is_allowed())
        })
    }

    /// Returns the policy that is closest to exhaustion: the rejecting policy with the longest wait, or, if no policy
    /// rejects, the one with the smallest share of a fresh key's burst left. Ties: the first policy. Considers only
    /// policies with a reset, because draft-07 and `X-RateLimit-*` cannot describe others.
    fn closest<'a>(&'a self, readings: impl Iterator<Item = PolicyReading<'a>>) -> Option<Measured<'a>> {
        let has_reset = |measured: &Measured<'_>| matches!(measured.measure, Measure::Restored(_));
        let closer =
            |a: &Measured<'_>, b: &Measured<'_>| a.rejection().cmp(&b.rejection()).then_with(|| a.compare_share(b));
        self.measured(readings).filter(has_reset).min_by(closer)
    }
}

impl PolicyFields {
    /// Returns the measure that computes the numbers for a key with this quota.
    fn measure_under(&self, quota: Option<Quota>) -> Measure {
        quota.map_or(self.measure, |quota| Measure::new(&self.terms.under(quota)))
    }

    /// Returns the measure and the constants for keys with this quota, if the layer has only this policy. `None` if too
    /// many other quotas' constants are kept.
    #[inline]
    fn plan(&self, quota: Quota) -> Option<(&Measure, &'static Constants)> {
        let constants = |measure: &Measure| {
            let mut list = Scratch::new();
            self.push_policy(&mut list, measure);
            Constants::intern(&self.prefix, &intern(&list))
        };
        let plan = self.plans.find_or_make(quota, self.terms, constants)?;
        Some((&plan.measure, plan.constants?))
    }

    fn push_policy(&self, out: &mut Scratch, measure: &Measure) {
        draft11::push_policy(out, draft11::name_in(&self.prefix), measure.advertised(), self.unit);
    }
}

impl Measured<'_> {
    /// A sort key: rejections come first, and among them the longest wait.
    fn rejection(&self) -> Reverse<Option<Duration>> {
        let wait = self.decision.retry_after().unwrap_or(Duration::MAX);
        Reverse((!self.decision.is_allowed()).then_some(wait))
    }

    /// Compares the shares left / limit without dividing.
    fn compare_share(&self, other: &Self) -> Ordering {
        let cross = |left: u64, limit: u64| u128::from(left) * u128::from(limit);
        cross(self.level.left, other.decision.limit()).cmp(&cross(other.level.left, self.decision.limit()))
    }

    /// The numbers in draft-07's fields. If no wait helps, the reset is the whole quota's.
    fn standing<'a>(&self, policy: Option<&'a HeaderValue>) -> PolicyStanding<'a> {
        let Level { left, within } = self.level;
        let reset = within.map_or_else(|| seconds_ceil(self.decision.reset_after()).max(1), NonZeroU64::get);
        let limit = self.measure.advertised().quota;
        PolicyStanding { policy, limit, remaining: left, reset }
    }

    /// Draft-07's `RateLimit-Policy`, if it can be expressed.
    fn draft07_policy(&self) -> Option<HeaderValue> {
        let own = self.policy_fields.draft07_policy.as_ref()?;
        if self.quota.is_none() { Some(own.clone()) } else { draft07::policy(self.measure.advertised()) }
    }
}
