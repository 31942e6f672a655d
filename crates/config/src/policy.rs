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
    AlgorithmName, MOST_IN_FLIGHT, NamedValue, RawBudget, RawChargeOnce, RawPenalty, RawPolicy, ReleaseAt, SettleBy,
    ShownForm,
};
use super::key::{self, CustomKeys};
use super::plans;
use super::precedence;
use super::source::SourceText;
use super::store::{ConcurrencySpec, MemorySettings, QueueSpec, RateSpec, StoreSpec};
use super::value::{duration, number, number_in, quota, set_if_some, size};
use tower_sluice::Limiter;
use tower_sluice::Overload;
use tower_sluice::Quota;
use tower_sluice::SlowDown;
use tower_sluice::algorithm::{FixedWindow, LeakyBucket, SlidingWindow, TokenBucket};
use tower_sluice::key::{ClientIp, Global};
use tower_sluice::limiter::IntoLimiter;
use tower_sluice::policy::{PolicyError, ResponseHead, ShowKey};
use tower_sluice::{ChargeOnce, Exemptions, Penalty, Policy};

/// Builds a policy on `store`, with its route's exemptions and its own.
pub(crate) fn build(
    source: &SourceText<'_>,
    raw: &RawPolicy,
    client_ip: &ClientIp,
    custom_keys: Option<&CustomKeys>,
    store: StoreSpec,
    exemptions: Option<Exemptions>,
) -> Result<Policy, ConfigError> {
    let name_at = raw.name.span();
    let replay_clock = store.replay_clock();
    let plans_store = raw.plans.as_ref().map(|_| store.clone());
    let limiter = limiter(source, raw, store)?;
    let plans = raw.plans.as_ref().zip(plans_store);
    let plans = plans.map(|(plans, store)| plans::read(source, raw, plans, client_ip, &store)).transpose()?;

    let key = match &raw.key {
        Some(key) => key::extractor(raw.name.get_ref(), key.get_ref().as_slice(), client_ip, custom_keys)
            .map_err(|problem| source.error(&key.span(), problem))?,
        None => Box::new(Global),
    };
    let mut policy = Policy::new(raw.name.get_ref().as_str(), limiter)
        .key(key)
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
    let penalty = penalty.map(|penalty| set_if_some(penalty, replay_clock.clone(), Penalty::with_clock));
    let charge_once = charge_once.map(|once| set_if_some(once, replay_clock, ChargeOnce::with_clock));
    policy = set_if_some(set_if_some(policy, penalty, Policy::penalty), charge_once, Policy::charge_once);
    match raw.track_offenders.map(NamedValue::value) {
        Some(ShownForm::Hash) => policy = policy.track_offenders(ShowKey::hash()),
        Some(ShownForm::Prefix) => policy = policy.track_offenders(ShowKey::prefix(SHOWN_CHARACTERS)),
        Some(ShownForm::Whole) => policy = policy.track_offenders(ShowKey::whole()),
        None => {}
    }
    if let Some(shares) = &raw.warn_at {
        policy = warn_at(source, policy, shares)?;
    }
    let exemptions = match &raw.exempt {
        Some(exempt) => Some(exempt::add(source, exemptions.unwrap_or_default(), exempt, client_ip)?),
        None => exemptions,
    };
    policy = set_if_some(policy, exemptions, Policy::exempt);
    if let Some(raw) = &raw.priority {
        policy = policy.priority_fn(precedence::priority(source, raw, client_ip)?);
    }
    if let Some(raw) = &raw.weight {
        policy = policy.weight_fn(precedence::weight(source, raw, client_ip)?);
    }
    if is_suspended(raw) {
        policy = policy.quota_fn(|_| Some(Quota::suspended()));
    } else {
        policy = set_if_some(policy, plans, |policy, plans| plans.apply_to(policy));
    }
    if raw.shadow == Some(true) {
        policy = policy.shadow();
    }
    policy
        .validate()
        .map_err(|error| source.error(&place(raw, &error).unwrap_or(name_at), in_words_of_file(raw, &error)))?;
    Ok(policy)
}

/// Finds the mistake in the file. If two fields exclude each other, it is the last.
fn place(raw: &RawPolicy, error: &PolicyError) -> Option<Range<usize>> {
    match error {
        PolicyError::CostOfZero { .. } | PolicyError::CostAboveBurst { .. } => span_of(&raw.cost),
        PolicyError::InvalidStatus { .. } => span_of(&raw.status),
        PolicyError::Conflict { option, other, .. } => {
            let places = [option, other].into_iter().filter_map(|option| place_of(raw, option));
            places.max_by_key(|at| at.start)
        }
        // Other errors are mistakes in the name, or in a layer.
        _ => None,
    }
}

/// How many keys a policy in memory keeps, if the file sets it.
pub(crate) fn max_keys(source: &SourceText<'_>, raw: &RawPolicy) -> Result<Option<usize>, ConfigError> {
    raw.max_keys.as_ref().map(|keys| size(source, "policy.max-keys", keys)).transpose()
}

pub(crate) fn span_of<T>(value: &Option<Spanned<T>>) -> Option<Range<usize>> {
    value.as_ref().map(Spanned::span)
}

fn is_suspended(raw: &RawPolicy) -> bool {
    raw.suspended.as_ref().is_some_and(|suspended| *suspended.get_ref())
}

/// Where the file sets an option, by its method's name. A file does not have `cost_fn` and `cost_after`.
fn place_of(raw: &RawPolicy, option: &str) -> Option<Range<usize>> {
    match option {
        "cost" => span_of(&raw.cost),
        "charge_when" => span_of(&raw.charge_when),
        "settle_by_handler" | "settle_by_content_bytes" => span_of(&raw.settle_by),
        "owe_shortfalls" => span_of(&raw.owe_shortfalls),
        "release_at_head" => span_of(&raw.release_at),
        "priority_fn" => raw.priority.as_ref().map(|priority| priority.by.span()),
        "weight_fn" => raw.weight.as_ref().map(|weight| weight.by.span()),
        "penalty" => raw.penalty.as_ref().map(|penalty| penalty.rejections.span()),
        "on_crossing" => span_of(&raw.warn_at),
        "quota_fn" if is_suspended(raw) => span_of(&raw.suspended),
        "quota_fn" | "window_fn" | "limit_fn" => span_of(&raw.plans),
        "charge_once" | "ChargeOnce::max_keys" => raw.charge_once.as_ref().map(|once| once.header.span()),
        _ => None,
    }
}

/// Rewords an error's message, with a file's fields in place of methods.
fn in_words_of_file(raw: &RawPolicy, error: &PolicyError) -> String {
    let text = error.to_string();
    let PolicyError::Conflict { name, .. } = error else { return text };
    // The policy's name stays as it is.
    let (start, rest) = text.split_at(text.find(": ").unwrap_or(name.len()));
    let words = rest.split('`').enumerate().map(|(index, word)| match word {
        _ if index % 2 == 0 => word.to_owned(),
        "settle_by_handler" => "`settle-by = \"handler\"`".to_owned(),
        "settle_by_content_bytes" => "`settle-by = \"content-bytes\"`".to_owned(),
        "release_at_head" => "`release-at = \"head\"`".to_owned(),
        "MissingKey::Share" => "`on-missing-key = \"share\"`".to_owned(),
        "ChargeOnce::max_keys" => "`max-keys` of `charge-once`".to_owned(),
        "Concurrency" => "`concurrency`".to_owned(),
        "LeakyQueue" => "`leaky-queue`".to_owned(),
        "Overload" => "`overload`".to_owned(),
        "on_crossing" => "`warn-at`".to_owned(),
        "CalendarWindow" => "`fixed-window`".to_owned(),
        "quota_fn" if is_suspended(raw) => "`suspended`".to_owned(),
        "quota_fn" | "window_fn" | "limit_fn" => "`plans`".to_owned(),
        "priority_fn" => "`priority`".to_owned(),
        "weight_fn" => "`weight`".to_owned(),
        "cost_after" => "`cost_after` (in code)".to_owned(),
        method => format!("`{}`", method.replace('_', "-")),
    });
    words.fold(start.to_owned(), |text, word| text + &word)
}

fn penalty(source: &SourceText<'_>, raw: &RawPenalty) -> Result<Penalty, ConfigError> {
    let RawPenalty { rejections, per, ban, factor, up_to, forgetting_after } = raw;
    let rejections = quota(source, number(source, "penalty.rejections", rejections)?, "per", per)?;
    if duration(source, "ban", ban)?.is_zero() {
        return Err(source.error(&ban.span(), "ban = \"0s\": the time is 0; write a time such as 10m"));
    }
    // A ban is kept as a quota's period.
    let first = quota(source, 1, "ban", ban)?.period();
    let penalty = Penalty::new(rejections, first);
    let (factor, up_to) = match (factor, up_to) {
        (Some(factor), Some(up_to)) => (factor, up_to),
        (Some(factor), None) => {
            return Err(source.error(&factor.span(), "factor needs up-to, the longest ban; add up-to = \"1day\""));
        }
        (None, Some(it)) => return Err(source.error(&it.span(), "up-to needs factor; add factor = 2, or remove it")),
        (None, None) => {
            let alone = forgetting_after.as_ref().map(Spanned::span);
            let problem = "forgetting-after needs factor and up-to; add factor = 2 and up-to = \"1day\", or remove it";
            return alone.map_or(Ok(penalty), |at| Err(source.error(&at, problem)));
        }
    };
    let factor = u32::try_from(number(source, "penalty.factor", factor)?).expect("in the range");
    let most = quota(source, 1, "up-to", up_to)?.period();
    if most < first {
        let problem = format!("up-to = \"{}\" is shorter than ban = \"{}\"", up_to.get_ref(), ban.get_ref());
        return Err(source.error(&up_to.span(), problem));
    }
    let quiet = forgetting_after.as_ref().map(|quiet| quota(source, 1, "forgetting-after", quiet)).transpose()?;
    let growing = penalty.growing(factor, most);
    Ok(set_if_some(growing, quiet.map(|quiet| quiet.period()), Penalty::forgetting_after))
}

fn warn_at(source: &SourceText<'_>, policy: Policy, shares: &Spanned<Vec<f64>>) -> Result<Policy, ConfigError> {
    let all = shares.get_ref();
    if all.is_empty() || !all.iter().all(|share| *share > 0.0 && *share <= 1.0) {
        let problem =
            format!("warn-at = {all:?}: write shares of the limit, above 0 and at most 1, such as [0.8, 0.95]");
        return Err(source.error(&shares.span(), problem));
    }
    Ok(all.iter().fold(policy, |policy, share| policy.warn_at(*share)))
}

fn charge_once(source: &SourceText<'_>, raw: &RawChargeOnce) -> Result<ChargeOnce, ConfigError> {
    let RawChargeOnce { header, within, free_retries, max_keys } = raw;
    let name = header.get_ref().parse().map_err(|_| {
        let problem =
            format!("header = {:?} is not a header's name; write one such as idempotency-key", header.get_ref());
        source.error(&header.span(), problem)
    })?;
    // The time is kept as a quota's period.
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
    let is_overload = algorithm == AlgorithmName::Overload;
    let is_slow_down = algorithm == AlgorithmName::SlowDown;
    let is_balance = algorithm == AlgorithmName::Balance;
    let is_over_time = !is_concurrency && !is_overload && !is_balance;
    let may_wait = is_queue || is_concurrency || is_overload;
    let is_window = matches!(algorithm, AlgorithmName::FixedWindow | AlgorithmName::SlidingWindow);
    let has_queues = is_slow_down || (is_queue && store.is_memory());
    // Every field is listed, so that a new one does not compile before it is known which algorithms it is for.
    let RawPolicy {
        limit,
        per,
        burst,
        max_queue,
        max_wait,
        free,
        step,
        max_delay,
        limits,
        starting_at,
        queue_target,
        max_keys: most_keys,
        lease,
        when_full,
        staggered,
        // `plans::read` checks it.
        plans: _,
        // `calendar::unit` checks these.
        zone: _,
        anchor: _,
        week_start: _,
        // `Policy::validate` knows which limiters these are for.
        priority: _,
        weight: _,
        suspended: _,
        charge_when: _,
        settle_by: _,
        owe_shortfalls: _,
        release_at: _,
        penalty: _,
        charge_once: _,
        warn_at: _,
        cost: _,
        // These are for all algorithms. The store is checked below.
        name: _,
        algorithm: _,
        key: _,
        on_missing_key: _,
        on_failure: _,
        status: _,
        shadow: _,
        store: _,
        track_offenders: _,
        exempt: _,
    } = raw;
    let staggered = staggered.as_ref().filter(|staggered| *staggered.get_ref());
    for (field, at, is_fit, what) in [
        (
            "limit",
            span_of(limit),
            !is_overload && !is_balance,
            "all algorithms but overload, which finds its limit itself, and balance",
        ),
        ("per", span_of(per), is_over_time, "limits over time"),
        ("burst", span_of(burst), !is_window && is_over_time, "token-bucket, leaky-bucket, leaky-queue and slow-down"),
        ("max-queue", span_of(max_queue), may_wait, "leaky-queue, concurrency and overload"),
        ("max-wait", span_of(max_wait), may_wait, "leaky-queue, concurrency and overload"),
        ("free", span_of(free), is_slow_down, "slow-down"),
        ("step", span_of(step), is_slow_down, "slow-down"),
        ("max-delay", span_of(max_delay), is_slow_down, "slow-down"),
        ("limits", span_of(limits), is_overload, "overload"),
        ("starting-at", span_of(starting_at), is_overload, "overload"),
        ("queue-target", span_of(queue_target), is_overload, "overload"),
        (
            "max-keys",
            span_of(most_keys),
            is_slow_down || (!is_overload && store.is_memory()),
            "policies in memory, except for overload",
        ),
        ("lease", span_of(lease), is_concurrency, "concurrency on a server"),
        ("when-full", span_of(when_full), has_queues, "leaky-queue in memory and slow-down"),
        ("staggered", staggered.map(Spanned::span), is_window, "fixed-window and sliding-window"),
    ] {
        if let Some(at) = at.filter(|_| !is_fit) {
            let problem = format!("{field} is for {what}; remove it or choose that algorithm");
            return Err(source.error(&at, problem));
        }
    }
    let on_server = raw.store.as_ref().filter(|_| !store.is_memory());
    if let Some((at, name)) = on_server.zip(is_overload.then_some("overload").or(is_slow_down.then_some("slow-down"))) {
        let problem = format!(
            "store = {:?}: {name} is the state of this process; remove it, or write store = \"memory\"",
            at.get_ref()
        );
        return Err(source.error(&at.span(), problem));
    }
    if is_overload {
        return overload(source, raw);
    }
    if is_balance {
        let settings = MemorySettings { max_keys: max_keys(source, raw)?, when_full: None };
        return store.balance(source, settings);
    }
    let Some(raw_limit) = &raw.limit else {
        return Err(source.error(&raw.name.span(), "missing field `limit`; add limit = 10"));
    };
    if is_concurrency {
        return concurrency(source, raw, raw_limit, store);
    }
    let limit = number(source, "policy.limit", raw_limit)?;
    let Some(per) = &raw.per else {
        let problem = "per is missing: without it, the limit has no period; add per = \"1m\"";
        return Err(source.error(&raw_limit.span(), problem));
    };
    if let Some(unit) = unit {
        return calendar::limiter(source, raw, (unit, per), limit, store);
    }
    let settings = MemorySettings {
        max_keys: max_keys(source, raw)?,
        when_full: raw.when_full.as_ref().map(|when_full| when_full.get_ref().value()),
    };
    let burst = raw.burst.as_ref().map(|burst| number(source, "policy.burst", burst)).transpose()?;
    let quota = set_if_some(quota(source, limit, "per", per)?, burst, Quota::burst);

    let at = staggered.map_or_else(|| per.span(), Spanned::span);
    let rate = match algorithm {
        AlgorithmName::SlowDown => return slow_down(source, raw, quota),
        AlgorithmName::LeakyQueue => return store.queue(source, queue(source, raw, quota)?, settings, &at),
        _ => rate(raw, quota),
    };
    store.limiter(source, rate, settings, &at)
}

/// Returns a policy's algorithm, if its limit is over time and admits requests at once, with a quota.
pub(crate) fn rate(raw: &RawPolicy, quota: Quota) -> RateSpec {
    let is_staggered = raw.staggered.as_ref().is_some_and(|staggered| *staggered.get_ref());
    match raw.algorithm.value() {
        AlgorithmName::TokenBucket => RateSpec::TokenBucket(TokenBucket::new(quota)),
        AlgorithmName::LeakyBucket => RateSpec::LeakyBucket(LeakyBucket::new(quota)),
        AlgorithmName::FixedWindow if is_staggered => RateSpec::FixedWindow(FixedWindow::new(quota).staggered()),
        AlgorithmName::FixedWindow => RateSpec::FixedWindow(FixedWindow::new(quota)),
        AlgorithmName::SlidingWindow if is_staggered => RateSpec::SlidingWindow(SlidingWindow::new(quota).staggered()),
        AlgorithmName::SlidingWindow => RateSpec::SlidingWindow(SlidingWindow::new(quota)),
        AlgorithmName::LeakyQueue | AlgorithmName::SlowDown => unreachable!("it delays requests"),
        AlgorithmName::Concurrency | AlgorithmName::Overload | AlgorithmName::Balance => {
            unreachable!("it has no quota")
        }
    }
}

/// Returns a policy's queue, with a quota.
pub(crate) fn queue(source: &SourceText<'_>, raw: &RawPolicy, quota: Quota) -> Result<QueueSpec, ConfigError> {
    Ok(QueueSpec {
        quota,
        max_queue: raw.max_queue.as_ref().map(|most| size(source, "policy.max-queue", most)).transpose()?,
        max_wait: raw.max_wait.as_ref().map(|wait| duration(source, "max-wait", wait)).transpose()?,
    })
}

/// Delays this process's requests, wherever other policies keep their budgets.
fn slow_down(source: &SourceText<'_>, raw: &RawPolicy, quota: Quota) -> Result<Arc<dyn Limiter>, ConfigError> {
    let free = raw.free.as_ref().map(|free| number(source, "policy.free", free)).transpose()?;
    let step = raw.step.as_ref().map(|step| duration(source, "step", step)).transpose()?;
    let max_delay = raw.max_delay.as_ref().map(|delay| duration(source, "max-delay", delay)).transpose()?;
    let max_keys = max_keys(source, raw)?;
    let when_full = raw.when_full.as_ref().map(|when_full| when_full.get_ref().value());
    let slow_down = set_if_some(SlowDown::new(quota), free, SlowDown::free);
    let slow_down = set_if_some(slow_down, step, SlowDown::step);
    let slow_down = set_if_some(slow_down, max_delay, SlowDown::max_delay);
    let slow_down = set_if_some(slow_down, max_keys, SlowDown::max_keys);
    Ok(set_if_some(slow_down, when_full, SlowDown::when_full).into_limiter())
}

/// Protects this process, wherever other policies keep their budgets.
fn overload(source: &SourceText<'_>, raw: &RawPolicy) -> Result<Arc<dyn Limiter>, ConfigError> {
    let limits = raw.limits.as_ref().map(|limits| self::limits(source, limits)).transpose()?;
    let start = raw.starting_at.as_ref().map(|start| number(source, "policy.starting-at", start)).transpose()?;
    let bounds = limits.clone().unwrap_or(DEFAULT_LIMITS);
    if let Some((start, at)) = start.zip(span_of(&raw.starting_at)).filter(|(start, _)| !bounds.contains(start)) {
        let (least, most) = bounds.into_inner();
        let problem =
            format!("starting-at = {start} is not in limits = [{least}, {most}]; choose a limit between them");
        return Err(source.error(&at, problem));
    }
    let target = raw.queue_target.as_ref().map(|target| duration(source, "queue-target", target)).transpose()?;
    if let Some(at) = span_of(&raw.queue_target).filter(|_| target.is_some_and(|target| target.is_zero())) {
        return Err(
            source.error(&at, "queue-target = \"0s\": every request would wait too long; write a time such as 20ms")
        );
    }
    let max_wait = raw.max_wait.as_ref().map(|wait| duration(source, "max-wait", wait)).transpose()?;
    let max_queue = raw.max_queue.as_ref().map(|most| size(source, "policy.max-queue", most)).transpose()?;
    let overload = set_if_some(Overload::new(), limits, Overload::limits);
    let overload = set_if_some(overload, start, Overload::starting_at);
    let overload = set_if_some(overload, target, Overload::queue_target);
    let overload = set_if_some(overload, max_wait, Overload::max_wait);
    Ok(set_if_some(overload, max_queue, Overload::max_queue).into_limiter())
}

/// Parses the lowest and the highest limit.
fn limits(source: &SourceText<'_>, limits: &Spanned<Vec<i64>>) -> Result<RangeInclusive<u64>, ConfigError> {
    let as_limit = |number: i64| u64::try_from(number).ok().filter(|limit| (1..=MOST_IN_FLIGHT).contains(limit));
    let range = match limits.get_ref()[..] {
        [least, most] => as_limit(least).zip(as_limit(most)).filter(|(least, most)| least <= most),
        _ => None,
    };
    range.map(|(least, most)| least..=most).ok_or_else(|| {
        let problem = format!(
            "limits = {:?}: write the lowest and the highest limit, from 1 to {MOST_IN_FLIGHT}, such as [2, 1024]",
            limits.get_ref()
        );
        source.error(&limits.span(), problem)
    })
}

fn concurrency(
    source: &SourceText<'_>,
    raw: &RawPolicy,
    limit: &Spanned<i64>,
    store: StoreSpec,
) -> Result<Arc<dyn Limiter>, ConfigError> {
    let lease = raw.lease.as_ref().map(|lease| self::lease(source, lease, &store)).transpose()?;
    let max_queue = raw.max_queue.as_ref().map(|most| size(source, "policy.max-queue", most)).transpose()?;
    if let (Some(wait), None) = (&raw.max_wait, max_queue) {
        let problem = "max-wait bounds the wait in a queue, and there is none; add max-queue = 100, or remove it";
        return Err(source.error(&wait.span(), problem));
    }
    let concurrency = ConcurrencySpec {
        limit: in_flight(source, limit, &store)?,
        max_queue,
        max_wait: raw.max_wait.as_ref().map(|wait| duration(source, "max-wait", wait)).transpose()?,
        lease,
    };
    store.concurrency(source, concurrency, MemorySettings { max_keys: max_keys(source, raw)?, when_full: None })
}

/// Reads a limit on requests in flight.
pub(crate) fn in_flight(source: &SourceText<'_>, limit: &Spanned<i64>, store: &StoreSpec) -> Result<u64, ConfigError> {
    // On a server, the maximum is that for any quota.
    let most = if store.is_memory() { MOST_IN_FLIGHT } else { Quota::MAX_UNITS };
    number_in(source, "limit", 1..=most, limit)
}

fn lease(source: &SourceText<'_>, lease: &Spanned<String>, store: &StoreSpec) -> Result<Duration, ConfigError> {
    if store.is_memory() {
        let problem = "lease is for a server: in memory, what is in flight ends with its process; remove it, or name the \
                       [store.NAME] of a server (store = \"NAME\")";
        return Err(source.error(&lease.span(), problem));
    }
    let time = duration(source, "lease", lease)?;
    if LEASES.contains(&time) {
        return Ok(time);
    }
    let problem = format!("lease = \"{}\" is out of range; write a time from 1s to 1h, such as 10s", lease.get_ref());
    Err(source.error(&lease.span(), problem))
}

/// The limits in [`Overload::new`].
const DEFAULT_LIMITS: RangeInclusive<u64> = 2..=1_024;

/// See [`SharedConcurrency::lease`](tower_sluice::SharedConcurrency::lease).
const LEASES: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3_600);

/// How many of a key's characters `track-offenders = "prefix"` shows.
const SHOWN_CHARACTERS: usize = 6;

/// Parses `charge-when`: a predicate for responses with one of these statuses. A gRPC call's status is translated.
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
    Ok(move |response: &ResponseHead<'_>| statuses.contains(&response.translated_status().as_u16().into()))
}

/// Parses the budget in `exempt-preflights`.
pub(crate) fn budget(source: &SourceText<'_>, raw: &RawBudget) -> Result<Quota, ConfigError> {
    let quota = quota(source, number(source, "exempt-preflights.limit", &raw.limit)?, "per", &raw.per)?;
    let burst = raw.burst.as_ref().map(|burst| number(source, "exempt-preflights.burst", burst)).transpose()?;
    Ok(set_if_some(quota, burst, Quota::burst))
}
