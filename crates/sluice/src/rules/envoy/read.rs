//! Reads a file into rules and a tree.

use std::collections::HashSet;

use tower_sluice::Quota;
use tower_sluice_config::ConfigError;

use super::super::name::{NameText, Names};
use super::super::yaml::{self, Fields, Node, Shape};
use super::super::{Algorithm, Charging, Domain, Limit, Rule, Unit};
use super::tree::{Branch, Level, Replacement, Tree};

const FILE: Shape = Shape { what: "the file", fields: &["domain", "descriptors", "name", "all_or_none"] };
const DESCRIPTOR: Shape = Shape {
    what: "a descriptor",
    // The last three concern metrics and dynamic metadata in the server that the file was written for.
    fields: &[
        "key",
        "value",
        "rate_limit",
        "descriptors",
        "shadow_mode",
        "quota_mode",
        "share_threshold",
        "detailed_metric",
        "value_to_metric",
        "metadata",
    ],
};
const RATE_LIMIT: Shape = Shape {
    what: "a rate_limit",
    fields: &["unit", "requests_per_unit", "unlimited", "name", "replaces", "algorithm", "burst"],
};
const REPLACED: Shape = Shape { what: "an element of replaces", fields: &["name"] };
const FORMAT: [Shape; 4] = [DESCRIPTOR, RATE_LIMIT, REPLACED, FILE];

/// Reads a file. Adds each descriptor's first mistake to `problems`, and leaves such descriptors out.
///
/// # Errors
///
/// If there is no domain to read.
pub(super) fn domain(file: &str, text: &str, problems: &mut Vec<ConfigError>) -> Result<Domain, ConfigError> {
    let Some(root) = yaml::parse(file, text)? else {
        return Err(ConfigError::new(file, 1, "the file is empty; begin with `domain: NAME`"));
    };
    let fields = Fields::read(file, &root, &FILE, &FORMAT)?;
    let Some(name) = fields.text("domain")?.filter(|name| !name.is_empty()) else {
        return Err(fields.error("domain", "there is no domain; add `domain: NAME`, with the domain that Envoy sends"));
    };
    // The name of the resource from which a gateway made the file. Nothing depends on it.
    fields.text("name")?;
    let charging = if fields.flag("all_or_none")? { Charging::AllOrNone } else { Charging::Each };
    let mut reader = Reader {
        file,
        names: Names::default(),
        rules: Vec::new(),
        replacements: Vec::new(),
        replaced: Vec::new(),
        problems: Vec::new(),
    };
    let root = reader.level(&Parent { name: NameText::new(), splitting: Vec::new() }, &fields)?;
    // The name may belong to a descriptor with a mistake.
    if reader.problems.is_empty() {
        reader.check_replaced_names()?;
    }
    problems.append(&mut reader.problems);
    let Reader { rules, replacements, .. } = reader;
    let select = Box::new(Tree { root, replacements });
    let line = fields.line_of("domain");
    Ok(Domain { name: name.to_owned(), rules, select, charging, takes_limits: true, file: file.to_owned(), line })
}

struct Reader<'a> {
    file: &'a str,
    names: Names,
    rules: Vec<Rule>,
    /// One for each rule.
    replacements: Vec<Replacement>,
    /// Names in `replaces`, with their lines.
    replaced: Vec<(String, usize)>,
    /// The mistakes that were found so far.
    problems: Vec<ConfigError>,
}

/// The table in which descriptors stand.
struct Parent<'a> {
    name: NameText,
    /// The keys whose values have separate budgets.
    splitting: Vec<&'a str>,
}

impl<'a> Reader<'a> {
    /// Checks that each name in `replaces` is the name of a limit, which may stand further down.
    fn check_replaced_names(&self) -> Result<(), ConfigError> {
        let names: HashSet<&str> = self.rules.iter().filter_map(|rule| rule.label.as_deref()).collect();
        match self.replaced.iter().find(|(name, _)| !names.contains(name.as_str())) {
            None => Ok(()),
            Some((name, line)) => {
                let problem = format!("no rate_limit of the file has the name `{name}`; correct it, or remove it");
                Err(ConfigError::new(self.file, *line, problem))
            }
        }
    }

    /// Reads a table's descriptors.
    fn level(&mut self, parent: &Parent<'a>, fields: &Fields<'a>) -> Result<Level, ConfigError> {
        let mut level = Level::default();
        for node in fields.list("descriptors")? {
            let read = self.descriptor(parent, &mut level, node);
            self.problems.extend(read.err());
        }
        Ok(level)
    }

    fn descriptor(&mut self, parent: &Parent<'a>, level: &mut Level, node: &'a Node) -> Result<(), ConfigError> {
        let fields = Fields::read(self.file, node, &DESCRIPTOR, &FORMAT)?;
        let Some(key) = fields.text("key")?.filter(|key| !key.is_empty()) else {
            return Err(fields.error("key", "a descriptor has no key; add `key: NAME`, with the key that Envoy sends"));
        };
        if key.contains('*') {
            let problem =
                format!("the key `{key}` has a `*`; patterns are for values: write `value: …*` beside a plain key");
            return Err(fields.error("key", problem));
        }
        let value = fields.text("value")?.filter(|value| !value.is_empty());
        for ignored in ["detailed_metric", "value_to_metric"] {
            fields.flag(ignored)?;
        }
        let is_pattern = value.is_some_and(|value| value.contains('*'));
        let is_shared = fields.flag("share_threshold")?;
        if is_shared && !is_pattern {
            let problem =
                "`share_threshold` needs a `value` with a `*`, such as `value: files/*`; add one, or remove the field";
            return Err(fields.error("share_threshold", problem));
        }

        let mut name = parent.name.with(key);
        if let Some(value) = value {
            name = name.with(":").with(value);
        }
        let splits_budget = value.is_none() || is_pattern && !is_shared;
        let splitting: Vec<&str> = parent.splitting.iter().copied().chain(splits_budget.then_some(key)).collect();
        // A mistake in the limit does not hide mistakes in the descriptors below.
        let rule = self.rule(&fields, &name, &splitting);
        let rule = rule.map_err(|problem| self.problems.push(problem)).ok().flatten();
        let parent = Parent { name: name.with("/"), splitting };
        let branch = Branch { rule, splits_budget, level: self.level(&parent, &fields)? };
        if level.add(key, value, branch) {
            return Ok(());
        }
        let entry = value
            .map_or_else(|| format!("key `{key}` without a value"), |value| format!("key `{key}` and value `{value}`"));
        Err(ConfigError::new(
            self.file,
            fields.line(),
            format_args!("this list has a descriptor with {entry} already; merge the two, or remove one"),
        ))
    }

    /// Reads a descriptor's limit. Returns the rule's index.
    fn rule(
        &mut self,
        descriptor: &Fields<'a>,
        name: &NameText,
        splitting: &[&str],
    ) -> Result<Option<usize>, ConfigError> {
        let is_shadow = descriptor.flag("shadow_mode")?;
        let is_quota = descriptor.flag("quota_mode")?;
        let Some(node) = descriptor.get("rate_limit") else { return Ok(None) };
        let fields = Fields::read(self.file, node, &RATE_LIMIT, &FORMAT)?;
        let label = fields.text("name")?.filter(|label| !label.is_empty()).map(str::to_owned);
        let limit = limit(&fields)?;
        let replacement = Replacement {
            name: label.clone().filter(|_| limit != Limit::Unlimited),
            replaces: self.replaces(&fields, label.as_deref())?,
        };
        let name = self.names.unique(name);
        let who =
            if splitting.is_empty() { "all together".to_owned() } else { format!("each {}", splitting.join(" and ")) };
        self.rules.push(Rule { name, label, who, limit, is_shadow, is_quota, line: descriptor.line() });
        self.replacements.push(replacement);
        Ok(Some(self.rules.len() - 1))
    }

    fn replaces(&mut self, fields: &Fields<'a>, own_name: Option<&str>) -> Result<Vec<String>, ConfigError> {
        let mut names = Vec::new();
        for node in fields.list("replaces")? {
            let replaced = Fields::read(self.file, node, &REPLACED, &FORMAT)?;
            let Some(name) = replaced.text("name")?.filter(|name| !name.is_empty()) else {
                return Err(replaced.error("name", "an element of `replaces` has no name; write `- name: NAME`"));
            };
            if own_name == Some(name) {
                let problem = format!("the rate_limit `{name}` replaces itself; name another one, or remove this");
                return Err(replaced.error("name", problem));
            }
            self.replaced.push((name.to_owned(), replaced.line_of("name")));
            names.push(name.to_owned());
        }
        Ok(names)
    }
}

fn limit(fields: &Fields<'_>) -> Result<Limit, ConfigError> {
    let unit = fields.text("unit")?;
    if fields.flag("unlimited")? {
        return match unit {
            None | Some("") => Ok(Limit::Unlimited),
            Some(_) => Err(fields.error("unit", "`unlimited` has no unit; remove `unit`, or `unlimited`")),
        };
    }
    let Some(unit) = unit else {
        return Err(fields.error("unit", "a rate_limit has no unit; add `unit: minute`, or `unlimited: true`"));
    };
    let Some(unit) = Unit::from_name(unit) else {
        return Err(fields.wrong("unit", unit, "second, minute, hour, day, week, month or year"));
    };
    let Some(limit) = fields.number("requests_per_unit", u32::MAX.into())? else {
        let problem = "a rate_limit has no requests_per_unit; add it, with 0 if all requests are to be rejected";
        return Err(fields.error("requests_per_unit", problem));
    };
    let algorithm = algorithm(fields)?;
    let burst = burst(fields, algorithm)?;
    let period = unit.period();
    let Ok(quota) = Quota::try_per(limit, period) else { return Ok(Limit::Zero { period }) };
    match burst {
        None => Ok(Limit::Rate { quota, algorithm }),
        Some(burst) => match quota.try_burst(burst) {
            Ok(quota) => Ok(Limit::Rate { quota, algorithm }),
            Err(error) => Err(fields.error("burst", error)),
        },
    }
}

fn algorithm(fields: &Fields<'_>) -> Result<Algorithm, ConfigError> {
    match fields.text("algorithm")? {
        None | Some("fixed-window") => Ok(Algorithm::FixedWindow),
        Some("sliding-window") => Ok(Algorithm::SlidingWindow),
        Some("token-bucket") => Ok(Algorithm::TokenBucket),
        Some("leaky-bucket") => Ok(Algorithm::LeakyBucket),
        Some(other) => {
            Err(fields.wrong("algorithm", other, "fixed-window, sliding-window, token-bucket or leaky-bucket"))
        }
    }
}

fn burst(fields: &Fields<'_>, algorithm: Algorithm) -> Result<Option<u64>, ConfigError> {
    let burst = fields.number("burst", u32::MAX.into())?;
    match algorithm {
        Algorithm::FixedWindow | Algorithm::SlidingWindow if burst.is_some() => {
            let problem = "a window admits its whole limit at once; remove `burst`, or write `algorithm: token-bucket`";
            Err(fields.error("burst", problem))
        }
        _ if burst == Some(0) => {
            Err(fields.error("burst", "`burst` counts the first request, so it is at least 1; write 1, or remove it"))
        }
        _ => Ok(burst),
    }
}
