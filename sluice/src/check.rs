//! `sluice check`: the routes and policies of a file, or the rules of another service's file, as a table.

use tower_sluice::config::{Config, ConfigError};

use crate::replay::Routes;
use crate::table::table;
use crate::words::PolicyWords;
use crate::{rules, serve};

/// Checks a file. Returns the table.
///
/// # Errors
///
/// If the file has a mistake.
pub(crate) fn check(file: &str, text: &str) -> Result<String, ConfigError> {
    if file.ends_with(".yaml") || file.ends_with(".yml") { check_rules(file, text) } else { check_routes(file, text) }
}

/// Checks a file of envoyproxy/ratelimit, or of Limitador, which is a list.
fn check_rules(file: &str, text: &str) -> Result<String, ConfigError> {
    let is_content = |line: &&str| !line.is_empty() && !line.starts_with('#') && *line != "---";
    let is_list = text.lines().map(str::trim_start).find(is_content).is_some_and(|line| line.starts_with('-'));
    let domains = if is_list { rules::limitador::parse(file, text)? } else { rules::envoy::parse([(file, text)])? };
    let mut rows = vec![["line", "domain", "rule", "what", "when full"].map(str::to_owned)];
    let mut rules = 0;
    for domain in &domains {
        rules += domain.rules.len();
        for rule in &domain.rules {
            let name =
                rule.label.as_ref().map_or_else(|| rule.name.clone(), |label| format!("{} ({label})", rule.name));
            let (what, when_full) = rule.in_words();
            rows.push([rule.line.to_string(), domain.name.clone(), name, what, when_full]);
        }
    }
    let domains = count(domains.len(), "domain");
    Ok(format!("{file} is valid: {domains}, {}\n\n{}", count(rules, "rule"), table(&rows)))
}

fn check_routes(file: &str, text: &str) -> Result<String, ConfigError> {
    let config = Config::reader().keys(serve::descriptor_key).parse(file, text)?;
    serve::check_domains(file, text)?;
    Routes::new(file, &config)?;
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
