//! Reads a file into rules by namespace.

use std::collections::HashMap;
use std::time::Duration;

use tower_sluice::Quota;
use tower_sluice::config::ConfigError;

use super::super::name::{NameText, Names};
use super::super::yaml::{self, Fields, Node, Shape, Value};
use super::super::{Algorithm, Charging, Domain, Kind, Limit, Rule};
use super::expression::{Condition, Reference};
use super::select::{Scope, Scopes};

const LIMIT: Shape =
    Shape { what: "a limit", fields: &["namespace", "max_value", "seconds", "conditions", "variables", "name", "id"] };

const COMPARISON: &str = "write one comparison of an entry with a text, with == or != and without escapes, such as \
                          `descriptors[0].method == 'GET'`";
const VARIABLE: &str = "write an entry, such as `descriptors[0].user` or `descriptors[0]['user.id']`";

/// Says how to write a condition that is not supported.
fn cure_of_condition(text: &str) -> String {
    if text.contains("||") {
        "conditions of a limit hold together; write a limit of its own for each alternative, which counts for itself"
            .to_owned()
    } else if text.contains("&&") {
        "write a condition of its own for each of the comparisons".to_owned()
    } else if text.contains('(') {
        format!("functions are not read; {COMPARISON}")
    } else {
        COMPARISON.to_owned()
    }
}

fn cure_of_variable(_: &str) -> String {
    VARIABLE.to_owned()
}

/// Reads a file. Returns a domain for each namespace.
///
/// # Errors
///
/// If the file has a mistake, or a condition that is more than a plain comparison.
pub(crate) fn parse(file: &str, text: &str) -> Result<Vec<Domain>, ConfigError> {
    domains(file, text).map_err(|error| Kind::Limitador.explain(file, text, error))
}

fn domains(file: &str, text: &str) -> Result<Vec<Domain>, ConfigError> {
    let Some(root) = yaml::parse(file, text)? else {
        return Err(ConfigError::new(file, 1, "the file is empty; write a list of limits, or `[]` for none"));
    };
    let Value::List(list) = &root.value else {
        return Err(ConfigError::new(
            file,
            root.line,
            "the file must be a list; begin each limit with `- namespace: NAME`",
        ));
    };
    let mut namespaces: Vec<Namespace<'_>> = Vec::new();
    for node in list {
        let fields = Fields::read(file, node, &LIMIT, &[])?;
        let Some(name) = fields.text("namespace")?.filter(|name| !name.is_empty()) else {
            return Err(fields.error("namespace", "a limit has no namespace; add the domain that Envoy sends"));
        };
        let index = namespaces.iter().position(|namespace| namespace.name == name);
        let index = index.unwrap_or_else(|| {
            namespaces.push(Namespace::new(file, name, fields.line_of("namespace")));
            namespaces.len() - 1
        });
        namespaces[index].add(&fields)?;
    }
    Ok(namespaces.into_iter().map(Namespace::into_domain).collect())
}

/// The limits of a namespace so far.
struct Namespace<'a> {
    file: &'a str,
    name: &'a str,
    line: usize,
    names: Names,
    rules: Vec<Rule>,
    /// One for each rule.
    scopes: Vec<Scope>,
    /// The line of each limit. No two limits have the same scope and period.
    lines: HashMap<(Scope, Duration), usize>,
}

impl<'a> Namespace<'a> {
    fn new(file: &'a str, name: &'a str, line: usize) -> Self {
        Self { file, name, line, names: Names::default(), rules: Vec::new(), scopes: Vec::new(), lines: HashMap::new() }
    }

    fn add(&mut self, fields: &Fields<'a>) -> Result<(), ConfigError> {
        fields.text("id")?;
        let label = fields.text("name")?.filter(|label| !label.is_empty()).map(str::to_owned);
        let period = period(fields)?;
        let limit = limit(fields, period)?;
        let mut conditions = self.expressions(fields, "conditions", Condition::parse, cure_of_condition)?;
        conditions.sort();
        conditions.dedup();
        let mut variables = self.expressions(fields, "variables", Reference::parse, cure_of_variable)?;
        variables.sort();
        variables.dedup();
        let scope = Scope { conditions, variables };
        if let Some(first) = self.lines.insert((scope.clone(), period), fields.line()) {
            let problem =
                format!("the limit in line {first} has the same conditions, variables and seconds; remove one of them");
            return Err(ConfigError::new(self.file, fields.line(), problem));
        }

        let name = self.names.unique(&name_text(label.as_deref(), &scope, period));
        self.rules.push(Rule { name, label, limit, is_shadow: false, is_quota: false, line: fields.line() });
        self.scopes.push(scope);
        Ok(())
    }

    /// Reads a list of expressions.
    fn expressions<T>(
        &self,
        fields: &Fields<'a>,
        name: &str,
        parse: fn(&str) -> Option<T>,
        cure: fn(&str) -> String,
    ) -> Result<Vec<T>, ConfigError> {
        let mut expressions = Vec::new();
        for node in fields.list(name)? {
            let Node { line, value: Value::Text { text, .. }, .. } = &**node else {
                let problem = format!("an element of `{name}` is a text; {}", cure(""));
                return Err(ConfigError::new(self.file, node.line, problem));
            };
            let Some(expression) = parse(text) else {
                let problem = format!("`{name}` has `{text}`, which is not supported; {}", cure(text));
                return Err(ConfigError::new(self.file, *line, problem));
            };
            expressions.push(expression);
        }
        Ok(expressions)
    }

    fn into_domain(self) -> Domain {
        let select = Box::new(Scopes(self.scopes));
        Domain {
            name: self.name.to_owned(),
            rules: self.rules,
            select,
            charging: Charging::AllOrNone,
            takes_limits: false,
            file: self.file.to_owned(),
            line: self.line,
        }
    }
}

fn period(fields: &Fields<'_>) -> Result<Duration, ConfigError> {
    match fields.number("seconds", u64::MAX)? {
        None => Err(fields.error("seconds", "a limit has no seconds; add `seconds: 60`")),
        Some(0) => Err(fields.wrong("seconds", "0", "at least 1")),
        Some(seconds) => Ok(Duration::from_secs(seconds)),
    }
}

fn limit(fields: &Fields<'_>, period: Duration) -> Result<Limit, ConfigError> {
    match fields.number("max_value", Quota::MAX_UNITS)? {
        None => {
            Err(fields
                .error("max_value", "a limit has no max_value; add it, with 0 if all requests are to be rejected"))
        }
        Some(0) => Ok(Limit::Zero { period }),
        Some(units) => match Quota::try_per(units, period) {
            Ok(quota) => Ok(Limit::Rate { quota, algorithm: Algorithm::FixedWindow }),
            Err(error) => Err(fields.error("seconds", error)),
        },
    }
}

/// Makes the name of a rule: the name in the file, or such as `method:GET/user/60s`.
fn name_text(label: Option<&str>, scope: &Scope, period: Duration) -> NameText {
    let mut words = Vec::new();
    for Condition { reference, is_equal, value } in &scope.conditions {
        let operator = if *is_equal { ':' } else { '!' };
        words.push(format!("{}{operator}{value}", reference.key));
    }
    words.extend(scope.variables.iter().map(|variable| variable.key.clone()));
    if words.is_empty() {
        words.push("all".to_owned());
    }
    words.push(format!("{}s", period.as_secs()));
    let shown = label.map_or_else(|| words.join("/"), str::to_owned);

    // Limits with the same name in the file differ by these parts.
    let conditions = scope.conditions.iter().map(|condition| (&condition.reference, Some(condition)));
    let variables = scope.variables.iter().map(|variable| (variable, None));
    let mut name = NameText::new().with(&shown).with_hidden(&period.as_secs().to_string());
    for (reference, condition) in conditions.chain(variables) {
        let index = reference.descriptor.map_or_else(String::new, |index| index.to_string());
        name = name.with_hidden(&index).with_hidden(&reference.key);
        if let Some(Condition { is_equal, value, .. }) = condition {
            name = name.with_hidden(if *is_equal { "==" } else { "!=" }).with_hidden(value);
        }
    }
    name
}
