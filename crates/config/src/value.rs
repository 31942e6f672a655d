//! Reads single values: numbers, times and quotas.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use toml::Spanned;

use super::error::ConfigError;
use super::format::{self, KeyKind};
use super::source::SourceText;
use tower_sluice::Quota;
use tower_sluice::internal::span;

/// Reads a number in the format's range for a key, such as `policy.cost`.
pub(crate) fn number(source: &SourceText<'_>, key: &str, value: &Spanned<i64>) -> Result<u64, ConfigError> {
    let Some(KeyKind::Number(least, most)) = format::field(key).map(|field| field.kind) else {
        unreachable!("the format has the number {key}")
    };
    number_in(source, key, least..=most, value)
}

/// Reads a number, as [`number`] does, as a size in memory.
pub(crate) fn size(source: &SourceText<'_>, key: &str, value: &Spanned<i64>) -> Result<usize, ConfigError> {
    Ok(usize::try_from(number(source, key, value)?).unwrap_or(usize::MAX))
}

pub(crate) fn number_in(
    source: &SourceText<'_>,
    key: &str,
    range: RangeInclusive<u64>,
    value: &Spanned<i64>,
) -> Result<u64, ConfigError> {
    let fitting = u64::try_from(*value.get_ref()).ok().filter(|number| range.contains(number));
    fitting.ok_or_else(|| {
        let (least, greatest) = range.into_inner();
        let (_, key) = key.rsplit_once('.').unwrap_or(("", key));
        let problem = format!("{key} = {} is out of range; write a number from {least} to {greatest}", value.get_ref());
        source.error(&value.span(), problem)
    })
}

pub(crate) fn duration(
    source: &SourceText<'_>,
    field: impl fmt::Display,
    value: &Spanned<String>,
) -> Result<Duration, ConfigError> {
    let text = value.get_ref();
    span::parse(text).map_err(|problem| {
        source.error(&value.span(), format_args!("{field} = \"{text}\" {problem}; {}", problem.cure()))
    })
}

/// Reads a quota's period, from `field`.
pub(crate) fn quota(
    source: &SourceText<'_>,
    limit: u64,
    field: &str,
    per: &Spanned<String>,
) -> Result<Quota, ConfigError> {
    Quota::try_per(limit, duration(source, field, per)?)
        .map_err(|error| source.error(&per.span(), format_args!("{field} = \"{}\": {error}", per.get_ref())))
}

/// Calls a setter, if there is a value for it.
pub(crate) fn set_if_some<B, T>(built: B, value: Option<T>, setter: impl FnOnce(B, T) -> B) -> B {
    match value {
        Some(value) => setter(built, value),
        None => built,
    }
}
