//! Checks the fields as clients see them, read back by a parser that is not ours.

mod bucket;
mod properties;
mod responses;
mod values;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use sfv::{BareItem, FieldType, GenericBareItem, List, ListEntry, Parser};

use super::*;
use crate::values::{Decision, Terms};

fn writer_of(fields: &RateLimitFields, policies: &[(&str, Terms)]) -> Arc<Writer> {
    let policies = policies.iter().map(|(name, terms)| described(name, Some(*terms)));
    Arc::new(Writer::new(fields, policies).unwrap())
}

fn described(name: &str, terms: Option<Terms>) -> Described<'_> {
    Described { name, terms, unit: QuotaUnit::Requests, is_conditional: false }
}

fn reading(policy: usize, decision: &Decision) -> PolicyReading<'_> {
    PolicyReading { policy, decision, quota: None, mark: None }
}

fn at_2026() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_790_000_000)
}

/// Returns all fields on a response with this status that had these lines before. Checks that they are the same if
/// their numbers are kept until the response arrives.
fn written(
    writer: &Arc<Writer>,
    status: u16,
    lines: &[(&'static str, &'static str)],
    readings: &[PolicyReading<'_>],
) -> String {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    let status = StatusCode::from_u16(status).unwrap();
    let mut deferred = headers.clone();
    writer.write(status, &mut headers, readings.iter().copied(), at_2026);
    let kept = match readings {
        [reading] => writer.fields_of_one(*reading),
        _ => writer.fields(readings.iter().copied()),
    };
    if let Some(kept) = kept {
        // Deferred fields may depend on the system's clock, so they cannot be compared.
        let is_comparable = !matches!(kept, ResponseFields::Deferred(_));
        kept.write(status, &mut deferred);
        assert!(!is_comparable || listed(&deferred) == listed(&headers), "{deferred:?} for {headers:?}");
    } else {
        assert_eq!(listed(&deferred), listed(&headers));
    }
    listed(&headers)
}

/// `name: value; name: value`, sorted by name.
pub(super) fn listed(headers: &HeaderMap) -> String {
    let mut lines: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
    // The sort is stable, so a field's lines keep their order, which means something in a list.
    lines.sort_by_key(|(name, _)| *name);
    lines.into_iter().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>().join("; ")
}

type Parameters = Vec<(String, BareItem)>;

/// Parses a list of Strings with parameters. `None` if `value` is not such a list, or not in canonical form.
fn members(value: &str) -> Option<Vec<(String, Parameters)>> {
    let list: List = Parser::new(value).parse().ok()?;
    if list.serialize()? != value {
        return None;
    }
    list.into_iter()
        .map(|entry| match entry {
            ListEntry::Item(item) => {
                let parameters = item.params.into_iter().map(|(key, value)| (key.to_string(), value)).collect();
                Some((item.bare_item.as_string()?.as_str().to_owned(), parameters))
            }
            ListEntry::InnerList(_) => None,
        })
        .collect()
}

/// Parses members whose parameters are numbers: the name, and the parameters with these keys in this order. All but the
/// first `required` may be missing, from the end.
fn numbers(value: &str, keys: &[&str], required: usize) -> Option<Vec<(String, Vec<u64>)>> {
    let number = |value: &BareItem| match value {
        GenericBareItem::Integer(number) => u64::try_from(i64::from(*number)).ok(),
        _ => None,
    };
    members(value)?
        .into_iter()
        .map(|(name, parameters)| {
            let in_order = parameters.iter().zip(keys).all(|((key, _), expected)| key == expected);
            let fits = in_order && (required..=keys.len()).contains(&parameters.len());
            let numbers = parameters.iter().map(|(_, value)| number(value)).collect::<Option<Vec<_>>>()?;
            fits.then_some((name, numbers))
        })
        .collect()
}

/// The numeric parameters in a `RateLimit-Policy` member.
const POLICY: &[&str] = &["q", "w"];

/// The numeric parameters in a `RateLimit` member.
const STATE: &[&str] = &["r", "t"];
