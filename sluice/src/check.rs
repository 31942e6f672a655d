//! `sluice check`: the routes and policies of a file, or the rules of another service's file, as a table.

use tower_sluice::config::{Config, ConfigError};

use crate::replay::Routes;
use crate::rules::{Domain, Kind, is_yaml};
use crate::table::table;
use crate::words::PolicyWords;
use crate::{rules, serve};

/// Checks a file. Returns the table.
///
/// # Errors
///
/// If the file has a mistake.
pub(crate) fn check(file: &str, text: &str) -> Result<String, ConfigError> {
    let domains = match Kind::of(file, text) {
        Some(Kind::Limitador) => rules::limitador::parse(file, text)?,
        Some(Kind::Envoy) => rules::envoy::parse([(file, text)])?,
        // Even `[]` is a list of Limitador's.
        None if is_yaml(file) && text.trim_start().starts_with(['-', '[']) => rules::limitador::parse(file, text)?,
        None if is_yaml(file) => rules::envoy::parse([(file, text)])?,
        Some(Kind::Toml) | None => return check_routes(file, text),
    };
    Ok(print_rules(file, &domains, |_, line| line.to_string()))
}

/// Checks the files of envoyproxy/ratelimit in a folder. Returns the table.
///
/// # Errors
///
/// If a file has a mistake.
pub(crate) fn check_folder(folder: &str, texts: &[(String, String)]) -> Result<String, ConfigError> {
    let domains = rules::envoy::parse(texts.iter().map(|(file, text)| (file.as_str(), text.as_str())))?;
    Ok(print_rules(folder, &domains, |file, line| format!("{file}:{line}")))
}

/// `place` says where a rule is: its file and its line.
fn print_rules(file: &str, domains: &[Domain], place: fn(&str, usize) -> String) -> String {
    let mut rows = vec![["line", "domain", "rule", "what", "when full"].map(str::to_owned)];
    let mut rules = 0;
    for domain in domains {
        rules += domain.rules.len();
        for rule in &domain.rules {
            let name =
                rule.label.as_ref().map_or_else(|| rule.name.clone(), |label| format!("{} ({label})", rule.name));
            let (what, when_full) = rule.in_words();
            rows.push([place(&domain.file, rule.line), domain.name.clone(), name, what, when_full]);
        }
    }
    let domains = count(domains.len(), "domain");
    format!("{file} is valid: {domains}, {}\n\n{}", count(rules, "rule"), table(&rows))
}

fn check_routes(file: &str, text: &str) -> Result<String, ConfigError> {
    let config = Config::reader().keys(serve::descriptor_key).parse(file, text)?;
    serve::check_domains(file, text)?;
    Routes::new(file, text, &config)?;
    let routes = PolicyWords::of_file(text);
    let mut rows = vec![["route", "policy", "who", "what", "when full"].map(str::to_owned)];
    let mut policies = 0;
    for (route, words) in config.routes().iter().zip(routes) {
        let paths = route.paths().join(", ");
        if words.policies.is_empty() {
            rows.push([paths, "–".to_owned(), "–".to_owned(), "no limit".to_owned(), "–".to_owned()]);
            continue;
        }
        policies += words.policies.len();
        for (index, PolicyWords { name, who, what, when_full, .. }) in words.policies.into_iter().enumerate() {
            let paths = if index == 0 { paths.clone() } else { String::new() };
            rows.push([paths, name, who, what, when_full]);
        }
    }
    let routes = count(config.routes().len(), "route");
    Ok(format!("{file} is valid: {routes}, {}\n\n{}", count(policies, "policy"), table(&rows)))
}

fn count(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ if what.ends_with('y') => format!("{count} {}ies", &what[..what.len() - 1]),
        _ => format!("{count} {what}s"),
    }
}
