//! `per = "day"`, `"week"` and `"month"`: calendar windows, with `zone`, `anchor` and `week-start`.

use std::sync::Arc;

use toml::Spanned;

use super::error::ConfigError;
use super::format::{AlgorithmName, RawPolicy};
use super::source::SourceText;
use super::store::StoreSpec;
#[cfg(feature = "calendar")]
use super::store::{MemorySettings, RateSpec};
use tower_sluice::Limiter;
#[cfg(feature = "calendar")]
use tower_sluice::algorithm::CalendarWindow;

/// A calendar period.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CalendarUnit {
    Day,
    Week,
    Month,
}

/// Returns the calendar period that a policy names, if it does, and checks that its other fields fit.
pub(crate) fn unit(source: &SourceText<'_>, raw: &RawPolicy) -> Result<Option<CalendarUnit>, ConfigError> {
    let unit = match raw.per.as_ref().map(|per| per.get_ref().as_str()) {
        Some("day") => Some(CalendarUnit::Day),
        Some("week") => Some(CalendarUnit::Week),
        Some("month") => Some(CalendarUnit::Month),
        _ => None,
    };
    let shown = || raw.per.as_ref().map_or("a limit without a period".into(), shown);
    for (field, at, is_fit, periods) in [
        ("zone", raw.zone.as_ref().map(Spanned::span), unit.is_some(), "per = \"day\", \"week\" or \"month\""),
        ("anchor", raw.anchor.as_ref().map(Spanned::span), unit == Some(CalendarUnit::Month), "per = \"month\""),
        ("week-start", raw.week_start.as_ref().map(Spanned::span), unit == Some(CalendarUnit::Week), "per = \"week\""),
    ] {
        if let Some(at) = at.filter(|_| !is_fit) {
            let problem = format!("{field} is for {periods}, and not for {}; remove it or change per", shown());
            return Err(source.error(&at, problem));
        }
    }
    if let Some(per) =
        raw.per.as_ref().filter(|_| unit.is_some() && raw.algorithm.value() != AlgorithmName::FixedWindow)
    {
        let problem = format!("{} is for fixed-window; choose that algorithm, or write a time such as 1day", shown());
        return Err(source.error(&per.span(), problem));
    }
    if let Some(staggered) = raw.staggered.as_ref().filter(|staggered| unit.is_some() && *staggered.get_ref()) {
        let problem = format!("staggered is for windows of one length, and not for {}; remove it", shown());
        return Err(source.error(&staggered.span(), problem));
    }
    Ok(unit)
}

fn shown(per: &Spanned<String>) -> String {
    format!("per = \"{}\"", per.get_ref())
}

/// Builds the window for a policy whose period is `unit`, with this limit.
#[cfg(feature = "calendar")]
pub(crate) fn window(
    source: &SourceText<'_>,
    raw: &RawPolicy,
    unit: CalendarUnit,
    limit: u64,
) -> Result<CalendarWindow, ConfigError> {
    use super::value::number;

    let mut window = match unit {
        CalendarUnit::Day => CalendarWindow::daily(limit),
        CalendarUnit::Week => CalendarWindow::weekly(limit),
        CalendarUnit::Month => CalendarWindow::monthly(limit),
    };
    if let Some(anchor) = &raw.anchor {
        let day = number(source, "policy.anchor", anchor)?;
        window = window.anchor(u8::try_from(day).expect("it is at most 31"));
    }
    if let Some(first) = &raw.week_start {
        window = window.week_start(first.get_ref().value());
    }
    if let Some(zone) = &raw.zone {
        let problem = |error| source.error(&zone.span(), format_args!("zone: {error}"));
        window = window.zone(zone.get_ref()).map_err(problem)?;
    }
    Ok(window)
}

/// Builds the limiter for a policy whose period is `unit`.
#[cfg(feature = "calendar")]
pub(crate) fn limiter(
    source: &SourceText<'_>,
    raw: &RawPolicy,
    (unit, per): (CalendarUnit, &Spanned<String>),
    limit: u64,
    store: StoreSpec,
) -> Result<Arc<dyn Limiter>, ConfigError> {
    use super::policy::max_keys;

    let window = window(source, raw, unit, limit)?;
    let settings = MemorySettings { max_keys: max_keys(source, raw)?, when_full: None };
    store.limiter(source, RateSpec::CalendarWindow(window), settings, &per.span())
}

#[cfg(not(feature = "calendar"))]
#[allow(clippy::needless_pass_by_value, reason = "the signature with the feature")]
pub(crate) fn limiter(
    source: &SourceText<'_>,
    _: &RawPolicy,
    (_, per): (CalendarUnit, &Spanned<String>),
    _: u64,
    _: StoreSpec,
) -> Result<Arc<dyn Limiter>, ConfigError> {
    let problem = format!(
        "per = \"{}\": this program was built without windows of the calendar; build it with the feature `calendar`",
        per.get_ref()
    );
    Err(source.error(&per.span(), problem))
}
