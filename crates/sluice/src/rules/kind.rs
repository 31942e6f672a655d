//! Recognises the format of a file, so that a message can name the option that reads it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use tower_sluice_config::ConfigError;

use super::config_map;

/// A kind of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A configuration in TOML.
    Toml,
    /// A file for envoyproxy/ratelimit.
    Envoy,
    /// A list of Limitador limits.
    Limitador,
}

impl Kind {
    /// Recognises a file by its ending and its text. Returns `None` if both say little.
    pub(crate) fn of(file: &str, text: &str) -> Option<Self> {
        if Path::new(file).extension() == Some(OsStr::new("toml")) {
            return Some(Self::Toml);
        }
        let mut lines = text.lines().map(str::trim_end).filter(|line| is_content(line));
        let top = lines.clone().next()?;
        if lines.clone().any(|line| line.starts_with("domain:") || line.starts_with("descriptors:")) {
            return Some(Self::Envoy);
        }
        if top.starts_with('-') && lines.any(|line| line.contains("namespace:") || line.contains("max_value:")) {
            return Some(Self::Limitador);
        }
        let is_yaml = is_yaml(file);
        if !is_yaml && is_line_of_toml(top) { Some(Self::Toml) } else { None }
    }

    /// Says which kind of file this is, and which option reads it.
    const fn in_words(self) -> (&'static str, &'static str) {
        match self {
            Self::Toml => ("a configuration in TOML", "--config"),
            Self::Envoy => ("a file of envoyproxy/ratelimit", "`sluice serve` with --envoy-config"),
            Self::Limitador => ("a list of Limitador's limits", "`sluice serve` with --limitador-config"),
        }
    }

    /// Replaces an error from this kind's reader, if the file is of another kind.
    pub(super) fn explain(self, file: &str, text: &str, error: ConfigError) -> ConfigError {
        if let Some(advice) = config_map::advice(text) {
            return ConfigError::new(file, 1, advice);
        }
        match Self::of(file, text).filter(|kind| *kind != self) {
            None => error,
            Some(kind) => {
                let (what, option) = kind.in_words();
                ConfigError::new(file, 1, format!("this is {what}; give it to {option}"))
            }
        }
    }
}

/// Whether a file's name ends as for YAML.
pub(crate) fn is_yaml(file: &str) -> bool {
    file.ends_with(".yaml") || file.ends_with(".yml")
}

fn is_content(line: &str) -> bool {
    let line = line.trim_start();
    !line.is_empty() && !line.starts_with('#') && line != "---"
}

fn is_line_of_toml(line: &str) -> bool {
    let is_key = |key: &str| {
        let key = key.trim();
        !key.is_empty() && key.chars().all(|char| char.is_ascii_alphanumeric() || "-_.".contains(char))
    };
    let is_table = line.starts_with("[[") || line.strip_prefix('[').is_some_and(|rest| !rest.starts_with([']', ' ']));
    is_table || line.split_once('=').is_some_and(|(key, _)| is_key(key))
}

/// Reads an option's argument that names a configuration in TOML.
///
/// # Errors
///
/// If the file is of another kind. A file that cannot be read has no kind.
pub(crate) fn toml_file(argument: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(argument);
    // A pipe could be read only once.
    let is_file = std::fs::metadata(&path).is_ok_and(|file| file.is_file());
    let text = if is_file { std::fs::read_to_string(&path).unwrap_or_default() } else { String::new() };
    let kind = Kind::of(argument, &text).filter(|kind| *kind != Kind::Toml);
    if text.parse::<toml::Table>().is_ok() {
        return Ok(path);
    }
    match kind.map(Kind::in_words) {
        Some((what, option)) => Err(format!("this is {what}, and not TOML; give it to {option}")),
        None if is_yaml(argument) => Err("this is not TOML; `sluice serve` reads a file of envoyproxy/ratelimit with \
                                          --envoy-config, and one of Limitador with --limitador-config"
            .to_owned()),
        None => Ok(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_recognised_by_name_and_text() {
        for (file, text, kind) in [
            ("a.toml", "anything", Some(Kind::Toml)),
            ("a.conf", "# limits\n\n[[route]]\npath = \"/\"", Some(Kind::Toml)),
            ("a.conf", "[client-ip]\n", Some(Kind::Toml)),
            ("a.conf", "snapshot.path = \"/a\"", Some(Kind::Toml)),
            ("a.conf", "---\n# limits\ndomain: shop\n", Some(Kind::Envoy)),
            ("a.yaml", "descriptors:\n- key: a\ndomain: shop\n", Some(Kind::Envoy)),
            ("a.yaml", "- namespace: n\n  max_value: 1\n", Some(Kind::Limitador)),
            ("a.yaml", "- max_value: 1\n  namespace: n\n", Some(Kind::Limitador)),
            ("a.yaml", "- key: user\n", None),
            ("a.yaml", "namespace: n\n", None),
            ("a.yaml", "[]", None),
            ("a.conf", "[]", None),
            ("a.yaml", "", None),
        ] {
            assert_eq!(Kind::of(file, text), kind, "{file}: {text}");
        }
    }
}
