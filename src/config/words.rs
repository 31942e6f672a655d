//! A policy in one line, for people.

use toml::Spanned;

use super::raw::{AlgorithmName, OneOrMany, OrderName, RawPenalty, RawPolicy, TimeText};

/// The fields of a policy that the file sets although it need not. Without `shadow`: to enforce a policy that only watched, one
/// removes it.
pub(super) fn optional_fields(raw: &RawPolicy) -> Vec<&'static str> {
    let fields = [
        ("burst", raw.burst.is_some()),
        ("capacity", raw.capacity.is_some()),
        ("max-wait", raw.max_wait.is_some()),
        ("order", raw.order.is_some()),
        ("key", raw.key.is_some()),
        ("cost", raw.cost.is_some()),
        ("store", raw.store.is_some()),
        ("on-store-error", raw.on_store_error.is_some()),
        ("on-missing-key", raw.on_missing_key.is_some()),
        ("status", raw.status.is_some()),
        ("charge-on", raw.charge_on.is_some()),
        ("penalty", raw.penalty.is_some()),
    ];
    fields.into_iter().filter(|(_, is_set)| *is_set).map(|(field, _)| field).collect()
}

/// As it is spelled in the file, and only what is not as usual.
pub(super) fn of(raw: &RawPolicy) -> String {
    let algorithm = match raw.algorithm {
        AlgorithmName::TokenBucket => "token-bucket",
        AlgorithmName::LeakyBucket => "leaky-bucket",
        AlgorithmName::LeakyQueue => "leaky-queue",
        AlgorithmName::FixedWindow => "fixed-window",
        AlgorithmName::SlidingWindow => "sliding-window",
    };
    let TimeText::Text(per) = raw.per.get_ref();
    let mut parts = vec![format!("{algorithm}: {} per {per}", raw.limit.get_ref())];
    parts.extend(raw.burst.as_ref().map(|burst| format!("burst {}", burst.get_ref())));
    parts.extend(raw.capacity.as_ref().map(|capacity| format!("up to {} waiting", capacity.get_ref())));
    if let Some(TimeText::Text(max_wait)) = raw.max_wait.as_ref().map(Spanned::get_ref) {
        parts.push(format!("for up to {max_wait}"));
    }
    if let Some(OrderName::NewestFirst) = raw.order.as_ref().map(Spanned::get_ref) {
        parts.push("newest first".to_owned());
    }
    if raw.stagger.as_ref().is_some_and(|stagger| *stagger.get_ref()) {
        parts.push("staggered".to_owned());
    }
    parts.extend(raw.cost.as_ref().map(|cost| format!("cost {}", cost.get_ref())));
    parts.push(match raw.key.as_ref().map(Spanned::get_ref) {
        None => "for all together".to_owned(),
        Some(OneOrMany::One(key)) if key == "global" => "for all together".to_owned(),
        Some(OneOrMany::One(key)) => format!("by {key}"),
        Some(OneOrMany::Many(keys)) => format!("by {}", keys.join(" and ")),
    });
    parts.extend(raw.charge_on.as_ref().map(|statuses| {
        let statuses: Vec<_> = statuses.get_ref().iter().map(i64::to_string).collect();
        format!("for answers {} only", statuses.join(" and "))
    }));
    if let Some(RawPenalty { refusals, per, ban }) = &raw.penalty {
        let (TimeText::Text(per), TimeText::Text(ban)) = (per.get_ref(), ban.get_ref());
        parts.push(format!(
            "banned for {ban} after more than {} rejections per {per} that came too early",
            refusals.get_ref()
        ));
    }
    if raw.shadow {
        parts.push("only watching".to_owned());
    }
    parts.join(", ")
}
