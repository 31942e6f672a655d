//! Files of envoyproxy/ratelimit, as they are. A `rate_limit` may also have an `algorithm` and a `burst`.

#[cfg(test)]
pub(crate) mod examples;
mod pattern;
mod read;
#[cfg(test)]
mod tests;
mod tree;

use tower_sluice::config::ConfigError;

use super::{Domain, Kind};

/// Reads files, given as names and texts. Each has one domain.
///
/// # Errors
///
/// If a file has a mistake, or two files have the same domain.
pub(crate) fn parse<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Vec<Domain>, ConfigError> {
    let mut domains: Vec<Domain> = Vec::new();
    for (file, text) in files {
        let domain = read::domain(file, text).map_err(|error| Kind::Envoy.explain(file, text, error))?;
        if let Some(other) = domains.iter().find(|other| other.name == domain.name) {
            let problem = format!(
                "the domain `{}` is in {}:{} already; move its descriptors there, or give it another name",
                domain.name, other.file, other.line
            );
            return Err(ConfigError::new(file, domain.line, problem));
        }
        domains.push(domain);
    }
    Ok(domains)
}
