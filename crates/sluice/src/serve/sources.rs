//! The files that a service reads, and rereads.

use std::path::{Path, PathBuf};

use toml::{Table, Value};
use tower_sluice_config::ConfigError;

use crate::rules::{self, Domain};
use crate::words::FileWords;

/// The files.
#[derive(Clone, Debug)]
pub(crate) struct Sources {
    /// In TOML.
    pub(crate) config: Option<PathBuf>,
    /// For envoyproxy/ratelimit: files, and folders with files.
    pub(crate) envoy: Vec<PathBuf>,
    /// For Limitador.
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
    /// The configuration in TOML, if there is one.
    pub(crate) fn words(&self) -> Option<FileWords<'_>> {
        self.config.as_ref().map(|(file, text)| FileWords::parse(file, text))
    }

    /// The domains in other services' files. `config` is the configuration in TOML.
    ///
    /// # Errors
    ///
    /// If a file has a mistake, or a domain is in two files.
    pub(crate) fn domains(&self, config: Option<&FileWords<'_>>) -> Result<Vec<Domain>, ConfigError> {
        let mut domains = rules::envoy::parse(named(&self.envoy))?;
        for (file, text) in named(&self.limitador) {
            for domain in rules::limitador::parse(file, text)? {
                if let Some(other) = domains.iter().find(|other| other.name == domain.name) {
                    return Err(clash(&domain, &format!("{}:{}", other.file, other.line)));
                }
                domains.push(domain);
            }
        }
        if let Some(config) = config {
            for domain in &domains {
                if let Some(line) = line_of_route(config, &domain.name) {
                    return Err(clash(domain, &format!("{}:{line}", config.file)));
                }
            }
        }
        Ok(domains)
    }
}

/// The error for a domain that another file has, too, at `place`.
fn clash(domain: &Domain, place: &str) -> ConfigError {
    let problem = format!("the domain `{}` is in {place} already; give one of them another name", domain.name);
    ConfigError::new(&domain.file, domain.line, problem)
}

/// Returns the line in a configuration that names a domain's path, if a route has it.
fn line_of_route(config: &FileWords<'_>, domain: &str) -> Option<usize> {
    let is_path = |path: &Value| path.as_str().is_some_and(|path| path.trim_start_matches('/') == domain);
    let has_path = |route: &&Table| match route.get("path") {
        Some(Value::Array(paths)) => paths.iter().any(is_path),
        path => path.is_some_and(is_path),
    };
    config.route_tables().iter().find(|route| has_path(route))?;
    let names = |line: &str| line.contains(&format!("/{domain}\"")) || line.contains(&format!("/{domain}'"));
    Some(config.text.lines().position(names).map_or(1, |index| index + 1))
}

fn named(texts: &[(String, String)]) -> impl Iterator<Item = (&str, &str)> {
    texts.iter().map(|(file, text)| (file.as_str(), text.as_str()))
}

/// Pipes are not read, since that might block for ever.
fn read(file: &Path) -> Result<(String, String), String> {
    let name = file.display().to_string();
    let problem = |problem: String| format!("{name} cannot be read: {problem}");
    let metadata = std::fs::metadata(file).map_err(|error| match std::fs::read_link(file) {
        Ok(target) => problem(format!("it is a link to {}, which is not there; remove the link", target.display())),
        Err(_) => problem(error.to_string()),
    })?;
    if !metadata.is_file() {
        return Err(problem("it is no regular file; write the limits into one".to_owned()));
    }
    let text = std::fs::read_to_string(file).map_err(|error| problem(error.to_string()))?;
    Ok((name, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Emacs's lock is a link to nothing, and exists while somebody edits.
    #[test]
    fn hidden_links_spoil_no_folder() {
        let folder = std::env::temp_dir().join(format!("sluice-sources-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("edge.yaml"), "domain: edge\n").unwrap();
        std::os::unix::fs::symlink("ann@host.7", folder.join(".#edge.yaml")).unwrap();
        let sources = Sources { config: None, envoy: vec![folder.clone()], limitador: Vec::new() };
        assert_eq!(sources.read().unwrap().domains(None).unwrap().len(), 1);
        std::os::unix::fs::symlink("gone.yaml", folder.join("old.yaml")).unwrap();
        let problem = sources.read().unwrap_err();
        std::fs::remove_dir_all(&folder).unwrap();
        let cure = "old.yaml cannot be read: it is a link to gone.yaml, which is not there; remove the link";
        assert!(problem.ends_with(cure), "{problem}");
    }

    #[test]
    fn a_domain_in_two_sources_names_both() {
        let named = |file: &str, text: &str| (file.to_owned(), text.to_owned());
        let limitador = vec![named("l.yaml", "# limits\n- {namespace: edge, max_value: 5, seconds: 60}\n")];
        let envoy = vec![named("e.yaml", "# limits\n\ndomain: edge\n")];
        let route = |paths: &str| Some(named("c.toml", &format!("# limits\n[[route]]\npath = {paths}\n")));
        let texts = Texts { config: None, envoy: envoy.clone(), limitador: limitador.clone() };
        let error = texts.domains(texts.words().as_ref()).unwrap_err().to_string();
        assert!(error.starts_with("l.yaml:2: the domain `edge` is in e.yaml:3 already; give"), "{error}");
        for paths in ["\"/edge\"", "[\"/a\", \"/edge\"]", "'/edge'"] {
            let texts = Texts { config: route(paths), envoy: Vec::new(), limitador: limitador.clone() };
            let error = texts.domains(texts.words().as_ref()).unwrap_err().to_string();
            assert!(error.starts_with("l.yaml:2: the domain `edge` is in c.toml:3 already; give"), "{error}");
        }
        let texts = Texts { config: route("\"/edges\""), envoy, limitador: Vec::new() };
        assert_eq!(texts.domains(texts.words().as_ref()).unwrap().len(), 1);
    }
}
