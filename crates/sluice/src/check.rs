//! `sluice check`: the routes and policies of a file, or the rules of another service's file, as a table.

use tower_sluice_config::ConfigError;

use crate::routes::Routes;
use crate::rules::{Domain, Kind, is_yaml};
use crate::table::table;
use crate::words::{FileWords, PolicyWords};
use crate::{descriptors, notes, rules, serve, stores};

/// Checks a file. Returns the table.
///
/// # Errors
///
/// If the file has mistakes, all that were found.
pub(crate) fn check(file: &str, text: &str) -> Result<String, Vec<ConfigError>> {
    let mut problems = Vec::new();
    let domains = match Kind::of(file, text) {
        Some(Kind::Limitador) => rules::limitador::read(file, text, &mut problems),
        Some(Kind::Envoy) => rules::envoy::read([(file, text)], &mut problems),
        // Even an empty list, `[]`, is a Limitador file.
        None if is_yaml(file) && text.trim_start().starts_with(['-', '[']) => {
            rules::limitador::read(file, text, &mut problems)
        }
        None if is_yaml(file) => rules::envoy::read([(file, text)], &mut problems),
        Some(Kind::Toml) | None => return check_routes(file, text),
    };
    match problems.is_empty() {
        true => Ok(print_rules(file, &domains, |_, line| line.to_string())),
        false => Err(problems),
    }
}

/// Checks a folder with files for envoyproxy/ratelimit. Returns the table.
///
/// # Errors
///
/// If files have mistakes, all that were found.
pub(crate) fn check_folder(folder: &str, texts: &[(String, String)]) -> Result<String, Vec<ConfigError>> {
    let mut problems = Vec::new();
    let texts = texts.iter().map(|(file, text)| (file.as_str(), text.as_str()));
    let domains = rules::envoy::read(texts, &mut problems);
    match problems.is_empty() {
        true => Ok(print_rules(folder, &domains, |file, line| format!("{file}:{line}"))),
        false => Err(problems),
    }
}

/// `place` says where a rule is: its file and its line.
fn print_rules(file: &str, domains: &[Domain], place: fn(&str, usize) -> String) -> String {
    let mut rows = vec![["line", "domain", "rule", "who", "what", "when full"].map(str::to_owned)];
    let mut rules = 0;
    for domain in domains {
        rules += domain.rules.len();
        for rule in &domain.rules {
            let label = rule.label.as_ref().filter(|label| **label != rule.name);
            let name = label.map_or_else(|| rule.name.clone(), |label| format!("{} ({label})", rule.name));
            let (what, when_full) = rule.in_words();
            rows.push([place(&domain.file, rule.line), domain.name.clone(), name, rule.who.clone(), what, when_full]);
        }
    }
    let domains = count(domains.len(), "domain");
    format!("{file} is valid: {domains}, {}\n\n{}", count(rules, "rule"), table(&rows))
}

fn check_routes(file: &str, text: &str) -> Result<String, Vec<ConfigError>> {
    let problems = stores::reader().keys(descriptors::read_key).problems(file, text);
    if !problems.is_empty() {
        return Err(problems);
    }
    let words = FileWords::parse(file, text);
    serve::check_domains(&words).map_err(|problem| vec![problem])?;
    let routes = words.routes();
    Routes::check(file, &routes).map_err(|problem| vec![problem])?;

    let notes_of_routes = [notes::of_paths(&routes), notes::of_folders(&routes), notes::of_heads(&routes)].concat();

    let mut rows = vec![["route", "policy", "who", "what", "when full"].map(str::to_owned)];
    let mut policies = 0;
    let summary = count(routes.len(), "route");
    for route in routes {
        let mut paths = route.paths.join(", ");
        if !route.ignores.is_empty() {
            paths.push_str(&format!(" (ignores {})", route.ignores.join(", ")));
        }
        if route.policies.is_empty() {
            rows.push([paths, "–".to_owned(), "–".to_owned(), "no limit".to_owned(), "–".to_owned()]);
            continue;
        }
        policies += route.policies.len();
        for (index, PolicyWords { name, who, what, place, when_full, .. }) in route.policies.into_iter().enumerate() {
            let paths = if index == 0 { paths.clone() } else { String::new() };
            let what = place.map_or_else(|| what.clone(), |place| format!("{what}, {place}"));
            rows.push([paths, name, who, what, when_full]);
        }
    }
    let summary = format!("{file} is valid: {summary}, {}", count(policies, "policy"));
    Ok(format!("{summary}\n\n{}{}", table(&rows), notes(&words, &notes_of_routes)))
}

/// Notes on things that are correct but may surprise: policies without effect in the service (the file may also be for
/// an app), and routes behind a proxy.
fn notes(words: &FileWords<'_>, of_routes: &[String]) -> String {
    let mut notes = String::new();
    let without_effect = serve::without_effect(words);
    if !without_effect.is_empty() {
        notes.push_str("\nwith `sluice serve`, these have no effect:\n");
        notes.push_str(&listed(&without_effect, "policy"));
    }
    if !of_routes.is_empty() {
        notes.push_str("\nbehind a proxy, look at these:\n");
        let of_routes: Vec<_> = of_routes.iter().map(|note| format!("{}:{note}", words.file)).collect();
        notes.push_str(&listed(&of_routes, "note"));
    }
    notes
}

/// Lists messages, one per line, and at most [`MOST_SHOWN`].
pub(crate) fn listed(messages: &[impl ToString], what: &str) -> String {
    let mut lines: String = messages.iter().take(MOST_SHOWN).map(|message| message.to_string() + "\n").collect();
    if messages.len() > MOST_SHOWN {
        lines.push_str(&format!("… and {}\n", count(messages.len() - MOST_SHOWN, what)));
    }
    lines
}

/// How many messages are printed.
const MOST_SHOWN: usize = 20;

fn count(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ if what.ends_with('y') => format!("{count} {}ies", &what[..what.len() - 1]),
        _ => format!("{count} {what}s"),
    }
}
