//! What rules about options are about.

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

impl Fact {
    /// The option's name, or the words for a property.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Cost => "cost",
            Self::CostFn => "cost_fn",
            Self::QuotaFn => "quota_fn",
            Self::ChargeWhen => "charge_when",
            Self::CostAfter => "cost_after",
            Self::SettleByHandler => "settle_by_handler",
            Self::SettleByContentBytes => "settle_by_content_bytes",
            Self::OweShortfalls => "owe_shortfalls",
            Self::ReleaseAtHead => "release_at_head",
            Self::Penalty => "penalty",
            Self::ChargeOnce => "charge_once",
            Self::MaxKeysOfChargeOnce => "ChargeOnce::max_keys",
            Self::SharedKey => "a key that clients share",
            Self::SharedWithoutKey => "MissingKey::Share",
            Self::CostsAtMostCharge => "costs that are never above the charge",
            Self::InFlight => "a limit of requests in flight",
            Self::NotInFlight => "a limiter whose requests hold nothing",
            Self::Delays => "a limiter that delays requests",
            Self::NoQuota => "a limiter that advertises no quota",
            Self::OneQuota => "a limiter that has one quota for all keys",
            Self::RecordsOnServer => "a limiter that keeps them on its server",
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

    pub(super) const fn has(self, option: Fact) -> bool {
        self.0 & (1 << option as u32) != 0
    }
}
