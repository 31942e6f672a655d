//! Unchanged files for envoyproxy/ratelimit. A `rate_limit` may also have an `algorithm` and a `burst`.

#[cfg(test)]
pub(crate) mod examples;
mod pattern;
mod read;
#[cfg(test)]
mod tests;
mod tree;

use tower_sluice_config::ConfigError;

use super::{Domain, Kind};

/// Reads files, given as names and texts. Each has one domain.
///
/// # Errors
///
/// If a file has a mistake, or two files have the same domain: the first.
pub(crate) fn parse<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Vec<Domain>, ConfigError> {
    let mut problems = Vec::new();
    let domains = read(files, &mut problems);
    match problems.into_iter().next() {
        None => Ok(domains),
        Some(first) => Err(first),
    }
}

/// Reads files. Adds each descriptor's first mistake to `problems`, and leaves such descriptors out.
pub(crate) fn read<'a>(
    files: impl IntoIterator<Item = (&'a str, &'a str)>,
    problems: &mut Vec<ConfigError>,
) -> Vec<Domain> {
    let mut domains: Vec<Domain> = Vec::new();
    for (file, text) in files {
        let domain = match read::domain(file, text, problems) {
            Ok(domain) => domain,
            Err(error) => {
                problems.push(Kind::Envoy.explain(file, text, error));
                continue;
            }
        };
        if let Some(other) = domains.iter().find(|other| other.name == domain.name) {
            let problem = format!(
                "the domain `{}` is in {}:{} already; move its descriptors there, or give it another name",
                domain.name, other.file, other.line
            );
            problems.push(ConfigError::new(file, domain.line, problem));
            continue;
        }
        domains.push(domain);
    }
    domains
}
