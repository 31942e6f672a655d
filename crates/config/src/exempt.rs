//! `exempt`: the requests that a route's policies, or one policy, do not charge.

use std::fmt;
use std::ops::Range;

use http::HeaderName;
use toml::Spanned;

use super::error::ConfigError;
use super::format::{RawExempt, RawHeaders};
use super::source::SourceText;
use tower_sluice::Exemptions;
use tower_sluice::key::ClientIp;

/// Adds a table's exemptions to others.
pub(crate) fn add(
    source: &SourceText<'_>,
    mut exemptions: Exemptions,
    raw: &Spanned<RawExempt>,
    client_ip: &ClientIp,
) -> Result<Exemptions, ConfigError> {
    let mistake = |at: Range<usize>, field: &str, problem: &dyn fmt::Display| {
        source.error(&at, format_args!("{field}: {problem}"))
    };
    const NONE: &str = "nothing is exempt by an empty list; write what is exempt, or leave it out";

    let RawExempt { networks, headers, paths } = raw.get_ref();
    if networks.is_none() && headers.is_none() && paths.is_none() {
        let problem = "exempt names no request; write networks, headers or paths into it, or leave it out";
        return Err(source.error(&raw.span(), problem));
    }
    if let Some(networks) = networks {
        if networks.get_ref().is_empty() {
            return Err(mistake(networks.span(), "networks", &NONE));
        }
        let added = exemptions.networks(client_ip.clone(), networks.get_ref());
        exemptions = added.map_err(|error| mistake(networks.span(), "networks", &error))?;
    }
    if let Some(headers) = headers {
        let RawHeaders(values_of) = headers.get_ref();
        if values_of.is_empty() || values_of.values().any(|values| values.as_slice().is_empty()) {
            return Err(mistake(headers.span(), "headers", &NONE));
        }
        for (name, values) in values_of {
            let header: HeaderName = name.parse().map_err(|_| {
                let problem = format!("{name:?} is not a header's name; write one such as x-internal");
                mistake(headers.span(), "headers", &problem)
            })?;
            for value in values.as_slice() {
                let added = exemptions.header(header.clone(), value);
                exemptions = added.map_err(|error| mistake(headers.span(), "headers", &error))?;
            }
        }
    }
    if let Some(paths) = paths {
        if paths.get_ref().is_empty() {
            return Err(mistake(paths.span(), "paths", &NONE));
        }
        for path in paths.get_ref() {
            exemptions = exemptions.path(path).map_err(|error| mistake(paths.span(), "paths", &error))?;
        }
    }
    Ok(exemptions)
}
