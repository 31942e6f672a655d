//! Compares the vocabulary's table with the interface: the TOML keys, the settings in the source, the metrics, the log
//! fields, and the queries in `deploy`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde_json::Value;

use crate::files::{log_lines, read, sources};

const PAGE: &str = "docs/design/vocabulary.md";

const PREFIX: &str = "tower_sluice.rate_limiting.";

/// Returns the text of all sources.
fn texts() -> Vec<(PathBuf, String)> {
    ["src", "crates"].into_iter().flat_map(sources).map(|path| (path.clone(), read(&path))).collect()
}

/// A table row. Each cell has the words in backticks.
struct Row {
    code: Vec<String>,
    /// Keys with their tables, such as `policy.cost`, and the value that is part of the name.
    toml: Vec<(String, Option<String>)>,
    metric: Vec<String>,
    why: String,
}

fn table(page: &str) -> Vec<Row> {
    let rows = page.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
    let rows = rows.take_while(|line| line.starts_with("| "));
    rows.map(|line| {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let [_, _, code, toml, metric, _, why, _] = cells[..] else { panic!("not six cells: {line}") };
        let quoted = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
        let key = |text: String| match text.split_once(" = ") {
            Some((key, value)) => (key.to_owned(), Some(value.to_owned())),
            None => (text, None),
        };
        Row {
            code: quoted(code),
            toml: quoted(toml).into_iter().map(key).collect(),
            metric: quoted(metric),
            why: why.to_owned(),
        }
    })
    .collect()
}

/// Returns each schema key, prefixed by its table, with the words that it takes if these are listed.
fn schema_keys(schema: &Value) -> BTreeMap<String, Vec<String>> {
    let mut keys = BTreeMap::new();
    add_keys(schema, schema, "", &mut keys);
    keys
}

fn add_keys(schema: &Value, table: &Value, name: &str, keys: &mut BTreeMap<String, Vec<String>>) {
    for (key, value) in table["properties"].as_object().into_iter().flatten() {
        let value = resolve(schema, if value["type"] == "array" { &value["items"] } else { value });
        let words = value["enum"].as_array().into_iter().flatten().map(|word| word.as_str().unwrap().to_owned());
        keys.insert([name, key].join(".").trim_start_matches('.').to_owned(), words.collect());
        add_keys(schema, value, key, keys);
    }
}

fn resolve<'a>(schema: &'a Value, value: &'a Value) -> &'a Value {
    match value["$ref"].as_str() {
        Some(reference) => schema.pointer(reference.trim_start_matches('#')).unwrap(),
        None => value,
    }
}

/// The public settings in the source, as `Type::method`: methods that take a value and return it, and the types.
struct Code {
    settings: BTreeSet<String>,
    methods: BTreeSet<String>,
    types: BTreeSet<String>,
    variants: BTreeSet<String>,
}

impl Code {
    fn read(sources: &[(PathBuf, String)]) -> Self {
        let [mut settings, mut methods, mut types, mut variants] = [(); 4].map(|()| BTreeSet::new());
        for (_, text) in sources {
            let (mut implemented, mut enumerated) = (String::new(), String::new());
            for (number, line) in text.lines().enumerate() {
                if let Some(name) = type_of(line) {
                    enumerated = if line.contains("enum ") { name.clone() } else { String::new() };
                    types.insert(name);
                } else if let Some(of) = line.strip_prefix("impl") {
                    implemented = subject(of);
                } else if let Some(name) = method_of(line) {
                    methods.insert(format!("{implemented}::{name}"));
                    let rest = text.lines().skip(number).take(3).collect::<Vec<_>>().join(" ");
                    if takes_and_returns_itself(&rest) {
                        settings.insert(format!("{implemented}::{name}"));
                    }
                } else if let Some(name) = line.strip_prefix("    ").filter(|_| !enumerated.is_empty()) {
                    if name.starts_with(|first: char| first.is_ascii_uppercase()) {
                        let name = name.split(|char: char| !char.is_ascii_alphanumeric()).next().unwrap();
                        variants.insert(format!("{enumerated}::{name}"));
                    }
                }
            }
        }
        Self { settings, methods, types, variants }
    }

    /// Types that a macro makes are known by their names at the root.
    fn has(&self, item: &str) -> bool {
        let root = read("src/lib.rs");
        let exports = root.lines().filter(|line| line.trim_start().starts_with("pub use "));
        exports.flat_map(|line| line.split([' ', ',', '{', '}', ';', ':'])).any(|name| name == item)
            || self.types.contains(item)
            || self.methods.contains(item)
            || self.variants.contains(item)
    }
}

fn type_of(line: &str) -> Option<String> {
    let rest = ["pub struct ", "pub enum ", "pub type "].iter().find_map(|kind| line.strip_prefix(kind))?;
    Some(rest.split(|char: char| !char.is_ascii_alphanumeric()).next().unwrap().to_owned())
}

/// The type in `impl<T> Type<T> {`, or in `impl Trait for Type`.
fn subject(of: &str) -> String {
    let of = of.rsplit(" for ").next().unwrap();
    let mut depth = 0;
    let named = of.chars().filter(|char| {
        depth += i32::from(*char == '<') - i32::from(*char == '>');
        depth == 0 && *char != '>'
    });
    let named: String = named.collect();
    named.trim().split(|char: char| !char.is_ascii_alphanumeric()).next().unwrap().to_owned()
}

fn method_of(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("    pub ")?;
    let rest = rest.strip_prefix("const ").unwrap_or(rest);
    let rest = rest.strip_prefix("async ").unwrap_or(rest).strip_prefix("fn ")?;
    rest.split(['<', '(']).next()
}

fn takes_and_returns_itself(signature: &str) -> bool {
    let Some((_, arguments)) = signature.split_once('(') else { return false };
    let arguments = arguments.trim_start();
    let by_value = arguments.starts_with("self") || arguments.starts_with("mut self");
    let head = signature.split(" {").next().unwrap();
    by_value && ["-> Self", "-> MemoryStore", "-> KeyValueBackend", "Result<Self"].iter().any(|it| head.contains(it))
}

/// The types whose settings are the interface for limits. Users do not set up the values that a custom limiter handles
/// (`Decision`, `Ask`, …).
const SET_UP: [&str; 28] = [
    "AdaptiveThrottle",
    "CalendarWindow",
    "ChargeOnce",
    "ClientIp",
    "Concurrency",
    "ConfigReader",
    "Exemptions",
    "FixedWindow",
    "KeyValueBackend",
    "LeakyQueue",
    "MemoryStore",
    "PacerLayer",
    "PeerIp",
    "Penalty",
    "Policy",
    "Quota",
    "RateLimitFields",
    "RateLimitLayerBuilder",
    "RedisBuilder",
    "SharedConcurrency",
    "RedisStore",
    "RemoteStore",
    "SharedQueue",
    "SlidingWindow",
    "SlowDown",
    "TokenBucket",
    "TrustedProxies",
    "WaitFields",
];

fn metrics(sources: &[(PathBuf, String)]) -> BTreeSet<String> {
    let texts = sources.iter().flat_map(|(_, text)| text.split('"'));
    texts.filter_map(|text| text.strip_prefix(PREFIX)).map(str::to_owned).collect()
}

/// Returns the table's mistakes.
fn mistakes(page: &str) -> Vec<String> {
    let rows = table(page);
    let sources = texts();
    let code = Code::read(&sources);
    let mut mistakes = Vec::new();
    let schema: Value = serde_json::from_str(&read("crates/config/src/schema.json")).unwrap();
    check_toml(&rows, &schema_keys(&schema), &code, &mut mistakes);
    check_code(&rows, &code, &mut mistakes);
    check_metrics(&rows, &metrics(&sources), &mut mistakes);
    check_deploy(&rows, &mut mistakes);
    mistakes
}

/// Every TOML key is in one row, and is its method in kebab-case unless the row says why not. This holds for words,
/// too.
fn check_toml(rows: &[Row], schema: &BTreeMap<String, Vec<String>>, code: &Code, mistakes: &mut Vec<String>) {
    for (key, words) in schema {
        let of_key: Vec<_> = rows.iter().filter(|row| row.toml.iter().any(|(it, _)| it == key)).collect();
        let [row] = of_key[..] else {
            mistakes.push(format!("`{key}` of TOML is in {} rows, and not in one", of_key.len()));
            continue;
        };
        for (_, value) in row.toml.iter().filter(|(it, _)| it == key) {
            let name = key.rsplit('.').next().unwrap();
            let name = value.as_ref().map_or_else(|| name.to_owned(), |value| format!("{name}-{value}"));
            let is_method = row.code.iter().any(|item| kebab(item.rsplit("::").next().unwrap()) == name);
            if !is_method && row.why.is_empty() {
                mistakes.push(format!(
                    "`{key}` of TOML is no method of {:?} in kebab-case, and no reason is given",
                    row.code
                ));
            }
        }
        for word in words {
            let is_value = row.toml.iter().any(|(_, value)| value.as_ref() == Some(word));
            let is_in_code = row.code.iter().any(|item| squashed(item) == squashed(word) || has_word(code, item, word));
            let is_excused = row.why.contains(&format!("`{word}`"));
            if !(is_value || is_in_code || is_excused) {
                mistakes
                    .push(format!("the word `{word}` of `{key}` is nothing of {:?}, and no reason is given", row.code));
            }
        }
    }
    for (key, _) in rows.iter().flat_map(|row| &row.toml) {
        if !schema.contains_key(key) {
            mistakes.push(format!("TOML has no key `{key}`"));
        }
    }
}

/// Whether a type has a variant or a function with that name.
fn has_word(code: &Code, item: &str, word: &str) -> bool {
    let items = code.variants.iter().chain(&code.methods);
    items.filter_map(|it| it.strip_prefix(item)?.strip_prefix("::")).any(|it| squashed(it) == squashed(word))
}

fn kebab(name: &str) -> String {
    name.replace('_', "-")
}

fn squashed(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase()
}

/// Every item in the table is in the source, and every setting in the source is in one row.
fn check_code(rows: &[Row], code: &Code, mistakes: &mut Vec<String>) {
    for item in rows.iter().flat_map(|row| &row.code).filter(|item| !code.has(item)) {
        mistakes.push(format!("the source has no `{item}`"));
    }
    // These turn a builder into something else, or are `burst` with an error.
    let others = ["build", "try_build", "try_burst", "open", "parse"];
    for setting in &code.settings {
        let (of, method) = setting.split_once("::").unwrap();
        if !SET_UP.contains(&of) || others.contains(&method) {
            continue;
        }
        let count = rows.iter().filter(|row| row.code.contains(setting)).count();
        if count != 1 {
            mistakes.push(format!("the setting `{setting}` is in {count} rows, and not in one"));
        }
    }
}

/// Every metric is in one row, and the table has no other; every label and every field is in the source.
fn check_metrics(rows: &[Row], metrics: &BTreeSet<String>, mistakes: &mut Vec<String>) {
    let cells = || rows.iter().flat_map(|row| &row.metric);
    for metric in metrics {
        let count = cells().filter(|it| *it == metric).count();
        if count != usize::from(metric != "requests") {
            mistakes.push(format!("the metric `{metric}` is in {count} rows, and not in one"));
        }
    }
    let series = ["labels", "series", "observed"];
    let series = series.map(|file| read(format!("src/engine/policy/metrics/{file}.rs"))).concat();
    let outgoing = read("crates/client/src/pacer/meter/mod.rs");
    let series = series + &read("crates/client/src/pacer/meter/series.rs");
    let log = log_lines();
    let results: BTreeSet<_> = results(&series).chain(results_of_calls(&outgoing)).collect();
    for result in &results {
        if !cells().any(|cell| *cell == format!("result=\"{result}\"")) {
            mistakes.push(format!("the result `{result}` is in no row"));
        }
    }
    for cell in cells() {
        let is_known = if let Some(field) = cell.strip_prefix("log: ") {
            log.contains(&format!(" {field} ")) || log.contains(&format!(" {field},"))
        } else if let Some(label) = cell.strip_prefix('{').and_then(|label| label.strip_suffix('}')) {
            series.contains(&format!("\"{label}\""))
        } else if let Some(result) = cell.strip_prefix("result=\"").and_then(|result| result.strip_suffix('"')) {
            results.contains(result)
        } else {
            metrics.contains(cell)
        };
        if !is_known {
            mistakes.push(format!("no metric, label or field is `{cell}`"));
        }
    }
}

/// The label `result`'s values: the names of `Fate`'s variants.
fn results(series: &str) -> impl Iterator<Item = &str> {
    let body = series.split("enum Fate").nth(1).unwrap().split("\n    }\n").next().unwrap();
    body.split('"').skip(1).step_by(2)
}

/// The label's values for outgoing calls: the names of `CallResult`'s variants.
fn results_of_calls(meter: &str) -> impl Iterator<Item = &str> {
    let body = meter.split("fn as_str").nth(1).unwrap().split("\n    }\n").next().unwrap();
    body.split('"').skip(1).step_by(2)
}

/// The dashboard and the alerts query only exported series.
fn check_deploy(rows: &[Row], mistakes: &mut Vec<String>) {
    let known: BTreeSet<_> = rows.iter().flat_map(|row| &row.metric).map(|cell| cell.replace('.', "_")).collect();
    for file in ["alerts.yml", "alerts_test.yml", "dashboard.json", "check.py"] {
        let text = read(format!("deploy/{file}"));
        for name in text.split("tower_sluice_rate_limiting_").skip(1) {
            let name = name.split(|char: char| !char.is_ascii_lowercase() && char != '_').next().unwrap();
            let suffixes = ["_seconds_bucket", "_seconds_count", "_seconds_sum", "_total", "_seconds"];
            let name = suffixes.iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
            if !(name.is_empty() || name == "requests" || known.contains(name)) {
                mistakes.push(format!("deploy/{file} queries `{name}`, which is in no row"));
            }
        }
        let results = text.replace('\\', "").replace("result=~\"", "result=\"");
        for words in results.split("result=\"").skip(1).map(|rest| rest.split('"').next().unwrap()) {
            for word in words.split('|').filter(|word| !["ok", "{results}", ""].contains(word)) {
                if !known.contains(&format!("result=\"{word}\"")) {
                    mistakes.push(format!("deploy/{file} has the result `{word}`, which is in no row"));
                }
            }
        }
    }
}

#[test]
fn the_vocabulary_matches_the_interface() {
    let mistakes = mistakes(&read(PAGE));
    assert!(mistakes.is_empty(), "{PAGE}:\n{}", mistakes.join("\n"));
}

/// Each wrong row is found.
#[test]
fn a_wrong_row_is_found() {
    let page = read(PAGE);
    for (right, wrong, found) in [
        ("`policy.on-failure`", "`policy.on-error`", "`policy.on-failure` of TOML is in 0 rows"),
        ("`policy.on-failure`", "`policy.on-error`", "TOML has no key `policy.on-error`"),
        ("`Policy::charge_when`", "`Policy::when`", "`policy.charge-when` of TOML is no method"),
        ("`Policy::charge_when`", "`Policy::charge_if`", "the source has no `Policy::charge_if`"),
        ("`Policy::charge_when`", "", "the setting `Policy::charge_when` is in 0 rows"),
        ("`Policy::cost`, ", "`Policy::cost`, `Policy::when`, ", "the setting `Policy::when` is in 2 rows"),
        ("`FailureMode`, ", "", "the word `local-fallback` of `policy.on-failure`"),
        (" the arguments of `new` |", " |", "`penalty.rejections` of TOML is no method"),
        ("`policy.settle-by = handler`", "`policy.settle-by = end`", "`policy.settle-by` of TOML is no method"),
        ("`store.breaker`", "`store.circuit`", "the metric `store.breaker` is in 0 rows"),
        ("`store.breaker`", "`store.circuit`", "no metric, label or field is `store.circuit`"),
        ("`result=\"rejected\"`", "", "the result `rejected` is in no row"),
        ("`log: delay`", "`log: wait`", "no metric, label or field is `log: wait`"),
        ("`limiter_failures`", "", "deploy/alerts.yml queries `limiter_failures`"),
    ] {
        assert!(page.contains(right), "{right}");
        let mistakes = mistakes(&page.replace(right, wrong));
        assert!(mistakes.iter().any(|mistake| mistake.contains(found)), "{right} → {wrong}: {mistakes:#?}");
    }
}
