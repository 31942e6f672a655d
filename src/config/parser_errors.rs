//! Rewords the errors of the TOML parser, which knows only the types of Rust: the field, its value unless that is a
//! secret, and what to write instead.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The longest value that a message repeats, in bytes: a log line should stay readable.
const LONGEST_SHOWN: usize = 60;

/// Each field, prefixed by its table, with the kind of value that it takes and an example. `tests/config/schema.rs` finds
/// a field that is missing here.
const FIELDS: &[(&str, &str, &str)] = &[
    ("client-ip.source", TEXT, "\"x-forwarded-for\""),
    ("client-ip.trusted", LIST, "[\"10.0.0.0/8\"]"),
    ("client-ip.hops", NUMBER, "1"),
    ("client-ip.ipv6-prefix", NUMBER, "64"),
    ("redis.url", TEXTS, "\"redis://127.0.0.1:6379\""),
    ("redis.master", TEXT, "\"main\""),
    ("redis.timeout", TIME, "\"50ms\""),
    ("redis.prefix", TEXT, "\"sluice\""),
    ("redis.secret", TEXT, "\"...\""),
    ("response.fields", WORD, "\"draft-11\""),
    ("response.x-ratelimit", WORD, "\"epoch-seconds\""),
    ("response.advertise", TEXT, "\"always\""),
    ("response.retry-jitter", TIME, "\"5s\""),
    ("response.rejection-format", WORD, "\"problem\""),
    ("response.grpc-status", WORD, "\"unavailable\""),
    ("route.path", TEXTS, "\"/api\""),
    ("route.response", "a table", "{ advertise = \"never\" }"),
    ("policy.name", TEXT, "\"per-client\""),
    ("policy.algorithm", WORD, "\"token-bucket\""),
    ("policy.limit", NUMBER, "10"),
    ("policy.per", TIME, "\"1s\""),
    ("policy.zone", TEXT, "\"Europe/Berlin\""),
    ("policy.anchor", NUMBER, "17"),
    ("policy.week-start", WORD, "\"monday\""),
    ("policy.burst", NUMBER, "10"),
    ("policy.max-queue", NUMBER, "100"),
    ("policy.max-wait", TIME, "\"5s\""),
    ("policy.max-keys", NUMBER, "65536"),
    ("policy.lease", TIME, "\"10s\""),
    ("policy.when-full", WORD, "\"reject\""),
    ("policy.key", TEXTS, "\"client-ip\""),
    ("policy.cost", NUMBER, "1"),
    ("policy.store", WORD, "\"memory\""),
    ("policy.on-failure", WORD, "\"reject\""),
    ("policy.on-missing-key", WORD, "\"skip\""),
    ("policy.status", NUMBER, "429"),
    ("policy.charge-when", LIST, "[401, 403]"),
    ("policy.settle-by", WORD, "\"handler\""),
    ("policy.release-at", WORD, "\"head\""),
    ("penalty.rejections", NUMBER, "30"),
    ("penalty.per", TIME, "\"1m\""),
    ("penalty.ban", TIME, "\"10m\""),
    ("charge-once.header", TEXT, "\"idempotency-key\""),
    ("charge-once.within", TIME, "\"24h\""),
    ("charge-once.free-retries", NUMBER, "3"),
    ("charge-once.max-keys", NUMBER, "65536"),
    ("exempt.networks", LIST, "[\"10.0.0.0/8\"]"),
    ("exempt.headers", "a table", "{ x-internal = \"...\" }"),
    ("exempt.paths", LIST, "[\"/healthz\"]"),
    ("exempt-preflights.limit", NUMBER, "50"),
    ("exempt-preflights.per", TIME, "\"1s\""),
    ("exempt-preflights.burst", NUMBER, "100"),
];

const TEXT: &str = "a text in quotation marks";
const WORD: &str = "a word in quotation marks";
const TEXTS: &str = "a text in quotation marks or a list of such";
const TIME: &str = "a time in quotation marks";
const NUMBER: &str = "a whole number";
const LIST: &str = "a list in brackets";

/// Fields that are true or false.
const FLAGS: [&str; 3] = ["policy.shadow", "policy.staggered", "policy.owe-shortfalls"];

/// Fields that are tables or lists of tables, with advice.
const TABLES: [(&str, &str); 10] = [
    ("client-ip", "is one table; write [client-ip], in single brackets"),
    ("redis", "is one table; write [redis], in single brackets"),
    ("response", "is one table; write [response], in single brackets"),
    ("route", "is a list of tables; write [[route]], in double brackets"),
    ("route.policy", "is a list of tables; write [[route.policy]], in double brackets"),
    ("route.exempt-preflights", "needs a table; write { limit = 50, per = \"1s\" }"),
    ("route.exempt", "needs a table; write { networks = [\"10.0.0.0/8\"] }"),
    ("policy.exempt", "needs a table; write { networks = [\"10.0.0.0/8\"] }"),
    ("policy.charge-once", "needs a table; write { header = \"idempotency-key\", within = \"24h\", free-retries = 3 }"),
    ("policy.penalty", "needs a table; write { rejections = 30, per = \"1m\", ban = \"10m\" }"),
];

/// The names that fields had in earlier editions of the format, and the names that they have now. A file may still have
/// the old ones; nothing else knows them.
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

/// A kind of error that serde has, by the beginning of its message: those of `serde::de::Error::missing_field` and so on,
/// which the parser leaves as they are.
enum Mistake<'m> {
    MissingField(&'m str),
    UnknownField,
    /// A word that is none of these.
    UnknownWord(Vec<String>),
    /// Any other: a value of a type that the field does not take.
    Type,
}

impl<'m> Mistake<'m> {
    fn of(message: &'m str) -> Self {
        if let Some(field) = message.strip_prefix("missing field ") {
            Self::MissingField(field.trim_matches('`'))
        } else if message.starts_with("unknown field ") {
            Self::UnknownField
        } else if message.starts_with("unknown variant ") {
            // The last one: the unknown word comes before, and may read like this, too.
            let words = message.rsplit_once(", expected ").map_or("", |(_, words)| words);
            Self::UnknownWord(words.split('`').skip(1).step_by(2).map(|word| format!("\"{word}\"")).collect())
        } else {
            Self::Type
        }
    }
}

/// Rewords the parser's `message` on the text at `at`.
pub(super) fn reworded(text: &str, at: &Range<usize>, message: &str) -> String {
    let Ok(file) = DeTable::parse(text) else {
        // A syntax error: its message has what was expected, and never what was found, so it cannot hold a secret.
        return message.to_owned();
    };
    let found = find(file.get_ref(), at).unwrap_or_default();
    let mistake = Mistake::of(message);
    match mistake {
        Mistake::MissingField(field) => {
            let example = example_of(&found.child(field).name());
            let advice = example.map(|(_, example)| format!("; add {field} = {example}"));
            return format!("missing field `{field}`{}", advice.unwrap_or_default());
        }
        // Of a known field, this is a date, which the parser reads as a table with a field that no file has.
        Mistake::UnknownField if !is_known(&found.name()) => {
            return renamed(&found.name()).unwrap_or_else(|| with_nearest(message));
        }
        Mistake::UnknownField | Mistake::UnknownWord(_) | Mistake::Type => {}
    }
    let found = found.known();
    let (Some(field), name) = (found.path.last(), found.name()) else { return message.to_owned() };
    if let Some((_, advice)) = TABLES.iter().find(|(table, _)| *table == name) {
        return format!("{field} {advice}");
    }
    let advice = match (mistake, example_of(&name)) {
        (Mistake::UnknownWord(words), _) => format!("write {}", either(&words)),
        (_, Some((what, example))) => format!("write {what}, such as {example}"),
        // One of FLAGS.
        (_, None) => "write true or false".to_owned(),
    };
    match found.shown(text, &name) {
        Some(value) => format!("{field} = {value}: {advice}"),
        None => format!("{field}: {advice}"),
    }
}

/// Names the field that has taken the place of one that no file may have any more.
fn renamed(name: &str) -> Option<String> {
    let (old, new) = RENAMED.iter().find(|(old, _)| *old == name)?;
    let old = old.rsplit('.').next().unwrap_or(old);
    Some(format!("unknown field `{old}`: it is called `{new}` now"))
}

/// Adds the field that was probably meant to the message on an unknown one, before the list of all.
fn with_nearest(message: &str) -> String {
    let Some((unknown, all)) = message.rsplit_once(", expected ") else { return message.to_owned() };
    let typed = unknown.split('`').nth(1).unwrap_or_default();
    // A long key would make a large table, and is like no field.
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
    // Of each prefix of the one to each prefix of the other.
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

fn is_known(name: &str) -> bool {
    FLAGS.contains(&name) || example_of(name).is_some() || TABLES.iter().any(|(table, _)| *table == name)
}

fn example_of(name: &str) -> Option<(&'static str, &'static str)> {
    FIELDS.iter().find(|(field, ..)| *field == name).map(|(_, what, example)| (*what, *example))
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
struct Found<'a> {
    path: Vec<&'a str>,
    at: Range<usize>,
}

impl<'a> Found<'a> {
    fn child(&self, key: &'a str) -> Self {
        let mut child = self.clone();
        child.path.push(key);
        child
    }

    /// Returns the innermost field that a file may have: its value may be a table with keys of its own.
    fn known(mut self) -> Self {
        while !self.path.is_empty() && !is_known(&self.name()) {
            self.path.pop();
            // Nothing is shown of a whole table.
            self.at = 0..0;
        }
        self
    }

    /// Returns the last key, prefixed by its table's: a table means the same wherever it is.
    fn name(&self) -> String {
        self.path[self.path.len().saturating_sub(2)..].join(".")
    }

    /// Returns the value as written, if a message may hold it.
    fn shown<'t>(&self, text: &'t str, name: &str) -> Option<&'t str> {
        let is_secret = matches!(name, "redis.secret" | "redis.url" | "redis.master" | "exempt.headers");
        let value = text.get(self.at.clone()).filter(|_| !is_secret)?;
        (!value.is_empty() && value.len() <= LONGEST_SHOWN && !value.contains('\n')).then_some(value)
    }
}

/// Finds the innermost field whose value contains `at`.
fn find<'a>(table: &'a DeTable<'_>, at: &Range<usize>) -> Option<Found<'a>> {
    table.iter().find_map(|(key, value)| {
        let is_at_key = key.span().start <= at.start && at.end <= key.span().end;
        let whole = || is_at_key.then(|| Found { path: Vec::new(), at: value.span() });
        let mut found = find_in(key.get_ref(), value, at).or_else(whole)?;
        found.path.insert(0, key.get_ref());
        Some(found)
    })
}

/// Finds the innermost field within the value of a key. The path in the result does not have the key itself.
fn find_in<'a>(key: &str, value: &'a Spanned<DeValue<'_>>, at: &Range<usize>) -> Option<Found<'a>> {
    let span = value.span();
    let here = || Found { path: Vec::new(), at: span.clone() };
    let inner = match value.get_ref() {
        DeValue::Table(table) => find(table, at),
        DeValue::Array(items) => {
            let found = items.iter().find_map(|item| find_in(key, item, at));
            // In any other list, the list itself is the mistake.
            found.map(|found| if matches!(key, "route" | "policy") { found } else { here() })
        }
        _ => None,
    };
    inner.or_else(|| (span.start <= at.start && at.end <= span.end).then(here))
}
