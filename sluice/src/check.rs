//! `sluice check`: the routes and policies of a file as a table.

use std::fmt::Write;

use tower_sluice::config::{Config, ConfigError};

use crate::serve;
use crate::words::PolicyWords;

/// Checks a file. Returns the table.
///
/// # Errors
///
/// If the file has a mistake.
pub(crate) fn check(file: &str, text: &str) -> Result<String, ConfigError> {
    let config = Config::reader().keys(serve::descriptor_key).parse(file, text)?;
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
    let count = |count: usize, what: &str| match count {
        1 => format!("1 {what}"),
        _ if what.ends_with('y') => format!("{count} {}ies", &what[..what.len() - 1]),
        _ => format!("{count} {what}s"),
    };
    let routes = count(config.routes().len(), "route");
    Ok(format!("{file} is valid: {routes}, {}\n\n{}", count(policies, "policy"), table(&rows)))
}

fn table<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> String {
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
            // A string is written to without an error.
            let _ = write!(line, "{cell:<width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
