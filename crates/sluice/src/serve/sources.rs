//! The files that a service reads, and reads again.

use std::path::{Path, PathBuf};

use toml::{Table, Value};
use tower_sluice_config::ConfigError;

use crate::rules::{self, Domain};
use crate::words::tables;

/// The files.
#[derive(Clone, Debug)]
pub(crate) struct Sources {
    /// In TOML.
    pub(crate) config: Option<PathBuf>,
    /// Of envoyproxy/ratelimit: files, and folders of files.
    pub(crate) envoy: Vec<PathBuf>,
    /// Of limitador.
    pub(crate) limitador: Vec<PathBuf>,
}

/// The files' names and texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Texts {
    pub(crate) config: Option<(String, String)>,
    pub(crate) envoy: Vec<(String, String)>,
    pub(crate) limitador: Vec<(String, String)>,
}

impl Sources {
    /// Reads all files. An error is the message to print.
    pub(crate) fn read(&self) -> Result<Texts, String> {
        let mut envoy = Vec::new();
        for path in &self.envoy {
            for file in rules::files(path)? {
                envoy.push(read(&file)?);
            }
        }
        Ok(Texts {
            config: self.config.as_deref().map(read).transpose()?,
            envoy,
            limitador: self.limitador.iter().map(|file| read(file)).collect::<Result<_, _>>()?,
        })
    }
}

impl Texts {
    /// The domains in the files of other services.
    ///
    /// # Errors
    ///
    /// If a file has a mistake, or a domain is in two files.
    pub(crate) fn domains(&self) -> Result<Vec<Domain>, ConfigError> {
        let mut domains = rules::envoy::parse(named(&self.envoy))?;
        for (file, text) in named(&self.limitador) {
            for domain in rules::limitador::parse(file, text)? {
                if let Some(other) = domains.iter().find(|other| other.name == domain.name) {
                    return Err(clash(&domain, &format!("{}:{}", other.file, other.line)));
                }
                domains.push(domain);
            }
        }
        if let Some((file, text)) = &self.config {
            let table: Table = text.parse().unwrap_or_default();
            for domain in &domains {
                if let Some(line) = line_of_route(text, &table, &domain.name) {
                    return Err(clash(domain, &format!("{file}:{line}")));
                }
            }
        }
        Ok(domains)
    }
}

/// The error of a domain that another file has, too, at `place`.
fn clash(domain: &Domain, place: &str) -> ConfigError {
    let problem = format!("the domain `{}` is in {place} already; give one of them another name", domain.name);
    ConfigError::new(&domain.file, domain.line, problem)
}

/// The line of a configuration that names the path of a domain, if a route has it. `table` is what the text says.
fn line_of_route(text: &str, table: &Table, domain: &str) -> Option<usize> {
    let is_path = |path: &Value| path.as_str().is_some_and(|path| path.trim_start_matches('/') == domain);
    let has_path = |route: &&Table| match route.get("path") {
        Some(Value::Array(paths)) => paths.iter().any(is_path),
        path => path.is_some_and(is_path),
    };
    tables(table, "route").iter().find(|route| has_path(route))?;
    let names = |line: &str| line.contains(&format!("/{domain}\"")) || line.contains(&format!("/{domain}'"));
    Some(text.lines().position(names).map_or(1, |index| index + 1))
}

fn named(texts: &[(String, String)]) -> impl Iterator<Item = (&str, &str)> {
    texts.iter().map(|(file, text)| (file.as_str(), text.as_str()))
}

/// A pipe is not read, since that might block for ever.
fn read(file: &Path) -> Result<(String, String), String> {
    let name = file.display().to_string();
    let problem = |problem: String| format!("{name} cannot be read: {problem}");
    if !std::fs::metadata(file).map_err(|error| problem(error.to_string()))?.is_file() {
        return Err(problem("it is no regular file; write the limits into one".to_owned()));
    }
    let text = std::fs::read_to_string(file).map_err(|error| problem(error.to_string()))?;
    Ok((name, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_in_two_sources_names_both() {
        let named = |file: &str, text: &str| (file.to_owned(), text.to_owned());
        let limitador = vec![named("l.yaml", "# limits\n- {namespace: edge, max_value: 5, seconds: 60}\n")];
        let envoy = vec![named("e.yaml", "# limits\n\ndomain: edge\n")];
        let route = |paths: &str| Some(named("c.toml", &format!("# limits\n[[route]]\npath = {paths}\n")));
        let texts = Texts { config: None, envoy: envoy.clone(), limitador: limitador.clone() };
        let error = texts.domains().unwrap_err().to_string();
        assert!(error.starts_with("l.yaml:2: the domain `edge` is in e.yaml:3 already; give"), "{error}");
        for paths in ["\"/edge\"", "[\"/a\", \"/edge\"]", "'/edge'"] {
            let texts = Texts { config: route(paths), envoy: Vec::new(), limitador: limitador.clone() };
            let error = texts.domains().unwrap_err().to_string();
            assert!(error.starts_with("l.yaml:2: the domain `edge` is in c.toml:3 already; give"), "{error}");
        }
        let texts = Texts { config: route("\"/edges\""), envoy, limitador: Vec::new() };
        assert_eq!(texts.domains().unwrap().len(), 1);
    }
}
