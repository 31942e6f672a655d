//! The facts about a policy that rules combine.

use super::named::named;

named! {
    /// A fact about a policy: an option that was set, an option's value, or a property of the limiter.
    pub(super) enum Fact by
    /// The option's name, or the words for a property.
    pub(super) name {
        Cost = "cost",
        CostFn = "cost_fn",
        PriorityFn = "priority_fn",
        WeightFn = "weight_fn",
        QuotaFn = "quota_fn",
        WindowFn = "window_fn",
        LimitFn = "limit_fn",
        ChargeWhen = "charge_when",
        CostAfter = "cost_after",
        SettleByHandler = "settle_by_handler",
        SettleByContentBytes = "settle_by_content_bytes",
        OweShortfalls = "owe_shortfalls",
        ReleaseAtHead = "release_at_head",
        Penalty = "penalty",
        ChargeOnce = "charge_once",
        OnCrossing = "on_crossing",
        /// The number of retry records is bounded.
        MaxKeysOfChargeOnce = "ChargeOnce::max_keys",
        SharedKey = "a key that clients share",
        /// A request may have several keys.
        SeveralKeys = "several keys per request",
        /// Requests without a key share one.
        SharedWithoutKey = "MissingKey::Share",
        /// No request can cost more than it is charged.
        CostsAtMostCharge = "costs that are never above the charge",
        /// Requests hold units until they are over.
        InFlight = "a limit of requests in flight",
        NotInFlight = "a limiter whose requests hold nothing",
        /// It keeps units that are credited.
        IsBalance = "a balance",
        Delays = "a limiter that delays requests",
        Sheds = "a limiter that sheds",
        NotShedding = "a limiter that does not shed",
        /// It advertises no quota.
        NoQuota = "a limiter that advertises no quota",
        /// Nothing would pay a debt.
        KeepsNoDebts = "a limiter whose keys cannot owe anything",
        /// It has one quota for all keys.
        OneQuota = "a limiter that has one quota for all keys",
        NoCalendar = "a limiter without windows of the calendar",
        /// The limiter does not count requests in flight, or has one limit for all keys.
        NoLimits = "a limiter that takes no limits in flight",
        /// It keeps the retry records.
        RecordsOnServer = "a limiter that keeps them on its server",
    }
}

/// The policy options that were set, as bits, because a setter that replaces a field must not hide that another one was
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
