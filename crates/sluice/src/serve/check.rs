//! Mistakes in a configuration that only the service has a reason to find, and policies that have no effect in it.

use toml::{Table, Value};
use tower_sluice_config::ConfigError;

use crate::descriptors::DESCRIPTOR;
use crate::words::{FileWords, keys, tables};

/// Checks the routes whose policies count descriptors.
///
/// # Errors
///
/// If a policy there could not decide, or not in time.
pub(crate) fn check_domains(words: &FileWords<'_>) -> Result<(), ConfigError> {
    for route in words.route_tables() {
        let policies = tables(route, "policy");
        if policies.iter().any(|policy| counts_descriptors(policy)) {
            policies.iter().try_for_each(|policy| check_policy(words, policy))?;
        }
    }
    Ok(())
}

fn check_policy(FileWords { file, text, .. }: &FileWords<'_>, policy: &Table) -> Result<(), ConfigError> {
    let name = policy.get("name").and_then(Value::as_str).unwrap_or_default();
    let algorithm = policy.get("algorithm").and_then(Value::as_str).unwrap_or_default();
    let problem = if !counts_descriptors(policy) && keys(policy) != ["global"] {
        "other policies of its route count descriptors, and their requests have no other key; move it to another route"
    } else if matches!(algorithm, "leaky-queue" | "slow-down") {
        "it delays requests, and Envoy does not wait; use a bucket or a window"
    } else if counts_descriptors(policy) && policy.contains_key("cost") {
        "a descriptor brings its own cost, as hits; remove cost"
    } else if counts_descriptors(policy) && policy.contains_key("plans") {
        "a descriptor has no header; write a policy for each plan, such as key = \"descriptor:plan=gold\", and remove plans"
    } else {
        return Ok(());
    };
    Err(ConfigError::new(*file, line_of(text, name), format!("policy `{name}`: {problem}")))
}

/// Returns a message for each policy that an app can enforce and this service cannot.
///
/// These are not errors, because the file may be for an app as well.
pub(crate) fn without_effect(words: &FileWords<'_>) -> Vec<String> {
    let FileWords { file, text, .. } = words;
    let policies = words.route_tables().into_iter().flat_map(|route| tables(route, "policy"));
    let mut lines = Lines { rest: text.lines().enumerate() };
    let messages = policies.filter_map(|policy| {
        let name = policy.get("name").and_then(Value::as_str).unwrap_or_default();
        let line = lines.next_of(name).unwrap_or_else(|| line_of(text, name));
        Some(format!("{file}:{line}: policy `{name}`: {}", problem_of(policy)?))
    });
    messages.collect()
}

fn problem_of(policy: &Table) -> Option<&'static str> {
    if keys(policy).iter().any(|key| key == "user") {
        return Some(
            "no request has the key `user` here; let the proxy send the user in a field, and write header:NAME",
        );
    }
    if plan_parts(policy).any(|part| part == "user") {
        return Some(
            "no request has the key `user` here, so no plan applies; let the proxy send the plan in a field, and write by = \
             \"header:NAME\"",
        );
    }
    if policy.get("algorithm").and_then(Value::as_str) == Some("concurrency") {
        return Some("it limits nothing, since the proxy does not say when a request is over");
    }
    let by_response = ["charge-when", "settle-by"].iter().any(|key| policy.contains_key(*key));
    by_response.then_some("it sees no response of the app, on which charge-when and settle-by depend; remove them")
}

/// The key parts on which a request's plan depends.
fn plan_parts(policy: &Table) -> impl Iterator<Item = &str> {
    let by = policy.get("plans").and_then(|plans| plans.get("by"));
    let list = by.and_then(Value::as_array).into_iter().flatten();
    by.into_iter().chain(list).filter_map(Value::as_str)
}

fn counts_descriptors(policy: &Table) -> bool {
    keys(policy).iter().any(|key| key.starts_with(DESCRIPTOR))
}

/// The part of a file's lines after the earlier policies. Routes may have policies with one name, and a file may have
/// thousands.
struct Lines<'a> {
    rest: std::iter::Enumerate<std::str::Lines<'a>>,
}

impl Lines<'_> {
    /// The next line that names a policy.
    fn next_of(&mut self, name: &str) -> Option<usize> {
        let quoted = format!("\"{name}\"");
        let (index, _) = self.rest.find(|(_, line)| names(line, &quoted))?;
        Some(index + 1)
    }
}

/// Returns the first line that names a policy, or line 1 if none does.
fn line_of(text: &str, name: &str) -> usize {
    let quoted = format!("\"{name}\"");
    text.lines().position(|line| names(line, &quoted)).map_or(1, |index| index + 1)
}

fn names(line: &str, quoted: &str) -> bool {
    line.trim_start().starts_with("name") && line.contains(quoted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_without_effect_are_found() {
        let text = |lines: &str| format!("[[route]]\npath = \"/shop\"\n[[route.policy]]\nname = \"a\"\n{lines}\n");
        for lines in [
            "key = \"client-ip\"",
            "key = [\"header:user\", \"path\"]\nstatus = 403",
            "plans = { by = \"header:x-plan\", limits = { gold = { limit = 3 } } }",
        ] {
            assert!(without_effect(&FileWords::parse("f.toml", &text(lines))).is_empty(), "{lines}");
        }
        for (lines, problem) in [
            ("key = \"user\"", "no request has the key `user`"),
            ("key = [\"path\", \"user\"]", "no request has the key `user`"),
            ("algorithm = \"concurrency\"", "when a request is over"),
            ("charge-when = [401]", "it sees no response"),
            ("settle-by = \"handler\"", "it sees no response"),
            ("plans = { by = \"user\", limits = { ada = { limit = 3 } } }", "so no plan applies"),
            ("plans = { by = [\"user\", \"path\"], limits = { \"ada + /\" = { limit = 3 } } }", "so no plan applies"),
        ] {
            let found = without_effect(&FileWords::parse("f.toml", &text(lines)));
            assert!(found.len() == 1 && found[0].starts_with("f.toml:4: policy `a`: "), "{found:?}");
            assert!(found[0].contains(problem), "{found:?}");
        }
    }

    #[test]
    fn policies_unfit_for_descriptors_are_found() {
        let text = |lines: &str| {
            format!(
                "[[route]]\npath = \"/shop\"\n[[route.policy]]\nname = \"a\"\nkey = \"descriptor:user\"\n\
                 [[route.policy]]\nname = \"b\"\n{lines}\n"
            )
        };
        for lines in ["", "key = \"global\"\ncost = 2", "key = [\"descriptor:plan=free\", \"descriptor:user\"]"] {
            assert!(check_domains(&FileWords::parse("f.toml", &text(lines))).is_ok(), "{lines}");
        }
        for (lines, problem) in [
            ("key = \"client-ip\"", "move it to another route"),
            ("key = [\"header:x\", \"path\"]", "move it to another route"),
            ("algorithm = \"leaky-queue\"", "Envoy does not wait"),
            ("key = \"descriptor:user\"\ncost = 2", "remove cost"),
            (
                "key = \"descriptor:user\"\nplans = { by = \"path\", limits = { \"/\" = { limit = 3 } } }",
                "remove plans",
            ),
        ] {
            let error = check_domains(&FileWords::parse("f.toml", &text(lines))).unwrap_err().to_string();
            assert!(error.starts_with("f.toml:7: policy `b`: ") && error.contains(problem), "{error}");
        }
        let elsewhere = "[[route]]\npath = \"/a\"\n[[route.policy]]\nname = \"b\"\nkey = \"client-ip\"";
        assert!(check_domains(&FileWords::parse("f.toml", elsewhere)).is_ok());
    }
}
