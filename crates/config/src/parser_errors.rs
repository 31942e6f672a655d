//! Rewords the TOML parser's errors, because it knows only Rust's types: the field, its value unless that is a secret,
//! and the cure.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::format::{KeyKind, TableKey, field};

/// The beginning of the message on a missing field.
pub(crate) const MISSING: &str = "missing field ";

/// The longest value that a message repeats, in bytes, so that a log line stays readable.
const LONGEST_SHOWN: usize = 60;

/// The fields' names in earlier editions of the format, and their names now. A file may still have the old ones, but
/// only this message knows them.
const RENAMED: [(&str, &str); 14] = [
    ("answer", "response"),
    ("route.answer", "response"),
    ("route.except", "exempt"),
    ("response.tell", "advertise"),
    ("response.rejection", "rejection-format"),
    ("policy.capacity", "max-queue"),
    ("policy.queue", "max-queue"),
    ("policy.stagger", "staggered"),
    ("policy.on-store-error", "on-failure"),
    ("policy.charge-on", "charge-when"),
    ("policy.settle", "settle-by"),
    ("policy.shortfall", "owe-shortfalls"),
    ("policy.except", "exempt"),
    ("penalty.refusals", "rejections"),
];

/// Rewords the parser's `message` on the text at `at`. `file` is the whole text. The kinds of errors are distinguished
/// by how the messages of `serde::de::Error::missing_field` and so on begin, because the parser leaves them as they
/// are.
pub(crate) fn reworded(text: &str, file: &DeTable<'_>, at: &Range<usize>, message: &str) -> String {
    let found = find(file, at).unwrap_or_default();
    if let Some(key) = message.strip_prefix(MISSING).map(|key| key.trim_matches('`')) {
        let advice = field(&found.child(key).name()).map(|field| format!("; add {key} = {}", field.example));
        return format!("missing field `{key}`{}", advice.unwrap_or_default());
    }
    // If the field is known, the value is a date, which the parser reads as a table with a field that no file has.
    if message.starts_with("unknown field ") && field(&found.name()).is_none() {
        return renamed(&found.name()).unwrap_or_else(|| with_nearest(message));
    }
    let found = found.known();
    let (Some(key), name) = (found.path.last(), found.name()) else { return message.to_owned() };
    let Some(field) = field(&name) else { return message.to_owned() };
    let such_as = |what| format!("{what}, such as {}", field.example);
    let what = match field.kind {
        KeyKind::Table(_) => return format!("{key} is one table; write [{name}], in single brackets"),
        KeyKind::Tables(_) => return format!("{key} is a list of tables; write [[{name}]], in double brackets"),
        KeyKind::Inline(_) => return format!("{key} needs a table; write {}", field.example),
        KeyKind::Words(words) => either(&words().iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>()),
        KeyKind::Flag => "true or false".to_owned(),
        KeyKind::Text => such_as("a text in quotation marks"),
        KeyKind::Texts => such_as("a text in quotation marks or a list of such"),
        KeyKind::Time => such_as("a time in quotation marks"),
        KeyKind::Number(..) => such_as("a whole number"),
        KeyKind::List => such_as("a list in brackets"),
        KeyKind::Map("classes") => such_as("a table of \"low\", \"normal\", \"high\" or \"critical\""),
        KeyKind::Map("weights") => such_as("a table of whole numbers"),
        KeyKind::MapOf("plan") => such_as("a table of limits"),
        KeyKind::Map(_) | KeyKind::MapOf(_) => such_as("a table"),
    };
    match found.shown(text, field) {
        Some(value) => format!("{key} = {value}: write {what}"),
        None => format!("{key}: write {what}"),
    }
}

/// Rewords the parser's `message` on a table that only the program knows, without the value, which may be a secret.
/// `path` leads from the table to the field.
pub(crate) fn of_store(path: &[String], message: &str) -> String {
    if let Some(key) = message.strip_prefix(MISSING) {
        return format!("missing field {key}");
    }
    if message.starts_with("unknown field ") {
        return with_nearest(message);
    }
    let (_, expected) = message.rsplit_once(", expected ").unwrap_or(("", "another value"));
    format!("{}: write {expected}", path.join("."))
}

/// Names the field that replaces a field from earlier versions.
fn renamed(name: &str) -> Option<String> {
    let (old, new) = RENAMED.iter().find(|(old, _)| *old == name)?;
    let old = old.rsplit('.').next().unwrap_or(old);
    Some(format!("unknown field `{old}`: it is called `{new}` now"))
}

/// Adds the field that was probably meant to the message on an unknown one, before the list of all.
fn with_nearest(message: &str) -> String {
    let Some((unknown, all)) = message.rsplit_once(", expected ") else { return message.to_owned() };
    let typed = unknown.split('`').nth(1).unwrap_or_default();
    // A long key would make a large table, and is not similar to any field.
    let fields = all.split('`').skip(1).step_by(2).filter(|field| typed.len() < 2 * field.len());
    // With more than one mistake in three characters, this would be a guess.
    let near = fields.map(|field| (edits(typed, field), field)).filter(|(edits, field)| edits * 3 <= field.len());
    match near.min() {
        Some((_, field)) => format!("{unknown} (did you mean `{field}`?), expected {all}"),
        None => message.to_owned(),
    }
}

/// Counts the characters to insert, remove, replace or swap with the next one, to turn one word into the other.
fn edits(from: &str, to: &str) -> usize {
    let (from, to) = (from.as_bytes(), to.as_bytes());
    // The table has the distance from each prefix of `from` to each prefix of `to`.
    let mut table = vec![vec![0; to.len() + 1]; from.len() + 1];
    for (i, j) in (0..=from.len()).flat_map(|i| (0..=to.len()).map(move |j| (i, j))) {
        table[i][j] = if i == 0 || j == 0 {
            i + j
        } else {
            let replaced = table[i - 1][j - 1] + usize::from(from[i - 1] != to[j - 1]);
            let is_swap = i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1];
            let swapped = if is_swap { table[i - 2][j - 2] + 1 } else { replaced };
            replaced.min(swapped).min(table[i - 1][j] + 1).min(table[i][j - 1] + 1)
        };
    }
    table[from.len()][to.len()]
}

/// Joins words as alternatives: "a, b or c".
fn either(words: &[String]) -> String {
    match words {
        [most @ .., last] if !most.is_empty() => format!("{} or {last}", most.join(", ")),
        words => words.concat(),
    }
}

/// A value, and the keys that lead to it.
#[derive(Clone, Default)]
struct FoundValue<'a> {
    path: Vec<&'a str>,
    at: Range<usize>,
}

impl<'a> FoundValue<'a> {
    fn child(&self, key: &'a str) -> Self {
        let mut child = self.clone();
        child.path.push(key);
        child
    }

    /// Returns the innermost field that the format knows, because its value may be a table with the file's own keys.
    fn known(mut self) -> Self {
        while !self.path.is_empty() && field(&self.name()).is_none() {
            self.path.pop();
            // A whole table is not shown.
            self.at = 0..0;
        }
        self
    }

    /// Returns the last key, prefixed by its table's, because a table has one meaning wherever it is.
    fn name(&self) -> String {
        // If the file chose a table's key, the table is named after its kind.
        if let [.., table, map, _, key] = self.path[..] {
            if let Some(KeyKind::MapOf(kind)) = field(&format!("{table}.{map}")).map(|field| field.kind) {
                return format!("{kind}.{key}");
            }
        }
        self.path[self.path.len().saturating_sub(2)..].join(".")
    }

    /// Returns the value as written, if a message may hold it.
    fn shown<'t>(&self, text: &'t str, field: &TableKey) -> Option<&'t str> {
        let value = text.get(self.at.clone()).filter(|_| !field.is_secret)?;
        (!value.is_empty() && value.len() <= LONGEST_SHOWN && !value.contains('\n')).then_some(value)
    }
}

/// Returns the keys that lead from a table to the innermost field at `at`.
pub(crate) fn path_to(table: &DeTable<'_>, at: &Range<usize>) -> Vec<String> {
    find(table, at).unwrap_or_default().path.into_iter().map(str::to_owned).collect()
}

/// Finds the innermost field whose value contains `at`.
fn find<'a>(table: &'a DeTable<'_>, at: &Range<usize>) -> Option<FoundValue<'a>> {
    table.iter().find_map(|(key, value)| {
        let is_at_key = key.span().start <= at.start && at.end <= key.span().end;
        let whole = || is_at_key.then(|| FoundValue { path: Vec::new(), at: value.span() });
        let mut found = find_in(key.get_ref(), value, at).or_else(whole)?;
        found.path.insert(0, key.get_ref());
        Some(found)
    })
}

/// Finds the innermost field within a key's value. The resulting path does not include the key itself.
fn find_in<'a>(key: &str, value: &'a Spanned<DeValue<'_>>, at: &Range<usize>) -> Option<FoundValue<'a>> {
    let span = value.span();
    let here = || FoundValue { path: Vec::new(), at: span.clone() };
    let inner = match value.get_ref() {
        DeValue::Table(table) => find(table, at),
        DeValue::Array(items) => {
            let found = items.iter().find_map(|item| find_in(key, item, at));
            // In other lists, the list itself is the mistake.
            found.map(|found| if matches!(key, "route" | "policy") { found } else { here() })
        }
        _ => None,
    };
    inner.or_else(|| (span.start <= at.start && at.end <= span.end).then(here))
}
