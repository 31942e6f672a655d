//! The files that a service reads, and reads again.

use std::path::{Path, PathBuf};

use tower_sluice::config::ConfigError;

use crate::rules::{self, Domain};

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
            for file in files(path)? {
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
                if domains.iter().any(|other| other.name == domain.name) {
                    let problem = format!(
                        "the domain `{}` is in another file already; give one of them another name",
                        domain.name
                    );
                    return Err(ConfigError::new(file, domain.line, problem));
                }
                domains.push(domain);
            }
        }
        Ok(domains)
    }
}

fn named(texts: &[(String, String)]) -> impl Iterator<Item = (&str, &str)> {
    texts.iter().map(|(file, text)| (file.as_str(), text.as_str()))
}

/// The file itself, or the files of a folder that end in `.yaml` or `.yml`, in the order of their names.
fn files(path: &Path) -> Result<Vec<PathBuf>, String> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let problem = |error: std::io::Error| format!("{} cannot be read: {error}", path.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(problem)? {
        let file = entry.map_err(problem)?.path();
        if file.extension().is_some_and(|ending| ending == "yaml" || ending == "yml") {
            files.push(file);
        }
    }
    files.sort();
    match files.is_empty() {
        true => Err(format!("{} has no file that ends in .yaml or .yml", path.display())),
        false => Ok(files),
    }
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
