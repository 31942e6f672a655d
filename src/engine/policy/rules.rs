//! The rules that a policy must meet before it can be enforced: each policy in force is valid.
//!
//! One list has the pairs of options, or of an option and a limiter, that cannot be combined. `docs/policy_options.md`
//! has the table with all pairs, and `tests/http/policy_options.rs` tries each.

use std::collections::HashSet;

use crate::engine::domain::Domain;
use crate::engine::policy::combined::Policies;
use crate::engine::policy::definition::Policy;
use crate::engine::policy::error::PolicyError;
use crate::engine::policy::facts::Fact;
use crate::engine::policy::names::is_name;
use crate::engine::policy::selector::MissingKey;
use crate::values::Shape;

use Fact::{
    ChargeOnce, ChargeWhen, Cost, CostAfter, CostFn, CostsAtMostCharge, Delays, InFlight, IsBalance, KeepsNoDebts,
    LimitFn, MaxKeysOfChargeOnce, NoCalendar, NoLimits, NoQuota, NotInFlight, NotShedding, OnCrossing, OneQuota,
    OweShortfalls, Penalty, PriorityFn, QuotaFn, RecordsOnServer, ReleaseAtHead, SettleByContentBytes, SettleByHandler,
    SeveralKeys, SharedKey, SharedWithoutKey, Sheds, WeightFn, WindowFn,
};

/// Two facts that exclude each other, with the reason and the cure.
struct PairRule(Fact, Fact, &'static str);

const TWO_COSTS: &str = "both say what a request costs; remove one";
const TWO_BILLS: &str = "both say what is charged in the end; remove one";
const NOTHING_CHARGED: &str = "its units are released when the request is over, whatever the response; remove the option, \
                               or use a bucket or a window";
const UNKNOWN_COST: &str = "the cost of a retry must be known when it comes; remove one (`charge_when` can stay)";

const NO_WAIT: &str = "a ban is for retries before the advertised wait is over, and such a limit advertises none; remove the \
                       penalty, or add it to a policy with a quota";
const IN_TURN: &str =
    "its requests have no classes and no weights; protect the server with `Overload`, or remove the option";

const ONE_ACCOUNT: &str =
    "what follows the response is settled for one key; return one key per request, or remove the option";

/// Validation reports the first rule that a policy breaks, so rules about requests in flight come before rules about
/// quotas.
const RULES: &[PairRule] = &[
    PairRule(Cost, CostFn, TWO_COSTS),
    PairRule(ChargeWhen, CostAfter, TWO_BILLS),
    PairRule(ChargeWhen, SettleByHandler, TWO_BILLS),
    PairRule(ChargeWhen, SettleByContentBytes, TWO_BILLS),
    PairRule(CostAfter, SettleByHandler, TWO_BILLS),
    PairRule(CostAfter, SettleByContentBytes, TWO_BILLS),
    PairRule(SettleByHandler, SettleByContentBytes, TWO_BILLS),
    PairRule(
        QuotaFn,
        OneQuota,
        "use a bucket or a window, in memory or on a server, or a `LeakyQueue` in memory, or remove `quota_fn`",
    ),
    PairRule(QuotaFn, WindowFn, "a window has a limit of its own; remove one"),
    PairRule(LimitFn, NoLimits, "use a `Concurrency`, in memory or on a server, or remove `limit_fn`"),
    PairRule(WindowFn, NoCalendar, "use a `CalendarWindow`, in memory or on a server, or remove `window_fn`"),
    PairRule(PriorityFn, NotShedding, IN_TURN),
    PairRule(WeightFn, NotShedding, IN_TURN),
    PairRule(ChargeWhen, InFlight, NOTHING_CHARGED),
    PairRule(CostAfter, InFlight, NOTHING_CHARGED),
    PairRule(SettleByHandler, InFlight, NOTHING_CHARGED),
    PairRule(SettleByContentBytes, InFlight, NOTHING_CHARGED),
    PairRule(OweShortfalls, InFlight, NOTHING_CHARGED),
    PairRule(
        OweShortfalls,
        CostsAtMostCharge,
        "nothing is owed; settle costs with `settle_by_handler`, `settle_by_content_bytes` or `cost_after`, or remove \
         `owe_shortfalls`",
    ),
    PairRule(
        OweShortfalls,
        KeepsNoDebts,
        "time pays a debt at the rate of the quota; let the limiter advertise one (`Description::advertising`), or remove \
         `owe_shortfalls`",
    ),
    PairRule(
        Penalty,
        Sheds,
        "a rejection is due to the load of the server, and not to the client; remove the penalty, or add it to a policy \
         with a quota",
    ),
    PairRule(Penalty, InFlight, NO_WAIT),
    PairRule(Penalty, IsBalance, NO_WAIT),
    PairRule(Penalty, SharedKey, "one client would ban all others; key the policy by client, or remove the penalty"),
    PairRule(
        Penalty,
        SharedWithoutKey,
        "one client without a key would ban all others without one; reject or skip requests without a key, or remove the \
         penalty",
    ),
    PairRule(
        ReleaseAtHead,
        NotInFlight,
        "nothing could be released; limit what is in flight with `Concurrency`, or remove `release_at_head`",
    ),
    PairRule(ChargeOnce, CostAfter, UNKNOWN_COST),
    PairRule(ChargeOnce, SettleByHandler, UNKNOWN_COST),
    PairRule(ChargeOnce, SettleByContentBytes, UNKNOWN_COST),
    PairRule(
        ChargeOnce,
        InFlight,
        "a free retry is in flight like any request, and nothing is charged for good; remove `charge_once`",
    ),
    PairRule(
        ChargeOnce,
        Delays,
        "a free retry would overtake the requests that wait; use a limiter that does not delay, or remove `charge_once`",
    ),
    PairRule(
        ChargeOnce,
        NoQuota,
        "the quota bounds the free retries; let the limiter advertise one (`Description::advertising`), or remove \
         `charge_once`",
    ),
    PairRule(
        OnCrossing,
        InFlight,
        "its units are released when requests are over, so their use rises and falls all the time; remove the option, or \
         use a bucket or a window",
    ),
    PairRule(
        OnCrossing,
        Delays,
        "requests wait in place of a rejection; use a limiter that does not delay, or remove the option",
    ),
    PairRule(
        MaxKeysOfChargeOnce,
        RecordsOnServer,
        "time alone bounds the records there; remove `max_keys`, or set a shorter `within`",
    ),
    PairRule(ChargeWhen, SeveralKeys, ONE_ACCOUNT),
    PairRule(CostAfter, SeveralKeys, ONE_ACCOUNT),
    PairRule(SettleByHandler, SeveralKeys, ONE_ACCOUNT),
    PairRule(SettleByContentBytes, SeveralKeys, ONE_ACCOUNT),
    PairRule(ChargeOnce, SeveralKeys, ONE_ACCOUNT),
    PairRule(
        SeveralKeys,
        InFlight,
        "a request is in flight once; return one key per request, or use a bucket or a window",
    ),
];

/// Checks that a name can be a policy's name.
pub(crate) fn validate_name(name: &str) -> Result<(), PolicyError> {
    if is_name(name) { Ok(()) } else { Err(PolicyError::InvalidName { name: name.to_owned() }) }
}

impl<D: Domain> Policies<D> {
    /// Checks whether a layer can enforce these policies. Programs that read policies at run time can call this before
    /// they change a layer. [`RateLimitLayer::try_new`](crate::RateLimitLayer::try_new) checks the same.
    ///
    /// # Errors
    ///
    /// If there is no policy, if two have the same name, or if a policy's options are invalid: see [`PolicyError`].
    pub fn validate(&self) -> Result<(), PolicyError> {
        if self.policies.is_empty() {
            return Err(PolicyError::NoPolicy);
        }
        let mut names = HashSet::with_capacity(self.policies.len());
        for policy in &self.policies {
            policy.validate()?;
            // A formula has one member per policy.
            if self.formula.has_choices() && policy.selector.has_several_keys {
                return Err(PolicyError::several_keys_among_alternatives(policy.name()));
            }
            if !names.insert(policy.name()) {
                return Err(PolicyError::DuplicateName { name: policy.name().to_owned() });
            }
        }
        Ok(())
    }
}

impl<D: Domain> Policy<D> {
    /// Checks this policy's name, its pairs of options, its cost and its status.
    /// [`Policies::validate`](crate::policy::Policies::validate) checks a layer's policies as a whole.
    ///
    /// # Errors
    ///
    /// The first mistake.
    pub fn validate(&self) -> Result<(), PolicyError> {
        validate_name(&self.name)?;
        let name = || self.name.to_string();
        if let Some(PairRule(option, other, problem)) =
            RULES.iter().find(|rule| self.has_fact(rule.0) && self.has_fact(rule.1))
        {
            return Err(PolicyError::Conflict { name: name(), option: option.name(), other: other.name(), problem });
        }
        self.validate_numbers()
    }

    /// Does the checks in [`validate`](Self::validate) except for the name and the pairs of options, which covers all
    /// that can be wrong with a policy that has no options, and one key per request.
    pub(crate) fn validate_numbers(&self) -> Result<(), PolicyError> {
        let name = || self.name.to_string();
        match (self.costs.fixed_cost(), self.description.max_cost()) {
            (Some(0), _) => return Err(PolicyError::CostOfZero { name: name() }),
            (Some(cost), Some(burst)) if cost > burst => {
                return Err(PolicyError::CostAboveBurst { name: name(), cost, burst });
            }
            _ => {}
        }
        match self.status {
            Some(status) if !(400..=599).contains(&status.get()) => {
                Err(PolicyError::InvalidStatus { name: name(), status: status.get() })
            }
            _ => Ok(()),
        }
    }

    fn has_fact(&self, fact: Fact) -> bool {
        let terms = self.description.terms();
        let has_shape = |shape| terms.is_some_and(|terms| terms.shape() == Some(shape));
        match fact {
            Cost | CostFn | PriorityFn | WeightFn | QuotaFn | WindowFn | LimitFn | ChargeWhen | CostAfter
            | SettleByHandler | SettleByContentBytes | OweShortfalls | ReleaseAtHead | Penalty | ChargeOnce
            | OnCrossing => self.options.has(fact),
            MaxKeysOfChargeOnce => self.billing.retries.as_ref().is_some_and(|retries| retries.bounds_records()),
            SharedKey => self.selector.key.is_shared(),
            SeveralKeys => self.selector.has_several_keys,
            SharedWithoutKey => self.selector.on_missing_key == MissingKey::Share,
            CostsAtMostCharge => !self.billing.settles_later() || self.billing.is_all_or_nothing(),
            InFlight => self.description.holds(),
            NotInFlight => !self.description.holds(),
            IsBalance => self.description.keeps_credits(),
            Delays => self.description.delays(),
            Sheds => self.description.sheds(),
            NotShedding => !self.description.sheds(),
            NoQuota => terms.and_then(|terms| terms.quota()).is_none(),
            KeepsNoDebts => self.has_fact(NoQuota) && !self.has_fact(IsBalance),
            OneQuota => !(self.description.takes_quotas() && terms.is_some_and(|terms| terms.shape().is_some())),
            NoCalendar => !(self.description.takes_quotas() && has_shape(Shape::CalendarWindow)),
            NoLimits => !(self.description.takes_quotas() && self.description.holds()),
            RecordsOnServer => self.description.charges_once().is_some(),
        }
    }
}
