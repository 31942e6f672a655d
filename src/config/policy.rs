//! `[[route.policy]]`: builds a policy from its checked settings.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use toml::Spanned;

use super::calendar;
use super::error::ConfigError;
use super::exempt;
use super::format::{
    AlgorithmName, NamedValue, RawBudget, RawChargeOnce, RawPenalty, RawPolicy, ReleaseAt, SettleBy, ShownForm,
};
use super::key::KeySpec;
use super::source::SourceText;
use super::store::{ConcurrencySpec, QueueSpec, StoreSpec};
use super::value::{duration, number, number_in, quota, set_if_some, size};
use crate::algorithm::{FixedWindow, LeakyBucket, SlidingWindow, TokenBucket};
use crate::http::key::ClientIp;
use crate::http::{ChargeOnce, Exemptions, Penalty, Policy, PolicyError, ResponseHead, ShowKey};
use crate::limiter::Limiter;
use crate::values::Quota;

/// Builds a policy, on `store`, with the exemptions of its route and its own.
pub(super) fn build(
    source: &SourceText<'_>,
    raw: &RawPolicy,
    client_ip: &ClientIp,
    store: StoreSpec,
    exemptions: Option<Exemptions>,
) -> Result<Policy, ConfigError> {
    let name_at = raw.name.span();
    let limiter = limiter(source, raw, store)?;

    let key = match &raw.key {
        Some(key) => KeySpec::parse(key.get_ref().as_slice()).map_err(|problem| source.error(&key.span(), problem))?,
        None => KeySpec::Global,
    };
    let mut policy = Policy::new(raw.name.get_ref().as_str(), limiter)
        .key(key.extractor(client_ip))
        .on_missing_key(raw.on_missing_key.map(NamedValue::value).unwrap_or_default())
        .on_failure(raw.on_failure.map(NamedValue::value).unwrap_or_default());
    if let Some(cost) = &raw.cost {
        if *cost.get_ref() == 0 {
            let problem = format!(
                "cost = 0 would limit nothing; write a number from 1 to {}, or remove the policy",
                Quota::MAX_UNITS
            );
            return Err(source.error(&cost.span(), problem));
        }
        policy = policy.cost(number(source, "policy.cost", cost)?);
    }
    if let Some(status) = &raw.status {
        let code = u16::try_from(number(source, "policy.status", status)?).ok();
        policy = policy.status(code.and_then(|code| StatusCode::from_u16(code).ok()).expect("it is from 400 to 599"));
    }
    let charged = raw.charge_when.as_ref().map(|statuses| charged(source, statuses)).transpose()?;
    policy = set_if_some(policy, charged, Policy::charge_when);
    match raw.settle_by.as_ref().map(|by| by.get_ref().value()) {
        Some(SettleBy::Handler) => policy = policy.settle_by_handler(),
        Some(SettleBy::ContentBytes) => policy = policy.settle_by_content_bytes(),
        None => {}
    }
    if raw.owe_shortfalls.as_ref().is_some_and(|owes| *owes.get_ref()) {
        policy = policy.owe_shortfalls();
    }
    if raw.release_at.as_ref().is_some_and(|at| at.get_ref().value() == ReleaseAt::Head) {
        policy = policy.release_at_head();
    }
    let penalty = raw.penalty.as_ref().map(|raw| penalty(source, raw)).transpose()?;
    let charge_once = raw.charge_once.as_ref().map(|raw| charge_once(source, raw)).transpose()?;
    policy = set_if_some(set_if_some(policy, penalty, Policy::penalty), charge_once, Policy::charge_once);
    match raw.track_offenders.map(NamedValue::value) {
        Some(ShownForm::Hash) => policy = policy.track_offenders(ShowKey::hash()),
        Some(ShownForm::Prefix) => policy = policy.track_offenders(ShowKey::prefix(SHOWN_CHARACTERS)),
        Some(ShownForm::Whole) => policy = policy.track_offenders(ShowKey::whole()),
        None => {}
    }
    let exemptions = match &raw.exempt {
        Some(exempt) => Some(exempt::add(source, exemptions.unwrap_or_default(), exempt, client_ip)?),
        None => exemptions,
    };
    policy = set_if_some(policy, exemptions, Policy::exempt);
    if raw.shadow == Some(true) {
        policy = policy.shadow();
    }
    policy
        .validate()
        .map_err(|error| source.error(&place(raw, &error).unwrap_or(name_at), in_words_of_file(&error)))?;
    Ok(policy)
}

/// Where the file has the mistake. Of two fields that exclude each other, the last.
fn place(raw: &RawPolicy, error: &PolicyError) -> Option<Range<usize>> {
    match error {
        PolicyError::CostOfZero { .. } | PolicyError::CostAboveBurst { .. } => span_of(&raw.cost),
        PolicyError::InvalidStatus { .. } => span_of(&raw.status),
        PolicyError::Conflict { option, other, .. } => {
            let places = [option, other].into_iter().filter_map(|option| place_of(raw, option));
            places.max_by_key(|at| at.start)
        }
        PolicyError::NoPolicy | PolicyError::DuplicateName { .. } | PolicyError::InvalidName { .. } => None,
    }
}

pub(super) fn span_of<T>(value: &Option<Spanned<T>>) -> Option<Range<usize>> {
    value.as_ref().map(Spanned::span)
}

/// Where the file sets an option, by the name of its method. A file has no `cost_fn`, `cost_after` and `quota_fn`.
fn place_of(raw: &RawPolicy, option: &str) -> Option<Range<usize>> {
    match option {
        "cost" => span_of(&raw.cost),
        "charge_when" => span_of(&raw.charge_when),
        "settle_by_handler" | "settle_by_content_bytes" => span_of(&raw.settle_by),
        "owe_shortfalls" => span_of(&raw.owe_shortfalls),
        "release_at_head" => span_of(&raw.release_at),
        "penalty" => raw.penalty.as_ref().map(|penalty| penalty.rejections.span()),
        "charge_once" | "ChargeOnce::max_keys" => raw.charge_once.as_ref().map(|once| once.header.span()),
        _ => None,
    }
}

/// The message of an error, with the fields of a file in place of methods.
fn in_words_of_file(error: &PolicyError) -> String {
    let text = error.to_string();
    let PolicyError::Conflict { name, .. } = error else { return text };
    // The name of the policy stays as it is.
    let (start, rest) = text.split_at(text.find(": ").unwrap_or(name.len()));
    let words = rest.split('`').enumerate().map(|(index, word)| match word {
        _ if index % 2 == 0 => word.to_owned(),
        "settle_by_handler" => "`settle-by = \"handler\"`".to_owned(),
        "settle_by_content_bytes" => "`settle-by = \"content-bytes\"`".to_owned(),
        "release_at_head" => "`release-at = \"head\"`".to_owned(),
        "MissingKey::Share" => "`on-missing-key = \"share\"`".to_owned(),
        "ChargeOnce::max_keys" => "`max-keys` of `charge-once`".to_owned(),
        "Concurrency" => "`concurrency`".to_owned(),
        "cost_after" => "`cost_after` (in code)".to_owned(),
        method => format!("`{}`", method.replace('_', "-")),
    });
    words.fold(start.to_owned(), |text, word| text + &word)
}

fn penalty(source: &SourceText<'_>, raw: &RawPenalty) -> Result<Penalty, ConfigError> {
    let RawPenalty { rejections, per, ban } = raw;
    let rejections = quota(source, number(source, "penalty.rejections", rejections)?, "per", per)?;
    if duration(source, "ban", ban)?.is_zero() {
        return Err(source.error(&ban.span(), "ban = \"0s\": the time is 0; write a time such as 10m"));
    }
    // A ban is kept as the period of a quota.
    let ban = quota(source, 1, "ban", ban)?.period();
    Ok(Penalty::new(rejections, ban))
}

fn charge_once(source: &SourceText<'_>, raw: &RawChargeOnce) -> Result<ChargeOnce, ConfigError> {
    let RawChargeOnce { header, within, free_retries, max_keys } = raw;
    let name = header.get_ref().parse().map_err(|_| {
        let problem =
            format!("header = {:?} is not a header's name; write one such as idempotency-key", header.get_ref());
        source.error(&header.span(), problem)
    })?;
    // The time is kept as the period of a quota.
    let within = quota(source, 1, "within", within)?.period();
    let free_retries = number(source, "charge-once.free-retries", free_retries)?;
    let free_retries = u32::try_from(free_retries).expect("in the range");
    let once = ChargeOnce::by_header(name).within(within).free_retries(free_retries);
    let max_keys = max_keys.as_ref().map(|keys| size(source, "charge-once.max-keys", keys)).transpose()?;
    Ok(set_if_some(once, max_keys, ChargeOnce::max_keys))
}

fn limiter(source: &SourceText<'_>, raw: &RawPolicy, store: StoreSpec) -> Result<Arc<dyn Limiter>, ConfigError> {
    let unit = calendar::unit(source, raw)?;
    let algorithm = raw.algorithm.value();
    let is_queue = algorithm == AlgorithmName::LeakyQueue;
    let is_concurrency = algorithm == AlgorithmName::Concurrency;
    let is_window = matches!(algorithm, AlgorithmName::FixedWindow | AlgorithmName::SlidingWindow);
    let is_in_memory = is_queue && store.is_memory();
    let staggered = raw.staggered.as_ref().filter(|staggered| *staggered.get_ref());
    for (field, at, is_fit, what) in [
        ("per", span_of(&raw.per), !is_concurrency, "limits over time"),
        ("burst", span_of(&raw.burst), !is_window && !is_concurrency, "token-bucket, leaky-bucket and leaky-queue"),
        ("max-queue", span_of(&raw.max_queue), is_queue || is_concurrency, "leaky-queue and concurrency"),
        ("max-wait", span_of(&raw.max_wait), is_queue || is_concurrency, "leaky-queue and concurrency"),
        (
            "max-keys",
            span_of(&raw.max_keys),
            is_in_memory || (is_concurrency && store.is_memory()),
            "leaky-queue and concurrency in memory",
        ),
        ("lease", span_of(&raw.lease), is_concurrency, "concurrency on Redis"),
        ("when-full", span_of(&raw.when_full), is_in_memory, "leaky-queue in memory"),
        ("staggered", staggered.map(Spanned::span), is_window, "fixed-window and sliding-window"),
    ] {
        if let Some(at) = at.filter(|_| !is_fit) {
            let problem = format!("{field} is for {what}; remove it or choose that algorithm");
            return Err(source.error(&at, problem));
        }
    }
    if is_concurrency {
        return concurrency(source, raw, store);
    }
    let limit = number(source, "policy.limit", &raw.limit)?;
    let Some(per) = &raw.per else {
        let problem = "per is missing: without it, the limit has no period; add per = \"1m\"";
        return Err(source.error(&raw.limit.span(), problem));
    };
    if let Some(unit) = unit {
        return calendar::limiter(source, raw, (unit, per), limit, store);
    }
    let burst = raw.burst.as_ref().map(|burst| number(source, "policy.burst", burst)).transpose()?;
    let quota = set_if_some(quota(source, limit, "per", per)?, burst, Quota::burst);

    let limiter = match algorithm {
        AlgorithmName::Concurrency => unreachable!("it has no quota, and returned above"),
        AlgorithmName::TokenBucket => store.limiter(TokenBucket::new(quota)),
        AlgorithmName::LeakyBucket => store.limiter(LeakyBucket::new(quota)),
        AlgorithmName::FixedWindow if staggered.is_some() => store.limiter(FixedWindow::new(quota).staggered()),
        AlgorithmName::FixedWindow => store.limiter(FixedWindow::new(quota)),
        AlgorithmName::SlidingWindow if staggered.is_some() => store.limiter(SlidingWindow::new(quota).staggered()),
        AlgorithmName::SlidingWindow => store.limiter(SlidingWindow::new(quota)),
        AlgorithmName::LeakyQueue => {
            let queue = QueueSpec {
                quota,
                max_queue: raw.max_queue.as_ref().map(|most| size(source, "policy.max-queue", most)).transpose()?,
                max_wait: raw.max_wait.as_ref().map(|wait| duration(source, "max-wait", wait)).transpose()?,
                max_keys: raw.max_keys.as_ref().map(|keys| size(source, "policy.max-keys", keys)).transpose()?,
                when_full: raw.when_full.as_ref().map(|when_full| when_full.get_ref().value()),
            };
            store.queue(queue)
        }
    };
    let at = staggered.map_or_else(|| per.span(), Spanned::span);
    limiter.map_err(|problem| source.error(&at, problem))
}

fn concurrency(source: &SourceText<'_>, raw: &RawPolicy, store: StoreSpec) -> Result<Arc<dyn Limiter>, ConfigError> {
    let lease = raw.lease.as_ref().map(|lease| self::lease(source, lease, &store)).transpose()?;
    let max_queue = raw.max_queue.as_ref().map(|most| size(source, "policy.max-queue", most)).transpose()?;
    if let (Some(wait), None) = (&raw.max_wait, max_queue) {
        let problem = "max-wait bounds the wait in a queue, and there is none; add max-queue = 100, or remove it";
        return Err(source.error(&wait.span(), problem));
    }
    let most = if store.is_memory() { MOST_IN_FLIGHT } else { Quota::MAX_UNITS };
    let concurrency = ConcurrencySpec {
        limit: number_in(source, "limit", 1..=most, &raw.limit)?,
        max_queue,
        max_wait: raw.max_wait.as_ref().map(|wait| duration(source, "max-wait", wait)).transpose()?,
        max_keys: raw.max_keys.as_ref().map(|keys| size(source, "policy.max-keys", keys)).transpose()?,
        lease,
    };
    Ok(store.concurrency(concurrency))
}

fn lease(source: &SourceText<'_>, lease: &Spanned<String>, store: &StoreSpec) -> Result<Duration, ConfigError> {
    if store.is_memory() {
        let problem = "lease is for Redis: in memory, what is in flight ends with its process; remove it, or keep the \
                       policy on Redis (store = \"redis\", with [redis] at the top of the file)";
        return Err(source.error(&lease.span(), problem));
    }
    let time = duration(source, "lease", lease)?;
    if LEASES.contains(&time) {
        return Ok(time);
    }
    let problem = format!("lease = \"{}\" is out of range; write a time from 1s to 1h, such as 10s", lease.get_ref());
    Err(source.error(&lease.span(), problem))
}

/// See [`RedisConcurrency::lease`](crate::RedisConcurrency::lease).
const LEASES: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3_600);

/// How many characters of a key `track-offenders = "prefix"` shows.
const SHOWN_CHARACTERS: usize = 6;

/// The most units that a key may have in flight in memory: see [`Concurrency::new`](crate::Concurrency::new). On Redis,
/// it has the same maximum as any quota.
const MOST_IN_FLIGHT: u64 = (1 << 31) - 1;

/// Parses `charge-when`: a predicate for responses with one of these statuses.
fn charged(
    source: &SourceText<'_>,
    statuses: &Spanned<Vec<i64>>,
) -> Result<impl Fn(&ResponseHead<'_>) -> bool + Send + Sync + 'static, ConfigError> {
    let bad = statuses.get_ref().iter().find(|status| !(200..600).contains(*status));
    if let Some(status) = bad {
        let problem = format!("charge-when = [{status}]: no response has that status; write 200 to 599");
        return Err(source.error(&statuses.span(), problem));
    }
    if statuses.get_ref().is_empty() {
        let problem = "charge-when = []: no request would count; write the statuses that count, or leave it out";
        return Err(source.error(&statuses.span(), problem));
    }
    let statuses = statuses.get_ref().clone();
    Ok(move |response: &ResponseHead<'_>| statuses.contains(&response.status().as_u16().into()))
}

/// Parses the budget of `exempt-preflights`.
pub(super) fn budget(source: &SourceText<'_>, raw: &RawBudget) -> Result<Quota, ConfigError> {
    let quota = quota(source, number(source, "exempt-preflights.limit", &raw.limit)?, "per", &raw.per)?;
    let burst = raw.burst.as_ref().map(|burst| number(source, "exempt-preflights.burst", burst)).transpose()?;
    Ok(set_if_some(quota, burst, Quota::burst))
}
