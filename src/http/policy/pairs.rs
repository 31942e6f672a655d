//! Which options of a policy cannot be combined, with each other and with limiters: one list of rules.
//!
//! `docs/policy_options.md` has the table of all pairs, and `tests/http/policy_options.rs` tries each of them.

use super::{MissingKey, Policy, PolicyError};

/// What rules are about: options that were set, values of options, and properties of limiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fact {
    Cost,
    CostFn,
    QuotaFn,
    ChargeWhen,
    CostAfter,
    SettleByHandler,
    SettleByContentBytes,
    OweShortfalls,
    ReleaseAtHead,
    Penalty,
    ChargeOnce,
    /// The number of its records is bounded.
    MaxKeysOfChargeOnce,
    SharedKey,
    /// Requests without a key share one.
    SharedWithoutKey,
    /// No request can cost more than it is charged.
    CostsAtMostCharge,
    /// Requests hold units until they are over.
    InFlight,
    NotInFlight,
    Delays,
    /// It advertises no quota.
    NoQuota,
    /// It has one quota for all keys.
    OneQuota,
    /// It keeps the records of retries.
    RecordsOnServer,
}

use Fact::{
    ChargeOnce, ChargeWhen, Cost, CostAfter, CostFn, CostsAtMostCharge, Delays, InFlight, MaxKeysOfChargeOnce, NoQuota,
    NotInFlight, OneQuota, OweShortfalls, Penalty, QuotaFn, RecordsOnServer, ReleaseAtHead, SettleByContentBytes,
    SettleByHandler, SharedKey, SharedWithoutKey,
};

/// Two facts that exclude each other, why, and the cure.
struct Rule(Fact, Fact, &'static str);

const TWO_COSTS: &str = "both say what a request costs; remove one";
const TWO_BILLS: &str = "both say what is charged in the end; remove one";
const NOTHING_CHARGED: &str = "its units are released when the request is over, whatever the response; remove the option, \
                               or use a bucket or a window";
const UNKNOWN_COST: &str = "the cost of a retry must be known when it comes; remove one (`charge_when` can stay)";

/// The first rule that a policy breaks is reported. So those about requests in flight come before those about quotas.
const RULES: &[Rule] = &[
    Rule(Cost, CostFn, TWO_COSTS),
    Rule(ChargeWhen, CostAfter, TWO_BILLS),
    Rule(ChargeWhen, SettleByHandler, TWO_BILLS),
    Rule(ChargeWhen, SettleByContentBytes, TWO_BILLS),
    Rule(CostAfter, SettleByHandler, TWO_BILLS),
    Rule(CostAfter, SettleByContentBytes, TWO_BILLS),
    Rule(SettleByHandler, SettleByContentBytes, TWO_BILLS),
    Rule(QuotaFn, OneQuota, "use a bucket or a window, in memory or on Redis, or remove `quota_fn`"),
    Rule(ChargeWhen, InFlight, NOTHING_CHARGED),
    Rule(CostAfter, InFlight, NOTHING_CHARGED),
    Rule(SettleByHandler, InFlight, NOTHING_CHARGED),
    Rule(SettleByContentBytes, InFlight, NOTHING_CHARGED),
    Rule(OweShortfalls, InFlight, NOTHING_CHARGED),
    Rule(
        OweShortfalls,
        CostsAtMostCharge,
        "nothing is owed; settle costs with `settle_by_handler`, `settle_by_content_bytes` or `cost_after`, or remove \
         `owe_shortfalls`",
    ),
    Rule(
        OweShortfalls,
        NoQuota,
        "time pays a debt at the rate of the quota; let the limiter advertise one (`Description::advertising`), or remove \
         `owe_shortfalls`",
    ),
    Rule(
        Penalty,
        InFlight,
        "a ban is for retries before the advertised wait is over, and such a limit advertises none; remove the penalty, or \
         add it to a policy with a quota",
    ),
    Rule(Penalty, SharedKey, "one client would ban all others; key the policy by client, or remove the penalty"),
    Rule(
        Penalty,
        SharedWithoutKey,
        "one client without a key would ban all others without one; reject or skip requests without a key, or remove the \
         penalty",
    ),
    Rule(
        ReleaseAtHead,
        NotInFlight,
        "nothing could be released; limit what is in flight with `Concurrency`, or remove `release_at_head`",
    ),
    Rule(ChargeOnce, CostAfter, UNKNOWN_COST),
    Rule(ChargeOnce, SettleByHandler, UNKNOWN_COST),
    Rule(ChargeOnce, SettleByContentBytes, UNKNOWN_COST),
    Rule(
        ChargeOnce,
        InFlight,
        "a free retry is in flight like any request, and nothing is charged for good; remove `charge_once`",
    ),
    Rule(
        ChargeOnce,
        Delays,
        "a free retry would overtake the requests that wait; use a limiter that does not delay, or remove `charge_once`",
    ),
    Rule(
        ChargeOnce,
        NoQuota,
        "the quota bounds the free retries; let the limiter advertise one (`Description::advertising`), or remove \
         `charge_once`",
    ),
    Rule(
        MaxKeysOfChargeOnce,
        RecordsOnServer,
        "time alone bounds the records there; remove `max_keys`, or set a shorter `within`",
    ),
];

impl Fact {
    /// The option's name, or the words for a property.
    const fn name(self) -> &'static str {
        match self {
            Cost => "cost",
            CostFn => "cost_fn",
            QuotaFn => "quota_fn",
            ChargeWhen => "charge_when",
            CostAfter => "cost_after",
            SettleByHandler => "settle_by_handler",
            SettleByContentBytes => "settle_by_content_bytes",
            OweShortfalls => "owe_shortfalls",
            ReleaseAtHead => "release_at_head",
            Penalty => "penalty",
            ChargeOnce => "charge_once",
            MaxKeysOfChargeOnce => "ChargeOnce::max_keys",
            SharedKey => "a key that clients share",
            SharedWithoutKey => "MissingKey::Share",
            CostsAtMostCharge => "costs that are never above the charge",
            InFlight => "a limit of requests in flight",
            NotInFlight => "a limiter whose requests hold nothing",
            Delays => "a limiter that delays requests",
            NoQuota => "a limiter that advertises no quota",
            OneQuota => "a limiter that has one quota for all keys",
            RecordsOnServer => "a limiter that keeps them on its server",
        }
    }
}

/// The options of a policy that were set, as bits: a setter that replaces a field must not hide that another one was
/// called.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Options(u32);

impl Options {
    pub(super) const fn set(&mut self, option: Fact) {
        self.0 |= 1 << option as u32;
    }

    const fn has(self, option: Fact) -> bool {
        self.0 & (1 << option as u32) != 0
    }
}

impl Policy {
    /// Returns the first pair of options, or of an option and the limiter, that cannot be combined.
    pub(super) fn check_pairs(&self) -> Result<(), PolicyError> {
        let broken = RULES.iter().find(|Rule(option, other, _)| self.is_so(*option) && self.is_so(*other));
        match broken {
            None => Ok(()),
            Some(Rule(option, other, problem)) => Err(PolicyError::Conflict {
                name: self.name.to_string(),
                option: option.name(),
                other: other.name(),
                problem,
            }),
        }
    }

    fn is_so(&self, fact: Fact) -> bool {
        let terms = self.description.terms();
        match fact {
            Cost | CostFn | QuotaFn | ChargeWhen | CostAfter | SettleByHandler | SettleByContentBytes
            | OweShortfalls | ReleaseAtHead | Penalty | ChargeOnce => self.options.has(fact),
            MaxKeysOfChargeOnce => self.retries.as_ref().is_some_and(|retries| retries.bounds_records()),
            SharedKey => self.key.is_shared(),
            SharedWithoutKey => self.on_missing_key == MissingKey::Share,
            CostsAtMostCharge => !self.settles_later() || self.is_all_or_nothing(),
            InFlight => self.description.holds(),
            NotInFlight => !self.description.holds(),
            Delays => self.description.delays(),
            NoQuota => terms.and_then(|terms| terms.quota()).is_none(),
            OneQuota => !(self.description.takes_quotas() && self.shape().is_some()),
            RecordsOnServer => self.description.charges_once().is_some(),
        }
    }
}
