//! Reads a file into rules by namespace.

use std::collections::HashMap;
use std::time::Duration;

use tower_sluice::Quota;
use tower_sluice_config::ConfigError;

use super::super::name::{NameText, Names};
use super::super::yaml::{self, Fields, Node, Shape, Value};
use super::super::{Algorithm, Charging, Domain, Kind, Limit, Rule};
use super::expression::{Comparison, Reference};
use super::program::{LimitNames, Program};
use super::select::{Condition, Scope, Scopes, Variable};

const LIMIT: Shape =
    Shape { what: "a limit", fields: &["namespace", "max_value", "seconds", "conditions", "variables", "name", "id"] };

/// Reads a file. Returns a domain for each namespace.
///
/// # Errors
///
/// If the file has a mistake, the first.
pub(crate) fn parse(file: &str, text: &str) -> Result<Vec<Domain>, ConfigError> {
    let mut problems = Vec::new();
    let domains = read(file, text, &mut problems);
    match problems.into_iter().next() {
        None => Ok(domains),
        Some(first) => Err(first),
    }
}

/// Reads a file. Adds each limit's first mistake to `problems`, and leaves such limits out.
pub(crate) fn read(file: &str, text: &str, problems: &mut Vec<ConfigError>) -> Vec<Domain> {
    match domains(file, text, problems) {
        Ok(domains) => domains,
        Err(error) => {
            problems.push(Kind::Limitador.explain(file, text, error));
            Vec::new()
        }
    }
}

fn domains(file: &str, text: &str, problems: &mut Vec<ConfigError>) -> Result<Vec<Domain>, ConfigError> {
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
    let mut namespaces = Namespaces { file, all: Vec::new(), indices: HashMap::new() };
    for node in list {
        problems.extend(namespaces.add(node).err());
    }
    Ok(namespaces.all.into_iter().map(Namespace::into_domain).collect())
}

/// A file's namespaces so far.
struct Namespaces<'a> {
    file: &'a str,
    all: Vec<Namespace<'a>>,
    indices: HashMap<&'a str, usize>,
}

impl<'a> Namespaces<'a> {
    /// Adds a limit.
    fn add(&mut self, node: &'a Node) -> Result<(), ConfigError> {
        let fields = Fields::read(self.file, node, &LIMIT, &[])?;
        let Some(name) = fields.text("namespace")?.filter(|name| !name.is_empty()) else {
            return Err(fields.error("namespace", "a limit has no namespace; add the domain that Envoy sends"));
        };
        let index = *self.indices.entry(name).or_insert_with(|| {
            self.all.push(Namespace::new(self.file, name, fields.line_of("namespace")));
            self.all.len() - 1
        });
        self.all[index].add(&fields)
    }
}

/// A namespace's limits so far.
struct Namespace<'a> {
    file: &'a str,
    name: &'a str,
    line: usize,
    names: Names,
    rules: Vec<Rule>,
    /// One for each rule.
    scopes: Vec<Scope>,
    /// Each limit's line. No two limits have the same scope and period.
    lines: HashMap<(Scope, Duration), usize>,
}

impl<'a> Namespace<'a> {
    fn new(file: &'a str, name: &'a str, line: usize) -> Self {
        Self { file, name, line, names: Names::default(), rules: Vec::new(), scopes: Vec::new(), lines: HashMap::new() }
    }

    fn add(&mut self, fields: &Fields<'a>) -> Result<(), ConfigError> {
        let id = fields.text("id")?;
        let label = fields.text("name")?.filter(|label| !label.is_empty());
        let period = period(fields)?;
        let limit = limit(fields, period)?;
        let names = LimitNames { name: label, id };
        let mut conditions = self.expressions(fields, "conditions", |text| match Comparison::parse(text) {
            Some(comparison) => Ok(Condition::Comparison(comparison)),
            None => Program::condition(text, names).map(Condition::Program),
        })?;
        conditions.sort();
        conditions.dedup();
        let mut variables = self.expressions(fields, "variables", |text| match Reference::parse(text) {
            Some(entry) => Ok(Variable::Entry(entry)),
            None => Program::variable(text).map(Variable::Program),
        })?;
        variables.sort();
        variables.dedup();
        let scope = Scope { conditions, variables };
        if let Some(first) = self.lines.insert((scope.clone(), period), fields.line()) {
            let problem =
                format!("the limit in line {first} has the same conditions, variables and seconds; remove one of them");
            return Err(ConfigError::new(self.file, fields.line(), problem));
        }

        let name = self.names.unique(&name_text(label, &scope, period));
        let label = label.map(str::to_owned);
        let who = who(&texts(fields, "variables")?, &texts(fields, "conditions")?);
        self.rules.push(Rule { name, label, who, limit, is_shadow: false, is_quota: false, line: fields.line() });
        self.scopes.push(scope);
        Ok(())
    }

    /// Reads a list of expressions. An error from `parse` is the problem and its cure.
    fn expressions<T>(
        &self,
        fields: &Fields<'a>,
        name: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Vec<T>, ConfigError> {
        let mut expressions = Vec::new();
        for node in fields.list(name)? {
            let Node { line, value: Value::Text { text, .. }, .. } = &**node else {
                let problem = format!("an element of `{name}` is a text; put the expression into quotation marks");
                return Err(ConfigError::new(self.file, node.line, problem));
            };
            let expression = parse(text).map_err(|problem| {
                ConfigError::new(self.file, *line, format_args!("`{name}` has `{text}`: {problem}"))
            })?;
            expressions.push(expression);
        }
        Ok(expressions)
    }

    fn into_domain(self) -> Domain {
        let select = Box::new(Scopes::new(self.scopes));
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

/// Returns the texts in a list of expressions.
fn texts<'a>(fields: &Fields<'a>, name: &str) -> Result<Vec<&'a str>, ConfigError> {
    let texts = fields.list(name)?.iter().filter_map(|node| match &node.value {
        Value::Text { text, .. } => Some(text.as_str()),
        Value::List(_) | Value::Table(_) => None,
    });
    Ok(texts.collect())
}

/// Describes a limit's variables and conditions.
fn who(variables: &[&str], conditions: &[&str]) -> String {
    let who =
        if variables.is_empty() { "all together".to_owned() } else { format!("each {}", variables.join(" and ")) };
    if conditions.is_empty() { who } else { format!("{who}, if {}", conditions.join(" and ")) }
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

/// Makes a rule's name: the name in the file, or one such as `method:GET/user/60s`.
fn name_text(label: Option<&str>, scope: &Scope, period: Duration) -> NameText {
    let mut words = Vec::new();
    for condition in &scope.conditions {
        words.push(match condition {
            Condition::Comparison(Comparison { reference, is_equal, value }) => {
                format!("{}{}{value}", reference.key, if *is_equal { ':' } else { '!' })
            }
            Condition::Program(program) => program.text().to_owned(),
        });
    }
    words.extend(scope.variables.iter().map(|variable| match variable {
        Variable::Entry(entry) => entry.key.clone(),
        Variable::Program(program) => program.text().to_owned(),
    }));
    if words.is_empty() {
        words.push("all".to_owned());
    }
    words.push(format!("{}s", period.as_secs()));
    let shown = label.map_or_else(|| words.join("/"), str::to_owned);

    // Limits with the same name in the file differ in these parts.
    let mut name = NameText::new().with(&shown).with_hidden(&period.as_secs().to_string());
    for condition in &scope.conditions {
        name = match condition {
            Condition::Comparison(Comparison { reference, is_equal, value }) => {
                with_reference(&name, reference).with_hidden(if *is_equal { "==" } else { "!=" }).with_hidden(value)
            }
            Condition::Program(program) => name.with_hidden(program.text()),
        };
    }
    for variable in &scope.variables {
        name = match variable {
            Variable::Entry(entry) => with_reference(&name, entry),
            Variable::Program(program) => name.with_hidden(program.text()),
        };
    }
    name
}

fn with_reference(name: &NameText, reference: &Reference) -> NameText {
    let index = reference.descriptor.map_or_else(String::new, |index| index.to_string());
    name.with_hidden(&index).with_hidden(&reference.key)
}
