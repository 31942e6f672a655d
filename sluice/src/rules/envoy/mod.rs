//! Files of envoyproxy/ratelimit, as they are. A `rate_limit` may also have an `algorithm` and a `burst`.

#[cfg(test)]
pub(crate) mod examples;
mod pattern;
mod read;
#[cfg(test)]
mod tests;
mod tree;

use tower_sluice::config::ConfigError;

use super::Domain;

/// Reads files, given as names and texts. Each has one domain.
///
/// # Errors
///
/// If a file has a mistake, or two files have the same domain.
pub(crate) fn parse<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Vec<Domain>, ConfigError> {
    let mut domains: Vec<Domain> = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    for (file, text) in files {
        let domain = read::domain(file, text)?;
        if let Some(index) = domains.iter().position(|other| other.name == domain.name) {
            let problem = format!(
                "the domain `{}` is in {}:{} already; move its descriptors there, or give it another name",
                domain.name, names[index], domains[index].line
            );
            return Err(ConfigError::new(file, domain.line, problem));
        }
        domains.push(domain);
        names.push(file);
    }
    Ok(domains)
}
